"""How often each value of a column is met, in memory that grows with the different ones, and how many rows fit them."""

from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shardbench.base.arrays import Ints, Words

_PENDING = 1 << 19
"""Words gathered before their counts are added, where fewer different ones than that were met (8 MiB)."""
ROOM = 1.25
"""Rows of a large table over its values."""
SMALL_ROOM, SMALL_ROWS = 16, 1 << 14
"""Small tables cost nothing: they get 16 rows a value, up to 16,384 rows, so that few values share one."""
N = TypeVar("N", np.int64, np.uint64)


class WordCounts:
    """Adds up how often words are met in train; holds 16 bytes for each, and as much not yet added."""

    def __init__(self) -> None:
        self._words, self._counts = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
        self._pending: list[tuple[Words, Ints]] = []
        self._waiting = 0

    def add(self, words: Words, train: Ints, every: Ints) -> None:
        """Add counts int64 [n] in train, and in train and test, of words uint64 [n], where one may be several times."""
        met = every > 0
        self._pending.append((words, train) if met.all() else (words[met], train[met]))
        self._waiting += len(words)
        if self._waiting > max(_PENDING, len(self._words)):
            self._merge()

    def of_train(self) -> tuple[Words, Ints, int]:
        """Return the different words that are met in train, uint64 [n] in no order, their counts int64 [n] there.

        And how many different words are met in train or test.
        """
        self._merge()
        in_train = self._counts > 0
        return self._words[in_train], self._counts[in_train], len(self._words)

    def _merge(self) -> None:
        words, counts = zip((self._words, self._counts), *self._pending)
        self._words, self._counts = added_up(np.concatenate(words), np.concatenate(counts))
        self._pending, self._waiting = [], 0


def added_up(keys: NDArray[N], counts: Ints) -> tuple[NDArray[N], Ints]:
    """Return the different ones of ``keys`` [n], in the order of their first appearance, and the sums of their counts.

    Sums and ``counts`` are int64 [n].
    """
    places, different = pd.factorize(keys)
    sums = np.zeros(len(different), dtype=np.int64)
    np.add.at(sums, places, counts)
    return different, sums


def suggested_rows(values: int) -> int:
    """Return the rows to hash so many values into: the power of two from 1.25 a value, or from 16 in small tables."""
    least = max(ROOM * values, min(SMALL_ROOM * values, SMALL_ROWS), 1)
    return 1 << int(np.ceil(np.log2(least)))


def sharing(values: int, rows: int) -> float:
    """Return the expected share of values that share their row with another one, where they are hashed evenly, 0..1."""
    return float(-np.expm1((values - 1) * np.log1p(-1 / rows))) if values > 1 and rows > 1 else float(values > 1)
