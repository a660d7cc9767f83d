"""The numbers behind the RNN's claims, out of its study's table."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.studies.claim import Evidence

from .studies import AS_GIVEN, BY_COST, SAMPLES

BEST = "best device"


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Give one ratio a row, or a row and order."""
    acting = evidence.tables.get("acting")
    if acting is None:
        return {}
    costs = acting.pivot_table(index=["task", "order"], columns="acting", values="cost_ms_mean")
    best = costs[BEST]
    order = best.unstack("order")
    return {
        "order-decides": _numbers(order[AS_GIVEN] / order[BY_COST]),
        "more-than-its-order": _numbers(costs["dealt out"] / best),
        "samples-beat-chance": _numbers(
            costs[f"best of {SAMPLES} random placements"] / costs[f"best of {SAMPLES} samples"]
        ),
    }


def _numbers(ratios: "pd.Series[float]") -> list[float]:
    return [float(ratio) for ratio in ratios.dropna()]
