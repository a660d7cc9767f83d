"""The numbers behind AutoShard's claims, out of its studies' tables."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.studies.claim import Evidence

GREEDIES = ("greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup")
OURS, UNTRAINED = "autoshard", "autoshard-untrained"
HUNDREDS = 400


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """One number a row, a pair of rows or a size."""
    found: dict[str, list[float]] = {}
    own, equal = evidence.tables.get("table"), evidence.tables.get("equal")
    contests = [_kernel_ms(table) for table in (own, equal) if table is not None]
    if contests:
        found["beats-heuristics"] = [
            gain for ms in contests for gain in _numbers(ms[_known(ms, GREEDIES)].min(axis=1) / ms[OURS])
        ]
    if own is not None and UNTRAINED in (ms := _kernel_ms(own)).columns:
        found["learning-helps"] = _numbers(ms[UNTRAINED] / ms[OURS])
    transfer = evidence.tables.get("transfer")
    if transfer is not None:
        tests, own_row = transfer["task_set"] == "test", transfer["used_on"] == transfer["trained_on"]
        found["transfers"] = _numbers(_ratios(transfer[tests & ~own_row]))
        found["unseen-tables"] = _numbers(_ratios(transfer[~tests & (transfer["unseen_tables_pct"] > 0.0)]))
    placing = evidence.tables.get("placing")
    if placing is not None:
        found["seconds"] = placing[placing["tables"] >= HUNDREDS]["plan_cpu_s_median"].tolist()
    return found


def _kernel_ms(table: pd.DataFrame) -> pd.DataFrame:
    """Mean kernel time on test tasks, a row a task and a column a strategy; tasks without AutoShard are left out."""
    test = table[table["split"] == "test"]
    return test.pivot_table(index="task", columns="strategy", values="kernel_ms_mean").dropna(subset=[OURS])


def _ratios(transfer: pd.DataFrame) -> "pd.Series[float]":
    """Best greedy over AutoShard: one number a pair of rows and share of unseen tables, in the mean over seeds."""
    means = transfer.groupby(["trained_on", "used_on", "unseen_tables_pct"])[["best_greedy_ms", "kernel_ms"]].mean()
    return means["best_greedy_ms"] / means["kernel_ms"]


def _known(costs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in costs.columns]


def _numbers(ratios: "pd.Series[float]") -> list[float]:
    return [float(ratio) for ratio in ratios.dropna()]
