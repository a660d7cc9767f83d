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
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardbench.errors import BadInput, Unsupported
from shardbench.plan import Host, NodeSharded, OnRank, Plan, Replicated, RowWise, Segment, Tier
from shardbench.problem import Problem
from shardbench.profile import AccessProfile
from shardbench.table import DenseShape, Pooling, Precision
from shardbench.trace import Bags, check_rows

Floats = NDArray[np.float64]

INDEX_BYTES = 8
LENGTH_BYTES = 4
VECTOR_BYTES = 4
"""Pooled vectors and their gradients travel as fp32, whatever the weights are."""
SPLIT_BYTES = 3 * 8
"""Per peer and input all-to-all: number of lengths, of indices, and the batch size, int64."""


def _zeros(n: int) -> Floats:
    return np.zeros(n, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What embedding kernels of ``n`` devices do in one iteration; float64 [n] each.

    ``*_bytes`` of lookups and rows are weight bytes; ``state_bytes`` is optimiser state of the
    distinct rows. ``bags`` are pooled output vectors of ``bag_bytes`` (fp32) in all.
    """

    lookups: Floats
    lookup_bytes: Floats
    distinct: Floats
    distinct_bytes: Floats
    state_bytes: Floats
    uvm_lookups: Floats
    uvm_lookup_bytes: Floats
    uvm_distinct: Floats
    uvm_distinct_bytes: Floats
    bags: Floats
    bag_bytes: Floats
    gradient_bytes: Floats
    """fp32 gradient bytes read, one row a lookup."""

    @classmethod
    def zeros(cls, n: int) -> "Load":
        """No load on ``n`` devices."""
        return cls(**{f.name: _zeros(n) for f in fields(cls)})

    def add(self, at: int | list[int] | slice, other: "dict[str, Floats | float]") -> None:
        """Add values to the devices ``at``, in place."""
        for name, value in other.items():
            getattr(self, name)[at] += value

    @property
    def all_lookups(self) -> Floats:
        """Lookups of both tiers."""
        return self.lookups + self.uvm_lookups


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
        return cls(**{f.name: _zeros(n) for f in fields(cls)})

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


class TableLookups(Protocol):
    """Lookups of one table in one global batch, by source rank; exact or expected."""

    def by_source(self, start: int, stop: int) -> Floats:
        """Lookups of rows [start, stop) by the rank whose sample asks, [world]."""

    def dealt(self, start: int, stop: int, ways: int) -> Floats:
        """Same, further split by owner (row - start) % ways, [world, ways]."""

    def distinct(self, start: int, stop: int, ways: int) -> Floats:
        """Distinct rows of the global batch by owner, [ways]."""

    def distinct_by_source(self, start: int, stop: int) -> Floats:
        """Distinct rows of each rank's own samples, [world]."""


class CountedLookups:
    """Exact lookups of a batch; vectorised over lookups."""

    def __init__(self, bags: Bags, rows: int, world_size: int, what: str = "batch") -> None:
        if bags.batch_size % world_size:
            raise BadInput(f"{what}: batch size {bags.batch_size} is not a multiple of {world_size} ranks")
        check_rows(bags.values, rows, what)
        self.values = bags.values
        self.rows = rows
        self.world = world_size
        self.ends = bags.offsets[:: bags.batch_size // world_size]
        self._marks: NDArray[np.bool_] | None = None

    def _below(self, row: int) -> NDArray[np.int64]:
        if row <= 0:
            return np.zeros(self.world, dtype=np.int64)
        if row >= self.rows:
            return np.diff(self.ends)
        running = np.concatenate([[0], np.cumsum(self.values < row)])
        return np.diff(running[self.ends])

    def by_source(self, start: int, stop: int) -> Floats:
        """See TableLookups."""
        return (self._below(stop) - self._below(start)).astype(np.float64)

    def dealt(self, start: int, stop: int, ways: int) -> Floats:
        """See TableLookups."""
        source = np.repeat(np.arange(self.world) * ways, np.diff(self.ends))
        values = self.values
        if start > 0 or stop < self.rows:
            inside = (values >= start) & (values < stop)
            values, source = values[inside], source[inside]
        counts = np.bincount(source + (values - start) % ways, minlength=self.world * ways)
        return counts.reshape(self.world, ways).astype(np.float64)

    def _touched(self) -> NDArray[np.bool_]:
        if self._marks is None:
            self._marks = np.zeros(self.rows, dtype=np.bool_)
            self._marks[self.values] = True
        return self._marks

    def distinct(self, start: int, stop: int, ways: int) -> Floats:
        """See TableLookups."""
        touched = self._touched()[start:stop]
        if ways == 1:
            return np.array([np.count_nonzero(touched)], dtype=np.float64)
        return np.bincount(np.flatnonzero(touched) % ways, minlength=ways).astype(np.float64)

    def distinct_by_source(self, start: int, stop: int) -> Floats:
        """See TableLookups."""
        counts = _zeros(self.world)
        for rank, (low, high) in enumerate(zip(self.ends[:-1], self.ends[1:])):
            rows = np.unique(self.values[low:high])
            counts[rank] = np.searchsorted(rows, stop) - np.searchsorted(rows, start)
        return counts


class ExpectedLookups:
    """Expected lookups of a batch under the training profile."""

    def __init__(self, profile: AccessProfile, batch_size: int, world_size: int) -> None:
        self.profile = profile
        self.total = profile.mean_pooling * batch_size
        self.world = world_size

    def by_source(self, start: int, stop: int) -> Floats:
        """See TableLookups."""
        return np.full(self.world, self.total / self.world * self.profile.share(start, stop))

    def dealt(self, start: int, stop: int, ways: int) -> Floats:
        """See TableLookups; hot rows are dealt round-robin, so owners get equal shares."""
        return np.repeat(self.by_source(start, stop)[:, None] / ways, ways, axis=1)

    def distinct(self, start: int, stop: int, ways: int) -> Floats:
        """See TableLookups."""
        return np.full(ways, self.profile.expected_distinct(self.total, start, stop) / ways)

    def distinct_by_source(self, start: int, stop: int) -> Floats:
        """See TableLookups."""
        return np.full(self.world, self.profile.expected_distinct(self.total / self.world, start, stop))


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


def segment_load(
    rows: dict[str, Floats | float], columns: int, tier: Tier, precision: Precision, state: int
) -> dict[str, Floats | float]:
    """Load of a segment from its ``lookups``, ``distinct`` rows and ``bags`` (same shapes out as in)."""
    width = columns * precision.bytes
    prefix = "uvm_" if tier is Tier.UVM else ""
    return {
        prefix + "lookups": rows["lookups"],
        prefix + "lookup_bytes": rows["lookups"] * width,
        prefix + "distinct": rows["distinct"],
        prefix + "distinct_bytes": rows["distinct"] * width,
        "state_bytes": rows["distinct"] * state,
        "bags": rows["bags"],
        "bag_bytes": rows["bags"] * columns * VECTOR_BYTES,
        "gradient_bytes": rows["lookups"] * columns * VECTOR_BYTES,
    }


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
        self.vector_columns = _zeros(self.world)
        """Pooled columns that each rank sends to every sample's rank (table-wise)."""
        self.world_columns = 0
        self.node_columns = _zeros(self.topology.nodes)
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
        none = _zeros(self.world)
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
