"""Units that can be replicated: runs of equally hot rows and indivisible tables, with their bytes."""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.cost.collectives import Collective, cross_all_reduce, pairwise, world_reduction
from shardbench.model.machine import Topology
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling, Table


def is_split(table: Table, world_size: int) -> bool:
    """Return True where a table is cut into tiers by row; a table that is not moves as a whole.

    Pooled tables do not gain from it: one vector a bag is sent however few of its rows are
    cold (deviation 5). A table of fewer rows than devices cannot be dealt over them.
    """
    return table.pooling is Pooling.NONE and table.rows >= world_size


def has_warm_tier(topology: Topology) -> bool:
    """Return True where the warm tier differs: with one node it is the cold, with one device a node the hot one."""
    return topology.nodes > 1 and topology.devices_per_node > 1


@dataclass(frozen=True, kw_only=True)
class Units:
    """Things to replicate, in no order; arrays [units].

    A unit is one row out of a run of ``number`` equally hot rows of a table, or an indivisible
    table (``number`` 1). Bytes are those of one unit.
    """

    table: Ints
    number: Floats
    rows: Floats
    """Rows of one unit."""
    exchanged: Floats
    """Bytes of all three exchanges (indices there, vectors back, gradients there) that its lookups make on one rank
    in one iteration, whoever owns it."""
    weights: Floats
    """Bytes of its weights: what an all-reduce of its gradient carries."""
    held_bytes: Floats
    """Bytes of its weights and optimiser state."""
    cold_share: Floats
    """Share of it that every device holds while it is cold: 1 / world of a dealt row, nothing of an indivisible
    table (the device that has it need not be the fullest)."""
    warm: Bools
    """True where the unit may be in the warm tier."""


def make_units(problem: Problem, *, with_warm: bool) -> Units:
    """Return the runs of all sequence tables and every indivisible table."""
    topology, local_batch = problem.topology, problem.batch_size // problem.world_size
    warm = with_warm and has_warm_tier(topology)
    parts: list[tuple[Floats, ...]] = []
    for i, (table, profile) in enumerate(zip(problem.tables, problem.profiles, strict=True)):
        vector = 2.0 * problem.exchange.bytes * table.dim
        if is_split(table, problem.world_size):
            number = np.array([*profile.row_counts, table.rows - profile.seen_rows], dtype=np.float64)
            lookups = np.array([*profile.counts, 0.0]) * (local_batch / profile.samples)  # deviation 9
            rows, exchanged, share, may = 1.0, lookups * (INDEX_BYTES + vector), 1.0 / problem.world_size, warm
        else:
            number, rows, share, may = np.ones(1), float(table.rows), 0.0, False
            lookups = np.full(1, profile.mean_pooling * local_batch)
            bags = local_batch * table.features
            vectors = lookups if table.pooling is Pooling.NONE else np.full(1, float(bags))
            exchanged = lookups * INDEX_BYTES + bags * LENGTH_BYTES + vectors * vector
        row_bytes = problem.weight_bytes(table) // table.rows
        same = np.ones(len(number))
        parts.append(
            (i * same, number, rows * same, exchanged, rows * table.dim * problem.precision.bytes * same,
             rows * row_bytes * same, share * same, may * same)
        )  # fmt: skip
    table_of, number, unit_rows, exchanged, weights, held_bytes, cold_share, may_warm = map(np.concatenate, zip(*parts))
    return Units(
        table=table_of.astype(np.int64), number=number, rows=unit_rows, exchanged=exchanged, weights=weights,
        held_bytes=held_bytes, cold_share=cold_share, warm=may_warm.astype(bool),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LinkShares:
    """Bytes that one rank sends, (inside its node, across), for one byte of each kind."""

    cold: tuple[float, float]
    """A byte exchanged with rows dealt over all ranks."""
    warm: tuple[float, float]
    """A byte exchanged with rows dealt over the rank's node."""
    hot_sync: tuple[float, float]
    """A byte all-reduced over all ranks."""
    warm_sync: tuple[float, float]
    """A byte of rows that a node deals over its devices, all-reduced between nodes."""


def link_shares(problem: Problem) -> LinkShares:
    """Return the shares that the counter charges, by the functions that it uses."""
    topology = problem.topology
    world, local = topology.world_size, topology.devices_per_node
    node = np.arange(world) // local
    in_node = (node[:, None] == node[None, :]) / local

    def per_rank(collective: Collective) -> tuple[float, float]:
        return float(collective.sent_intra.max()), float(collective.sent_inter.max())

    return LinkShares(
        cold=per_rank(pairwise(np.full((world, world), 1.0 / world), topology)),
        warm=per_rank(pairwise(in_node, topology)),
        hot_sync=per_rank(world_reduction(1.0, 2.0, topology)),
        warm_sync=per_rank(cross_all_reduce(1.0 / local, topology)),
    )
