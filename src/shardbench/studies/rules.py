"""How often each rule of the ledger would say yes where there is no effect: its false-positive rate, simulated.

Numbers are drawn without the effect and with the study's own spread, and judged by the very rule: around no effect for
a direction and for a magnitude, at the margin for "not worse", where a loss begins to count. A rule that says yes in
more than ALLOWED of the draws is none.
"""

from collections.abc import Sequence

import numpy as np

from shardbench.base.arrays import Bools, Floats
from shardbench.base.statistics import t_quantile
from shardbench.studies.claim import Claim, NumberKind, Relation
from shardbench.studies.verdict import REPRODUCED_FROM

ALLOWED = 0.05
DRAWS = 20_000
RESAMPLED_FROM = 20
"""Numbers from which their own deviations are drawn; fewer say too little of their law, and the normal one is taken."""
COLUMNS = (
    "paper", "claim", "kind", "rule", "n", "n_unit", "drawn_from", "spread", "false_direction", "false_magnitude",
    "draws",
)  # fmt: skip


def rule_row(claim: Claim, numbers: Sequence[float]) -> dict[str, object]:
    """Return a claim's line of the table; a rate is None where its rule asks no such thing, or nothing was drawn."""
    n = len(numbers)
    logs = claim.scale is not NumberKind.DIFFERENCE
    observations = np.log(numbers) if logs else np.asarray(numbers, dtype=np.float64)
    resampled = claim.sample and n >= RESAMPLED_FROM
    row: dict[str, object] = {
        "claim": claim.name,
        "kind": claim.kind.value,
        "rule": rule(claim),
        "n": n,
        "n_unit": claim.n_unit,
        "drawn_from": "",
        "spread": None,
        "false_direction": None,
        "false_magnitude": None,
        "draws": 0,
    }
    if n < 2:  # nothing of one number is ever reproduced or consistent
        return row
    spread = float(observations.std(ddof=1))
    rng = np.random.default_rng(0)
    residuals = observations - observations.mean()
    noise = rng.choice(residuals, (DRAWS, n)) if resampled else rng.normal(0.0, spread, (DRAWS, n))
    row |= {"drawn_from": "own deviations" if resampled else "normal law", "spread": spread, "draws": DRAWS}
    if claim.neutral is not None and claim.has_direction:
        at = _place(claim, claim.neutral)
        side = (at, np.inf) if claim.up else (-np.inf, at)
        row["false_direction"] = float(_yes(at + noise, side, sample=claim.sample).mean())
    # Where no number is without effect, the rule is asked at the least that it allows.
    edge = claim.limits()[0] if claim.neutral is None else claim.neutral
    if claim.relation is Relation.NOT_WORSE and claim.margin is not None:
        edge = -claim.margin if claim.better == "higher" else claim.margin
    if claim.relation is not Relation.DIRECTION:
        least, most = (_place(claim, end) for end in claim.limits())
        draws = _place(claim, edge) + noise
        asked = "false_magnitude" if claim.paper is not None else "false_direction"
        row[asked] = float(_yes(draws, (least, most), sample=claim.sample).mean())
    return row


def rule(claim: Claim) -> str:
    """Say by which rule a claim is judged."""
    if not claim.sample:
        return f"all of at least {REPRODUCED_FROM} conditions"
    return "whole 95 % interval by Student's t"


def _place(claim: Claim, number: float) -> float:
    """Return where the number lies whose print is ``number``, or its logarithm where numbers are ratios."""
    if claim.scale is NumberKind.DIFFERENCE or np.isinf(number):
        return number
    if claim.scale is NumberKind.SAVING:
        ratio = 1.0 / (1.0 - number / 100.0)
    else:
        ratio = number if claim.scale is NumberKind.RATIO else 1.0 + number / 100.0
    return float(np.log(ratio))


def _yes(draws: Floats, limits: tuple[float, float], *, sample: bool) -> Bools:
    """Tell for every draw [draws, n] whether all that is known lies within ``limits``: reproduced, or consistent."""
    n = draws.shape[1]
    if sample:
        middle, spread = draws.mean(axis=1), draws.std(axis=1, ddof=1)
        reach = t_quantile(0.975, n - 1) * spread / np.sqrt(n)
        low, high = middle - reach, middle + reach
    else:
        low, high = draws.min(axis=1), draws.max(axis=1)
    return np.asarray((low >= limits[0]) & (high <= limits[1]) & (sample or n >= REPRODUCED_FROM))
