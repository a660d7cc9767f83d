"""How much of everything a rank has in a step: what its tables' modules send, look up and get, and the dense model."""

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats, zeros
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES, Account
from shardbench.cost.load import VECTOR_BYTES, Load
from shardbench.cost.lookups import TableLookups
from shardbench.cost.memory.peak import MemoryConstants
from shardbench.model.machine import Topology
from shardbench.model.plan import (
    GroupSharded,
    Host,
    InTier,
    OnLocalRank,
    OnRank,
    Placement,
    Plan,
    Replicated,
    Segment,
    Tier,
)
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape, Pooling, Table
from shardbench.model.validate import memory_bytes

SCORE_BYTES = 24
"""What the attention over a history keeps for each lookup beside vectors: its sample, and four numbers of its score."""


class Scope(IntEnum):
    """The ranks over which a module exchanges, in the order in which a step goes through modules."""

    GROUP = 0
    REPLICAS = 1
    WORLD = 2


class Key(NamedTuple):
    """Which tables are looked up and exchanged together: TorchRec's unpooled modules hold tables of one width."""

    pooled: bool
    scope: Scope
    columns: int
    distinct: bool = False
    """Whether it makes ids distinct before it exchanges them; replicas, which exchange none, do not."""


class Module(NamedTuple):
    """Tables that are looked up and exchanged together; bytes of each rank, [world]."""

    pooled: bool
    exchanged: bool
    """Whether lookups and vectors leave the ranks."""
    sent: Floats
    """Indices and lengths that a rank sends, in the order of their owners; none where they lie in it already."""
    dealt: Floats
    """Indices among them whose owner is found first."""
    repeated: Floats
    """Indices that are made distinct before they are sent; none where they are sent as the samples have them."""
    kept: Floats
    """What is kept of that: the indices in the order of their owners, the distinct ones, and the place of each."""
    received: Floats
    """Indices and lengths that it gets."""
    offsets: Floats
    """Where the bags of these begin, which kernels take in the place of lengths."""
    indices: Floats
    """Indices that FBGEMM's module keeps from this lookup until its next one."""
    vectors: Floats
    """Vectors that its kernels give, fp32."""
    to_all: Floats
    """Vectors that it gives to all-to-alls, in fp32."""
    to_sum: Floats
    """Vectors that it gives to reduce-scatters, in fp32."""
    from_all: Floats
    """Vectors that it gets from all-to-alls, in fp32."""
    arrived: Floats
    """Vectors that it gets, fp32."""
    placed: Floats
    """Vectors that the dense model gets, fp32: where ids are made distinct, a copy of one for each of its lookups."""
    put_back: Floats
    """Unpooled vectors among them that are put back in the order of their lookups, for their rows are dealt."""
    workspace: Floats
    copied: Floats
    """Weights of copies by sharding group, which are averaged in one tensor."""
    replicas: Floats
    """Weights of replicated rows."""
    replica_gradients: Floats
    """Gradients of these that are there at once, beside DDP's bucket."""


class _Tables:
    """The tables of one module, added up."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.account = Account(problem, groups=plan.groups)
        self.homes: list[int] = []
        self.asked = zeros(problem.world_size)
        """Lookups as the samples have them, [world]."""
        self.most_lookups, self.most_weights = zeros(problem.world_size), zeros(problem.world_size)
        """Lookups and replicated weights of the table that has most of them, [world] each."""

    def add(self, table: Table, segments: list[Segment], lookups: TableLookups) -> None:
        """Add a table's segments."""
        looked_up, weights = self.load.all_lookups, self.account.held_weights()
        self.account.add(table, segments, lookups)
        for segment in segments:
            self.asked += lookups.of_samples.by_source(segment.row_start, segment.row_stop)
        self.homes += [_home(segment, self.account.topology) for segment in segments]
        self.most_lookups = np.maximum(self.most_lookups, self.load.all_lookups - looked_up)
        self.most_weights = np.maximum(self.most_weights, self.account.held_weights() - weights)

    @property
    def load(self) -> Load:
        """Return what ranks look up; on CPUs a node's first rank does so for its host, too."""
        if self.account.problem.machine.device != "cpu":
            return self.account.load
        values = self.account.load.values.copy()
        values[:: self.account.topology.devices_per_node] += self.account.host.values
        return Load(values)


def modules(plan: Plan, problem: Problem, lookups: Sequence[TableLookups], constants: MemoryConstants) -> list[Module]:
    """Return a plan's modules in the order in which a step goes through them."""
    tables: dict[Key, _Tables] = {}
    segments = plan.by_table()
    for i, table in enumerate(problem.tables):
        by_key: dict[Key, list[Segment]] = {}
        for segment in segments[table.name]:
            by_key.setdefault(_key(table, segment), []).append(_in_hbm(segment))
        for key, parts in by_key.items():
            own = lookups[i] if key.distinct else lookups[i].of_samples
            if key not in tables:
                tables[key] = _Tables(problem, plan)
            tables[key].add(replace(table, distinct=key.distinct), parts, own)
    listed = {key: _module(key, tables[key], constants) for key in tables}
    replicas, others = Key(True, Scope.REPLICAS, 0), Key(True, Scope.WORLD, 0)
    if replicas in listed and others in listed:
        # Replicas' lookups are a view of those of all pooled tables, put in order, all of which they keep.
        kept = INDEX_BYTES * tables[replicas].load.all_lookups + listed[others].sent
        listed[replicas] = listed[replicas]._replace(indices=kept)
    return [listed[key] for key in sorted(listed)]


def _home(segment: Segment, topology: Topology) -> int:
    """Return the number of the rank that a segment is on, in the world or its sharding group; -1 where dealt."""
    place = segment.placement
    if isinstance(place, OnLocalRank):
        return place.local_rank
    if isinstance(place, Host):
        return topology.node_ranks(place.node)[0]
    return place.rank if isinstance(place, OnRank) else -1


def _key(table: Table, segment: Segment) -> Key:
    pooled, place = table.pooling is Pooling.SUM, segment.placement
    if isinstance(place, Replicated):
        return Key(pooled, Scope.REPLICAS, 0)
    scope = Scope.GROUP if isinstance(place, GroupSharded | OnLocalRank) else Scope.WORLD
    return Key(pooled, scope, 0 if pooled else segment.columns, table.distinct)


def _in_hbm(segment: Segment) -> Segment:
    """Return the segment, or one without its cache: lookups and vectors are as many, whatever is in it."""
    place = segment.placement
    if not isinstance(place, InTier) or place.tier is not Tier.CACHED:
        return segment
    in_hbm: Placement = replace(place, tier=Tier.HBM, cache_ratio=None)
    return replace(segment, placement=in_hbm)


def _module(key: Key, tables: _Tables, constants: MemoryConstants) -> Module:
    account, load = tables.account, tables.load
    problem, world = account.problem, account.world
    nothing, replicated = zeros(world), key.scope is Scope.REPLICAS
    ranks = account.groups.shape[1] if key.scope is Scope.GROUP else world
    exchanged = not replicated and ranks > 1
    sent, received = account.lookup_bytes()
    vectors, fp32 = account.exchanged(), VECTOR_BYTES / problem.exchange.bytes
    if problem.machine.device == "cuda" or (key.pooled and not replicated):
        workspace = constants.sort_bytes * load.all_lookups + constants.table_sort_bytes * tables.most_lookups
        workspace = workspace + constants.row_bytes * (load.distinct + load.uvm.distinct)
    else:
        # A CPU's kernels add the gradients of replicas up in place, and collect those of unpooled rows in a map.
        workspace = (VECTOR_BYTES * key.columns + constants.map_bytes) * load.sequence_rows * (not replicated)
    arrived = fp32 * vectors.got if exchanged else load.bag_bytes
    repeated = INDEX_BYTES * tables.asked * key.distinct
    in_order = tables.homes == sorted(tables.homes)
    # Distinct indices lie in the order of their owners, but for those whose owner is found yet.
    lies_so = -1 not in tables.homes and (in_order or key.distinct)
    weights = account.held_weights() * problem.precision.bytes
    gradients = weights if key.pooled else tables.most_weights * problem.precision.bytes
    return Module(
        pooled=key.pooled,
        exchanged=exchanged,
        sent=nothing if lies_so else sent,
        dealt=INDEX_BYTES * account.sources.bucketed,
        repeated=repeated,
        kept=(repeated * (1.0 if in_order else 2.0) + sent) * key.distinct,
        received=received,
        # 8 bytes each, twice a length but of distinct ids.
        offsets=(1.0 if key.distinct else 2.0) * (received - INDEX_BYTES * load.all_lookups) * exchanged,
        indices=INDEX_BYTES * load.all_lookups * exchanged,
        vectors=load.bag_bytes,
        to_all=fp32 * vectors.sent,
        to_sum=fp32 * (vectors.given - vectors.sent),
        from_all=fp32 * vectors.arrived,
        arrived=arrived,
        placed=VECTOR_BYTES * key.columns * tables.asked if key.distinct else arrived,
        put_back=VECTOR_BYTES * key.columns * account.sources.bucketed,
        workspace=workspace,
        copied=weights if key.scope is Scope.GROUP else nothing,
        replicas=weights if replicated else nothing,
        replica_gradients=gradients if replicated else nothing,
    )


def table_bytes(plan: Plan, problem: Problem) -> Floats:
    """Return the bytes of weights, state and caches in each rank's own memory, padding included, [world].

    On CPUs all tiers are one memory, and a node's first rank holds its host's rows.
    """
    memory = memory_bytes(plan, problem, padded=True)
    held = memory.hbm.astype(np.float64)
    if problem.machine.device == "cpu":
        held += memory.uvm
        held[:: problem.topology.devices_per_node] += memory.host
    return held


def input_bytes(plan: Plan, problem: Problem, dense: DenseShape, lookups: Sequence[TableLookups]) -> Floats:
    """Return the bytes of each rank's samples of one batch, as modules are given them, [world]."""
    samples = problem.batch_size // problem.world_size
    total = np.full(problem.world_size, float(VECTOR_BYTES * samples * (dense.features + 1)))
    segments = plan.by_table()
    for table, source in zip(problem.tables, lookups):
        bags = samples * table.features
        # Together, groups of replicas are one table; parts of the same rows' columns are asked for one by one.
        parts = [s for s in segments[table.name] if not (isinstance(s.placement, Replicated) and s.placement.ranks[0])]
        ranges = {(s.row_start, s.row_stop) for s in parts}
        for part in parts:
            total += INDEX_BYTES * source.of_samples.by_source(part.row_start, part.row_stop) + LENGTH_BYTES * bags
            # Replicas' offsets, which are kept with them.
            total += INDEX_BYTES * bags * isinstance(part.placement, Replicated)
        if table.pooling is Pooling.NONE:
            total += INDEX_BYTES * bags
            if len(ranges) > 1:
                total += INDEX_BYTES * source.of_samples.by_source(0, table.rows)
    return total


class Activations(NamedTuple):
    """What the dense model holds for a rank's samples, bytes [world] each."""

    forward: Floats
    """The most that is there in the forward pass."""
    backward: Floats
    """The most that is there in the backward pass."""
    assembled: Floats
    """Vectors that tables give it, where they were put together of several tensors."""
    pooled: Floats
    """Gradients of pooled vectors."""
    unpooled: Floats
    """Gradients of unpooled vectors."""


def activations(
    plan: Plan, problem: Problem, dense: DenseShape, lookups: Sequence[TableLookups], stated: float | None
) -> Activations:
    """Return what the dense model holds: of a DLRM of this shape, or ``stated`` bytes at most on every rank."""
    samples, segments = problem.batch_size // problem.world_size, plan.by_table()
    number = float(VECTOR_BYTES * samples)
    pooled = [table for table in problem.tables if table.pooling is Pooling.SUM]
    histories = [
        VECTOR_BYTES * table.dim * source.of_samples.by_source(0, table.rows)
        for table, source in zip(problem.tables, lookups)
        if table.pooling is Pooling.NONE
    ]
    unpooled = sum(histories, zeros(problem.world_size))
    given = number * sum(table.dim * table.features for table in pooled)
    joined = number * sum(table.dim * table.features for table in pooled if len(segments[table.name]) > 1)
    if stated is not None:
        held = np.full(problem.world_size, stated)
        return Activations(held, held, joined + zeros(problem.world_size), given + zeros(problem.world_size), unpooled)
    bottom, top = number * sum(dense.bottom), number * sum(dense.top)
    if dense.interacts_by_dot(problem.tables):
        vectors = 1 + sum(table.features for table in pooled)
        pairs = vectors * (vectors - 1) // 2
        together, square = number * vectors * dense.bottom[-1], number * vectors**2
        top_input = number * (dense.bottom[-1] + pairs)
        forward = bottom + given + together + square + number * pairs + top_input + zeros(problem.world_size)
        # The gradients of both factors of the product, and their sum, beside what was kept.
        backward = bottom + top + top_input + square + 3.0 * together + zeros(problem.world_size)
        return Activations(forward, backward, joined + unpooled, together + zeros(problem.world_size), unpooled)
    width = dense.bottom[-1] + sum(table.dim * table.features for table in problem.tables)
    scores = SCORE_BYTES * sum(
        (h / (VECTOR_BYTES * t.dim) for h, t in zip(histories, _unpooled(problem))), zeros(problem.world_size)
    )
    largest = np.max([h / t.features for h, t in zip(histories, _unpooled(problem))], axis=0, initial=0.0)
    # Of each lookup the attention keeps its sample's query and its own weighted vector.
    # Vectors of rows that are cut into ranges are joined first, and then put in the order of their lookups.
    cut = [h for h, t in zip(histories, _unpooled(problem)) if len({s.row_start for s in segments[t.name]}) > 1]
    top_input, kept = number * width, bottom + 2.0 * unpooled + scores + sum(cut, zeros(problem.world_size))
    forward = kept + np.maximum(largest, top_input + top)
    backward = kept + top_input + np.maximum(2.0 * largest, top_input + top)
    return Activations(forward, backward, joined + unpooled, top_input + zeros(problem.world_size), unpooled)


def _unpooled(problem: Problem) -> list[Table]:
    return [table for table in problem.tables if table.pooling is Pooling.NONE]
