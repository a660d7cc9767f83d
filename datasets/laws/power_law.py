"""Bounded power laws over ranks, sampled by their closed-form inverse CDF, and a hash of raw values into rows."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.workloads.value_hash import mixed

Real = Floats | float

CHUNK = 1 << 16
"""Draws made at a time, so that the scratch array stays in a core's cache."""
MAX_HASHED_ROWS = 1 << 32
"""Rows are the upper half of a 32 by 32 bit product."""

_LOG_BRANCH = 1e-6


class RankLaw(ABC):
    """A law over the ranks 0..rows-1 that is sampled by the inverse of its CDF."""

    @abstractmethod
    def inverse(self, shares: Floats) -> Ints:
        """Return the ranks int64 [n] of uniform draws ``shares`` float64 [n] in [0, 1); overwrites ``shares``."""

    def sample(self, generator: np.random.Generator, draws: int) -> Ints:
        """Draw ``draws`` independent ranks, int64 [draws]."""
        ranks = np.empty(draws, dtype=np.int64)
        scratch = np.empty(min(CHUNK, draws))
        for start in range(0, draws, CHUNK):
            part = scratch[: min(CHUNK, draws - start)]
            generator.random(out=part)
            ranks[start : start + len(part)] = self.inverse(part)
        return ranks


@dataclass(frozen=True, kw_only=True)
class PowerLaw(RankLaw):
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
        """Return the probability that a draw lies below ``ranks`` (real numbers in 0..rows), same shape."""
        return cdf(ranks, self.rows, self.exponent, self.shift)

    def inverse(self, shares: Floats) -> Ints:
        """Return the ranks int64 [n] of uniform draws ``shares`` float64 [n] in [0, 1); overwrites ``shares``."""
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


def cdf(ranks: Floats, rows: Real, exponent: Real, shift: Real) -> Floats:
    """Return the CDF of many power laws at once; the arguments broadcast."""
    power = 1.0 - exponent
    flat = np.abs(power) < _LOG_BRANCH
    safe = np.where(flat, 1.0, power)
    low = shift**safe
    closed = ((ranks + shift) ** safe - low) / ((rows + shift) ** safe - low)
    return np.asarray(np.where(flat, np.log1p(ranks / shift) / np.log1p(rows / shift), closed))


@dataclass(frozen=True, kw_only=True)
class BrokenPowerLaw(RankLaw):
    """A power law up to rank ``knee``, continued by a steeper one: an active set and a cold tail.

    The density is (x + shift)^-exponent below the knee and, continuous there,
    (knee + shift)^(tail_exponent - exponent) (x + shift)^-tail_exponent above it; with
    tail_exponent >= exponent no mass increases with the rank.
    """

    rows: int
    knee: int
    exponent: float
    tail_exponent: float
    shift: float

    def __post_init__(self) -> None:
        if not (1 <= self.knee < self.rows and self.tail_exponent >= self.exponent):
            raise ValueError(f"need 1 <= knee < rows and tail_exponent >= exponent, got {self}")

    @property
    def head(self) -> PowerLaw:
        """Return the law of the ranks below the knee."""
        return PowerLaw(rows=self.knee, exponent=self.exponent, shift=self.shift)

    @property
    def tail(self) -> PowerLaw:
        """Return the law of the ranks from the knee on, counted from the knee."""
        return PowerLaw(rows=self.rows - self.knee, exponent=self.tail_exponent, shift=self.knee + self.shift)

    @property
    def head_share(self) -> float:
        """Return the probability of a rank below the knee."""
        return float(head_share(self.rows, self.knee, self.exponent, self.tail_exponent, self.shift))

    def inverse(self, shares: Floats) -> Ints:
        """Return the ranks int64 [n] of uniform draws ``shares`` float64 [n] in [0, 1); overwrites ``shares``."""
        head_share = self.head_share
        cold = np.flatnonzero(shares >= head_share)
        tail_shares = (shares[cold] - head_share) / (1.0 - head_share)
        shares /= head_share
        shares[cold] = 0.0
        ranks = self.head.inverse(shares)
        ranks[cold] = self.knee + self.tail.inverse(tail_shares)
        return ranks


def head_share(rows: Real, knee: Real, exponent: Real, tail_exponent: Real, shift: Real) -> Floats:
    """Return the probability of a rank below the knee, for many broken power laws at once."""
    bend = knee + shift
    head = _mass(shift, bend, exponent)
    tail = bend ** (tail_exponent - exponent) * _mass(bend, rows + shift, tail_exponent)
    return np.asarray(head / (head + tail))


def _mass(low: Real, high: Real, exponent: Real) -> Floats:
    power = 1.0 - exponent
    flat = np.abs(power) < _LOG_BRANCH
    safe = np.where(flat, 1.0, power)
    return np.asarray(np.where(flat, np.log(high / low), (high**safe - low**safe) / safe))


def hashed_rows(values: Ints, rows: int, key: int) -> Ints:
    """Return the row in [0, rows) of each raw value, int64 [n]: multiply-shift of the mixed value's upper half.

    Raises ValueError where a table has more than 2^32 rows.
    """
    if not 1 <= rows <= MAX_HASHED_ROWS:
        raise ValueError(f"need 1 <= rows <= {MAX_HASHED_ROWS} to hash into, got {rows}")
    half = np.uint64(32)
    row_ids = np.empty(len(values), dtype=np.int64)
    # A chunk's scratch arrays stay in a core's cache.
    for start in range(0, len(values), CHUNK):
        words = mixed(values[start : start + CHUNK], key)
        words >>= half
        words *= np.uint64(rows)
        words >>= half
        row_ids[start : start + CHUNK] = words.view(np.int64)
    return row_ids
