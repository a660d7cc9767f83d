"""The numbers behind the RNN's claims, out of its study's table."""

from collections.abc import Mapping, Sequence

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
    claims = {
        "order-decides": order[AS_GIVEN] / order[BY_COST],
        "more-than-its-order": costs["dealt out"] / best,
        "samples-beat-chance": costs[f"best of {SAMPLES} random placements"] / costs[f"best of {SAMPLES} samples"],
    }
    return {name: ratios.dropna().tolist() for name, ratios in claims.items()}
