"""Collects what batches ask of the devices, whatever the plan: the numbers that lower bounds are proven from.

Counted off batches, or expected under the training profiles, as traffic is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.bounds.capacity import Curve, Seen
from shardbench.cost.bounds.embedding import alone_load, expected_table_loads
from shardbench.cost.bounds.local_lookups import Blocks, LocalLookups, local_blocks, local_lookups_of
from shardbench.cost.bounds.row_counts import AskedGroups, AskedRows, counted_rows, expected_entries, grouped
from shardbench.cost.bounds.row_prefixes import Prefixes, prefix_of
from shardbench.cost.load import Load
from shardbench.cost.lookups import CountedLookups
from shardbench.cost.traffic import counted_lookups
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
    counts: AskedGroups
    prefixes: Prefixes | None
    """The rows of ``counts`` in their order of frequency, where that is not the order of their lookups."""
    near: LocalLookups


def count_demand(problem: Problem, bags: Callable[[int, int], Bags | CountedLookups], batches: int) -> Demand:
    """Count ``batches`` global batches; ``bags(n, i)`` are batch n's of problem.tables[i], or counted already."""
    tables, world = problem.tables, problem.world_size
    loads = Load.zeros(batches, len(tables))
    sources, histories = np.zeros((len(tables), world)), np.zeros((batches, world))
    first, near = np.zeros(len(tables)), np.zeros((3, len(tables), 3))
    seen, counts, prefixes = [], [], []
    for i, table in enumerate(tables):
        met: list[AskedRows] = []
        blocks: list[Blocks] = []
        for n in range(batches):
            found = bags(n, i)
            lookups = found if isinstance(found, CountedLookups) else counted_lookups(found, problem, i)
            loads.values[n, i] = alone_load(problem, i, lookups).values
            asked = lookups.by_source(0, table.rows)
            sources[i] += asked / batches
            first[i] += np.minimum(asked, problem.batch_size // world * table.features).sum() / batches
            if table.pooling is Pooling.NONE:
                histories[n] += asked * table.dim
            met.append(AskedRows.of(lookups))
            blocks.append(local_blocks(lookups, met[-1], table, problem))
        near[:, i] = local_lookups_of(blocks, table, problem)
        ids = met[0].ids
        times: Ints = np.ones_like(ids)
        if batches > 1:
            ids, found_in = np.unique(np.concatenate([batch.ids for batch in met]), return_counts=True)
            times = found_in.astype(np.int64)
        seen.append(Seen(ids=ids, batches=times, rows=table.rows))
        asked_rows = counted_rows(met, problem.topology)
        counts.append(grouped(*asked_rows[1:]))
        prefixes.append(prefix_of(asked_rows, table.rows))
    return Demand(
        loads=loads,
        any_rows=tuple(rows.any_rows() for rows in seen),
        hottest_first=tuple(rows.hottest_first() for rows in seen),
        sources=sources,
        first_by_rank=first,
        histories=histories,
        counts=AskedGroups.of(counts),
        prefixes=Prefixes.of(prefixes),
        near=LocalLookups(most=near[0], share=near[1], excess=near[2]),
    )


def expected_demand(problem: Problem) -> Demand:
    """Return what a batch is expected to ask for under the training profiles."""
    world, topology, batch = problem.world_size, problem.topology, problem.batch_size
    totals = np.array([profile.mean_pooling * batch for profile in problem.profiles])
    widths = np.array([table.dim if table.pooling is Pooling.NONE else 0 for table in problem.tables])
    features = np.array([table.features for table in problem.tables])
    curves = tuple(_expected_curve(p, float(total)) for p, total in zip(problem.profiles, totals))
    near = np.array([1.0 / world, 1.0 / topology.nodes, 1.0 / topology.devices_per_node])
    shares = np.tile(near, (len(totals), 1))
    return Demand(
        loads=Load(expected_table_loads(problem).values[None]),
        any_rows=curves,
        hottest_first=curves,
        sources=np.repeat(totals[:, None] / world, world, axis=1),
        first_by_rank=np.minimum(totals, float(batch) * features),
        histories=np.full((1, world), float(totals @ widths) / world),
        counts=AskedGroups.of([expected_entries(profile, batch, topology) for profile in problem.profiles]),
        prefixes=None,
        near=LocalLookups(most=totals[:, None] * shares, share=shares, excess=np.zeros((len(totals), 3))),
    )


def _expected_curve(profile: AccessProfile, lookups: float) -> Curve:
    """Return the share of a batch's expected distinct rows that are among the hottest rows, as a curve."""
    if not profile.lookups or lookups <= 0:
        return Curve.line(profile.rows)
    ends = np.unique(np.cumsum([0.0, *profile.row_counts, profile.rows - profile.seen_rows]))
    reached = profile.distinct_below(lookups, ends)
    return Curve(rows=ends, share=reached / reached[-1])
