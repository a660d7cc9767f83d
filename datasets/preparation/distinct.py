"""How often each value of a column is met, in memory that grows with the different ones, and how many rows fit them."""

import numpy as np
import pyarrow as pa

from shardbench.base.arrays import Ints, Words

_PENDING = 1 << 19
"""Words gathered before they are counted, where fewer different ones than that were met (4 MiB)."""
ROOM = 1.25
"""Rows of a large table over its values."""
SMALL_ROOM, SMALL_ROWS = 16, 1 << 14
"""Small tables cost nothing: they get 16 rows a value, up to 16,384 rows, so that few values share one."""


class WordCounts:
    """Counts different words as they stream by; holds 16 bytes for each, and no more words not yet counted than those.

    Arrow's own engine counts them, in one thread, since tables are counted side by side. For each of four million words
    it takes 11 ns of a CPU (50,000 different ones) to 68 ns (1.2 million); DuckDB 2.0 takes 22 to 56, Polars 2.1 takes
    29 to 106.
    """

    def __init__(self) -> None:
        self._counted = pa.table({"word": pa.array([], pa.uint64()), "count": pa.array([], pa.int64())})
        self._pending: list[Words] = []
        self._waiting = 0

    def add(self, words: Words) -> None:
        """Count some more words, uint64 [n]."""
        self._pending.append(words)
        self._waiting += len(words)
        if self._waiting > max(_PENDING, self._counted.num_rows):
            self._merge()

    def __len__(self) -> int:
        self._merge()
        return int(self._counted.num_rows)

    def counts(self) -> tuple[Words, Ints]:
        """Return the different words uint64 [n], in no order, and how often each was met, int64 [n]."""
        self._merge()
        word, count = (self._counted[name].combine_chunks().to_numpy() for name in ("word", "count"))
        return np.asarray(word), np.asarray(count)

    def _merge(self) -> None:
        if not self._pending:
            return
        pending = pa.table({"word": pa.chunked_array([pa.array(words) for words in self._pending], pa.uint64())})
        self._pending, self._waiting = [], 0
        met = pending.group_by("word", use_threads=False).aggregate([([], "count_all")])
        met = met.rename_columns(["word", "count"])
        if self._counted.num_rows:
            both = pa.concat_tables([self._counted, met])
            met = both.group_by("word", use_threads=False).aggregate([("count", "sum")])
        self._counted = met.rename_columns(["word", "count"])


def suggested_rows(values: int) -> int:
    """Return the rows to hash so many values into: the power of two from 1.25 a value, or from 16 in small tables."""
    least = max(ROOM * values, min(SMALL_ROOM * values, SMALL_ROWS), 1)
    return 1 << int(np.ceil(np.log2(least)))


def sharing(values: int, rows: int) -> float:
    """Return the expected share of values that share their row with another one, where they are hashed evenly, 0..1."""
    return float(-np.expm1((values - 1) * np.log1p(-1 / rows))) if values > 1 and rows > 1 else float(values > 1)
