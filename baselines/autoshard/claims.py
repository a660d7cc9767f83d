"""The numbers behind AutoShard's claims, out of its studies' tables."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.reproduction.claim import Evidence

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
            gain for ms in contests for gain in _pct(ms[_known(ms, GREEDIES)].min(axis=1) / ms[OURS])
        ]
        found["rows-ahead"] = [100.0 if gain > 0.0 else 0.0 for gain in found["beats-heuristics"]]
    if own is not None and UNTRAINED in (ms := _kernel_ms(own)).columns:
        found["learning-helps"] = _pct(ms[UNTRAINED] / ms[OURS])
    transfer = evidence.tables.get("transfer")
    if transfer is not None:
        other = transfer[(transfer["task_set"] == "test") & (transfer["used_on"] != transfer["trained_on"])]
        found["transfers"] = _pct(other["best_greedy_ms"] / other["kernel_ms"])
    placing = evidence.tables.get("placing")
    if placing is not None:
        found["seconds"] = placing[placing["tables"] >= HUNDREDS]["plan_cpu_s_median"].tolist()
    return found


def _kernel_ms(table: pd.DataFrame) -> pd.DataFrame:
    """Mean kernel time on test tasks, a row a task and a column a strategy; tasks without AutoShard are left out."""
    test = table[table["split"] == "test"]
    return test.pivot_table(index="task", columns="strategy", values="kernel_ms_mean").dropna(subset=[OURS])


def _known(costs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in costs.columns]


def _pct(ratios: "pd.Series[float]") -> list[float]:
    return [100.0 * (float(ratio) - 1.0) for ratio in ratios.dropna()]
