"""Medians, percentiles and ratios with bootstrap intervals, and the noise floor."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats

RESAMPLES = 2000
_INTERVAL = (2.5, 97.5)
_CHUNK = 1_000_000
"""Numbers drawn at once: bounds memory whatever the sample size."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A statistic of ``n`` numbers and its 95 % bootstrap interval, in the unit of the numbers."""

    value: float
    low: float
    high: float
    n: int

    def holds(self, value: float) -> bool:
        """Whether ``value`` lies in the interval, ends included."""
        return self.low <= value <= self.high


def percentile(values: Sequence[float], q: float, *, seed: int = 0) -> Estimate:
    """Percentile ``q`` (0 to 100, linear interpolation) with its interval; the same for the same seed.

    Raises ValueError for no values.
    """
    sample = _checked(values)
    resampled = _resampled(sample, q, _generator(seed, 0))
    low, high = np.percentile(resampled, _INTERVAL)
    return Estimate(value=float(np.percentile(sample, q)), low=float(low), high=float(high), n=sample.size)


def median(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Median with its interval."""
    return percentile(values, 50.0, seed=seed)


def mean(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Arithmetic mean with its interval; raises ValueError for no values."""
    sample = _checked(values)
    resampled = _resampled(sample, None, _generator(seed, 3))
    low, high = np.percentile(resampled, _INTERVAL)
    return Estimate(value=float(sample.mean()), low=float(low), high=float(high), n=sample.size)


def p95(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """95th percentile with its interval."""
    return percentile(values, 95.0, seed=seed)


def median_ratio(above: Sequence[float], below: Sequence[float], *, seed: int = 0) -> Estimate:
    """median(above) / median(below), both resampled independently; ``n`` is the smaller sample's.

    Raises ValueError for no values and for a denominator that is not positive.
    """
    a, b = _checked(above), _checked(below)
    if b.min() <= 0:
        raise ValueError("a ratio needs positive numbers below")
    ratios = _resampled(a, 50.0, _generator(seed, 1)) / _resampled(b, 50.0, _generator(seed, 2))
    low, high = np.percentile(ratios, _INTERVAL)
    return Estimate(value=float(np.median(a) / np.median(b)), low=float(low), high=float(high), n=min(a.size, b.size))


def noise_floor_pct(repeats: Iterable[Sequence[Sequence[float]]]) -> float | None:
    """How far apart, in percent, repeats of the very same trial lie: differences below are noise.

    ``repeats`` holds, for every (strategy, seed) of one group, the step times of each of its
    repeats (A/A trials: same plan, same batches). Its spread is largest over smallest median,
    minus 1; the floor is the 90th percentile (linear interpolation) of the spreads, so that one
    disturbed repeat among many does not hide every difference. None where nothing was repeated.
    """
    spreads = [_spread(members) for members in repeats if len(members) > 1]
    return 100.0 * float(np.percentile(spreads, 90.0)) if spreads else None


def _spread(members: Sequence[Sequence[float]]) -> float:
    medians = [float(np.median(_checked(member))) for member in members]
    if min(medians) <= 0:
        raise ValueError("a spread needs positive medians")
    return max(medians) / min(medians) - 1.0


def _checked(values: Sequence[float]) -> Floats:
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if sample.size == 0:
        raise ValueError("a statistic needs at least one number")
    return sample


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream,))))


def _resampled(sample: Floats, q: float | None, generator: np.random.Generator) -> Floats:
    """The percentile (the mean where ``q`` is None) of every resample, [RESAMPLES]."""
    rows = max(1, min(RESAMPLES, _CHUNK // sample.size))
    parts = []
    for start in range(0, RESAMPLES, rows):
        # Indices by hand: numpy may change how integers() uses the stream, not how random() does,
        # and a table must come out the same by every version.
        draws = generator.random((min(rows, RESAMPLES - start), sample.size))
        resamples = sample[(draws * sample.size).astype(np.int64)]
        parts.append(resamples.mean(axis=1) if q is None else np.percentile(resamples, q, axis=1))
    return np.concatenate(parts)
