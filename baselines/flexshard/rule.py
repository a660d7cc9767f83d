"""The cost-benefit rule: seconds saved a byte of memory, row by row, until the budget is spent.

Seconds are those of bytes at given link prices. At fixed prices the choice among the tiers
(cold, warm, hot) of every unit under one memory budget is a multiple-choice knapsack, whose
relaxation is solved by taking the steps of each unit's concave hull in order of benefit per
byte (Sinha and Zoltners, Operations Research 27(3), 1979). Hotter rows of a table come first,
so that a table's tiers are ranges of its frequency order: its thresholds. Units are runs of
equally hot rows and indivisible tables.
"""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.cost.collectives import Collective, cross_all_reduce, pairwise, world_reduction
from shardbench.model.machine import Machine, Topology
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


@dataclass(frozen=True, kw_only=True)
class LinkPrices:
    """Seconds a byte, (inside the node, across), of exchanges and of gradient synchronisation."""

    exchange: tuple[float, float]
    synchronise: tuple[float, float]

    @classmethod
    def weighted(cls, machine: Machine, exchange_inter: float, synchronise_inter: float) -> "LinkPrices":
        """Return prices from shares 0..1 of how much a collective waits for the link across nodes (deviation 3)."""
        intra, inter = 1.0 / machine.constants.intra_bytes_per_s, 1.0 / machine.constants.inter_bytes_per_s

        def pair(share: float) -> tuple[float, float]:
            return (1.0 - share) * intra, share * inter

        return cls(exchange=pair(exchange_inter), synchronise=pair(synchronise_inter))


@dataclass(frozen=True, kw_only=True)
class RowTiers:
    """Rows of each table that are hot (on every rank) and warm (one copy a node), int64 [tables]; the rest are cold."""

    hot: Ints
    warm: Ints

    def __hash__(self) -> int:
        return hash((self.hot.tobytes(), self.warm.tobytes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowTiers) and bool((self.hot == other.hot).all() and (self.warm == other.warm).all())


def _seconds(shares: tuple[float, float], prices: tuple[float, float]) -> float:
    return shares[0] * prices[0] + shares[1] * prices[1]


def benefits(units: Units, shares: LinkShares, prices: LinkPrices) -> tuple[Floats, Floats]:
    """Return seconds an iteration that warm and the hot tier save over the cold one, [units] each; negative: a cost.

    A row is worth a copy if the exchange that it saves exceeds its synchronisation, which the
    engine does densely, whether the row was touched or not (deviation 7). Time of lookups does not
    count (deviation 8).
    """
    cold = _seconds(shares.cold, prices.exchange)
    in_node = _seconds(shares.warm, prices.exchange)
    warm = units.exchanged * (cold - in_node) - units.weights * _seconds(shares.warm_sync, prices.synchronise)
    hot = units.exchanged * cold - units.weights * _seconds(shares.hot_sync, prices.synchronise)
    return warm, hot


def added_bytes(units: Units, problem: Problem) -> tuple[Floats, Floats]:
    """Return the bytes that the warm and the hot tier add to every device over the cold one, [units] each."""
    local = problem.topology.devices_per_node
    return units.held_bytes * (1.0 / local - units.cold_share), units.held_bytes * (1.0 - units.cold_share)


def choose(
    units: Units, saved: tuple[Floats, Floats], added: tuple[Floats, Floats], free_bytes: float, tables: int
) -> RowTiers:
    """Choose tiers within ``free_bytes`` a device, by the greedy rule; ``saved`` are ``benefits``, in seconds.

    Rows of the last run that does not fit whole are taken as far as there is room.
    """
    (warm, hot), (warm_bytes, hot_bytes) = saved, added
    warm_density = np.where(units.warm & (warm > 0), warm / np.maximum(warm_bytes, 1e-300), -np.inf)
    rest = np.where(hot > 0, hot - np.maximum(warm, 0.0), -np.inf)
    rest_density = rest / np.maximum(hot_bytes - warm_bytes, 1e-300)
    in_two = np.isfinite(warm_density) & (warm_density > rest_density)
    direct = np.where(in_two, -np.inf, np.where(hot > 0, hot / np.maximum(hot_bytes, 1e-300), -np.inf))
    # Three kinds of step: cold to warm, warm to hot, cold to hot.
    density = np.concatenate([np.where(in_two, warm_density, -np.inf), np.where(in_two, rest_density, -np.inf), direct])
    step_bytes = np.concatenate([warm_bytes, hot_bytes - warm_bytes, hot_bytes])
    number = np.tile(units.number, 3)
    worth = np.flatnonzero(density > 0)
    order = worth[np.argsort(-density[worth], kind="stable")]
    ends = np.cumsum(step_bytes[order] * number[order])
    whole = int(np.searchsorted(ends, free_bytes, side="right")) if free_bytes > 0 else 0
    counts = np.zeros(len(density))
    counts[order[:whole]] = number[order[:whole]]
    if free_bytes > 0 and whole < len(order):
        room = free_bytes - (ends[whole - 1] if whole else 0.0)
        counts[order[whole]] = np.floor(room / step_bytes[order[whole]])
    to_warm, on, to_hot = (part * units.rows for part in np.split(counts, 3))
    hot_rows = np.bincount(units.table, weights=on + to_hot, minlength=tables)
    warm_rows = np.bincount(units.table, weights=to_warm - on, minlength=tables)
    return RowTiers(hot=np.rint(hot_rows).astype(np.int64), warm=np.rint(warm_rows).astype(np.int64))
