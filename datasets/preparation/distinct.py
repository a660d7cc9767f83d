"""How often each value of a column is met, in memory that grows with the different ones, and how many rows fit them."""

from typing import Any

import numpy as np
import pyarrow as pa

from shardbench.base.arrays import Ints, Words

_COLUMNS = ["word", "train", "test"]
_PENDING = 1 << 19
"""Words gathered before their counts are added, where fewer different ones than that were met (12 MiB)."""
ROOM = 1.25
"""Rows of a large table over its values."""
SMALL_ROOM, SMALL_ROWS = 16, 1 << 14
"""Small tables cost nothing: they get 16 rows a value, up to 16,384 rows, so that few values share one."""


class WordCounts:
    """Adds up how often words are met, in train and in test; holds 24 bytes for each, and as much not yet added.

    Arrow's own engine adds, in one thread, since tables are counted side by side.
    """

    def __init__(self) -> None:
        self._counted = _table([], [], [])
        self._pending: list[pa.Table] = []
        self._waiting = 0

    def add(self, words: Words, train: Ints, test: Ints) -> None:
        """Add counts int64 [n] of some words, uint64 [n], in which one may be several times."""
        self._pending.append(_table(words, train, test))
        self._waiting += len(words)
        if self._waiting > max(_PENDING, self._counted.num_rows):
            self._merge()

    def of_train(self) -> tuple[Words, Ints, int]:
        """Return the different words that are met in train, uint64 [n] in no order, their counts int64 [n] there.

        And how many different words are met in train or test.
        """
        self._merge()
        words, train, test = (self._counted[name].combine_chunks().to_numpy() for name in _COLUMNS)
        return words[train > 0], train[train > 0], int(np.count_nonzero(train + test))

    def _merge(self) -> None:
        if self._pending:
            both = pa.concat_tables([self._counted, *self._pending])
            added = both.group_by("word", use_threads=False).aggregate([("train", "sum"), ("test", "sum")])
            self._counted, self._pending, self._waiting = added.rename_columns(_COLUMNS), [], 0


def _table(words: Any, train: Any, test: Any) -> pa.Table:
    kinds = (pa.uint64(), pa.int64(), pa.int64())
    return pa.table([pa.array(of_word, kind) for of_word, kind in zip((words, train, test), kinds)], names=_COLUMNS)


def suggested_rows(values: int) -> int:
    """Return the rows to hash so many values into: the power of two from 1.25 a value, or from 16 in small tables."""
    least = max(ROOM * values, min(SMALL_ROOM * values, SMALL_ROWS), 1)
    return 1 << int(np.ceil(np.log2(least)))


def sharing(values: int, rows: int) -> float:
    """Return the expected share of values that share their row with another one, where they are hashed evenly, 0..1."""
    return float(-np.expm1((values - 1) * np.log1p(-1 / rows))) if values > 1 and rows > 1 else float(values > 1)
