"""Lookups of batches, in frequency-ranked row ids, and the seal on the test split."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from shardbench.base.arrays import Ints, Ints32
from shardbench.base.errors import BadInput, Undeclared


class Split(StrEnum):
    """Train lookups make profiles; test lookups are what a plan is judged on."""

    TRAIN = "train"
    TEST = "test"


_sealed = _for_good = False


def seal_test_split() -> None:
    """Keep this process from reading any test split from now on (called before a strategy runs)."""
    global _sealed, _for_good
    _sealed = _for_good = True


def is_sealed() -> bool:
    """Tell whether this process is there for a strategy, and never reads test splits."""
    return _for_good


@contextmanager
def closed_test_split() -> Iterator[None]:
    """Keep this process from reading any test split meanwhile: a strategy plans in it."""
    global _sealed
    before, _sealed = _sealed, True
    try:
        yield
    finally:
        _sealed = before


def assert_readable(split: Split) -> None:
    """Raise Undeclared where a strategy's process asks for the test split."""
    if split is Split.TEST and _sealed:
        raise Undeclared("the test trace is never handed to a strategy: plan from problem.profiles")


@dataclass(frozen=True, kw_only=True)
class Bags:
    """One table's lookups in one global batch.

    ``values`` int64 [lookups]: row ids in frequency order (0 = hottest in the train split);
    ``offsets`` int64 [batch x features + 1]: bag b is values[offsets[b]:offsets[b + 1]]. Sample s has
    the bags [s x features, (s + 1) x features), one a feature that shares the table. Raises BadInput
    for ids that are no whole numbers, offsets that decrease or do not span the values, and bags that
    are no whole samples.
    """

    values: Ints
    offsets: Ints
    features: int = 1

    def __post_init__(self) -> None:
        if self.offsets.ndim != 1 or len(self.offsets) < 1 or self.offsets[0] != 0:
            raise BadInput("offsets must be one-dimensional and start at 0")
        if self.offsets[-1] != len(self.values):
            raise BadInput(f"offsets end at {self.offsets[-1]} but there are {len(self.values)} values")
        if len(self.values) and self.values.dtype.kind not in "iu":
            raise BadInput(f"row ids are {self.values.dtype}: give whole numbers (int64)")
        lengths = self.lengths
        if len(lengths) and lengths.min() < 0:
            bag = int(np.argmax(lengths < 0))
            raise BadInput(f"the offsets of bag {bag} decrease: each bag ends where the next begins")
        if self.features < 1 or len(lengths) % self.features:
            raise BadInput(f"{len(lengths)} bags are no whole samples of {self.features} features")
        self.values.setflags(write=False)
        self.offsets.setflags(write=False)

    @property
    def batch_size(self) -> int:
        """Return the number of samples."""
        return (len(self.offsets) - 1) // self.features

    @property
    def lengths(self) -> Ints:
        """Return the length of every bag, int64 [batch x features]."""
        return np.diff(self.offsets)

    @property
    def sample_lengths(self) -> Ints:
        """Return the number of lookups of each sample, of all features, int64 [batch]."""
        return np.diff(self.offsets[:: self.features])

    def samples(self, start: int, stop: int) -> "Bags":
        """Return the bags of samples [start, stop)."""
        offsets = self.offsets[start * self.features : stop * self.features + 1]
        return Bags(values=self.values[offsets[0] : offsets[-1]], offsets=offsets - offsets[0], features=self.features)

    def feature(self, number: int) -> "Bags":
        """Return the bags of one feature, one a sample."""
        if self.features == 1:
            return self
        return gather_bags(
            self.values, self.offsets[number : -1 : self.features], self.lengths[number :: self.features]
        )

    @classmethod
    def shared(cls, of_features: Sequence["Bags"]) -> "Bags":
        """Put the bags [batch] of every feature of a shared table together."""
        if len(of_features) == 1:
            return of_features[0]
        begins = np.cumsum([0, *(len(bags.values) for bags in of_features[:-1])])
        sample_bags = gather_bags(
            np.concatenate([bags.values for bags in of_features]),
            np.stack([bags.offsets[:-1] + begin for bags, begin in zip(of_features, begins)], axis=1).ravel(),
            np.stack([bags.lengths for bags in of_features], axis=1).ravel(),
        )
        return cls(values=sample_bags.values, offsets=sample_bags.offsets, features=len(of_features))


def last_rows(bags: Bags) -> Ints:
    """Return the highest row id of every sample, of all features, int64 [batch]; -1 where a sample has no lookup."""
    last = np.full(bags.batch_size, -1, dtype=np.int64)
    some = bags.sample_lengths > 0
    if some.any():
        last[some] = np.maximum.reduceat(bags.values, bags.offsets[: -1 : bags.features][some])
    return last


def bag_offsets(lengths: Ints) -> Ints:
    """Return the offsets int64 [n + 1] of bags of ``lengths`` int64 [n]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def gather_bags(values: Ints, begins: Ints, lengths: Ints) -> Bags:
    """Return the bags values[begins[i]:begins[i] + lengths[i]], one after the other."""
    offsets = bag_offsets(lengths)
    if bool((lengths == 1).all()):
        return Bags(values=values[begins], offsets=offsets)
    return Bags(values=values[np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])], offsets=offsets)


def check_rows(values: Ints, rows: int, what: str) -> None:
    """Raise BadInput where an id lies outside [0, rows)."""
    if len(values) and (values.min() < 0 or values.max() >= rows):
        at = int(np.flatnonzero((values < 0) | (values >= rows))[0])
        raise BadInput(f"{what}: lookup {at} asks for row {values[at]}, the table has rows 0..{rows - 1}")


class Ranking:
    """Bijection from raw row ids to frequency ranks of the train split.

    Ties go by id, never-seen rows come last in id order. Tables of few rows, for what is looked
    up in them, keep the rank of every row (4 bytes a row); others that of the *seen* rows only.
    """

    DENSE_ROWS = 1 << 24
    DENSE_ROWS_PER_LOOKUP = 16
    """Rows a lookup from which on filling an array of all rows takes longer than searching the seen ones."""
    COUNTED_ROWS_PER_LOOKUP = 6
    """Rows a lookup from which on counting each takes longer than sorting the lookups."""
    TALLIED_ROWS_PER_LOOKUP = 32
    """Rows a lookup from which on tallying each takes longer than sorting the lookups, where no ranks are made."""
    RADIX_LOOKUPS = 1 << 18
    """Lookups up to which two passes of a radix sort, which are stable, are quicker than a sort by comparison."""

    def __init__(self, train_ids: NDArray[np.integer], rows: int) -> None:
        self.rows = rows
        dense = rows <= min(self.DENSE_ROWS, self.DENSE_ROWS_PER_LOOKUP * len(train_ids))
        narrow = np.int32 if rows <= 1 << 31 else np.int64
        few = rows <= min(self.DENSE_ROWS, self.COUNTED_ROWS_PER_LOOKUP * len(train_ids))
        ids, counts = _count_ids(train_ids.astype(narrow, copy=False), rows if dense or few else None)
        # Small whole numbers are sorted by radix, many times quicker than by comparison.
        below = int(counts.max(initial=0)) - counts
        order = np.argsort(below.astype(np.uint16) if below.max(initial=0) < 1 << 16 else below, kind="stable")
        ordered = counts[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=0))
        self.runs: tuple[Ints, Ints] = ordered[starts], np.diff(np.append(starts, len(ordered)))
        """Distinct access counts of the seen rows, descending, and how many rows have each, int64 [runs]."""
        self._ranks: Ints32 | None = None
        if dense:
            self._ranks = np.ones(rows, dtype=np.int32)
            self._ranks[ids] = 0
            np.cumsum(self._ranks, out=self._ranks)
            self._ranks += np.int32(len(ids) - 1)
            self._ranks[ids[order]] = np.arange(len(ids), dtype=np.int32)
        else:
            self._seen = ids.astype(narrow, copy=False)
            self._rank = np.empty_like(self._seen)
            self._rank[order] = np.arange(len(ids))

    @property
    def counts(self) -> Ints:
        """Return the access counts of the seen rows in rank order, int64 [seen], descending."""
        return np.repeat(*self.runs)

    @property
    def seen(self) -> Ints:
        """Return the ids of the seen rows, int64 [seen], ascending."""
        if self._ranks is None:
            return self._seen.astype(np.int64)
        return np.flatnonzero(self._ranks < self.runs[1].sum())

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that it keeps."""
        arrays = (self._seen, self._rank) if self._ranks is None else (self._ranks,)
        return sum(array.nbytes for array in (*arrays, *self.runs))

    def __call__(self, ids: Ints) -> Ints:
        """Return the ranks int64 [n] of raw ids int64 [n]; raises BadInput where an id is no row."""
        check_rows(ids, self.rows, "ranking")
        if self._ranks is not None:
            return self._ranks[ids].astype(np.int64)
        if len(self._seen) == 0:
            return ids.astype(np.int64)
        at = np.searchsorted(self._seen, ids.astype(self._seen.dtype, copy=False))
        near = np.minimum(at, len(self._seen) - 1)
        return np.where(self._seen[near] == ids, self._rank[near], len(self._seen) + ids - at)


def access_runs(ids: NDArray[np.integer], rows: int) -> tuple[Ints, Ints]:
    """Return ``Ranking(ids, rows).runs`` without a ranking, which takes several times as long."""
    if rows <= min(Ranking.DENSE_ROWS, Ranking.TALLIED_ROWS_PER_LOOKUP * len(ids)):
        tally = np.zeros(rows, dtype=np.int32)
        np.add.at(tally, ids, np.int32(1))
        # A row that was looked up c times is met c times among the lookups.
        row_counts = np.bincount(tally.take(ids))
        row_counts[1:] //= np.arange(1, len(row_counts))
    else:
        row_counts = np.bincount(_count_ids(ids, None)[1])
    counts = np.flatnonzero(row_counts)[::-1]
    return counts, row_counts[counts]


def _count_ids(ids: NDArray[np.integer], bins: int | None) -> tuple[NDArray[np.integer], Ints]:
    """Count the rows that occur, ascending, int64; by an array of ``bins`` where given, else by sorting."""
    if bins is not None:
        counts = np.bincount(ids, minlength=bins)
        rows = np.flatnonzero(counts)
        return rows, counts[rows].astype(np.int64)
    ordered = _sort(ids)
    starts = np.flatnonzero(np.concatenate([ordered[:1] >= 0, ordered[1:] != ordered[:-1]]))
    return ordered[starts], np.diff(np.append(starts, len(ordered))).astype(np.int64)


def _sort(ids: NDArray[np.integer]) -> NDArray[np.integer]:
    if ids.dtype != np.int32 or len(ids) > Ranking.RADIX_LOOKUPS:
        return np.sort(ids)
    by_low = ids[np.argsort(ids.astype(np.uint16), kind="stable")]
    return by_low[np.argsort((by_low >> 16).astype(np.uint16), kind="stable")]
