"""What batches ask of the devices, whatever the plan: the numbers that lower bounds are proven from.

Counted off batches, or expected under the training profiles, as traffic is.

*Luck.* A lookup costs no exchange where the rank that asks holds the row, and less where its node does. How many
lookups can a plan hope to find so near? Order a table's rows by frequency and cut them into blocks of about Z lookups
each (a row stays whole). As long as no range of rows of the plan ends inside a block, its rows are on one device, or
dealt over a node or the world from some first device on (in every node, where each has a copy): the best of these
choices is counted for every block, and ``Luck.most`` is the sum over blocks. A range that ends inside a block gains at
most Z lookups more, because of the block's parts all but the last hold at most Z together; but its lengths are sent
once more, and Z is so small that this costs at least twice as much (``step_relaxation`` checks that at its prices). So
luck without any cut is the most.

Where other ranges of the table have copies, fewer lookups are left to be near: at most a share s of those left, the sum
over blocks of what luck exceeds s by, and Z for each end of a range beside copies. Every range but the first pays for
its two ends by its lengths, so that s x (lookups left) + ``Luck.excess`` is the most, of which 2 Z are the first's.
This holds for any s; ``Luck.share`` is that which nine of ten lookups' blocks do not exceed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats, Ids, Ints
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.cost.bounds import alone_load, expected_table_loads
from shardbench.cost.capacity import Curve, Seen
from shardbench.cost.load import VECTOR_BYTES, Load
from shardbench.cost.lookups import CountedLookups
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling, Table
from shardbench.workloads.trace import Bags

DENSE_ROWS = 4
"""Rows a lookup up to which counting every row is cheaper than sorting the lookups."""


RANK, NODE, COPY = range(3)
"""Near is the rank that asks, or its node, of rows that are held once; or that rank, where every node has a copy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Luck:
    """Lookups that are near where they are asked for, at most, in the mean over batches; [tables, 3], as above."""

    most: Floats
    """Of all rows."""
    share: Floats
    excess: Floats
    """Of some rows: at most this share of their lookups and so many more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowCounts:
    """Rows by their mean lookups of a batch, table after table, most asked first."""

    lookups: Floats
    """[entries], of each of an entry's rows."""
    rows: Floats
    """[entries]"""
    starts: Ints
    """First entry of each table, and the end, int64 [tables + 1]."""

    @classmethod
    def of(cls, tables: Sequence[tuple[Floats, Floats]]) -> "RowCounts":
        """From (lookups, rows) of each table, lookups descending."""
        return cls(
            lookups=np.concatenate([lookups for lookups, _ in tables]),
            rows=np.concatenate([rows for _, rows in tables]),
            starts=np.concatenate([[0], np.cumsum([len(lookups) for lookups, _ in tables])]).astype(np.int64),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Demand:
    """What batches ask for, by table; means are over the batches."""

    loads: Load
    """Of each table alone on one device in HBM, [batches, tables]."""
    any_rows: tuple[Curve, ...]
    """What a table's rows in HBM serve, whichever they are, [tables]."""
    hottest_first: tuple[Curve, ...]
    """The same where they are its hottest by the train split, [tables]."""
    sources: Floats
    """Mean lookups by the rank that asks, [tables, world]."""
    histories: Floats
    """Lookups of unpooled tables times their widths, by the rank that asks, [batches, world]."""
    counts: RowCounts
    luck: Luck


def count_demand(problem: Problem, bags: Callable[[int, int], Bags], batches: int) -> Demand:
    """Count ``batches`` global batches; ``bags(n, i)`` are batch n's of problem.tables[i]."""
    tables, world = problem.tables, problem.world_size
    loads = Load.zeros(batches, len(tables))
    sources, histories = np.zeros((len(tables), world)), np.zeros((batches, world))
    seen, counts, luck = [], [], np.zeros((3, len(tables), 3))
    for i, table in enumerate(tables):
        met: list[tuple[Ids, Ints]] = []
        blocks: list[_Blocks] = []
        for n in range(batches):
            lookups = CountedLookups(bags(n, i), table.rows, world, f"table {table.name}")
            loads.values[n, i] = alone_load(problem, i, lookups).values
            asked = lookups.by_source(0, table.rows)
            sources[i] += asked / batches
            if table.pooling is Pooling.NONE:
                histories[n] += asked * table.dim
            met.append(_row_counts(lookups.values, table.rows))
            blocks.append(_near(lookups, met[-1], table, problem))
        luck[:, i] = _luck(blocks, block_lookups(table, problem))
        ids, which = np.unique(np.concatenate([ids for ids, _ in met]), return_inverse=True)
        seen.append(Seen(ids=ids, batches=np.bincount(which, minlength=len(ids)), rows=table.rows))
        summed = np.bincount(which, np.concatenate([number for _, number in met]), minlength=len(ids))
        counts.append(_descending(summed / batches))
    return Demand(
        loads=loads,
        any_rows=tuple(rows.any_rows() for rows in seen),
        hottest_first=tuple(rows.hottest_first() for rows in seen),
        sources=sources,
        histories=histories,
        counts=RowCounts.of(counts),
        luck=Luck(most=luck[0], share=luck[1], excess=luck[2]),
    )


def expected_demand(problem: Problem) -> Demand:
    """What a batch is expected to ask for under the training profiles."""
    world, topology = problem.world_size, problem.topology
    totals = np.array([profile.mean_pooling * problem.batch_size for profile in problem.profiles])
    widths = np.array([table.dim if table.pooling is Pooling.NONE else 0 for table in problem.tables])
    curves = tuple(_expected_curve(p, float(total)) for p, total in zip(problem.profiles, totals))
    near = np.array([1.0 / world, 1.0 / topology.nodes, 1.0 / topology.devices_per_node])
    shares = np.tile(near, (len(totals), 1))
    return Demand(
        loads=Load(expected_table_loads(problem).values[None]),
        any_rows=curves,
        hottest_first=curves,
        sources=np.repeat(totals[:, None] / world, world, axis=1),
        histories=np.full((1, world), float(totals @ widths) / world),
        counts=RowCounts.of([_expected_counts(profile, problem.batch_size) for profile in problem.profiles]),
        luck=Luck(most=totals[:, None] * shares, share=shares, excess=np.zeros((len(totals), 3))),
    )


def block_lookups(table: Table, problem: Problem) -> int:
    """Lookups of a block of rows: twice as many cost no more to exchange than the lengths of a range more."""
    topology = problem.topology
    peers = topology.world_size - topology.devices_per_node
    peers = peers if topology.nodes > 1 else topology.devices_per_node - 1
    lengths = problem.batch_size // problem.world_size * table.features * LENGTH_BYTES * peers
    vectors = 2 * VECTOR_BYTES * table.dim if table.pooling is Pooling.NONE else 0
    return max(1, lengths // (2 * (INDEX_BYTES + vectors)))


def _row_counts(values: Ids, rows: int) -> tuple[Ids, Ints]:
    """Rows that are asked for, ascending, and how often."""
    if rows <= DENSE_ROWS * len(values):
        times = np.bincount(values, minlength=rows)
        ids = np.flatnonzero(times)
        return ids, times[ids]
    ids, times = np.unique(values, return_counts=True)
    return ids.astype(np.int64), times.astype(np.int64)


def _descending(lookups: Floats) -> tuple[Floats, Floats]:
    values, rows = np.unique(lookups, return_counts=True)
    return values[::-1], rows[::-1].astype(np.float64)


def _expected_counts(profile: AccessProfile, batch_size: int) -> tuple[Floats, Floats]:
    a_sample = np.asarray(profile.counts, dtype=np.float64) / profile.samples
    return a_sample * batch_size, np.asarray(profile.row_counts, dtype=np.float64)


def _expected_curve(profile: AccessProfile, lookups: float) -> Curve:
    """Share of the expected distinct rows of a batch that the hottest rows are."""
    ends = np.cumsum([0, *profile.row_counts])
    stops = np.unique([*ends, profile.rows]) if profile.rows > profile.seen_rows else ends
    if not profile.lookups or lookups <= 0:
        return Curve.line(profile.rows)
    counts = np.asarray(profile.counts, dtype=np.float64)
    met = np.diff(ends) * -np.expm1(np.log1p(-min(lookups / profile.lookups, 1.0 - 1e-12)) * counts)
    if lookups > profile.lookups:
        met = np.diff(ends).astype(np.float64)
    whole = profile.expected_distinct(lookups)
    reached = np.concatenate([[0.0], np.cumsum(met)])
    if len(stops) > len(reached):
        reached = np.append(reached, max(whole, reached[-1]))
    return Curve(rows=stops.astype(np.float64), share=reached / reached[-1])


class _Blocks(NamedTuple):
    """Blocks of a table's rows in one batch."""

    lookups: Ints
    """[blocks]"""
    near: Ints
    """Of these, at most, [blocks, 3]."""


def _luck(batches: Sequence[_Blocks], block: int) -> Floats:
    """Fields of Luck of a table, [3, 3]."""
    lookups = np.concatenate([blocks.lookups for blocks in batches]).astype(np.float64)
    near = np.concatenate([blocks.near for blocks in batches]).astype(np.float64)
    if not len(lookups):
        return np.zeros((3, 3))
    share = np.array([_weighted_quantile(near[:, kind] / lookups, lookups, 0.9) for kind in range(3)])
    over = np.maximum(near - lookups[:, None] * share, 0.0).sum(axis=0) / len(batches)
    return np.array([near.sum(axis=0) / len(batches), share, over + 2.0 * block])


def _weighted_quantile(values: Floats, weights: Floats, level: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order[int(np.searchsorted(reached, level * reached[-1]))]])


def _near(lookups: CountedLookups, met: tuple[Ids, Ints], table: Table, problem: Problem) -> _Blocks:
    """See the module's docstring."""
    topology = problem.topology
    nodes, local, world = topology.nodes, topology.devices_per_node, topology.world_size
    ids, times = met
    values = lookups.values
    if world == 1 or not len(values):
        return _Blocks(lookups=np.zeros(0, dtype=np.int64), near=np.zeros((0, 3), dtype=np.int64))
    block_of_id = (np.cumsum(times) - times) // block_lookups(table, problem)
    _, block_of_id = np.unique(block_of_id, return_inverse=True)
    block = block_of_id[np.searchsorted(ids, values)] if len(ids) < table.rows else block_of_id[values]
    blocks = int(block_of_id[-1]) + 1
    source = np.repeat(np.arange(world), np.diff(lookups.ends))
    node, own = source // local, source % local

    def tally(choice: Ints, choices: int) -> Ints:
        """Lookups by block and by the choice of a first device that brings them near."""
        return np.bincount(block * choices + choice, minlength=blocks * choices).reshape(blocks, choices)

    on_rank = tally(source, world)
    by_node = on_rank.reshape(blocks, nodes, local).sum(axis=2)
    dealt = tally((source - values) % world, world)
    dealt_in_node = tally(node * local + (own - values) % local, world)
    # A row dealt over the world is in the node of those that ask for it for ``local`` first devices in a row.
    first = tally((node * local - values) % world, world)
    before = np.zeros((blocks, 1), dtype=np.int64)
    running = np.cumsum(np.concatenate([before, first[:, world - local + 1 :], first], axis=1), axis=1)
    dealt_near = running[:, local:] - running[:, :-local]
    copies = np.maximum(tally((own - values) % local, local).max(axis=1), tally(own, local).max(axis=1))
    rank = np.maximum(np.maximum(on_rank.max(axis=1), dealt.max(axis=1)), dealt_in_node.max(axis=1))
    near = [rank, np.maximum(by_node.max(axis=1), dealt_near.max(axis=1)), copies]
    return _Blocks(lookups=on_rank.sum(axis=1), near=np.stack(near, axis=1))
