"""The numbers behind RecShard's claims: models that HBM cannot hold, several draws of their features."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.studies.claim import Evidence

from .scaled import DRAW, GREEDIES, RECSHARD, geometric_mean, ratios_of
from .studies import CONSTRAINED

CLAIMS = {
    "throughput-stand-in": "throughput",
    "balance-stand-in": "balance",
    "balance-stand-in-cv": "balance_cv",
    "slow-accesses-stand-in": "slow_accesses",
}
"""The ratio that each claim is about."""
MANY_VALUES = 1_000
"""Values of a column whose table somebody would hash."""
OVER_EACH = frozenset(CLAIMS) - {"balance-stand-in-cv"}
"""Claims that are also given against every greedy, not the best alone."""


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Return ratios of the greedies to RecShard, one a draw of the features: the geometric mean over the models.

    A draw's two models have the same features in tables of other sizes, and all greedies meet the
    same tables, so that a draw is what is independent.
    """
    claims: dict[str, list[float]] = {}
    early = _constrained(evidence.tables.get("small-samples"))
    if len(early):
        ratios = ratios_of(early, ("workload", DRAW), RECSHARD)
        claims |= {f"{claim}-small-sample": _by_draw(ratios[CLAIMS[claim]]) for claim in OVER_EACH}
    hashing = evidence.tables.get("hashing")
    if hashing is not None:
        equal = hashing[(hashing["values_a_row"] == 1.0) & (hashing["values"] >= MANY_VALUES)]
        claims["hash-under-use-public"] = equal["never_touched_pct"].tolist()
    rows = _constrained(evidence.tables.get("draws"))
    if not len(rows):
        return claims
    machine, quarter = (rows[rows["hbm"] == hbm] for hbm in ("machine", "quarter"))
    best, short = (ratios_of(part, ("workload", DRAW), RECSHARD) for part in (machine, quarter))
    each = pd.concat([ratios_of(machine, ("workload", DRAW), RECSHARD, (name,)) for name in GREEDIES])
    for claim, ratio in CLAIMS.items():
        claims[claim] = _by_draw(best[ratio])
        claims[f"{claim}-quarter"] = _by_draw(short[ratio])
        if claim in OVER_EACH:
            claims[f"{claim}-each"] = _by_draw(each[ratio])
    own = machine[machine["strategy"] == RECSHARD]
    claims["optimal-stand-in"] = own.groupby(DRAW)["gap_pct"].mean().tolist()
    claims["hash-under-use-stand-in"] = own.groupby(DRAW)["never_touched_pct"].mean().tolist()
    return claims


def _constrained(rows: pd.DataFrame | None) -> pd.DataFrame:
    """Select the models that HBM cannot hold; no rows where the study did not run."""
    return pd.DataFrame() if rows is None or rows.empty else rows[rows["workload"].isin(CONSTRAINED)]


def _by_draw(ratios: pd.Series) -> list[float]:
    return [geometric_mean(part) for _, part in ratios.groupby(level=DRAW)]
