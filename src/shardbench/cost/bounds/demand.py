"""Collects what batches ask of the devices, whatever the plan: the numbers that lower bounds are proven from.

Counted off batches, or expected under the training profiles, as traffic is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.bounds.capacity import Curve, SeenRows
from shardbench.cost.bounds.embedding import alone_load, expected_table_loads
from shardbench.cost.bounds.local_lookups import Blocks, LocalLookups, local_blocks, local_lookups_of
from shardbench.cost.bounds.row_counts import BatchRows, RowGroups, counted_rows, expected_entries, grouped
from shardbench.cost.bounds.row_prefixes import Prefixes, prefix_of
from shardbench.cost.load import Load
from shardbench.cost.lookups import CountedLookups
from shardbench.cost.traffic import counted_lookups, expected_lookups
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling
from shardbench.workloads.trace import Bags


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
    seen_rows, counts, prefixes = [], [], []
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
        seen_rows.append(SeenRows(ids=ids, batches=times, rows=table.rows))
        table_rows = counted_rows(batch_rows, problem.topology)
        counts.append(grouped(*table_rows[1:]))
        prefixes.append(prefix_of(table_rows, table.rows))
    return Demand(
        loads=loads,
        any_rows=tuple(rows.any_rows() for rows in seen_rows),
        hottest_first=tuple(rows.hottest_first() for rows in seen_rows),
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
