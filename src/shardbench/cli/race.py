"""The part of ``plan`` that makes a race: files of plans, and a suite of measured trials that drops the slower ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardbench.base.atomic import write_atomically
from shardbench.base.serialise import content_hash, to_toml
from shardbench.model.problem import Problem
from shardbench.records.trial import TRAINING

if TYPE_CHECKING:
    from shardbench.advice.best_plan import Candidate

SETTINGS = {"backends": ["measured"], "race_s": 300, "repeats": 20, "iterations": 10, "warmup": 2}


def write_race(
    folder: Path, problem: Problem, candidates: "Sequence[Candidate]", workload: Mapping[str, Any], machine: str
) -> Path:
    """Write the plans as ``NAME.json``, and a suite that races them on ``machine``, a name or path; return its path.

    The suite has a name of its own for these plans, so that trials of others are none of its own. It states whole
    paths, and so runs from any folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Notes may say how long a search took, and are no part of what ranks run.
    plans = {str(folder.resolve() / f"{one.name}.json"): replace(one.plan, notes={}) for one in candidates}
    for path, plan in plans.items():
        write_atomically(Path(path), plan.to_json() + "\n")
    head: dict[str, Any] = {
        "name": f"race-{problem.name}-{problem.machine.name}-{content_hash(*plans.values())[:8]}",
        "description": f"{len(plans)} plans for {problem.name} on {problem.machine.name}, the slower ones less often",
    }
    grid: dict[str, Any] = {
        "machines": [str(Path(machine).resolve()) if machine.endswith(".toml") else machine],
        "strategies": list(plans),
        **SETTINGS,
        **{name: getattr(problem, name).value for name in TRAINING},
    }
    lines: list[str] = []
    for title, part in (("", head), ("\n[[workloads]]", workload), ("\n[[grids]]", grid)):
        lines += [title, *(f"{key} = {to_toml(value)}" for key, value in part.items())]
    suite = folder / "race.toml"
    write_atomically(suite, "\n".join(lines).lstrip() + "\n")
    return suite
