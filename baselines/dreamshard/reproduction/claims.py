"""The numbers behind DreamShard's claims, out of its studies' tables."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.studies.claim import Evidence

GREEDIES = ("greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup")
OURS, UNTRAINED, ALONE = "dreamshard", "dreamshard-untrained", "greedy-cost"


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """One number a row of the tables; the largest margin is one number."""
    found: dict[str, list[float]] = {}
    equal, mixed = evidence.tables.get("table"), evidence.tables.get("mixed")
    if equal is not None:
        test, train = _costs(equal, "test"), _costs(equal, "train")
        found["gain-over-random"] = _gain(test, "shuffle")
        found["margin-equal-widths"] = _margin(test)
        found["rows-ahead"] = [100.0 if margin > 1.0 else 0.0 for margin in _margin(test)]
        both = zip(_gain(test, "shuffle"), _gain(train, "shuffle"), strict=True)
        found["generalises"] = [(on_test - 1.0) / (on_train - 1.0) for on_test, on_train in both]
        found["learning-helps"] = _gain(test, UNTRAINED)
        found["beats-greedy-cost"] = _gain(test, ALONE)
    if mixed is not None:
        test = _costs(mixed, "test")
        found["margin-mixed-widths"] = _margin(test)
        found["largest-margin"] = [max(_margin(test))] if _margin(test) else []
        found["learning-helps"] = [*found.get("learning-helps", []), *_gain(test, UNTRAINED)]
        found["beats-greedy-cost"] = [*found.get("beats-greedy-cost", []), *_gain(test, ALONE)]
    return found


def _costs(table: pd.DataFrame, split: str) -> pd.DataFrame:
    """Mean cost, a row a task and a column a strategy; rows without DreamShard are left out."""
    part = table[table["split"] == split].pivot_table(index="task", columns="strategy", values="cost_ms_mean")
    return part.dropna(subset=[OURS]) if OURS in part.columns else part.iloc[:0]


def _gain(costs: pd.DataFrame, over: str) -> list[float]:
    if over not in costs.columns:
        return []
    return [float(x) for x in (costs[over] / costs[OURS]).dropna()]


def _margin(costs: pd.DataFrame) -> list[float]:
    known = [name for name in GREEDIES if name in costs.columns]
    if not known:
        return []
    return [float(x) for x in (costs[known].min(axis=1) / costs[OURS]).dropna()]
