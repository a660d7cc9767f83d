"""How many different values a column has, in little memory, and how many rows fit them."""

import numpy as np

from shardbench.base.arrays import Words

KEPT = 1 << 16
"""The most values that are counted exactly; more are estimated with a standard error of 0.4 % (1 / sqrt(KEPT))."""
_PENDING = 1 << 18
ROOM = 1.25
"""Rows of a large table over its values."""
SMALL_ROOM, SMALL_ROWS = 16, 1 << 14
"""Small tables cost nothing: they get 16 rows a value, up to 16,384 rows, so that few values share one."""


class DistinctValues:
    """Counts different values by the least of their mixed hashes (k minimum values, Bar-Yossef et al., RANDOM 2002)."""

    def __init__(self) -> None:
        self._least: Words = np.empty(0, dtype=np.uint64)
        self._pending: list[Words] = []
        self._waiting = 0

    def add(self, words: Words) -> None:
        """Add the mixed hashes of some values, uint64 [n]: each value has one hash, spread evenly."""
        if len(self._least) == KEPT:
            words = words[words < self._least[-1]]
        self._pending.append(words)
        self._waiting += len(words)
        if self._waiting > _PENDING:
            self._merge()

    @property
    def number(self) -> int:
        """Return how many different values there were: exactly up to KEPT, else estimated."""
        self._merge()
        if len(self._least) < KEPT:
            return len(self._least)
        return round((KEPT - 1) * 2**64 / float(self._least[-1]))

    def _merge(self) -> None:
        # Sorting is several times faster here than hashing into a set.
        words = np.sort(np.concatenate([self._least, *self._pending]))
        self._pending, self._waiting = [], 0
        self._least = words[np.concatenate([[True], words[1:] != words[:-1]])[: len(words)]][:KEPT]


def suggested_rows(values: int) -> int:
    """Return the rows to hash so many values into: the power of two from 1.25 a value, or from 16 in small tables."""
    least = max(ROOM * values, min(SMALL_ROOM * values, SMALL_ROWS), 1)
    return 1 << int(np.ceil(np.log2(least)))


def sharing(values: int, rows: int) -> float:
    """Return the expected share of values that share their row with another one, where they are hashed evenly, 0..1."""
    return float(-np.expm1((values - 1) * np.log1p(-1 / rows))) if values > 1 and rows > 1 else float(values > 1)
