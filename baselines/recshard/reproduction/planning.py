"""A study of RecShard's planning of the whole of rm1 to rm3: how long it takes, and how near the bound it gets."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.studies.study import Cell, Row, Study
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import RulesOnly, answer_of

from .draws import FORMS
from .production_like import SIZES_GIB, production_like
from .scaled import RECSHARD, SMALL_SAMPLES, RmCondition

SEEDS = (0, 1, 2)
"""Seeds of the search."""
MADE_UP = "made-up-"


@lru_cache(maxsize=1)
def _problem(workload: str) -> Problem:
    """Return a model's problem, which consecutive cells share: profiling 397 tables takes a minute."""
    if workload.startswith(MADE_UP):
        return production_like(float(workload.removeprefix(MADE_UP)))
    return RmCondition(form=workload, row_scale=1.0, samples=SMALL_SAMPLES).question().problem


def _solve_cells(quick: bool) -> list[Cell]:
    """List one cell for each model, HBM and seed of the search; cells of one model follow one another."""
    if quick:
        return [{"workload": f"{MADE_UP}{SIZES_GIB[0]}", "hbm": "machine", "seed": 0}]
    models = [(form, hbm) for form in FORMS for hbm in ("machine", "half of the seen rows")]
    models += [(f"{MADE_UP}{size}", "machine") for size in SIZES_GIB]
    return [{"workload": name, "hbm": hbm, "seed": seed} for name, hbm in models for seed in SEEDS]


def _plan(_: Path, workload: str, hbm: str, seed: int) -> Row:
    """Return wall and CPU seconds of planning, the plan's own estimate, its bound and their gap."""
    problem = _problem(workload)
    pairs = zip(problem.profiles, problem.tables, strict=True)
    seen = sum(profile.seen_rows * (problem.weight_bytes(table) // table.rows) for profile, table in pairs)
    if hbm != "machine":
        topology = replace(problem.topology, hbm_bytes=seen // 2 // problem.world_size)
        problem = replace(problem, machine=replace(problem.machine, topology=topology), topology=topology)
    answer = answer_of(RulesOnly(problem), get_strategy(RECSHARD), Budget(plan_s=60.0), seed)
    names = ("predicted_slowest_ms", "proven_bound_ms", "gap_pct", "status", "expected_hbm_share")
    return {
        "plan_wall_s": answer.spent.plan_s,
        "plan_cpu_s": answer.spent.plan_cpu_s,
        "seen_rows_gib": seen / 2**30,
        "hbm_total_gib": problem.world_size * problem.topology.hbm_bytes / 2**30,
        "segments": answer.planned.segments,
        **{name: answer.plan.notes[name] for name in names},
    }


SOLVE = Study(
    name="solve",
    title="Time to a plan of 397 tables on 16 devices, and the gap to the bound that is proven with it. On the machine "
    "of the suite the seen rows of rm1 to rm3 fit HBM many times over. So there are two kinds of cells in which they "
    "do not: half as much HBM as the seen rows take, and made-up models profiled over a hundred times as many samples.",
    version=2,
    cells=_solve_cells,
    judge=_plan,
    backend="measured",
    exclusive=True,
    columns=(
        "seen_rows_gib", "hbm_total_gib", "backend", "plan_wall_s", "plan_cpu_s", "gap_pct", "status",
        "predicted_slowest_ms", "proven_bound_ms", "expected_hbm_share",
    ),
)  # fmt: skip
