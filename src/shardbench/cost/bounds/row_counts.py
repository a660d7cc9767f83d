"""Counts how often rows are asked for, and on how many ranks and nodes: it decides where copies of them pay."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ids, Ints
from shardbench.cost.lookups import CountedLookups, ExpectedLookups
from shardbench.model.machine import Topology

DENSE_ROWS = 4
"""The rows a lookup up to which counting every row is cheaper than sorting the lookups."""
OFTEN = 8
"""The ranks a lookup up to which the ranks that ask for a row are told apart; a rarer row counts as asked by one."""
ALIKE = 1.05
"""The ratio of lookups up to which rows are one entry."""


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
class BatchRows:
    """The rows that one batch asks a table for."""

    ids: Ids
    """The rows in ascending order, [rows]."""
    times: Ints
    """The lookups of each row, [rows]."""
    which: Ints
    """The place in ``ids`` of each lookup, [lookups]."""
    source: Ints
    """The rank that asks, [lookups]."""

    @classmethod
    def of(cls, lookups: CountedLookups) -> "BatchRows":
        """Return the rows that a batch's lookups ask for."""
        values, rows = lookups.values, lookups.rows
        source = np.repeat(np.arange(lookups.world), np.diff(lookups.ends))
        if rows > DENSE_ROWS * len(values):
            ids, which, times = np.unique(values, return_inverse=True, return_counts=True)
            return cls(ids=ids.astype(np.int64), times=times.astype(np.int64), which=which, source=source)
        times = np.bincount(values, minlength=rows)
        ids = np.flatnonzero(times)
        place = np.cumsum(times > 0) - 1
        return cls(ids=ids, times=times[ids], which=place[values], source=source)

    def spread(self, topology: Topology) -> tuple[Ints, Ints]:
        """Return the fewest ranks and nodes beyond the first that ask for each row, [rows] each."""
        world, local = topology.world_size, topology.devices_per_node
        frequent = np.flatnonzero(OFTEN * self.times >= world)
        place = np.full(len(self.ids), -1, dtype=np.int64)
        place[frequent] = np.arange(len(frequent))
        at = place[self.which]
        asks = np.zeros((len(frequent), world), dtype=np.bool_)
        frequent_lookups = np.flatnonzero(at >= 0)
        asks.reshape(-1)[at[frequent_lookups] * world + self.source[frequent_lookups]] = True
        ranks, nodes = np.zeros((2, len(self.ids)), dtype=np.int64)
        ranks[frequent] = asks.sum(axis=1) - 1
        nodes[frequent] = asks.reshape(len(frequent), topology.nodes, local).any(axis=2).sum(axis=1) - 1
        return ranks, nodes


def counted_rows(batches: Sequence[BatchRows], topology: Topology) -> Floats:
    """Return the rows asked for: id (ascending), mean lookups, 1, mean ranks and nodes beyond the first, [5, rows]."""
    spread = [batch.spread(topology) for batch in batches]
    if len(batches) == 1:
        ids = batches[0].ids
        return np.array([ids, batches[0].times, np.ones(len(ids)), *spread[0]], dtype=np.float64)
    ids, which = np.unique(np.concatenate([batch.ids for batch in batches]), return_inverse=True)
    fields = [
        np.concatenate([batch.times for batch in batches]),
        np.concatenate([ranks for ranks, _ in spread]),
        np.concatenate([nodes for _, nodes in spread]),
    ]
    lookups, ranks, nodes = (np.bincount(which, field, minlength=len(ids)) / len(batches) for field in fields)
    return np.array([ids, lookups, np.ones(len(ids)), ranks, nodes], dtype=np.float64)


def expected_entries(lookups: ExpectedLookups, batch_size: int, topology: Topology) -> Floats:
    """Return the entries of a table for ``RowGroups`` under a training profile, [4, entries]."""
    profile = lookups.profile
    counts = np.asarray(profile.counts, dtype=np.float64)
    rows = np.asarray(profile.row_counts, dtype=np.float64)
    if not len(counts):
        return np.zeros((4, 0))
    total = lookups.total
    met_shares = profile.met_shares(total)
    spread = [
        np.maximum(groups * profile.met_shares(total / groups) - met_shares, 0.0)
        for groups in (topology.world_size, topology.nodes)
    ]
    each = counts / profile.samples * batch_size
    if lookups.distinct_only:
        each = topology.world_size * profile.met_shares(total / topology.world_size)
    return grouped(each, rows, *spread)


def grouped(lookups: Floats, rows: Floats, ranks: Floats, nodes: Floats) -> Floats:
    """Return rows of about equal lookups as two entries each, as ``RowGroups`` has them, [4, entries]."""
    if not len(lookups):
        return np.zeros((4, 0))
    order = np.argsort(-lookups, kind="stable")
    lookups, rows, ranks, nodes = lookups[order], rows[order], ranks[order], nodes[order]
    group = np.floor(np.log(lookups) / np.log(ALIKE))
    first = np.flatnonzero(np.diff(group, prepend=np.nan) != 0)
    most, fewest = lookups[first], lookups[np.append(first[1:], len(lookups)) - 1]
    count, lookup_sums = np.add.reduceat(rows, first), np.add.reduceat(rows * lookups, first)
    gap = most - fewest
    # So many rows at ``most``, the others at ``fewest``, have as many lookups.
    above = np.divide(lookup_sums - count * fewest, gap, out=count.copy(), where=gap > 1e-9 * most)
    above = np.clip(above, 0.0, count)
    least = [np.minimum.reduceat(field, first) for field in (ranks, nodes)]
    high = np.array([most, above, *least])
    low = np.array([fewest, count - above, *least])
    return np.concatenate([high, low[:, low[1] > 0.0]], axis=1)
