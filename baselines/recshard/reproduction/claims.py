"""The numbers behind RecShard's claims: full models that HBM cannot hold, several draws of their features."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from shardbench.studies.claim import Evidence

from .ratios import DRAW, ratios_of
from .scaled import GREEDIES, RECSHARD

CONSTRAINED = ("rm2", "rm3")
"""Models larger than the HBM of all devices."""
CLAIMS = {"throughput": "throughput", "balance": "balance", "slow-accesses": "off_hbm"}
"""Claim -> ratio."""


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Ratios of the greedies to RecShard, one a draw of the features: the mean over the models.

    A draw's two models have the same features in tables of other sizes, and all greedies meet the
    same tables, so that a draw is what is independent. A ratio to zero is left out.
    """
    rows = evidence.tables.get("draws")
    if rows is None or rows.empty:
        return {}
    rows = rows[rows["workload"].isin(CONSTRAINED)]
    keys = ("workload", DRAW)
    best = ratios_of(rows, keys, RECSHARD)
    each = pd.concat([ratios_of(rows, keys, RECSHARD, (name,)) for name in GREEDIES])
    found: dict[str, list[float]] = {}
    for claim, ratio in CLAIMS.items():
        for name, ratios in ((claim, best), (f"{claim}-each", each)):
            numbers = ratios[ratio].groupby(level=DRAW).mean().to_numpy()
            found[name] = numbers[np.isfinite(numbers)].tolist()
    return found
