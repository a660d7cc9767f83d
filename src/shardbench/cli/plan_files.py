"""Files of plans: the user's own, to compare the best one with, and those of a race, with the suite that runs them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardbench.advice.best_plan import Candidate
from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash, from_json, to_toml
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.sharding_plan import ShardedModules, check_sizes, plan_of, read_sharding_plan
from shardbench.model.table import Table
from shardbench.records.trial import TRAINING

PlanOf = Callable[[Sequence[Table], int], Plan]
"""Gives the plan for some tables and a number of devices; raises BadInput where it is for others."""
SETTINGS = {"backends": ["measured"], "race_s": 300, "repeats": 20, "iterations": 10, "warmup": 2}


def read_plan(path: Path) -> PlanOf:
    """Read a plan's JSON, an exported one's, or TorchRec's sharding plan, as JSON or as its planner prints it.

    Raises BadInput that names the first wrong field.
    """
    text, what = path.read_bytes(), f"plan {path}"
    # The statistics that TorchRec's planner prints are no JSON.
    fields = from_json(dict[str, Any], text, what) if text.lstrip()[:1] in (b"{", b"") else {}
    plan: Plan | None = None
    modules: ShardedModules = {}
    if "segments" in fields:
        plan = Plan.from_json(text, what)
    elif "devices_per_node" in fields:
        from shardbench.torchrec import Exported  # noqa: PLC0415

        plan = Exported.from_json(text, what).plan()
    else:
        modules = read_sharding_plan(text, what)

    def plan_for(tables: Sequence[Table], world_size: int) -> Plan:
        try:
            users_plan = plan if plan is not None else plan_of(modules, tables, world_size)
            check_sizes(users_plan, tables, world_size)
        except BadInput as error:
            raise BadInput(f"{what}: {error}") from error
        return users_plan

    return plan_for


def write_race(
    folder: Path, problem: Problem, candidates: Sequence[Candidate], workload: Mapping[str, Any], machine: str
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
