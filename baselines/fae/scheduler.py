"""FAE's shuffle scheduler decides how many cold and hot mini-batches follow one another.

A rate of R % runs R % of the epoch's cold batches, then R % of its hot ones, and so on in turn;
100 % is one switch an epoch. The rate follows the test loss.
"""

import math
from dataclasses import dataclass, replace

from shardbench.base.errors import BadInput
from shardbench.model.plan import Phase, PhaseKind

START_RATE_PCT = 50.0  # deviation 4
LEAST_RATE_PCT = 1.0
MOST_RATE_PCT = 100.0
FALLS_TO_DOUBLE = 4


@dataclass(frozen=True, kw_only=True)
class RateRule:
    """The rate and its memory of the test losses; every check makes a new one."""

    rate_pct: float = START_RATE_PCT
    last_loss: float | None = None
    falls: int = 0
    """Falls in a row since the rate last changed."""

    def __post_init__(self) -> None:
        check_rate(self.rate_pct)

    def after(self, loss: float) -> "RateRule":
        """Return the rule after a check of the test loss: a rise halves the rate, the fourth fall in a row doubles it.

        An equal loss is neither: it ends a row of falls. Raises BadInput for a loss that is no number.
        """
        if not math.isfinite(loss):
            raise BadInput(f"the test loss is {loss}: training diverged, lower the learning rate")
        if self.last_loss is None or loss == self.last_loss:
            return replace(self, last_loss=loss, falls=0)
        if loss > self.last_loss:
            return RateRule(rate_pct=max(LEAST_RATE_PCT, self.rate_pct / 2.0), last_loss=loss)
        if self.falls + 1 < FALLS_TO_DOUBLE:
            return replace(self, last_loss=loss, falls=self.falls + 1)
        return RateRule(rate_pct=min(MOST_RATE_PCT, 2.0 * self.rate_pct), last_loss=loss)


def check_rate(rate_pct: float) -> None:
    """Raise BadInput for a rate, in percent, that is no number or lies outside its limits."""
    if not LEAST_RATE_PCT <= rate_pct <= MOST_RATE_PCT:
        raise BadInput(f"rate {rate_pct:g} % is not within {LEAST_RATE_PCT:g} and {MOST_RATE_PCT:g} %")


def turns(cold: int, hot: int, rate_pct: float) -> list[Phase]:
    """Return the phases of an epoch of ``cold`` and ``hot`` mini-batches at one rate, cold first; raises BadInput."""
    check_rate(rate_pct)
    if cold < 0 or hot < 0:
        raise BadInput(f"an epoch cannot have {cold} cold and {hot} hot mini-batches")
    if not cold or not hot:
        rate_pct = MOST_RATE_PCT  # nothing to take turns with
    phases: list[Phase] = []
    left = {PhaseKind.COLD: cold, PhaseKind.HOT: hot}
    while any(left.values()):
        for kind, total in ((PhaseKind.COLD, cold), (PhaseKind.HOT, hot)):
            batches = next_turn(total, left[kind], rate_pct)
            if batches:
                left[kind] -= batches
                phases.append(Phase(kind=kind, batches=batches))
    return phases


def next_turn(total: int, left: int, rate_pct: float) -> int:
    """Return the next phase's mini-batches: R % of the epoch's ``total`` of its kind, rounded up, or what is left."""
    return min(left, math.ceil(total * rate_pct / 100.0))
