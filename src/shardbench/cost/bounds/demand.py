"""What batches ask of the devices, whatever the plan: the numbers that lower bounds are proven from.

Counted off batches, or expected under the training profiles, as traffic is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.bounds.capacity import Curve, Seen
from shardbench.cost.bounds.embedding import alone_load, expected_table_loads
from shardbench.cost.bounds.local_lookups import Blocks, Luck, luck_of, near_blocks
from shardbench.cost.bounds.row_counts import AskedGroups, AskedRows, counted_rows, expected_entries, grouped
from shardbench.cost.bounds.row_prefixes import Prefixes, prefix_of
from shardbench.cost.load import Load
from shardbench.cost.lookups import CountedLookups
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling
from shardbench.workloads.trace import Bags


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
    first_by_rank: Floats
    """Mean of each rank's bags, or lookups where it has fewer, all ranks together, [tables]."""
    histories: Floats
    """Lookups of unpooled tables times their widths, by the rank that asks, [batches, world]."""
    counts: AskedGroups
    prefixes: Prefixes | None
    """The same rows in their order of frequency, where that is not the order of their lookups."""
    luck: Luck


def count_demand(problem: Problem, bags: Callable[[int, int], Bags], batches: int) -> Demand:
    """Count ``batches`` global batches; ``bags(n, i)`` are batch n's of problem.tables[i]."""
    tables, world = problem.tables, problem.world_size
    loads = Load.zeros(batches, len(tables))
    sources, histories = np.zeros((len(tables), world)), np.zeros((batches, world))
    first, luck = np.zeros(len(tables)), np.zeros((3, len(tables), 3))
    seen, counts, prefixes = [], [], []
    for i, table in enumerate(tables):
        met: list[AskedRows] = []
        blocks: list[Blocks] = []
        for n in range(batches):
            lookups = CountedLookups(bags(n, i), table.rows, world, f"table {table.name}")
            loads.values[n, i] = alone_load(problem, i, lookups).values
            asked = lookups.by_source(0, table.rows)
            sources[i] += asked / batches
            first[i] += np.minimum(asked, problem.batch_size // world * table.features).sum() / batches
            if table.pooling is Pooling.NONE:
                histories[n] += asked * table.dim
            met.append(AskedRows.of(lookups))
            blocks.append(near_blocks(lookups, met[-1], table, problem))
        luck[:, i] = luck_of(blocks, table, problem)
        ids, times = np.unique(np.concatenate([batch.ids for batch in met]), return_counts=True)
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
        luck=Luck(most=luck[0], share=luck[1], excess=luck[2]),
    )


def expected_demand(problem: Problem) -> Demand:
    """What a batch is expected to ask for under the training profiles."""
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
        luck=Luck(most=totals[:, None] * shares, share=shares, excess=np.zeros((len(totals), 3))),
    )


def _expected_curve(profile: AccessProfile, lookups: float) -> Curve:
    """Share of the expected distinct rows of a batch that the hottest rows are."""
    if not profile.lookups or lookups <= 0:
        return Curve.line(profile.rows)
    ends = np.unique(np.cumsum([0.0, *profile.row_counts, profile.rows - profile.seen_rows]))
    reached = profile.distinct_below(lookups, ends)
    return Curve(rows=ends, share=reached / reached[-1])
