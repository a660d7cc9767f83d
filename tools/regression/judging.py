"""Verdicts on repeats of a benchmark: it became worse, or machines are only noisy."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of benchmarks by asv's names; less is better in all of them."""

    TIME = "time"
    MEMORY = "peakmemory"
    TRACK = "track"


LIMIT = {Kind.TIME: 1.25, Kind.MEMORY: 1.1, Kind.TRACK: 1.01}
"""Ratios to the value before, beyond which it is worse: the suite's own "about", pages, and what sums round to.

Seconds of two copies of one program differ by up to a tenth; tracked values are the same whenever they are asked for.
"""
SURE = 3.0
"""Standard errors by which a ratio must lie beyond its limit."""
MOST_PAIRS = 21
"""Repeats after which a ratio that its noise hides is given up."""
_MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, of normal numbers."""
_QUARTILES = 1.349
"""Standard deviations between the quartiles of normal numbers."""


class Verdict(StrEnum):
    """Verdicts that a ratio can give."""

    FINE = "fine"
    WORSE = "worse"
    UNCLEAR = "unclear"
    """The ratio is beyond the limit, but not surely: more repeats may tell."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """The median of one benchmark's repeats, in its unit, and their noise."""

    median: float
    spread: float
    """Standard deviation of the logarithms, by their quartiles; 0 for a single repeat."""
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Level":
        """Return the level of at least one sample, none below zero; raises ValueError for others."""
        if not samples or not all(math.isfinite(s) and s >= 0.0 for s in samples):
            raise ValueError(f"samples must be finite, not negative and at least one: {list(samples)}")
        spread = 0.0
        if len(samples) > 1 and min(samples) > 0.0:
            low, _, high = statistics.quantiles([math.log(s) for s in samples], n=4, method="inclusive")
            spread = (high - low) / _QUARTILES
        return cls(median=statistics.median(samples), spread=spread, n=len(samples))

    @property
    def error(self) -> float:
        """Standard error of the median's logarithm."""
        return _MEDIAN_ERROR * self.spread / math.sqrt(self.n)


@dataclass(frozen=True, kw_only=True)
class LevelChange:
    """One benchmark before and now."""

    name: str
    kind: Kind
    unit: str
    before: Level
    now: Level

    @property
    def ratio(self) -> float:
        """Now over before: above 1 is worse; infinite where there was nothing before."""
        if self.before.median == self.now.median:
            return 1.0
        return self.now.median / self.before.median if self.before.median > 0.0 else math.inf

    @property
    def least(self) -> float:
        """The ratio's low end, ``SURE`` standard errors below it."""
        return self.ratio * math.exp(-SURE * math.hypot(self.before.error, self.now.error))

    @property
    def verdict(self) -> Verdict:
        """The verdict is worse only where even the low end is beyond the limit."""
        limit = LIMIT[self.kind]
        if self.ratio <= limit:
            return Verdict.FINE
        return Verdict.WORSE if self.least > limit else Verdict.UNCLEAR

    def line(self) -> str:
        """Print the name, both medians and the ratio on one line."""
        before, now = (quantity(level.median, self.unit) for level in (self.before, self.now))
        return f"{self.name}: {before} before, {now} now, ratio {self.ratio:.2f}"


_SCALES = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")),
}


def quantity(value: float, unit: str) -> str:
    """Print a value with its unit, in four digits."""
    for size, name in _SCALES.get(unit, ()):
        if value >= size:
            return f"{value / size:.4g} {name}"
    return f"{value:.4g} {unit}"
