"""Sums what a table's first rows are asked for, in their order of frequency: for plans that copy the hottest rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats

BLOCKS = 256
"""The number of parts of about equal lookups that a table's rows are cut into."""


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
        padded = [np.pad(table, ((0, 0), (0, longest - table.shape[1])), mode="edge") for table in tables]
        rows, lookups, ranks, nodes = np.stack(padded, axis=1)
        return cls(rows=rows, lookups=lookups, more_ranks=ranks, more_nodes=nodes, single=np.diff(rows) <= 1.0)

    def least_change(self, change: tuple[Floats, Floats, Floats, Floats]) -> Floats:
        """Return least sum over a table's first rows, however many, of what another way to serve them adds, [tables].

        ``change`` [tables] each: for every row, lookup, rank and node more. Where rows end inside a block the sum
        falls by no more than the block's falling terms, from its begin, or its rising ones, from its end.
        """
        fields = (self.rows, self.lookups, self.more_ranks, self.more_nodes)
        sums = [field * factor[:, None] for field, factor in zip(fields, change)]
        at = np.sum(sums, axis=0)
        steps = [np.diff(each, axis=1) for each in sums]
        falls = np.sum([np.minimum(step, 0.0) for step in steps], axis=0)
        rises = np.sum([np.maximum(step, 0.0) for step in steps], axis=0)
        inside = np.maximum(at[:, :-1] + falls, at[:, 1:] - rises)
        inside = np.where(self.single, np.inf, inside)
        return np.asarray(np.minimum(at.min(axis=1), inside.min(axis=1, initial=np.inf)))


def prefix_of(asked: Floats, rows: int) -> Floats:
    """Return a table's sums for ``Prefixes``, [4, ends]; ``asked`` [5, rows asked for] is that of ``counted_rows``."""
    ids, lookups, _, ranks, nodes = asked
    if not len(ids):
        return np.array([[0.0, rows], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    reached = np.cumsum(lookups)
    # The first row of each block, and of the rows after the last that is asked for.
    block = np.minimum((reached - lookups) * (BLOCKS / reached[-1]), BLOCKS - 1).astype(np.int64)
    alone = lookups * BLOCKS > reached[-1]
    first = np.flatnonzero((np.diff(block, prepend=-1) != 0) | alone | np.append(False, alone[:-1]))
    ends = np.concatenate([[0.0], ids[first], [ids[-1] + 1.0, float(rows)]])
    before = [np.concatenate([[0.0], np.cumsum(field)]) for field in (lookups, ranks, nodes)]
    stops = np.concatenate([[0], first, [len(ids), len(ids)]])
    return np.array([ends, *(total[stops] for total in before)])
