"""Means with intervals, and the noise of repeats.

The unit of an interval is what is independent: the trials of a measured row, not the iterations of a trial, which share
a process, its memory and what else the machine did then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats

_UPPER = 0.975
"""Share of Student's t below the upper end of a 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mean of ``n`` numbers and its 95 % interval by Student's t."""

    value: float
    low: float | None
    """Lower end of the interval; None for one number, which does not say how far off it is."""
    high: float | None
    n: int


def log_mean(values: Sequence[float], noise: "Noise | None" = None) -> Average:
    """Return the geometric mean with its interval; raises ValueError for no values and for one that is not positive.

    Where ``noise`` is given, it says how far a repeat may be off, in place of the few repeats here.
    By t, not by resampling: the percentile bootstrap of five numbers holds the truth in about 80 % of cases, not 95.
    """
    logs = _logs(values)
    middle = float(logs.mean())
    if noise is None and logs.size == 1:
        return Average(value=float(values[0]), low=None, high=None, n=1)
    spread = noise or Noise(deviation=float(logs.std(ddof=1)), freedom=logs.size - 1)
    reach = t_quantile(_UPPER, spread.freedom) * spread.deviation / float(np.sqrt(logs.size))
    return Average(
        value=float(np.exp(middle)), low=float(np.exp(middle - reach)), high=float(np.exp(middle + reach)), n=logs.size
    )


def t_mean(values: Sequence[float]) -> Average:
    """Return the arithmetic mean with its 95 % interval by Student's t; raises ValueError for no values."""
    sample = _check(values)
    middle = float(sample.mean())
    if sample.size == 1:
        return Average(value=middle, low=None, high=None, n=1)
    reach = t_quantile(_UPPER, sample.size - 1) * float(sample.std(ddof=1)) / float(np.sqrt(sample.size))
    return Average(value=middle, low=middle - reach, high=middle + reach, n=sample.size)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How much repeats of the very same thing (A/A) differ, pooled over several such things."""

    deviation: float
    """Standard deviation of a repeat's logarithm."""
    freedom: int
    """Degrees of freedom behind it."""

    def least_log(self, n_a: float, n_b: float) -> float:
        """Return the least significant difference (95 %) of two mean logarithms, of ``n_a`` and ``n_b`` repeats."""
        return t_quantile(_UPPER, self.freedom) * self.deviation * float(np.sqrt(1.0 / n_a + 1.0 / n_b))

    def least_pct(self, n_a: float, n_b: float) -> float:
        """Return that difference as how far the larger geometric mean is above the smaller one, in percent."""
        return 100.0 * float(np.expm1(self.least_log(n_a, n_b)))


def pooled_noise(repeats: Iterable[Sequence[float]]) -> Noise | None:
    """Return the noise of numbers, one member of ``repeats`` for each thing; None where nothing was repeated.

    Raises ValueError for a number that is not positive.
    """
    several = [_logs(members) for members in repeats if len(members) > 1]
    freedom = sum(logs.size - 1 for logs in several)
    if not freedom:
        return None
    squares = sum(float(((logs - logs.mean()) ** 2).sum()) for logs in several)
    return Noise(deviation=float(np.sqrt(squares / freedom)), freedom=freedom)


def t_quantile(share: float, freedom: int) -> float:
    """Return the value that a Student's t variable of ``freedom`` degrees stays below with probability ``share``."""
    from scipy.special import stdtrit  # noqa: PLC0415 - it takes as long to import as a small plan to make

    return float(stdtrit(freedom, share))


def _logs(values: Sequence[float]) -> Floats:
    sample = _check(values)
    if sample[0] <= 0:
        raise ValueError("a ratio needs positive numbers")
    return np.asarray(np.log(sample))


def _check(values: Sequence[float]) -> Floats:
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if sample.size == 0:
        raise ValueError("a statistic needs at least one number")
    return sample
