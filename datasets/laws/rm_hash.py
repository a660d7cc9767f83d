"""Hashed features: raw values follow a power law, a fixed hash folds them into a table's rows.

Nothing is kept per value or per row: a value's row is computed when it is drawn.
"""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Ints, Words
from shardbench.datasets.laws.power_law import CHUNK, PowerLaw

MAX_HASHED_ROWS = 1 << 32
"""Rows are the upper half of a 32 by 32 bit product."""

_GOLDEN = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_LOW_BITS = (1 << 64) - 1


def mixed(counters: Ints, key: int) -> Words:
    """Return splitmix64 of ``counters`` int64 [n] under a key, uint64 [n] (Steele et al., OOPSLA 2014).

    A bijection of 64-bit words for every key; different keys give unrelated orders.
    """
    words = counters.astype(np.uint64)
    words *= np.uint64(_GOLDEN)
    words += np.uint64(_mixed_key(key))
    shifted = np.empty_like(words)
    for shift, factor in _STEPS:
        np.right_shift(words, np.uint64(shift), out=shifted)
        np.bitwise_xor(words, shifted, out=words)
        words *= np.uint64(factor)
    np.right_shift(words, np.uint64(_LAST_SHIFT), out=shifted)
    np.bitwise_xor(words, shifted, out=words)
    return words


def _mixed_key(key: int) -> int:
    """Mix one key likewise: sums with keys as they are would only shift each other's orders."""
    word = (key + 1) * _GOLDEN & _LOW_BITS
    for shift, factor in _STEPS:
        word = (word ^ word >> shift) * factor & _LOW_BITS
    return word ^ word >> _LAST_SHIFT


def hashed_rows(values: Ints, rows: int, key: int) -> Ints:
    """Return the row in [0, rows) of each raw value, int64 [n]: multiply-shift of the mixed value's upper half.

    Raises ValueError where a table has more than 2^32 rows.
    """
    if not 1 <= rows <= MAX_HASHED_ROWS:
        raise ValueError(f"need 1 <= rows <= {MAX_HASHED_ROWS} to hash into, got {rows}")
    half = np.uint64(32)
    found = np.empty(len(values), dtype=np.int64)
    # A chunk's scratch arrays stay in a core's cache.
    for start in range(0, len(values), CHUNK):
        words = mixed(values[start : start + CHUNK], key)
        words >>= half
        words *= np.uint64(rows)
        words >>= half
        found[start : start + CHUNK] = words.view(np.int64)
    return found


@dataclass(frozen=True, kw_only=True)
class HashedLaw:
    """Rows of a hashed feature: ranks of raw values by ``law`` (``law.rows`` values), hashed under ``key``."""

    law: PowerLaw
    rows: int
    key: int

    def sample(self, generator: np.random.Generator, draws: int) -> Ints:
        """Draw ``draws`` independent rows, int64 [draws]."""
        return hashed_rows(self.law.sample(generator, draws), self.rows, self.key)
