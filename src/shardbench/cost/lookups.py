"""The lookups of one table in one global batch, by source rank, owner and distinct row: exact or expected."""

from functools import cached_property
from typing import Protocol

import numpy as np

from shardbench.base.arrays import Floats, Ids, Ints, Ints32
from shardbench.base.errors import BadInput
from shardbench.model.profile import AccessProfile
from shardbench.workloads.trace import Bags, bag_offsets, check_rows

STAMPED_ROWS = 1 << 26
"""Rows up to which each keeps a stamp of its last lookup, so that nothing is sorted (256 MiB).

Beyond, a hash table of the lookups is cheaper.
"""

_stamps: Ints32 = np.empty(0, dtype=np.int32)


def _scratch(rows: int) -> Ints32:
    # Kept between calls: fresh pages would cost more than the stamps. Old stamps do no harm, since
    # every stamp that is read was written for the same lookups just before.
    global _stamps
    if len(_stamps) < rows:
        _stamps = np.empty(rows, dtype=np.int32)
    return _stamps


def distinct_ids(values: Ids, rows: int) -> Ids:
    """Return the distinct ids among ``values`` (all below ``rows``), in no particular order."""
    if rows > STAMPED_ROWS or len(values) > np.iinfo(np.int32).max:
        import pandas as pd  # noqa: PLC0415 - few tables are as long, and it takes long to import

        return np.asarray(pd.unique(values))
    stamps = _scratch(rows)
    order = np.arange(len(values), dtype=np.int32)
    stamps[values] = order
    return np.asarray(values[stamps[values] == order])


class TableLookups(Protocol):
    """The lookups of one table in one global batch, by source rank; exact or expected.

    Of a table whose ids are made distinct they are what ranks ask for then.
    """

    @property
    def of_samples(self) -> "TableLookups":
        """The lookups as the samples have them, whether or not ids are made distinct."""

    def by_source(self, start: int, stop: int) -> Floats:
        """Return the lookups of rows [start, stop) by the rank whose sample asks, [world]."""

    def dealt(self, start: int, stop: int, ways: int) -> Floats:
        """Return the lookups of rows [start, stop) by that rank and by owner (row - start) % ways, [world, ways]."""

    def distinct(self, start: int, stop: int, ways: int) -> Floats:
        """Return the distinct rows of the global batch by owner, [ways]."""

    def distinct_by_group(self, start: int, stop: int, groups: Ints, ways: int) -> Floats:
        """Return the distinct rows of each group's samples by owner (row - start) % ways, [groups, ways].

        ``groups`` int64 [groups, ranks] are the ranks that ask.
        """

    def longest_bag(self, start: int, stop: int, groups: int, ways: int) -> Floats:
        """Return the most lookups of [start, stop) that one bag has, by group of samples and owner, [groups, ways].

        A bag dealt over several owners counts as its even share, rounded up: counting every
        (bag, owner) pair would grow with samples x devices.
        """


class CountedLookups:
    """The exact lookups of a batch, counted by vectors over lookups."""

    def __init__(self, bags: Bags, rows: int, world_size: int, what: str = "batch", *, distinct: bool = False) -> None:
        if bags.batch_size % world_size:
            raise BadInput(f"{what}: batch size {bags.batch_size} is not a multiple of {world_size} ranks")
        check_rows(bags.values, rows, what)
        self.values = bags.values
        self.rows = rows
        self.world = world_size
        self.offsets = bags.offsets
        self.ends = bags.offsets[:: bags.features * bags.batch_size // world_size]
        self._bags = bags
        self._distinct = distinct
        if distinct:
            chunks = [distinct_ids(self.values[low:high], rows) for low, high in zip(self.ends[:-1], self.ends[1:])]
            self.values, counts = np.concatenate(chunks), np.array(list(map(len, chunks)), dtype=np.int64)
            self.ends = bag_offsets(counts)
            # FBGEMM spreads a rank's distinct ids evenly over its bags.
            bag_count = (len(bags.offsets) - 1) // world_size
            each, longer = np.divmod(counts[:, None], bag_count)
            self.offsets = bag_offsets((each + (np.arange(bag_count) < longer)).ravel())

    @property
    def of_samples(self) -> "CountedLookups":
        """The lookups of the same batch as its samples have them."""
        return CountedLookups(self._bags, self.rows, self.world) if self._distinct else self

    def _below(self, row: int) -> Ints:
        if row <= 0:
            return np.zeros(self.world, dtype=np.int64)
        if row >= self.rows:
            return np.diff(self.ends)
        running = np.concatenate([[0], np.cumsum(self.values < row)])
        return np.diff(running[self.ends])

    def by_source(self, start: int, stop: int) -> Floats:
        """Count lookups by the rank whose sample asks."""
        return (self._below(stop) - self._below(start)).astype(np.float64)

    def dealt(self, start: int, stop: int, ways: int) -> Floats:
        """Count lookups by the rank whose sample asks and by owner."""
        source = np.repeat(np.arange(self.world) * ways, np.diff(self.ends))
        values = self.values
        if start > 0 or stop < self.rows:
            inside = (values >= start) & (values < stop)
            values, source = values[inside], source[inside]
        counts = np.bincount(source + (values - start) % ways, minlength=self.world * ways)
        return counts.reshape(self.world, ways).astype(np.float64)

    @cached_property
    def touched(self) -> Ids:
        """The distinct rows that the batch asks for, in no particular order."""
        return distinct_ids(self.values, self.rows)

    @cached_property
    def _longest_by_source(self) -> Ints:
        """The lookups of the longest bag by the rank whose sample asks, [world]."""
        return np.asarray(np.diff(self.offsets).reshape(self.world, -1).max(axis=1))

    def distinct(self, start: int, stop: int, ways: int) -> Floats:
        """Count the distinct rows of the batch by owner."""
        return self._by_owner(self.touched, start, stop, ways)

    def _by_owner(self, ids: Ids, start: int, stop: int, ways: int) -> Floats:
        inside = ids if start <= 0 and stop >= self.rows else ids[(ids >= start) & (ids < stop)]
        if ways == 1:
            return np.array([len(inside)], dtype=np.float64)
        return np.bincount((inside - start) % ways, minlength=ways).astype(np.float64)

    def distinct_by_group(self, start: int, stop: int, groups: Ints, ways: int) -> Floats:
        """Count the distinct rows of each group's samples by owner."""
        chunks = (distinct_ids(self.of_ranks(ranks), self.rows) for ranks in groups)
        return np.stack([self._by_owner(ids, start, stop, ways) for ids in chunks])

    def of_ranks(self, ranks: Ints) -> Ids:
        """Return the lookups of the samples of some ranks, which ascend."""
        if ranks[-1] - ranks[0] + 1 == len(ranks):  # neighbours: nothing to copy
            return self.values[self.ends[ranks[0]] : self.ends[ranks[-1] + 1]]
        return np.concatenate([self.values[self.ends[rank] : self.ends[rank + 1]] for rank in ranks])

    def longest_bag(self, start: int, stop: int, groups: int, ways: int) -> Floats:
        """Count the lookups of the longest bag by group of samples and owner."""
        if start > 0 or stop < self.rows:
            inside = (self.values >= start) & (self.values < stop)
            lengths = np.diff(np.concatenate([[0], np.cumsum(inside)])[self.offsets])
            longest = lengths.reshape(groups, -1).max(axis=1)
        else:
            longest = self._longest_by_source.reshape(groups, -1).max(axis=1)
        return np.repeat(np.ceil(longest / ways)[:, None], ways, axis=1)


class ExpectedLookups:
    """The expected lookups of a batch under the training profile."""

    def __init__(self, profile: AccessProfile, batch_size: int, world_size: int, *, distinct: bool = False) -> None:
        self.profile = profile
        self.total = profile.mean_pooling * batch_size
        self.batch_size = batch_size
        self.world = world_size
        self.distinct_only = distinct

    @property
    def of_samples(self) -> "ExpectedLookups":
        """The lookups of the same batch as its samples have them."""
        return ExpectedLookups(self.profile, self.batch_size, self.world) if self.distinct_only else self

    def by_source(self, start: int, stop: int) -> Floats:
        """Expect equal lookups from every rank."""
        if self.distinct_only:
            return np.full(self.world, self.profile.expected_distinct(self.total / self.world, start, stop))
        return np.full(self.world, self.total / self.world * self.profile.share(start, stop))

    def dealt(self, start: int, stop: int, ways: int) -> Floats:
        """Expect equal shares for the owners, as a view: hot rows are dealt round-robin."""
        return np.broadcast_to(self.by_source(start, stop)[:, None] / ways, (self.world, ways))

    def distinct(self, start: int, stop: int, ways: int) -> Floats:
        """Expect equal shares of the distinct rows for the owners."""
        return np.full(ways, self.profile.expected_distinct(self.total, start, stop) / ways)

    def distinct_by_group(self, start: int, stop: int, groups: Ints, ways: int) -> Floats:
        """Expect as many distinct rows of every group's samples, in equal shares for the owners."""
        group_lookups = self.total * groups.shape[1] / self.world
        return np.full((len(groups), ways), self.profile.expected_distinct(group_lookups, start, stop) / ways)

    def longest_bag(self, start: int, stop: int, groups: int, ways: int) -> Floats:
        """Return zeros: a profile knows no single bag."""
        return np.zeros((groups, ways))
