"""A study of the worth of RecShard's statistics, and all its studies in their order."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.datasets.criteo_like import CONFIG as CRITEO_LIKE
from shardbench.studies.study import Cell, Row, Study, Tables, grid
from shardbench.workloads import hash_ids

from .draws import CONSTRAINED, FEATURE_DRAWS, HBM, SCALING, SMALL_SAMPLES_STUDY
from .planning import SOLVE
from .ratios import summary
from .region import REGION
from .scaled import GREEDIES, QUARTER, QUARTER_SCALE, RECSHARD, UNSEEN, RmCondition, ask, metrics

ABLATIONS = ("recshard-cdf", "recshard-cdf-coverage", "recshard-cdf-pooling", RECSHARD, UNSEEN)
SEEDS = (0, 1, 2)
"""Draws of the features."""
PLAN_S = 20.0
"""Seconds of planning: a program that knows few of the statistics can use up any budget, without a better plan."""


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
