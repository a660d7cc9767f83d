"""Means with intervals, and the noise of repeats.

The unit of an interval is what is independent: the trials of a measured row, not the iterations of a trial, which share
a process, its memory and what else the machine did then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

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

    def behind_log(self, n_a: float, n_b: float, others: int) -> float:
        """Return how far a mean logarithm must be above the least of ``others`` + 1 to be behind it (95 % of all).

        The comparison with the best: whichever is the least, Dunnett's one-sided value holds for all others at once
        (Hsu 1984, Annals of Statistics 12).
        """
        quantile = dunnett_quantile(0.95, others, self.freedom)
        return quantile * self.deviation * float(np.sqrt(1.0 / n_a + 1.0 / n_b))


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


def pooled(noises: Sequence[Noise]) -> Noise | None:
    """Return the noise of several groups together; None where there is none."""
    freedom = sum(noise.freedom for noise in noises)
    squares = sum(noise.freedom * noise.deviation**2 for noise in noises)
    return Noise(deviation=float(np.sqrt(squares / freedom)), freedom=freedom) if noises else None


@dataclass(frozen=True, kw_only=True)
class Covariance:
    """The numbers of repeats as they follow a covariate of each: one slope of logarithms for all things."""

    slope: float
    at: float
    """Mean logarithm of the covariate, to which numbers are brought."""
    noise: Noise

    def adjusted(self, value: float, covariate: float) -> float:
        """Return the number as it would be at the covariate's mean."""
        return value * float(np.exp(self.slope * (self.at - np.log(covariate))))


def covariance(values: Sequence[Sequence[float]], covariates: Sequence[Sequence[float]]) -> Covariance | None:
    """Return the analysis of covariance of numbers, one member for each thing that was repeated, or was not.

    None is returned where repeats leave no degree of freedom beside the slope, or their covariates do not differ. Means
    of things at unlike covariates are less sure for what is not known of the slope; the noise has that as its mean over
    all pairs (Finney 1946: the effective error variance). Raises ValueError for a number that is not positive.
    """
    y, x = ([_logs(each) for each in of] for of in (values, covariates))
    y_rest, x_rest = (np.concatenate([each - each.mean() for each in logs]) for logs in (y, x))
    freedom, spread = len(y_rest) - len(y) - 1, float(x_rest @ x_rest)
    if freedom < 1 or spread <= 0.0:
        return None
    slope = float(x_rest @ y_rest) / spread
    left = y_rest - slope * x_rest
    at = float(np.concatenate(x).mean())
    between = sum(len(each) * (float(each.mean()) - at) ** 2 for each in x) / max(len(x) - 1, 1)
    variance = float(left @ left) / freedom * (1.0 + between / spread)
    return Covariance(slope=slope, at=at, noise=Noise(deviation=float(np.sqrt(variance)), freedom=freedom))


@lru_cache
def dunnett_quantile(share: float, others: int, freedom: int) -> float:
    """Return what the largest of ``others`` studentised differences to one mean stays below with probability ``share``.

    One-sided, all means of as many numbers (Dunnett 1955); for one other it is Student's t.
    """
    from scipy.special import gammaln, ndtr  # noqa: PLC0415 - as for t_quantile

    common, weights = np.polynomial.hermite_e.hermegauss(48)
    log_scale = np.linspace(-14.0, 3.0, 600)
    half = freedom / 2.0
    # The logarithm of the pooled deviation over the true one: of chi square over its degrees of freedom, halved.
    density = np.exp(np.log(2.0) + half * (np.log(half) + 2.0 * log_scale - np.exp(2.0 * log_scale)) - gammaln(half))
    density /= density.sum()

    def below(quantile: float) -> float:
        inside = ndtr(common[None, :] + np.sqrt(2.0) * quantile * np.exp(log_scale)[:, None]) ** others
        return float(density @ (inside @ weights)) / float(weights.sum())

    low, high = 0.0, 1.0
    while below(high) < share:
        high *= 2.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if below(middle) < share else (low, middle)
    return high


def t_quantile(share: float, freedom: int) -> float:
    """Return the value that a Student's t variable of ``freedom`` degrees stays below with probability ``share``."""
    from scipy.special import stdtrit  # noqa: PLC0415 - it takes as long to import as a small plan to make

    return float(stdtrit(freedom, share))


def deviation_interval(freedom: float) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a standard deviation over its estimate, by chi square."""
    from scipy.special import gammaincinv  # noqa: PLC0415 - as for t_quantile

    ends = (float(np.sqrt(freedom / (2.0 * gammaincinv(freedom / 2.0, share)))) for share in (_UPPER, 1.0 - _UPPER))
    low, high = ends
    return low, high


def decimals(low: float, high: float) -> int:
    """Return to how many decimals a number is stated whose 95 % interval this is; below 0: to tens, hundreds.

    Half the interval is stated to two digits where it begins with 1.0 to 3.5, and else to one (Particle Data Group,
    Review of Particle Physics, Introduction, section 5.3). Raises ValueError for an interval without width.
    """
    half = (high - low) / 2.0
    if not half > 0.0:
        raise ValueError("an interval without width allows any number of digits")
    place = int(np.floor(np.log10(half)))
    return 1 - place if half / 10.0**place < 3.55 else -place


def _logs(values: Sequence[float]) -> Floats:
    sample = _check(values)
    if sample.min() <= 0:
        raise ValueError("a ratio needs positive numbers")
    return np.asarray(np.log(sample))


def _check(values: Sequence[float]) -> Floats:
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("a statistic needs at least one number")
    return sample
