"""The numbers behind AutoShard's claims, out of its studies' tables."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats
from shardbench.studies.claim import Evidence
from shardbench.studies.contests.contest_tasks import best_of, ratios

from .studies import GREEDIES, OURS, UNTRAINED

HUNDREDS = 200
OWN_ROW = "Auto-80 (8)"


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Give one number a task, a row of tasks, a trained policy or a size."""
    claims: dict[str, list[float]] = {}
    own = evidence.tables.get("table_tasks")
    contests = [table for name in ("table", "equal") if (table := evidence.tables.get(name)) is not None]
    if contests:
        claims["beats-heuristics-rows"] = [over for table in contests for over in _rows_over_best(table)]
    if own is not None:
        row = _test(own)[_test(own)["task"] == OWN_ROW]
        claims["beats-heuristics"] = _over_best(row).tolist()
        claims["learning-helps"] = ratios(row, UNTRAINED, OURS).tolist()
    transfer = evidence.tables.get("transfer")
    if transfer is not None:
        tests, own_row = transfer["task_set"] == "test", transfer["used_on"] == transfer["trained_on"]
        sizes, shares = tests & ~own_row, ~tests & (transfer["unseen_tables_pct"] > 0.0)
        claims["transfers"] = _by_policy(transfer[sizes | shares])
        claims["transfers-other-sizes"] = _by_policy(transfer[sizes])
        claims["transfers-unseen-tables"] = _by_policy(transfer[shares])
    prediction = evidence.tables.get("prediction")
    if prediction is not None:
        tested = prediction[prediction["task"] == OWN_ROW]
        errors = tested.groupby("number")[["sum_error_pct", "network_error_pct"]].mean()
        claims["predicts"] = _numbers(errors["sum_error_pct"] / errors["network_error_pct"])
    placing = evidence.tables.get("placing")
    if placing is not None:
        claims["seconds"] = placing[placing["tables"] >= HUNDREDS]["plan_cpu_s_median"].tolist()
    return claims


def _test(tasks: pd.DataFrame) -> pd.DataFrame:
    return tasks[tasks["split"] == "test"]


def _over_best(row: pd.DataFrame) -> Floats:
    """Divide the best heuristic's kernel times by AutoShard's task by task; best in the mean; none without either."""
    best = best_of(row, GREEDIES)
    return ratios(row, best, OURS) if best is not None else np.zeros(0)


def _rows_over_best(table: pd.DataFrame) -> list[float]:
    """Divide the smallest mean kernel time of the heuristics by AutoShard's on test tasks, row by row of tasks."""
    means = _test(table).pivot_table(index="task", columns="strategy", values="kernel_ms_mean", sort=False)
    greedies = [name for name in GREEDIES if name in means]
    return _numbers(means[greedies].min(axis=1) / means[OURS]) if greedies and OURS in means else []


def _by_policy(transfer: pd.DataFrame) -> list[float]:
    """Divide the best greedy by AutoShard, geometric means over uses: one number a trained policy."""
    ratios = np.log(transfer["best_greedy_ms"] / transfer["kernel_ms"])
    means = ratios.groupby([transfer["trained_on"], transfer["seed"]], sort=False).mean()
    return [float(ratio) for ratio in np.exp(means).dropna()]


def _numbers(ratios: "pd.Series[float]") -> list[float]:
    return [float(ratio) for ratio in ratios.dropna()]
