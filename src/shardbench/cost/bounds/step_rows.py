"""Finds least sums over the rows of many tables, by lookups and at a price of a row: lemma 9 of ``docs/bounds.md``."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.bounds.capacity import Curve
from shardbench.cost.bounds.row_counts import RowGroups
from shardbench.cost.bounds.row_prefixes import Prefixes

KEPT_CHANGES = 24
"""The least changes that are kept, more than one evaluation has different ones."""


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


class RowSums:
    """The sums over rows of the cheapest of up to three ways to serve them."""

    def __init__(self, counts: RowGroups, rows: Floats, prefixes: Prefixes | None = None) -> None:
        self._prefixes, self._tables = prefixes, len(rows)
        self._table = np.repeat(np.arange(self._tables), np.diff(counts.starts))
        self._lookups, self._rows = counts.lookups, counts.rows
        self._ranks, self._nodes = counts.more_ranks, counts.more_nodes
        fields = (np.ones_like(self._rows), self._lookups, self._ranks, self._nodes)
        self._sums = [np.bincount(self._table, field * self._rows, minlength=self._tables) for field in fields]
        """Rows that are asked for, their lookups, and ranks and nodes beyond the first that ask for each, [tables]."""
        self._unseen = np.maximum(rows - self._sums[0], 0.0)
        self._changes: dict[tuple[bytes, ...], Floats] = {}
        """The last least changes of first rows: sets of scopes that differ in other rows ask for the same."""

    def least(
        self, once: Floats | None, nodes: tuple[Floats, Floats, Floats] | None, copies: tuple[Floats, Floats] | None
    ) -> Floats:
        """Return the sum over all rows of the least of the ways that are given, [tables].

        ``once`` x lookups; ``nodes[0]`` x lookups + ``nodes[1]`` + ``nodes[2]`` x nodes beyond the first that ask;
        ``copies[0]`` + ``copies[1]`` x ranks beyond the first that ask. [tables] each, none negative. With prefixes,
        rows with copies are a table's first: those with a copy a device, then those with a copy a node.
        """
        if self._prefixes is not None:
            return self._in_order(self._prefixes, once, nodes, copies)
        if sum(way is not None for way in (once, nodes, copies)) == 1:
            return self._all(once, nodes, copies)
        at = self._table
        ways, unseen = [], []
        if once is not None:
            ways.append(once[at] * self._lookups)
            unseen.append(np.zeros(self._tables))
        if nodes is not None:
            ways.append(nodes[0][at] * self._lookups + nodes[1][at] + nodes[2][at] * self._nodes)
            unseen.append(nodes[1])
        if copies is not None:
            ways.append(copies[0][at] + copies[1][at] * self._ranks)
            unseen.append(copies[0])
        seen_sums = np.bincount(at, np.min(ways, axis=0) * self._rows, minlength=self._tables)
        return np.asarray(seen_sums + np.min(unseen, axis=0) * self._unseen)

    def _all(
        self, once: Floats | None, nodes: tuple[Floats, Floats, Floats] | None, copies: tuple[Floats, Floats] | None
    ) -> Floats:
        """Return the sum over all rows in the one way that is given, which needs no row for itself."""
        seen_rows, lookups, ranks, nodes_more = self._sums
        if once is not None:
            return once * lookups
        if nodes is not None:
            return nodes[0] * lookups + nodes[1] * (seen_rows + self._unseen) + nodes[2] * nodes_more
        if copies is None:
            raise ValueError("rows are served in one way at least")
        return copies[0] * (seen_rows + self._unseen) + copies[1] * ranks

    def _in_order(
        self,
        prefixes: Prefixes,
        once: Floats | None,
        nodes: tuple[Floats, Floats, Floats] | None,
        copies: tuple[Floats, Floats] | None,
    ) -> Floats:
        """Sum every row in the last way, and a table's first rows' least change from each way to the one before."""
        zero = np.zeros(self._tables)
        # By row, lookup, rank and node.
        ways = [
            *([(copies[0], zero, copies[1], zero)] if copies is not None else []),
            *([(nodes[1], nodes[0], zero, nodes[2])] if nodes is not None else []),
            *([(zero, once, zero, zero)] if once is not None else []),
        ]
        ends = (prefixes.rows, prefixes.lookups, prefixes.more_ranks, prefixes.more_nodes)
        total = np.sum([factor * field[:, -1] for factor, field in zip(ways[-1], ends)], axis=0)
        for way, after in pairwise(ways):
            a, b, c, d = (new - old for new, old in zip(way, after))
            total = total + self._least_change(prefixes, (a, b, c, d))
        return np.asarray(total)

    def _least_change(self, prefixes: Prefixes, change: tuple[Floats, Floats, Floats, Floats]) -> Floats:
        key = tuple(each.tobytes() for each in change)
        if key not in self._changes:
            if len(self._changes) >= KEPT_CHANGES:
                self._changes.clear()
            self._changes[key] = prefixes.least_change(change)
        return self._changes[key]
