"""Collects what batches ask of the devices, whatever the plan: the numbers that lower bounds are proven from.

Counted off batches, or expected under the training profiles, as traffic is. How often rows are asked for, and on how
many ranks and nodes, decides where copies of them pay; how many lookups can be near where they are asked for is lemma
10 of ``docs/bounds.md``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats, Ids, Ints
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.cost.bounds.capacity import Curve, any_rows, hottest_first
from shardbench.cost.bounds.embedding import alone_load, expected_table_loads
from shardbench.cost.bounds.step_rows import Prefixes, RowGroups, prefix_of
from shardbench.cost.load import Load
from shardbench.cost.lookups import CountedLookups, ExpectedLookups
from shardbench.cost.traffic import counted_lookups, expected_lookups
from shardbench.model.machine import Topology
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling, Table
from shardbench.workloads.trace import Bags

DENSE_ROWS = 4
"""The rows a lookup up to which counting every row is cheaper than sorting the lookups."""
OFTEN = 8
"""The ranks a lookup up to which the ranks that ask for a row are told apart; a rarer row counts as asked by one."""
ALIKE = 1.05
"""The ratio of lookups up to which rows are one entry."""
NEAR_RANK, NEAR_NODE, NEAR_COPY = range(3)
"""The places that are near: the asking rank, or its node, for rows held once; that rank, if every node has a copy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalLookups:
    """The most lookups that are near where they are asked for, in the mean over batches; [tables, places]."""

    most: Floats
    """The most near lookups of all rows."""
    share: Floats
    excess: Floats
    """Any rows have at most ``share`` of their lookups near, and ``excess`` more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Demand:
    """The numbers that batches ask for, by table; means are over the batches."""

    loads: Load
    """The load of each table alone on one device in HBM, [batches, tables]."""
    any_rows: tuple[Curve, ...]
    """The accesses that a table's rows in HBM serve, whichever rows they are, [tables]."""
    hottest_first: tuple[Curve, ...]
    """The accesses that they serve where they are the table's hottest by the train split, [tables]."""
    sources: Floats
    """Mean lookups by the rank that asks, [tables, world]."""
    first_by_rank: Floats
    """Mean over batches of the ranks' bags, or lookups where a rank has fewer, summed over ranks, [tables]."""
    histories: Floats
    """Lookups of unpooled tables times their widths, by the rank that asks, [batches, world]."""
    counts: RowGroups
    prefixes: Prefixes | None
    """The rows of ``counts`` in their order of frequency, where that is not the order of their lookups."""
    near: LocalLookups


def count_demand(problem: Problem, bags: Callable[[int, int], Bags | CountedLookups], batches: int) -> Demand:
    """Count ``batches`` global batches; ``bags(n, i)`` are batch n's of problem.tables[i], or counted already."""
    tables, world = problem.tables, problem.world_size
    loads = Load.zeros(batches, len(tables))
    sources, histories = np.zeros((len(tables), world)), np.zeros((batches, world))
    first, near = np.zeros(len(tables)), np.zeros((3, len(tables), 3))
    anyhow, in_order, counts, prefixes = [], [], [], []
    for i, table in enumerate(tables):
        batch_rows: list[BatchRows] = []
        blocks: list[Blocks] = []
        for n in range(batches):
            lookups = counted_lookups(bags(n, i), problem, i)
            loads.values[n, i] = alone_load(problem, i, lookups).values
            by_rank = lookups.by_source(0, table.rows)
            sources[i] += by_rank / batches
            first[i] += np.minimum(by_rank, problem.batch_size // world * table.features).sum() / batches
            if table.pooling is Pooling.NONE:
                histories[n] += lookups.of_samples.by_source(0, table.rows) * table.dim
            batch_rows.append(BatchRows.of(lookups))
            blocks.append(local_blocks(lookups, batch_rows[-1], table, problem))
        near[:, i] = local_lookups_of(blocks, table, problem)
        ids = batch_rows[0].ids
        times: Ints = np.ones_like(ids)
        if batches > 1:
            ids, batch_counts = np.unique(np.concatenate([batch.ids for batch in batch_rows]), return_counts=True)
            times = batch_counts.astype(np.int64)
        anyhow.append(any_rows(times, table.rows))
        in_order.append(hottest_first(ids, times, table.rows))
        table_rows = counted_rows(batch_rows, problem.topology)
        counts.append(grouped(*table_rows[1:]))
        prefixes.append(prefix_of(table_rows, table.rows))
    return Demand(
        loads=loads,
        any_rows=tuple(anyhow),
        hottest_first=tuple(in_order),
        sources=sources,
        first_by_rank=first,
        histories=histories,
        counts=RowGroups.of(counts),
        prefixes=Prefixes.of(prefixes),
        near=LocalLookups(most=near[0], share=near[1], excess=near[2]),
    )


def expected_demand(problem: Problem) -> Demand:
    """Return what a batch is expected to ask for under the training profiles."""
    world, topology, batch = problem.world_size, problem.topology, problem.batch_size
    by_table = [expected_lookups(problem, i) for i in range(len(problem.tables))]
    totals = np.array([lookups.by_source(0, lookups.profile.rows).sum() for lookups in by_table])
    repeated = np.array([lookups.total for lookups in by_table])
    widths = np.array([table.dim if table.pooling is Pooling.NONE else 0 for table in problem.tables])
    features = np.array([table.features for table in problem.tables])
    curves = tuple(_expected_curve(p, float(total)) for p, total in zip(problem.profiles, repeated))
    near = np.array([1.0 / world, 1.0 / topology.nodes, 1.0 / topology.devices_per_node])
    shares = np.tile(near, (len(totals), 1))
    return Demand(
        loads=Load(expected_table_loads(problem).values[None]),
        any_rows=curves,
        hottest_first=curves,
        sources=np.repeat(totals[:, None] / world, world, axis=1),
        first_by_rank=np.minimum(totals, float(batch) * features),
        histories=np.full((1, world), float(repeated @ widths) / world),
        counts=RowGroups.of([expected_entries(lookups, batch, topology) for lookups in by_table]),
        prefixes=None,
        near=LocalLookups(most=totals[:, None] * shares, share=shares, excess=np.zeros((len(totals), 3))),
    )


def _expected_curve(profile: AccessProfile, lookups: float) -> Curve:
    """Return the share of a batch's expected distinct rows that are among the hottest rows, as a curve."""
    if not profile.lookups or lookups <= 0:
        return Curve.line(profile.rows)
    ends = np.unique(np.cumsum([0.0, *profile.row_counts, profile.rows - profile.seen_rows]))
    distinct = profile.distinct_below(lookups, ends)
    return Curve(rows=ends, share=distinct / distinct[-1])


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


def block_lookups(table: Table, problem: Problem) -> int:
    """Return the lookups of a block of rows: twice as many cost no more to exchange than a further range's lengths."""
    topology = problem.topology
    nodes, local = topology.nodes, topology.devices_per_node
    # A range more is sent to one device by the other nodes, or inside each node to one of it.
    outside, inside = (nodes - 1) * local, nodes * (local - 1)
    peers = min(outside, inside) if outside and inside else outside or inside
    lengths = problem.batch_size // problem.world_size * table.features * LENGTH_BYTES * peers
    vectors = 2 * problem.exchange.bytes * table.dim if table.pooling is Pooling.NONE else 0
    return max(1, lengths // (2 * (INDEX_BYTES + vectors)))


class Blocks(NamedTuple):
    """The blocks of a table's rows in one batch."""

    lookups: Ints
    """The lookups of each block, [blocks]."""
    near: Ints
    """The most of these that are near, [blocks, places]."""


def local_lookups_of(batches: Sequence[Blocks], table: Table, problem: Problem) -> Floats:
    """Return the three fields of a table's ``LocalLookups``, [3, places]."""
    lookups = np.concatenate([blocks.lookups for blocks in batches]).astype(np.float64)
    near = np.concatenate([blocks.near for blocks in batches]).astype(np.float64)
    if not len(lookups):
        return np.zeros((3, 3))
    share = np.array([_weighted_quantile(near[:, kind] / lookups, lookups, 0.9) for kind in range(3)])
    over = np.maximum(near - lookups[:, None] * share, 0.0).sum(axis=0) / len(batches)
    return np.array([near.sum(axis=0) / len(batches), share, over + 2.0 * block_lookups(table, problem)])


def _weighted_quantile(values: Floats, weights: Floats, level: float) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return float(values[order[int(np.searchsorted(cumulative, level * cumulative[-1]))]])


def local_blocks(lookups: CountedLookups, rows: BatchRows, table: Table, problem: Problem) -> Blocks:
    """Return the blocks of a table's rows in one batch, with the most lookups of each that are near."""
    topology = problem.topology
    nodes, local, world = topology.nodes, topology.devices_per_node, topology.world_size
    values, source = lookups.values, rows.source
    if world == 1 or not len(values):
        return Blocks(lookups=np.zeros(0, dtype=np.int64), near=np.zeros((0, 3), dtype=np.int64))
    block_of_id = (np.cumsum(rows.times) - rows.times) // block_lookups(table, problem)
    # They ascend; without those that no row begins in.
    block_of_id = np.cumsum(np.diff(block_of_id, prepend=0) > 0)
    block = block_of_id[rows.which]
    blocks = int(block_of_id[-1]) + 1
    residue, cells, times = values % world, blocks * world * world, None
    if cells <= len(values):
        # Lookups of one block, one asking rank and one residue are alike: they are counted once.
        alike = np.bincount((block * world + source) * world + residue, minlength=cells)
        filled_cells = np.flatnonzero(alike)
        times, (block, source, residue) = alike[filled_cells], np.unravel_index(filled_cells, (blocks, world, world))
    node, own = source // local, source % local

    def tally(choice: Ints, choices: int) -> Ints:
        """Count lookups by block and by the choice of a first device that brings them near."""
        counts = np.bincount(block * choices + choice, times, minlength=blocks * choices)
        return np.asarray(counts.astype(np.int64).reshape(blocks, choices))

    on_rank = tally(source, world)
    by_node = on_rank.reshape(blocks, nodes, local).sum(axis=2)
    dealt = tally((source - residue) % world, world)
    dealt_in_node = tally(node * local + (own - residue) % local, world)
    # A row dealt over the world is in the node of those that ask for it for ``local`` first devices in a row.
    first = tally((node * local - residue) % world, world)
    before = np.zeros((blocks, 1), dtype=np.int64)
    running = np.cumsum(np.concatenate([before, first[:, world - local + 1 :], first], axis=1), axis=1)
    dealt_near = running[:, local:] - running[:, :-local]
    copies = np.maximum(tally((own - residue) % local, local).max(axis=1), tally(own, local).max(axis=1))
    rank = np.maximum(np.maximum(on_rank.max(axis=1), dealt.max(axis=1)), dealt_in_node.max(axis=1))
    near = [rank, np.maximum(by_node.max(axis=1), dealt_near.max(axis=1)), copies]
    return Blocks(lookups=on_rank.sum(axis=1), near=np.stack(near, axis=1))
