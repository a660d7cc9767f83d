"""A bounded power law over ranks, sampled by its closed-form inverse CDF."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHUNK = 1 << 16
"""Draws made at a time, so that the scratch array stays in a core's cache."""

_LOG_BRANCH = 1e-6


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """Ranks 0..rows-1 with density proportional to (x + shift)^-exponent on [0, rows).

    Rank r has the mass of [r, r + 1): Zipf-Mandelbrot's law with the sum replaced by the
    integral, so that its CDF has a closed form that can be inverted. ``shift`` > 0 flattens
    the head, ``exponent`` >= 0 steepens the tail; masses never increase with the rank.
    """

    rows: int
    exponent: float
    shift: float

    def __post_init__(self) -> None:
        if self.rows < 1 or self.exponent < 0 or self.shift <= 0:
            raise ValueError(f"need rows >= 1, exponent >= 0, shift > 0, got {self}")

    def cdf(self, ranks: Floats) -> Floats:
        """Probability that a draw lies below ``ranks`` (real numbers in 0..rows), same shape."""
        return np.asarray(cdf(ranks, np.float64(self.rows), np.float64(self.exponent), np.float64(self.shift)))

    def inverse(self, shares: Floats) -> Ints:
        """Ranks int64 [n] of uniform draws ``shares`` float64 [n] in [0, 1); overwrites ``shares``."""
        power = 1.0 - self.exponent
        if abs(power) < _LOG_BRANCH:
            shares *= math.log1p(self.rows / self.shift)
            np.exp(shares, out=shares)
            shares *= self.shift
        else:
            low, high = self.shift**power, (self.rows + self.shift) ** power
            shares *= high - low
            shares += low
            np.power(shares, 1.0 / power, out=shares)
        shares -= self.shift
        # Rounding can push the two ends of the interval out of it by less than one row.
        np.clip(shares, 0.0, self.rows - 1, out=shares)
        return shares.astype(np.int64)

    def sample(self, generator: np.random.Generator, draws: int) -> Ints:
        """``draws`` independent ranks, int64 [draws]."""
        ranks = np.empty(draws, dtype=np.int64)
        scratch = np.empty(min(CHUNK, draws))
        for start in range(0, draws, CHUNK):
            part = scratch[: min(CHUNK, draws - start)]
            generator.random(out=part)
            ranks[start : start + len(part)] = self.inverse(part)
        return ranks


def cdf(ranks: Floats, rows: Floats, exponent: Floats, shift: Floats) -> Floats:
    """CDF of many power laws at once; the arguments broadcast."""
    power = 1.0 - exponent
    flat = np.abs(power) < _LOG_BRANCH
    safe = np.where(flat, 1.0, power)
    low = shift**safe
    closed = ((ranks + shift) ** safe - low) / ((rows + shift) ** safe - low)
    return np.asarray(np.where(flat, np.log1p(ranks / shift) / np.log1p(rows / shift), closed))


def rank_edges(rows: NDArray[np.float64], buckets: int) -> Floats:
    """Log-spaced edges float64 [len(rows), buckets + 1] from 0 to ``rows``; single ranks at the head."""
    steps = np.arange(buckets + 1, dtype=np.float64)
    spaced = np.expm1(np.outer(np.log1p(rows), steps / buckets))
    edges = np.minimum(np.maximum(np.round(spaced), steps), rows[:, None])
    edges[:, -1] = rows
    return np.asarray(edges)
