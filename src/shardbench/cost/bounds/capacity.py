"""Bounds what a memory of limited size can save, fractional knapsacks at a price: lemma 4 of ``docs/bounds.md``."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ids, Ints

_LEVEL = 1e-14
"""Share by which a point must lie over a chord to count: rounding of the shares themselves is less."""

FEW_POINTS, MOST_KEPT = 64, 0.9
"""Points from which on, and share of them that is left from which on, another round of leaving out is too dear."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """The largest share of a table's accesses that so many of its rows can have; concave, from (0, 0).

    ``rows`` float64 [points] ascending, ``share`` float64 [points] in 0..1.
    """

    rows: Floats
    share: Floats

    @classmethod
    def line(cls, rows: int) -> "Curve":
        """Return the curve of a table that is moved whole: parts of it are as good as their size."""
        return cls(rows=np.array([0.0, rows]), share=np.array([0.0, 1.0]))


def hottest_first(ids: Ids, batches: Ints, rows: int) -> Curve:
    """Return the concave hull of what each prefix of a table's ``rows`` has, for memory that holds the first ones.

    ``batches`` int64 [seen] is how many of some batches ask for each of the rows ``ids`` int64 [seen], ascending, in
    frequency order of the train split.
    """
    return _curve(1 + ids, batches, rows)


def any_rows(batches: Ints, rows: int) -> Curve:
    """Return the same for memory that may hold any rows, as if these batches were known."""
    row_counts = np.bincount(batches)[::-1]
    times = np.arange(len(row_counts))[::-1]
    # Rows that as many batches ask for are on one line.
    return _curve(np.cumsum(row_counts)[row_counts > 0], (row_counts * times)[row_counts > 0], rows)


def _curve(ends: Ids, requests: Ints, rows: int) -> Curve:
    if not len(requests):
        return Curve.line(rows)
    cumulative = np.cumsum(requests, dtype=np.float64)
    x, y = np.concatenate([[0.0], ends]), np.concatenate([[0.0], cumulative / cumulative[-1]])
    corners = upper_hull(x, y)
    return Curve(rows=x[corners], share=y[corners])


def upper_hull(x: Floats, y: Floats) -> Ints:
    """Return the numbers of the points of ascending ``x`` [points] that are corners of their upper hull, ascending.

    Points that are not above the line between their neighbours are none, and once no such point is left all others are.
    Where each round would leave out few of many points, quickhull goes on: over every edge so far the highest point
    becomes a corner, until none is above its edge.
    """
    points = np.arange(len(x))
    while len(points) > 2:
        wide, high = np.diff(x[points]), np.diff(y[points])
        above = np.concatenate([[True], high[:-1] * wide[1:] > high[1:] * wide[:-1], [True]])
        count = np.count_nonzero(above)
        if count == len(points):
            break
        if len(points) > FEW_POINTS and count > MOST_KEPT * len(points):
            return np.asarray(points[_quickhull(x[points], y[points])])
        points = points[above]
    return points


def _quickhull(x: Floats, y: Floats) -> Ints:
    corners = np.unique([0, len(x) - 1])
    while len(corners) > 1:
        above = y - np.interp(x, x[corners], y[corners])
        starts = corners[:-1]
        highest = np.maximum.reduceat(above[: corners[-1]], starts)
        edge = np.repeat(np.arange(len(starts)), np.diff(corners))
        at = np.flatnonzero((above[: corners[-1]] == highest[edge]) & (highest[edge] > _LEVEL))
        if not len(at):
            break
        corners = np.union1d(corners, at[np.unique(edge[at], return_index=True)[1]])
    return corners


def largest_saving(gains: Floats, curves: Sequence[Curve], row_bytes: Floats, capacity: float) -> float:
    """Return the most that ``capacity`` bytes, shared by tables, save, in the unit of ``gains``.

    ``gains`` [tables], none negative, are what a table saves whose accesses are all served from
    the memory; its rows take ``row_bytes`` [tables] each. Lemma 4 holds at any price; this one is the gain a byte where
    the densest parts of all curves fill the memory.
    """
    if not gains.any():
        return 0.0
    table = np.repeat(np.arange(len(curves)), [len(curve.rows) for curve in curves])
    size = np.concatenate([curve.rows for curve in curves]) * row_bytes[table]
    gain = np.concatenate([curve.share for curve in curves]) * gains[table]
    inside = np.flatnonzero(np.diff(table) == 0)
    sizes, parts = size[inside + 1] - size[inside], gain[inside + 1] - gain[inside]
    density = parts / sizes
    order = np.argsort(-density, kind="stable")
    filled = np.cumsum(sizes[order])
    last = int(np.searchsorted(filled, capacity))
    if last == len(order):
        return float(gains.sum())
    price = float(density[order[last]])
    starts = np.flatnonzero(np.diff(table, prepend=-1))
    surplus = np.maximum.reduceat(gain - price * size, starts)
    return min(float(gains.sum()), price * capacity + float(surplus.sum()))
