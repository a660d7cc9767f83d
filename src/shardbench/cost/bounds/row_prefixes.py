"""Sums what a table's first rows are asked for, in their order of frequency: for plans that copy the hottest rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardbench.base.arrays import Bools, Floats

BLOCKS = 256
"""The number of parts of about equal lookups that a table's rows are cut into."""
RUN = 16
"""The number of these parts that are passed over together where nothing can be gained inside them."""
ROUNDING = 1e-12
"""Share of the sums by which rounding may hide that something is gained."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefixes:
    """Sums over the rows before each end of a block, [tables, blocks + 1], from no row to all."""

    rows: Floats
    lookups: Floats
    more_ranks: Floats
    """Ranks that ask for a row beyond the first, mean over batches."""
    more_nodes: Floats
    single: Bools
    """Blocks of one row, [tables, blocks]: nothing ends inside them."""

    @classmethod
    def of(cls, tables: Sequence[Floats]) -> "Prefixes":
        """Stack each table's sums, [4, ends]; shorter ones stay at all rows."""
        longest = max(table.shape[1] for table in tables)
        # A whole number of runs of blocks.
        longest += -(longest - 1) % RUN
        padded = [np.pad(table, ((0, 0), (0, longest - table.shape[1])), mode="edge") for table in tables]
        rows, lookups, ranks, nodes = np.stack(padded, axis=1)
        return cls(rows=rows, lookups=lookups, more_ranks=ranks, more_nodes=nodes, single=np.diff(rows) <= 1.0)

    @cached_property
    def _runs(self) -> tuple[Floats, Floats, Bools]:
        """Sums at the ends of runs of blocks, [4, runs + 1, tables]; by run those at its blocks' ends, and ``single``.

        The latter are [4, RUN + 1, runs x tables] and [RUN, runs x tables]; tables come last, so that all is vectors.
        """
        fields = np.stack([self.rows, self.lookups, self.more_ranks, self.more_nodes]).transpose(0, 2, 1)
        starts = np.arange(0, fields.shape[1] - 1, RUN)
        at = starts + np.arange(RUN + 1)[:, None]
        by_run, single = fields[:, at].reshape(4, RUN + 1, -1), self.single.T[at[:-1]].reshape(RUN, -1)
        return np.ascontiguousarray(fields[:, ::RUN]), np.ascontiguousarray(by_run), np.ascontiguousarray(single)

    def least_change(self, change: tuple[Floats, Floats, Floats, Floats]) -> Floats:
        """Return least sum over a table's first rows, however many, of what another way to serve them adds, [tables].

        ``change`` [tables] each: for every row, lookup, rank and node more. Rows that end inside a block add no less
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
