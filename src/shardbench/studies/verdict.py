"""Verdicts on statements by our numbers: whether the direction holds, and whether the magnitude does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardbench.base.statistics import log_mean, t_mean
from shardbench.studies.claim import Claim, NumberKind, Relation

REPRODUCED_FROM = 5
"""Independent units below which nothing is called reproduced, and chosen conditions below which nothing is consistent.

Under no effect four conditions all point one way in 6 % of cases, five in 3 % (``rules``).
"""


class Finding(StrEnum):
    """One word for each of the two questions."""

    REPRODUCED = "reproduced"
    """The whole 95 % interval says so, of REPRODUCED_FROM or more independent units."""
    CONSISTENT = "consistent"
    """All that was seen says so: the interval of fewer units, or every one of REPRODUCED_FROM or more conditions."""
    PARTLY = "partly"
    """Some of the chosen conditions say so, and others do not."""
    TOO_FEW = "too few, all agree"
    """All of the chosen conditions say so, and they are fewer than REPRODUCED_FROM."""
    INCONCLUSIVE = "inconclusive"
    """The interval holds both answers."""
    NOT_REPRODUCED = "not reproduced"
    NOT_STATED = "not stated"
    """The statement has no such side."""
    NOT_TESTABLE = "not testable here"
    NOT_RUN = "not run"
    """There are no records."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The two findings and the numbers behind them, in the claim's unit of print."""

    direction: Finding
    magnitude: Finding
    ours: float | None = None
    """Mean (geometric, of ratios) over the units."""
    low: float | None = None
    high: float | None = None
    """The ends of a sample's 95 % interval, or the least and the most of conditions."""
    n: int = 0


def judge(claim: Claim, numbers: Sequence[float]) -> Verdict:
    """Judge a claim by numbers, one a unit; ValueError where a ratio is not positive.

    The limit of "at least" is judged by a one-sided t test at 2.5 %, of "about" by two of them (TOST), of "not
    worse" by one against the margin: in each the 95 % interval has to lie wholly within what is allowed. "Not worse"
    is a direction: the margin is ours, and a magnitude is a number of the paper's.
    """
    if not numbers:
        answer = Finding.NOT_TESTABLE if claim.not_testable else Finding.NOT_RUN
        return Verdict(direction=answer, magnitude=answer)
    average = (t_mean if claim.scale is NumberKind.DIFFERENCE else log_mean)(numbers)
    ours = claim.scale.in_print(average.value)
    print_numbers = [claim.scale.in_print(number) for number in numbers]
    if not claim.sample:
        low, high = min(print_numbers), max(print_numbers)
    elif average.low is None or average.high is None:
        low, high = -float("inf"), float("inf")
    else:
        low, high = claim.scale.in_print(average.low), claim.scale.in_print(average.high)

    def finding(holds: Callable[[float], bool], misses: bool) -> Finding:
        if not claim.sample:
            hold_count = sum(map(holds, print_numbers))
            if hold_count == len(print_numbers):
                return Finding.CONSISTENT if hold_count >= REPRODUCED_FROM else Finding.TOO_FEW
            return Finding.PARTLY if hold_count else Finding.NOT_REPRODUCED
        if holds(low) and holds(high):
            return Finding.REPRODUCED if len(numbers) >= REPRODUCED_FROM else Finding.CONSISTENT
        return Finding.NOT_REPRODUCED if misses else Finding.INCONCLUSIVE

    least, most = claim.limits()
    within_limits = finding(claim.holds, high < least or low > most)
    direction = within_limits if claim.relation is Relation.NOT_WORSE else Finding.NOT_STATED
    if claim.neutral is not None and claim.has_direction:
        direction = finding(claim.directed, high <= claim.neutral if claim.up else low >= claim.neutral)
    magnitude = within_limits if claim.paper is not None else Finding.NOT_STATED
    has_range = len(numbers) > 1
    return Verdict(
        direction=direction,
        magnitude=magnitude,
        ours=ours,
        low=low if has_range else None,
        high=high if has_range else None,
        n=len(numbers),
    )
