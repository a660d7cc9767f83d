"""How strategies stand over many problems: near the best on how many, how far from it, tied, and at which effort.

Families of problems weigh alike in the share near the best; a problem that a strategy did not end is near for none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from shardbench.report.standing import SAME, Standing, TieMark, by_problem, display_name, is_measured, standings_by

NEAR_PCT = 5.0
"""A step that is at most so far over the best counts as near it."""
TIED = (TieMark.BEST, TieMark.SAME, TieMark.OPEN)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A strategy with one budget over all problems of a backend."""

    strategy: str
    role: str
    problems: int
    """So many were asked of anybody with that budget."""
    ratios: tuple[float, ...]
    """Step over the best of the problem, of those that it ended well; ascending."""
    near: float
    """The share of problems near the best: a problem's mean over the draws of the model where its rows state them."""
    tied: int
    """Problems on which it is the best, or tied with the best."""
    bound_ratios: tuple[float, ...]
    """Step over the proven bound, of the problems that have one."""
    seconds: float | None
    """Median of learning and planning; None where it ended nothing."""

    @property
    def name(self) -> str:
        """The strategy, and what it is where it does not compete."""
        return display_name(self.strategy, self.role)

    @property
    def median(self) -> float | None:
        """Median step over the best, over all problems; None where it did not end more than half of them."""
        failed = [float("inf")] * (self.problems - len(self.ratios))
        value = median([*self.ratios, *failed]) if self.problems else float("inf")
        return None if value == float("inf") else value

    @property
    def mean(self) -> float | None:
        """Geometric mean of the step over the best; None where a problem lacks, as the mean would not compare."""
        return geometric_mean(self.ratios) if self.ratios and len(self.ratios) == self.problems else None

    @property
    def mean_over_bound(self) -> float | None:
        """Geometric mean of the step over the bound; None where a problem lacks."""
        return geometric_mean(self.bound_ratios) if 0 < self.problems == len(self.bound_ratios) else None


def near(one: Standing) -> float | None:
    """Return the share of draws in which a standing is near the best; None where it did not end well."""
    if not one.ok or one.over_best_pct is None:
        return None
    if one.p_near is not None:
        return one.p_near
    return float(one.over_best_pct <= NEAR_PCT * (1.0 + SAME))


def longest_first(budget: str) -> tuple[float, str]:
    """Order budgets by their seconds, the longest first, then those that state none."""
    word = budget.partition(" ")[0]
    return (-float(word) if word.replace(".", "", 1).isdigit() else 0.0, budget)


def scores(standings: Iterable[Standing]) -> dict[tuple[str, str], list[Score]]:
    """Return scores by (backend, budget), simulated and the longest budget first; of each the largest share first."""
    by_budget = standings_by(lambda one: (one.backend, one.budget), standings)
    keys = sorted(by_budget, key=lambda key: (is_measured(key[0]), longest_first(key[1])))
    return {key: _in_order(by_budget[key]) for key in keys}


def _in_order(standings: Sequence[Standing]) -> list[Score]:
    families = Counter(of_problem[0].family for of_problem in by_problem(standings).values())
    by_strategy = standings_by(lambda one: one.strategy, standings)
    all_scores = [_score(name, own, families) for name, own in by_strategy.items()]
    return sorted(all_scores, key=lambda one: (-one.near, one.median or float("inf"), one.strategy))


def _score(name: str, own: Sequence[Standing], families: Mapping[str, int]) -> Score:
    """Return a strategy's score; ``families`` has the number of problems of each. Who was not asked did not end."""
    ok = [one for one in own if one.ok]
    shares = [sum(near(one) or 0.0 for one in own if one.family == family) / n for family, n in families.items()]
    return Score(
        strategy=name,
        role=own[0].role,
        problems=sum(families.values()),
        ratios=tuple(sorted(1.0 + one.over_best_pct / 100.0 for one in ok if one.over_best_pct is not None)),
        near=sum(shares) / len(shares),
        tied=sum(one.mark in TIED for one in ok),
        bound_ratios=tuple(1.0 + one.over_bound_pct / 100.0 for one in ok if one.over_bound_pct is not None),
        seconds=median((one.plan_s or 0.0) + (one.fit_s or 0.0) for one in ok) if ok else None,
    )
