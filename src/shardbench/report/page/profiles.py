"""Performance profiles: the share of problems on which a strategy's step is within a factor of the shortest found."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.report.compare.same_numbers import SAME
from shardbench.report.standing import Standing, by_problem, by_strategy, standings_by

LARGEST = 4.0
"""Profiles of documents and papers, and the area by which they are ranked, end at this factor."""
NAMED = 8
"""Documents and papers name so many of the best profiles; the others are grey."""


@dataclass(frozen=True, kw_only=True)
class PerformanceProfile:
    """A strategy with one budget over all problems of a backend."""

    strategy: str
    problems: int
    ratios: tuple[float, ...]
    """Step over the best of the problem, of those that it ended well; ascending."""
    plan_s: float | None
    """Median over these; None where no row states it."""
    fit_s: float | None
    bound_ratios: tuple[float, ...] = ()
    """Step over the proven bound, of the problems that have one."""

    @property
    def complete(self) -> bool:
        """True where it ended every problem well: only then does its mean compare."""
        return len(self.ratios) == self.problems

    @property
    def mean_ratio(self) -> float:
        """Geometric mean; there must be a ratio."""
        return geometric_mean(self.ratios)

    def within(self, factor: float) -> float:
        """Return the share of all problems that it ended within this factor of the best."""
        return float(np.searchsorted(self.ratios, factor * (1.0 + SAME), side="right")) / self.problems

    def corners(self, largest: float) -> tuple[tuple[float, float], ...]:
        """Return (factor, share from there on) of the profile's start, of its rises and of its end at ``largest``."""
        rises = sorted({ratio for ratio in self.ratios if 1.0 < ratio <= largest})
        return tuple((factor, self.within(factor)) for factor in (1.0, *rises, largest))

    @property
    def area(self) -> float:
        """The area under the profile up to ``LARGEST``, on a logarithmic axis."""
        inside = [max(ratio, 1.0) for ratio in self.ratios if ratio <= LARGEST]
        return sum(math.log(LARGEST / factor) for factor in inside) / self.problems


def geometric_mean(ratios: Iterable[float] | Floats) -> float:
    """Return the geometric mean of ratios; there must be one."""
    return float(np.exp(np.mean(np.log(list(ratios)))))


def performance_profiles(standings: Iterable[Standing]) -> dict[tuple[str, str], list[PerformanceProfile]]:
    """Return profiles by (backend, budget), in the order in which they come.

    The problems are those that anybody was asked with that budget; one that a strategy was not asked it did not end.
    """
    by_budget = standings_by(lambda one: (one.backend, one.budget), standings)
    return {
        key: [_profile(name, own, len(by_problem(of_budget))) for name, own in by_strategy(of_budget).items()]
        for key, of_budget in by_budget.items()
    }


def ranked_profiles(standings: Iterable[Standing]) -> dict[tuple[str, str], list[PerformanceProfile]]:
    """Return the competitors' profiles by (backend, budget), the one with the largest area under it first."""
    by_budget = performance_profiles(one for one in standings if one.competes)
    return {key: sorted(profiles, key=lambda one: (-one.area, one.strategy)) for key, profiles in by_budget.items()}


def _profile(strategy: str, own: list[Standing], problems: int) -> PerformanceProfile:
    ok = [one for one in own if one.ok]
    return PerformanceProfile(
        strategy=strategy,
        problems=problems,
        ratios=tuple(sorted(1.0 + one.over_best_pct / 100.0 for one in ok if one.over_best_pct is not None)),
        plan_s=_median(one.plan_s for one in ok),
        fit_s=_median(one.fit_s for one in ok),
        bound_ratios=tuple(1.0 + one.over_bound_pct / 100.0 for one in own if one.over_bound_pct is not None),
    )


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.median(numbers)) if numbers else None
