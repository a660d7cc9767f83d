"""Studies of RecShard: draws of whole models, small samples, models in small, planning, statistics, hashing."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.datasets.criteo_like import CONFIG as CRITEO_LIKE
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.studies.study import Cell, Row, Study, Tables, grid
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import RulesOnly, answer_of
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads import hash_ids

from .region import REGION
from .scaled import (
    GREEDIES,
    QUARTER,
    QUARTER_SCALE,
    RECSHARD,
    SAMPLES,
    SMALL_SAMPLES,
    UNSEEN,
    RmCondition,
    ask,
    metrics,
    never_touched_pct,
    plan_metrics,
    ratio_table,
    summary,
)

FORMS = ("rm1", "rm2", "rm3")
CONSTRAINED = ("rm2", "rm3")
"""Models larger than the HBM of all devices."""
PAIRINGS = (0, 1, 2, 3, 4, 5)
"""Draws of the features, the independent units; 0 is the suite's. Six: one takes minutes."""
HBM = {"machine": 1.0, "quarter": 0.25}
"""Multiples of the machine's HBM. With all of it the rows that the profile saw fit; with a quarter they do not."""
STRATEGIES = (*GREEDIES, RECSHARD, UNSEEN)
COLUMNS = ("strategy", "backend", "slowest_ms", "mean_ms", "std_ms", "cv", "off_hbm_lookups", "off_hbm_lookups_pct")
ABLATIONS = ("recshard-cdf", "recshard-cdf-coverage", "recshard-cdf-pooling", RECSHARD, UNSEEN)
SEEDS = (0, 1, 2)
"""Draws of the features, or seeds of the search."""
PLAN_S = 20.0
"""Seconds of planning: a program that knows few of the statistics can use up any budget, without a better plan."""


def rows_of(question: CountedQuestion) -> list[Row]:
    """Return the rows of RecShard, its variant and the greedies on one question."""
    answers = ((name, ask(question, name)) for name in STRATEGIES)
    never = never_touched_pct(question.problem)
    return [
        {
            "strategy": name,
            **metrics(answer.judged),
            **plan_metrics(answer, question.problem),
            "never_touched_pct": never,
        }
        for name, answer in answers
    ]


def _models(quick: bool) -> list[Cell]:
    """List one cell for each model, HBM and draw of features; cells of the same lookups follow one another."""
    forms, pairings = (("rm2",), PAIRINGS[:1]) if quick else (FORMS, PAIRINGS)
    return [
        {"workload": form, "hbm": hbm, "features_seed": pairing}
        for form in forms
        for pairing in pairings
        for hbm in (HBM if form in CONSTRAINED else ("machine",))
    ]


def _ask_all(_: Path, workload: str, hbm: str, features_seed: int, samples: int = SAMPLES) -> list[Row]:
    """Ask all strategies on the same problem and test batches."""
    return rows_of(RmCondition(form=workload, draw=features_seed, hbm=HBM[hbm], samples=samples).question())


def _tables(name: str, rows: pd.DataFrame) -> Tables:
    """Return all rows, and the ratios by model."""
    return {name: rows, f"{name}_ratios": ratio_table(rows, ("workload", "hbm"))}


FEATURE_DRAWS = Study(
    name="draws",
    title="RecShard and the greedies on models whose features are paired in several ways, profiled over 105 M samples. "
    "Models that HBM cannot hold are placed also on devices with a quarter of it, where not even the seen rows fit.",
    version=3,
    cells=_models,
    judge=_ask_all,
    summary=partial(_tables, "draws"),
    uses=STRATEGIES,
    columns=COLUMNS,
)
SMALL_SAMPLES_STUDY = replace(
    FEATURE_DRAWS,
    name="small-samples",
    title="The study `draws` with a hundredth of the samples: many rows that will be looked up were never seen.",
    version=1,
    # These samples' seen rows do not fill all of the machine's HBM by far.
    cells=lambda quick: [cell for cell in _models(quick) if cell["hbm"] == "machine"],
    judge=partial(_ask_all, samples=SMALL_SAMPLES),
    summary=partial(_tables, "small-samples"),
)
SCALING = Study(
    name="scaling",
    title="One model, one draw, a small sample, at full size and below: is a model in small like the whole?",
    # A quick run leaves the full size out.
    cells=lambda quick: [
        {"workload": "rm2", "smaller": times} for times in (1, 64, 256, 512, 1024)[1 if quick else 0 :]
    ],
    judge=lambda _, workload, smaller: rows_of(
        RmCondition(form=workload, samples=SMALL_SAMPLES, row_scale=1.0 / smaller).question()
    ),
    uses=STRATEGIES,
    columns=("strategy", "backend", "slowest_ms", "std_ms", "off_hbm_lookups_pct", "never_touched_pct"),
)


def _solve_cells(quick: bool) -> list[Cell]:
    """List one cell for each model, HBM and seed of the search; a quick run has no time to profile a whole model."""
    return [] if quick else grid(workload=FORMS, hbm=("machine", "half of the seen rows"), seed=SEEDS)


@lru_cache(maxsize=1)
def _problem(workload: str) -> Problem:
    """Return a model's problem, which consecutive cells share: profiling 397 tables takes a minute."""
    return RmCondition(form=workload, row_scale=1.0, samples=SMALL_SAMPLES).question().problem


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
    "of the suite the seen rows of rm1 to rm3 fit HBM many times over; beside it stands half as much HBM as they take.",
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


def _quarters(quick: bool) -> list[Cell]:
    """List one cell for each model, draw of features and HBM; cells of the same lookups follow one another."""
    forms, seeds = (("rm2",), SEEDS[:1]) if quick else (CONSTRAINED, SEEDS)
    return [{"workload": form, "hbm": hbm, "features_seed": seed} for form in forms for seed in seeds for hbm in HBM]


def _with_fewer(_: Path, workload: str, hbm: str, features_seed: int) -> list[Row]:
    """Ask all variants on the same problem, and the greedies, whose best sets the scale."""
    question = RmCondition(
        form=workload, draw=features_seed, parts=QUARTER, row_scale=QUARTER_SCALE, hbm=HBM[hbm]
    ).question()
    best = min(float(ask(question, name).judged.embedding_ms.max()) for name in GREEDIES)
    answers = ((name, ask(question, name, PLAN_S)) for name in ABLATIONS)
    return [
        {
            "strategy": name,
            **metrics(answer.judged),
            "over_best_greedy_x": best / float(answer.judged.embedding_ms.max()),
            "gap_pct": float(answer.plan.notes["gap_pct"]),
            "status": answer.plan.notes["status"],
        }
        for name, answer in answers
    ]


def _ablation_tables(rows: pd.DataFrame) -> Tables:
    """Return all rows, and their mean, least and most over draws of the features by model, HBM and variant."""
    metrics = ("slowest_ms", "over_best_greedy_x", "off_hbm_lookups_pct")
    return {"ablation": rows, "ablation_summary": summary(rows, ("workload", "hbm", "strategy"), metrics)}


ABLATION = Study(
    name="ablation",
    title="RecShard with fewer statistics, on a quarter of rm2 and rm3: simulated embedding time of the slowest "
    "device.",
    version=4,
    cells=_quarters,
    judge=_with_fewer,
    summary=_ablation_tables,
    uses=(*GREEDIES, *ABLATIONS),
    columns=("strategy", "backend", "slowest_ms", "mean_ms", "std_ms", "max_over_mean", "over_best_greedy_x"),
)


def _hash_public(_: Path, values_a_row: float) -> list[Row]:
    """Hash the values of each column of Criteo Kaggle into so many rows for each; one row a column.

    The values are numbered, as the public logs' preprocessing does; a hash knows nothing of what they mean.
    """
    columns = CRITEO_LIKE.model_validate({"form": "kaggle"}).build(Path()).tables
    rows = [max(1, round(column.rows / values_a_row)) for column in columns]
    used = [
        len(np.unique(hash_ids(np.arange(column.rows), table=column.name, rows=n))) for column, n in zip(columns, rows)
    ]
    return [
        {"table": column.name, "values": column.rows, "rows": n, "never_touched_pct": 100.0 * (1.0 - touched / n)}
        for column, n, touched in zip(columns, rows, used)
    ]


HASHING = Study(
    name="hashing",
    title="Rows that no value is hashed to, where the values of Criteo Kaggle's 26 columns are hashed into tables of "
    "fewer rows, as many, and more.",
    cells=lambda quick: grid(values_a_row=[1.0] if quick else [4.0, 1.0, 0.25]),
    judge=_hash_public,
    backend="counted",
    columns=("table", "backend", "values", "rows", "never_touched_pct"),
)


def studies() -> Sequence[Study]:
    """Return all studies of RecShard in the order that they run."""
    return (FEATURE_DRAWS, REGION, SMALL_SAMPLES_STUDY, SCALING, ABLATION, HASHING, SOLVE)
