"""Lookups of batches, in frequency-ranked row ids, and the seal on the test split."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from shardbench.errors import BadInput, Undeclared

Ints = NDArray[np.int64]


class Split(StrEnum):
    """Train lookups make profiles; test lookups are what a plan is judged on."""

    TRAIN = "train"
    TEST = "test"


_sealed = False


def seal_test_split() -> None:
    """From now on this process cannot read any test split (called before a strategy runs)."""
    global _sealed
    _sealed = True


def assert_readable(split: Split) -> None:
    """Raises Undeclared where a strategy's process asks for the test split."""
    if split is Split.TEST and _sealed:
        raise Undeclared("the test trace is never handed to a strategy: plan from problem.profiles")


@dataclass(frozen=True, kw_only=True)
class Bags:
    """One table's lookups in one global batch.

    ``values`` int64 [lookups]: row ids in frequency order (0 = hottest in the train split);
    ``offsets`` int64 [batch + 1]: bag b is values[offsets[b]:offsets[b + 1]].
    """

    values: Ints
    offsets: Ints

    def __post_init__(self) -> None:
        if self.offsets.ndim != 1 or len(self.offsets) < 1 or self.offsets[0] != 0:
            raise BadInput("offsets must be one-dimensional and start at 0")
        if self.offsets[-1] != len(self.values):
            raise BadInput(f"offsets end at {self.offsets[-1]} but there are {len(self.values)} values")
        self.values.setflags(write=False)
        self.offsets.setflags(write=False)

    @property
    def batch_size(self) -> int:
        """Number of bags."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Bag lengths, int64 [batch]."""
        return np.diff(self.offsets)

    def samples(self, start: int, stop: int) -> "Bags":
        """The bags of samples [start, stop)."""
        low, high = self.offsets[start], self.offsets[stop]
        return Bags(values=self.values[low:high], offsets=self.offsets[start : stop + 1] - low)


def check_rows(values: Ints, rows: int, what: str) -> None:
    """Raises BadInput where an id lies outside [0, rows)."""
    if len(values) and (values.min() < 0 or values.max() >= rows):
        at = int(np.flatnonzero((values < 0) | (values >= rows))[0])
        raise BadInput(f"{what}: lookup {at} asks for row {values[at]}, the table has rows 0..{rows - 1}")


class Ranking:
    """Bijection from raw row ids to frequency ranks of the train split.

    Ties go by id, never-seen rows come last in id order. Memory is that of the *seen* rows.
    """

    def __init__(self, train_ids: Ints, rows: int) -> None:
        self.rows = rows
        self._seen, counts = np.unique(train_ids, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        self._rank = np.empty(len(order), dtype=np.int64)
        self._rank[order] = np.arange(len(order))
        self.counts: Ints = counts[order].astype(np.int64)

    def __call__(self, ids: Ints) -> Ints:
        """Ranks int64 [n] of raw ids int64 [n]."""
        if len(self._seen) == 0:
            return ids.astype(np.int64)
        at = np.searchsorted(self._seen, ids)
        known = self._seen[np.minimum(at, len(self._seen) - 1)] == ids
        return np.where(known, self._rank[np.minimum(at, len(self._seen) - 1)], len(self._seen) + ids - at)
