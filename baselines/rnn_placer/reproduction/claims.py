"""The numbers behind the RNN's claims, out of its study's table."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.studies.claim import Evidence

from .studies import AS_GIVEN, BY_COST, ROWS, SAMPLES

BEST = "best device"


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Give one ratio a row, or a row and order."""
    acting = evidence.tables.get("acting")
    if acting is None:
        return {}
    costs = acting.pivot_table(index=["task", "order"], columns="acting", values="cost_ms_mean")
    best = costs[BEST]
    in_given_order = acting[(acting["acting"] == BEST) & (acting["order"] == AS_GIVEN)].set_index("task")
    over_random = in_given_order["random_ms"] / in_given_order["cost_ms_mean"]
    devices = over_random.index.map(lambda task: ROWS[task].devices)
    order = best.unstack("order")
    return {
        "ahead-on-4-devices": _numbers(over_random[devices == 4]),
        "behind-on-8-devices": _numbers(over_random[devices == 8]),
        "order-decides": _numbers(order[AS_GIVEN] / order[BY_COST]),
        "more-than-its-order": _numbers(costs["dealt out"] / best),
        "samples-beat-chance": _numbers(
            costs[f"best of {SAMPLES} random placements"] / costs[f"best of {SAMPLES} samples"]
        ),
    }


def _numbers(ratios: "pd.Series[float]") -> list[float]:
    return [float(ratio) for ratio in ratios.dropna()]
