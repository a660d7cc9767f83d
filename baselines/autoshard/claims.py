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
    table = evidence.tables.get("table")
    if table is not None:
        test = table[table["split"] == "test"]
        costs = test.pivot_table(index="task", columns="strategy", values="kernel_ms_mean").dropna(subset=[OURS])
        best = costs[[name for name in GREEDIES if name in costs.columns]].min(axis=1)
        found["beats-heuristics"] = _pct(best / costs[OURS])
        if UNTRAINED in costs.columns:
            found["learning-helps"] = _pct(costs[UNTRAINED] / costs[OURS])
    transfer = evidence.tables.get("transfer")
    if transfer is not None:
        other = transfer[transfer["used_on"] != transfer["trained_on"]]
        found["transfers"] = _pct(other["greedy_lookup_ms"] / other["kernel_ms"])
    placing = evidence.tables.get("placing")
    if placing is not None:
        found["seconds"] = placing[placing["tables"] >= HUNDREDS]["plan_cpu_s_median"].tolist()
    return found


def _pct(ratios: "pd.Series[float]") -> list[float]:
    return [100.0 * (float(ratio) - 1.0) for ratio in ratios.dropna()]
