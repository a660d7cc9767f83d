"""Finds least sums over the rows of many tables, by lookups and at a price of a row: lemma 9 of ``docs/bounds.md``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.cost.bounds.capacity import Curve

KEPT_CHANGES = 24
"""The least changes that are kept, more than one evaluation has different ones."""
BLOCKS = 256
"""The number of parts of about equal lookups that a table's rows are cut into."""
RUN = 16
"""The number of these parts that are passed over together where nothing can be gained inside them."""
ROUNDING = 1e-12
"""Share of the sums by which rounding may hide that something is gained."""
Way = tuple[Floats, Floats, Floats, Floats]
"""What a way to serve a table's rows adds for each row, lookup, and rank and node beyond the first, [tables] each."""


class Descending:
    """The numbers of all tables, which descend within each."""

    def __init__(self, values: Floats, starts: Ints, stops: Ints) -> None:
        self.starts, self.stops = starts, stops
        self._values = np.append(values, 0.0)
        self._halvings = int((stops - starts).max(initial=0)).bit_length() + 1

    def at_least(self, level: Floats) -> Ints:
        """Return the place of each table's first number below its level [tables], found by halving."""
        low, high = self.starts.copy(), self.stops.copy()
        for _ in range(self._halvings):
            middle = (low + high) // 2
            inside = low < high
            more = inside & (self._values[middle] >= level)
            low, high = np.where(more, middle + 1, low), np.where(inside & ~more, middle, high)
        return low


class Curves:
    """The concave curves of all tables, joined."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        stops = np.cumsum([len(c.rows) for c in curves])
        self._rows = np.concatenate([c.rows for c in curves])
        self._share = np.concatenate([c.share for c in curves])
        # An edge before each point, of which the first of every curve is steeper than any.
        with np.errstate(divide="ignore"):
            steep = np.diff(self._share, prepend=0.0) / np.diff(self._rows, prepend=-1.0)
        starts = np.concatenate([[0], stops[:-1]])
        steep[starts] = np.inf
        self._edges = Descending(steep, starts, stops)

    def most(self, gains: Floats, row_price: Floats) -> Floats:
        """Return the most that each table saves in HBM, less the price of the rows there, [tables]."""
        if not row_price.any():
            return gains
        level = np.divide(row_price, gains, out=np.full_like(gains, np.inf), where=gains > 0.0)
        last = np.maximum(self._edges.at_least(level) - 1, self._edges.starts)
        return np.asarray(self._share[last] * gains - self._rows[last] * row_price)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroups:
    """Rows by their mean lookups of a batch, table after table.

    Rows of about equal lookups are two entries, of the fewest and of the most, with rows and lookups that add up to
    theirs; an entry's other fields are the least of its rows. A function that is concave in the lookups and grows with
    the others thus adds up to no more than over the rows themselves.
    """

    lookups: Floats
    """Mean lookups of each of an entry's rows, [entries]."""
    rows: Floats
    """Number of an entry's rows, [entries]."""
    more_ranks: Floats
    """Ranks that ask for the row beyond the first, in the mean over batches, [entries]."""
    more_nodes: Floats
    """Nodes that ask for the row beyond the first, in the mean over batches, [entries]."""
    starts: Ints
    """First entry of each table, and the end, int64 [tables + 1]."""

    @classmethod
    def of(cls, tables: Sequence[Floats]) -> "RowGroups":
        """Join each table's lookups, rows, ranks and nodes of entries, [4, entries]."""
        fields = np.concatenate(tables, axis=1)
        starts = np.concatenate([[0], np.cumsum([entries.shape[1] for entries in tables])]).astype(np.int64)
        return cls(lookups=fields[0], rows=fields[1], more_ranks=fields[2], more_nodes=fields[3], starts=starts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefixes:
    """Sums over the rows before each end of a block, from no row to all."""

    sums: Floats
    """Rows, their lookups, and ranks and nodes beyond the first that ask for each, [4, tables, blocks + 1].

    Lookups, ranks and nodes are means over batches.
    """
    single: Bools
    """Blocks of one row, [tables, blocks]: nothing ends inside them."""

    @classmethod
    def of(cls, tables: Sequence[Floats]) -> "Prefixes":
        """Stack each table's sums, [4, ends]; shorter ones stay at all rows."""
        longest = max(table.shape[1] for table in tables)
        # A whole number of runs of blocks.
        longest += -(longest - 1) % RUN
        padded = [np.pad(table, ((0, 0), (0, longest - table.shape[1])), mode="edge") for table in tables]
        sums = np.stack(padded, axis=1)
        return cls(sums=sums, single=np.diff(sums[0]) <= 1.0)

    @cached_property
    def _runs(self) -> tuple[Floats, Floats, Bools]:
        """Sums at the ends of runs of blocks, [4, runs + 1, tables]; by run those at its blocks' ends, and ``single``.

        The latter are [4, RUN + 1, runs x tables] and [RUN, runs x tables]; tables come last, so that all is vectors.
        """
        fields = self.sums.transpose(0, 2, 1)
        starts = np.arange(0, fields.shape[1] - 1, RUN)
        at = starts + np.arange(RUN + 1)[:, None]
        by_run, single = fields[:, at].reshape(4, RUN + 1, -1), self.single.T[at[:-1]].reshape(RUN, -1)
        return np.ascontiguousarray(fields[:, ::RUN]), np.ascontiguousarray(by_run), np.ascontiguousarray(single)

    def least_change(self, change: Way) -> Floats:
        """Return least sum over a table's first rows, however many, of what another way to serve them adds, [tables].

        Rows that end inside a block add no less
        than what rises does at the block's begin and what falls does at its end. Nor do those that end inside a run of
        blocks, and only runs that may add less than all their ends do are looked into.
        """
        ends, by_run, single = self._runs
        rising, falling = _signed(ends, change)
        least = (rising + falling).min(axis=0)
        lowest = rising[:-1] + falling[1:]
        # What rounding may hide is looked into as well.
        runs = np.flatnonzero(lowest <= least + ROUNDING * (rising[-1] - falling[-1]))
        table = runs % len(least)
        rising, falling = _signed(by_run[..., runs], [each[table] for each in change])
        np.minimum.at(least, table, (rising + falling).min(axis=0))
        inside = np.where(single[:, runs], np.inf, rising[:-1] + falling[1:])
        np.minimum.at(least, table, inside.min(axis=0))
        return np.asarray(least)


def _signed(fields: Floats, change: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return the sums over ``fields`` [4, ends, n] of what adds and of what takes away, [ends, n] each."""
    rising, falling = np.zeros(fields.shape[1:]), np.zeros(fields.shape[1:])
    for field, factor in zip(fields, change):
        more, less = np.maximum(factor, 0.0), np.minimum(factor, 0.0)
        if more.any():
            rising += field * more
        if less.any():
            falling += field * less
    return rising, falling


def prefix_of(table_rows: Floats, rows: int) -> Floats:
    """Return a table's sums for ``Prefixes``, [4, ends]; ``table_rows`` are those of ``counted_rows``."""
    ids, lookups, _, ranks, nodes = table_rows
    if not len(ids):
        return np.array([[0.0, rows], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    cumulative = np.cumsum(lookups)
    # The first row of each block, and of the rows after the last that is asked for.
    block = np.minimum((cumulative - lookups) * (BLOCKS / cumulative[-1]), BLOCKS - 1).astype(np.int64)
    alone = lookups * BLOCKS > cumulative[-1]
    first = np.flatnonzero((np.diff(block, prepend=-1) != 0) | alone | np.append(False, alone[:-1]))
    ends = np.concatenate([[0.0], ids[first], [ids[-1] + 1.0, float(rows)]])
    before = [np.concatenate([[0.0], np.cumsum(field)]) for field in (lookups, ranks, nodes)]
    stops = np.concatenate([[0], first, [len(ids), len(ids)]])
    return np.array([ends, *(total[stops] for total in before)])


class RowSums:
    """The sums over rows of the cheapest of several ways to serve them."""

    def __init__(self, counts: RowGroups, rows: Floats, prefixes: Prefixes | None = None) -> None:
        self._prefixes, self._tables, self._rows = prefixes, len(rows), counts.rows
        self._table = np.repeat(np.arange(self._tables), np.diff(counts.starts))
        self._fields = [np.ones_like(counts.rows), counts.lookups, counts.more_ranks, counts.more_nodes]
        self._sums = np.array(
            [np.bincount(self._table, field * self._rows, minlength=self._tables) for field in self._fields]
        )
        self._unseen = np.maximum(rows - self._sums[0], 0.0)
        self._sums[0] += self._unseen
        """All rows, their lookups, and ranks and nodes beyond the first that ask for each, [tables]."""
        self._changes: dict[tuple[bytes, ...], Floats] = {}
        """The last least changes of first rows: sets of scopes that differ in other rows ask for the same."""

    def least(self, ways: Sequence[Way]) -> Floats:
        """Return the sum over all rows of the least of some ways, one at least, [tables]; no factor is negative.

        With prefixes the ways follow one another: a table's first rows are served in the first one.
        """
        if self._prefixes is not None:
            return self._in_order(self._prefixes, ways)
        if len(ways) == 1:
            return _added(ways[0], self._sums)
        costs = [_added(way, self._fields, self._table) for way in ways]
        seen_sums = np.bincount(self._table, np.min(costs, axis=0) * self._rows, minlength=self._tables)
        return np.asarray(seen_sums + np.min([way[0] for way in ways], axis=0) * self._unseen)

    def _in_order(self, prefixes: Prefixes, ways: Sequence[Way]) -> Floats:
        """Sum every row in the last way, and a table's first rows' least change from each way to the one before."""
        total = np.sum([factor * field[:, -1] for factor, field in zip(ways[-1], prefixes.sums)], axis=0)
        for way, after in pairwise(ways):
            a, b, c, d = (new - old for new, old in zip(way, after))
            total = total + self._least_change(prefixes, (a, b, c, d))
        return np.asarray(total)

    def _least_change(self, prefixes: Prefixes, change: Way) -> Floats:
        key = tuple(each.tobytes() for each in change)
        if key not in self._changes:
            if len(self._changes) >= KEPT_CHANGES:
                self._changes.clear()
            self._changes[key] = prefixes.least_change(change)
        return self._changes[key]


def _added(way: Way, fields: Sequence[Floats] | Floats, at: Ints | slice = slice(None)) -> Floats:
    """Return the sum of ``fields`` [4][n] times a way's factors for the tables ``at``, [n]."""
    parts = (factor[at] * field for factor, field in zip(way, fields) if factor.any())
    return sum(parts, np.zeros(len(fields[0])))
