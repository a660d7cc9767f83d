"""Least sums over the rows of many tables at once: of lines in a row's lookups, and of curves at a price of a row."""

from collections.abc import Sequence

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.capacity import Curve
from shardbench.cost.demand import RowCounts


class Descending:
    """Numbers that descend within each table, table after table."""

    def __init__(self, values: Floats, starts: Ints, stops: Ints) -> None:
        self.starts, self.stops = starts, stops
        self._values = np.append(values, 0.0)
        self._halvings = int((stops - starts).max(initial=0)).bit_length() + 1

    def at_least(self, level: Floats) -> Ints:
        """Where the first number below the level [tables] is, in each table, by halving."""
        low, high = self.starts.copy(), self.stops.copy()
        for _ in range(self._halvings):
            middle = (low + high) // 2
            inside = low < high
            more = inside & (self._values[middle] >= level)
            low, high = np.where(more, middle + 1, low), np.where(inside & ~more, middle, high)
        return low


class Curves:
    """Concave curves of all tables, joined."""

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
        """The most that each table saves in HBM, less the price of the rows there, [tables]."""
        if not row_price.any():
            return gains
        level = np.divide(row_price, gains, out=np.full_like(gains, np.inf), where=gains > 0.0)
        last = np.maximum(self._edges.at_least(level) - 1, self._edges.starts)
        return np.asarray(self._share[last] * gains - self._rows[last] * row_price)


class RowSums:
    """Sums over rows of the cheapest of up to three lines in their lookups."""

    def __init__(self, counts: RowCounts, rows: Floats) -> None:
        self._starts, self._stops = counts.starts[:-1], counts.starts[1:]
        self._entries = Descending(counts.lookups, self._starts, self._stops)
        self._lookups = np.concatenate([[0.0], np.cumsum(counts.lookups * counts.rows)])
        self._rows = np.concatenate([[0.0], np.cumsum(counts.rows)])
        self._seen = self._rows[self._stops] - self._rows[self._starts]
        self._unseen = np.maximum(rows - self._seen, 0.0)

    def least(self, once: Floats | None, nodes: tuple[Floats, Floats] | None, copies: Floats | None) -> Floats:
        """``once`` x lookups, nodes[0] x lookups + nodes[1], or ``copies``: the least, over all rows, [tables]."""
        asked = self._sum(self._lookups, self._starts, self._stops)
        if once is not None and nodes is None and copies is None:
            return np.asarray(once * asked)
        if once is None and copies is None and nodes is not None:
            return np.asarray(nodes[0] * asked + nodes[1] * (self._seen + self._unseen))
        if once is None and nodes is None and copies is not None:
            return np.asarray(copies * (self._seen + self._unseen))
        return self._mixed(once, nodes, copies)

    def _mixed(self, once: Floats | None, nodes: tuple[Floats, Floats] | None, copies: Floats | None) -> Floats:
        infinite = np.full(len(self._starts), np.inf)
        slope, start = nodes if nodes is not None else (infinite, infinite)
        top = copies if copies is not None else infinite
        to_copies = _crossing(top - start, slope) if nodes is not None and copies is not None else infinite
        if once is None:
            to_nodes = np.zeros_like(infinite)
        else:
            to_nodes = _crossing(start, once - slope) if nodes is not None else infinite
            direct = _crossing(top, once) if copies is not None else infinite
            skipped = to_nodes >= to_copies
            to_copies = np.where(skipped | (nodes is None), direct, to_copies)
            to_nodes = np.where(skipped | (nodes is None), to_copies, to_nodes)
        a = self._entries.at_least(to_copies)
        b = np.maximum(self._entries.at_least(to_nodes), a)
        total = np.zeros_like(infinite)
        if copies is not None:
            total += copies * self._sum(self._rows, self._starts, a)
        if nodes is not None:
            total += slope * self._sum(self._lookups, a, b) + start * self._sum(self._rows, a, b)
        if once is not None:
            return total + once * self._sum(self._lookups, b, self._stops)
        rest = np.minimum(start, top)
        return np.asarray(total + rest * self._unseen)

    @staticmethod
    def _sum(running: Floats, first: Ints, stop: Ints) -> Floats:
        return np.asarray(running[stop] - running[first])


def _crossing(cost: Floats, saved: Floats) -> Floats:
    """Lookups from which a row saves more than ``cost``; infinite where it never does."""
    return np.asarray(np.where(saved > 0.0, np.maximum(cost, 0.0) / np.where(saved > 0.0, saved, 1.0), np.inf))
