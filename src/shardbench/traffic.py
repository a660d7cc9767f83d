"""Exact counting: a plan against the lookups of a batch, per rank, tier and collective.

The same accounting runs on a batch (exact) and on a training profile (expected values), so
that what a strategy plans with and what it is judged on differ only in the data.

Bytes of a collective are algorithmic: what a rank sends to *other* ranks. Reductions are
counted as two-level (inside the node, then across nodes between equal local ranks), whose
total equals the ring's, (W-1)/W of the payload for a reduce-scatter or an all-gather and
twice that for an all-reduce.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

import numpy as np

from shardbench.errors import BadInput, Unsupported
from shardbench.load import VECTOR_BYTES, Floats, Load, segment_load, zeros
from shardbench.lookups import CountedLookups, ExpectedLookups, TableLookups
from shardbench.plan import Host, NodeSharded, OnRank, Plan, Replicated, RowWise, Segment, Tier
from shardbench.problem import Problem
from shardbench.table import DenseShape, Pooling
from shardbench.trace import Bags

INDEX_BYTES = 8
LENGTH_BYTES = 4
SPLIT_BYTES = 3 * 8
"""Per peer and input all-to-all: number of lengths, of indices, and the batch size, int64."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Bytes each rank sends to and receives from other ranks, inside its node and across; [world]."""

    sent_intra: Floats
    sent_inter: Floats
    received_intra: Floats
    received_inter: Floats

    @classmethod
    def zeros(cls, n: int) -> "Collective":
        """Nothing sent."""
        return cls(**{f.name: zeros(n) for f in fields(cls)})

    @property
    def sent(self) -> Floats:
        """Bytes sent, both links."""
        return self.sent_intra + self.sent_inter

    def __add__(self, other: "Collective") -> "Collective":
        return Collective(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


COLLECTIVES = (
    "input_splits", "input_all_to_all", "output_all_to_all", "output_reduce_scatter", "backward_all_to_all",
    "backward_all_gather", "rows_all_reduce", "dense_all_reduce",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One iteration: device loads, host lookups, and every collective by name."""

    load: Load
    collectives: dict[str, Collective] = field(default_factory=dict)


def count(plan: Plan, problem: Problem, bags: Callable[[int], Bags], dense: DenseShape) -> Traffic:
    """Exact traffic of one iteration; ``bags(i)`` gives the lookups of problem.tables[i]."""

    def lookups(i: int) -> TableLookups:
        table = problem.tables[i]
        return CountedLookups(bags(i), table.rows, problem.world_size, f"table {table.name}")

    return _account(plan, problem, lookups, dense)


def expect(plan: Plan, problem: Problem, dense: DenseShape | None = None) -> Traffic:
    """Expected traffic under the training profiles (what a strategy may know)."""
    profiles = problem.profiles

    def lookups(i: int) -> TableLookups:
        return ExpectedLookups(profiles[i], problem.batch_size, problem.world_size)

    return _account(plan, problem, lookups, dense)


class _Account:
    """Accumulates segments into loads and link bytes of one iteration."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.topology = problem.topology
        self.world = problem.world_size
        self.local_batch = problem.batch_size // self.world
        self.load = Load.zeros(self.world)
        self.to = np.zeros((self.world, self.world))
        """Input bytes from source to owner."""
        self.vector_columns = zeros(self.world)
        """Pooled columns that each rank sends to every sample's rank (table-wise)."""
        self.world_columns = 0
        self.node_columns = zeros(self.topology.nodes)
        self.replicated_weights = 0
        self.groups: set[str] = set()

    def add(self, segment: Segment, table: TableLookups) -> None:
        place = segment.placement
        if isinstance(place, OnRank):
            self._on_rank(segment, table, place)
        elif isinstance(place, RowWise):
            self._row_wise(segment, table, place)
        elif isinstance(place, Replicated) and len(place.ranks) == self.world:
            self._replicated(segment, table)
        elif isinstance(place, Host | NodeSharded | Replicated):
            raise Unsupported(
                f"table '{segment.table}': counting of '{place.kind}' over part of the world is not built yet"
            )

    def _put(self, at: int | list[int] | slice, segment: Segment, tier: Tier, **rows: Floats | float) -> None:
        state = self.problem.optimizer.state_bytes(segment.columns)
        self.load.add(at, segment_load(rows, segment.columns, tier, self.problem.precision, state))

    def _on_rank(self, segment: Segment, table: TableLookups, place: OnRank) -> None:
        sources = table.by_source(segment.row_start, segment.row_stop)
        distinct = float(table.distinct(segment.row_start, segment.row_stop, 1)[0])
        bags = float(self.problem.batch_size)
        self._put(place.rank, segment, place.tier, lookups=float(sources.sum()), distinct=distinct, bags=bags)
        self.to[:, place.rank] += sources * INDEX_BYTES + self.local_batch * LENGTH_BYTES
        self.vector_columns[place.rank] += segment.columns
        self.groups.add("table_wise")

    def _row_wise(self, segment: Segment, table: TableLookups, place: RowWise) -> None:
        ranks = list(place.ranks)
        nodes = {self.topology.node_of(rank) for rank in ranks}
        whole = len(ranks) == self.world
        if not whole and (len(nodes) != 1 or len(ranks) != self.topology.devices_per_node):
            raise Unsupported(f"table '{segment.table}': row-wise runs over all ranks or all ranks of one node")
        owned = table.dealt(segment.row_start, segment.row_stop, len(ranks))
        distinct = table.distinct(segment.row_start, segment.row_stop, len(ranks))
        bags = np.full(len(ranks), float(self.problem.batch_size))
        self._put(ranks, segment, place.tier, lookups=owned.sum(axis=0), distinct=distinct, bags=bags)
        self.to[:, ranks] += owned * INDEX_BYTES + self.local_batch * LENGTH_BYTES
        if whole:
            self.world_columns += segment.columns
        else:
            self.node_columns[nodes.pop()] += segment.columns
        self.groups.add("row_wise" if whole else "table_row_wise")

    def _replicated(self, segment: Segment, table: TableLookups) -> None:
        lookups = table.by_source(segment.row_start, segment.row_stop)
        distinct = table.distinct_by_source(segment.row_start, segment.row_stop)
        bags = np.full(self.world, float(self.local_batch))
        self._put(slice(None), segment, Tier.HBM, lookups=lookups, distinct=distinct, bags=bags)
        self.replicated_weights += segment.rows * segment.columns

    def traffic(self, dense_weights: int) -> Traffic:
        forward, backward = self._vectors()
        splits = np.full((self.world, self.world), float(SPLIT_BYTES * len(self.groups)))
        # The backward pass returns gradients along the forward's links, reversed.
        scatter = self._world_reduce(self.world_columns * self.problem.batch_size * VECTOR_BYTES)
        node_scatter = self._node_reduce()
        return Traffic(
            load=self.load,
            collectives={
                "input_splits": self._pairwise(splits),
                "input_all_to_all": self._pairwise(self.to),
                "output_all_to_all": self._pairwise(forward),
                "output_reduce_scatter": scatter + node_scatter,
                "backward_all_to_all": self._pairwise(backward),
                "backward_all_gather": scatter + node_scatter,
                "rows_all_reduce": self._all_reduce(self.replicated_weights * VECTOR_BYTES),
                "dense_all_reduce": self._all_reduce(dense_weights * VECTOR_BYTES),
            },
        )

    def _vectors(self) -> tuple[Floats, Floats]:
        sample_bytes = self.local_batch * VECTOR_BYTES
        forward = np.repeat(self.vector_columns[:, None] * sample_bytes, self.world, axis=1)
        # Table-row-wise: after the node's reduce-scatter, equal local ranks exchange across nodes.
        local = np.arange(self.world) % self.topology.devices_per_node
        node = np.arange(self.world) // self.topology.devices_per_node
        peers = (local[:, None] == local[None, :]) & (node[:, None] != node[None, :])
        forward = forward + peers * (self.node_columns[node] * sample_bytes)[:, None]
        return forward, forward.T

    def _pairwise(self, sent: Floats) -> Collective:
        node = np.arange(self.world) // self.topology.devices_per_node
        same = node[:, None] == node[None, :]
        apart = ~np.eye(self.world, dtype=np.bool_)
        intra, inter = sent * (same & apart), sent * ~same
        return Collective(
            sent_intra=intra.sum(axis=1), sent_inter=inter.sum(axis=1),
            received_intra=intra.sum(axis=0), received_inter=inter.sum(axis=0),
        )  # fmt: skip

    def _two_level(self, payload: float, times: float) -> Collective:
        nodes, local = self.topology.nodes, self.topology.devices_per_node
        intra = np.full(self.world, times * payload * (local - 1) / local)
        inter = np.full(self.world, times * payload / local * (nodes - 1) / nodes)
        return Collective(sent_intra=intra, sent_inter=inter, received_intra=intra, received_inter=inter)

    def _world_reduce(self, payload: float) -> Collective:
        return self._two_level(payload, 1.0)

    def _all_reduce(self, payload: float) -> Collective:
        return self._two_level(payload, 2.0)

    def _node_reduce(self) -> Collective:
        local = self.topology.devices_per_node
        payload = np.repeat(self.node_columns, local) * self.problem.batch_size * VECTOR_BYTES
        intra = payload * (local - 1) / local
        none = zeros(self.world)
        return Collective(sent_intra=intra, sent_inter=none, received_intra=intra, received_inter=none)


def _account(plan: Plan, problem: Problem, lookups: Callable[[int], TableLookups], dense: DenseShape | None) -> Traffic:
    if plan.schedule is not None:
        raise Unsupported("counting of batch schedules is not built yet")
    if problem.batch_size % problem.world_size:
        raise BadInput(f"batch size {problem.batch_size} is not a multiple of {problem.world_size} ranks")
    account = _Account(problem)
    segments = plan.by_table()
    for i, table in enumerate(problem.tables):
        if table.pooling is not Pooling.SUM:
            raise Unsupported(f"table '{table.name}': counting of unpooled tables is not built yet")
        source = lookups(i)
        for segment in segments[table.name]:
            account.add(segment, source)
    weights = dense.parameters(problem.tables) if dense is not None else 0
    return account.traffic(weights)


def mean(traffics: Iterable[Traffic]) -> Traffic:
    """Mean over iterations, field by field."""
    several = list(traffics)

    def average(arrays: list[Floats]) -> Floats:
        return np.asarray(np.mean(arrays, axis=0))

    load = Load(**{f.name: average([getattr(t.load, f.name) for t in several]) for f in fields(Load)})
    collectives = {
        name: Collective(
            **{f.name: average([getattr(t.collectives[name], f.name) for t in several]) for f in fields(Collective)}
        )
        for name in several[0].collectives
    }
    return Traffic(load=load, collectives=collectives)
