"""Accumulates the segments of a plan into loads and link bytes of one iteration.

What TorchRec's modules do is what is counted: lookups go to the owners of rows; segments of one
table that meet in the same exchange on the same rank are pooled together before they are sent;
gradients return along the same links.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints, zeros
from shardbench.base.errors import Unsupported
from shardbench.cost.caching import CacheCounts, Caches, CacheWork
from shardbench.cost.collectives import (
    Calls,
    Collective,
    CollectiveName,
    group_calls,
    group_reduction,
    grouped,
    node_reduction,
    pairwise,
    world_reduction,
)
from shardbench.cost.load import VECTOR_BYTES, Load, segment_load
from shardbench.cost.lookups import TableLookups
from shardbench.model.caching import Kernel, kernel_of
from shardbench.model.plan import (
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    Tier,
    deal_start,
    homes,
    sharding_groups,
)
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling, Precision, Table

INDEX_BYTES = 8
LENGTH_BYTES = 4
ENCODE_BYTES, DECODE_BYTES = 7, 3
"""Bytes copied a number that is converted from fp32 to two bytes, and back: half of those that are read and written.

FBGEMM's codecs clamp into a tensor of its own and convert that (14 bytes), and convert back in one pass (6 bytes)."""
SPLIT_NUMBER_BYTES = 8
SPLIT_BYTES = 3 * SPLIT_NUMBER_BYTES
"""Bytes to each peer before an input all-to-all: number of lengths, of indices, and the batch size, int64."""

_IN_GROUP = ("node_sharded", "node_table_wise")
"""Sharding types whose exchanges stay inside each sharding group."""

Columns = list[tuple[int, int]]


class Sources(NamedTuple):
    """What ranks put in place to send it, themselves among those who get it, [world] each."""

    lookups: Floats
    lengths: Floats
    """Lengths of bags: a table's that is dealt over ranks counts for each of them."""
    bucketed: Floats
    """Lookups whose owner is found first: those of rows that are dealt over ranks."""
    repeated: Floats
    """Lookups that are made distinct first."""

    @classmethod
    def zeros(cls, world: int) -> "Sources":
        """Return what ranks send that send nothing."""
        return cls(*(zeros(world) for _ in cls._fields))


class Exchanged(NamedTuple):
    """Bytes of vectors in a step's exchanges, what stays on a rank among them, [world] each."""

    sent: Floats
    """What is given to all-to-alls."""
    given: Floats
    """What is given to all-to-alls and reduce-scatters."""
    arrived: Floats
    """What all-to-alls give back."""
    got: Floats
    """What all-to-alls and reduce-scatters give back."""


def distinct_columns(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the number of columns that at least one of the ranges covers."""
    covered, end = 0, 0
    for start, stop in sorted(ranges):
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return covered


class Account:
    """Sums of one iteration: add every table's segments, then read ``load``, ``host`` and the other results."""

    def __init__(
        self,
        problem: Problem,
        *,
        gathers_rows: bool = False,
        groups: ShardingGroups | None = None,
        caches: Caches | None = None,
    ) -> None:
        self.problem = problem
        self._caches = caches or {}
        self.caching = CacheWork.zeros(problem.world_size)
        # Replicas of a batch schedule gather the gradients of the rows they touched; others are all-reduced whole.
        self._gathers_rows = gathers_rows
        self._touched = zeros(problem.world_size)
        self.topology = problem.topology
        self.world = problem.world_size
        self.groups = sharding_groups(groups, problem.topology)
        self._sync_every = groups.sync_every if groups is not None else 1
        self.local_batch = problem.batch_size // self.world
        self._number_bytes = problem.exchange.bytes
        self.load = Load.zeros(self.world)
        self.host = Load.zeros(self.topology.nodes)
        self.history_columns = zeros(self.world)
        self._placed_columns = zeros(self.world)
        self.sources = Sources.zeros(self.world)
        # By owner, then by who asks: with many ranks a row is added to much faster than a column.
        self._asked = np.zeros((self.world, self.world))
        self._back = np.zeros((self.world, self.world))
        self._columns = {
            "rank": zeros(self.world), "node": zeros(self.topology.nodes), "world": zeros(1),
            "local": zeros(self.groups.shape[1]), "copies": zeros(1),
        }  # fmt: skip
        """Columns of pooled vectors by the scope of their rows, and by rank, node or place in a sharding group."""
        self._replicated_weights = 0.0
        self._copied_weights = zeros(self.groups.shape[1])
        # What each of them sends is a collective of its own; distinct ids go apart from others.
        self._exchanges: set[tuple[Kernel, bool]] = set()
        self._replicas: set[int] = set()
        self._widths: set[int] = set()

    def add(self, table: Table, segments: list[Segment], lookups: TableLookups) -> None:
        """Add a table's segments to the sums; raises Unsupported for a group of ranks that no module serves."""
        ranges_by_scope: dict[tuple[str, int], Columns] = {}
        for segment in segments:
            place = segment.placement
            columns = (segment.column_start, segment.column_stop)
            if isinstance(place, OnRank | Host):
                rank = place.rank if isinstance(place, OnRank) else self.topology.node_ranks(place.node)[0]
                self._on_rank(table, segment, lookups, rank)
                ranges_by_scope.setdefault(("rank", rank), []).append(columns)
            elif isinstance(place, RowWise):
                ranges_by_scope.setdefault(self._row_wise(table, segment, lookups, place), []).append(columns)
            elif isinstance(place, GroupSharded | OnLocalRank):
                self._in_groups(table, segment, lookups, place)
                scope = ("local", place.local_rank) if isinstance(place, OnLocalRank) else ("copies", 0)
                ranges_by_scope.setdefault(scope, []).append(columns)
            else:
                self._replicated(table, segment, lookups, place)
            if not isinstance(place, Replicated):
                self._exchanges.add((kernel_of(segment, table, self.topology), table.distinct))
        if table.pooling is Pooling.SUM:
            for (kind, at), ranges in ranges_by_scope.items():
                self._columns[kind][at] += distinct_columns(ranges) * table.features
        else:
            repeated = lookups.of_samples.by_source(0, table.rows)
            self.history_columns += repeated * table.dim
            if table.distinct:
                self.sources.repeated[...] += repeated
                self._placed_columns += repeated * table.dim

    def _to(self) -> Floats:
        """Return the bytes of lookups that each rank sends to each owner, [world, world]."""
        return self._asked.T.copy()

    def _put(
        self, load: Load, at: int | list[int] | Ints | slice, table: Table, segment: Segment, *, tier: Tier,
        ways: int = 1, samples: int, lookups: Floats | float, **counts: Floats | float,
    ) -> None:  # fmt: skip
        """Add a segment that is dealt over ``ways`` ranks to the devices ``at``, with the ``counts`` of its load.

        A kernel writes a vector for each of the ``samples`` and features where pooled, for each of the lookups where
        not.
        """
        pooled = np.full_like(np.asarray(lookups), samples * table.features)
        if tier is Tier.CACHED:
            counts |= self._cached(at, segment, lookups)
        part = segment_load(
            **counts,
            lookups=lookups,
            bags=lookups if table.pooling is Pooling.NONE else pooled,
            rows=segment.rows / ways,
            columns=segment.columns,
            unpooled=table.pooling is Pooling.NONE,
            features=table.features,
            tier=tier,
            precision=self.problem.precision,
            state=self.problem.optimizer.state_bytes(segment.columns),
        )
        load.add_at(at, part)

    def _longest_by_group(self, table: Table, segment: Segment, lookups: TableLookups, ways: int) -> Floats:
        """Return the longest bag's lookups by sharding group and owner, [groups, ways]."""
        by_rank = lookups.longest_bag(segment.row_start, segment.row_stop, self.world, 1)[:, 0]
        return np.repeat(np.ceil(by_rank[self.groups].max(axis=1) / ways)[:, None], ways, axis=1)

    def _cached(
        self, at: int | list[int] | Ints | slice, segment: Segment, lookups: Floats | float
    ) -> dict[str, Floats]:
        """Add what the caches of devices ``at`` do for a segment; return what they lack, as a load asks for it."""
        counts = CacheCounts(*(numbers.reshape(np.shape(lookups)) for numbers in self._caches[segment]))
        row_bytes = segment.columns * self.problem.precision.bytes
        work = CacheWork.of(np.asarray(lookups), counts.inserted, counts.evicted, row_bytes)
        for total, added in zip(self.caching, work):
            total[at] += added
        return {"missed_lookups": counts.conflict_lookups, "missed": counts.conflict}

    def _length_bytes(self, table: Table) -> int:
        """Return the bytes of the lengths that a rank sends to one owner: distinct ids come with longer numbers."""
        return self.local_batch * table.features * (INDEX_BYTES if table.distinct else LENGTH_BYTES)

    def _send(self, table: Table, sources: Floats, owners: int, *, dealt: bool = False) -> None:
        """Count lookups of one segment that every rank, [world], sends to its ``owners``."""
        self.sources.lookups[...] += sources
        self.sources.lengths[...] += owners * self.local_batch * table.features
        if dealt:
            self.sources.bucketed[...] += sources

    def _on_rank(self, table: Table, segment: Segment, lookups: TableLookups, rank: int) -> None:
        sources = lookups.by_source(segment.row_start, segment.row_stop)
        distinct = float(lookups.distinct(segment.row_start, segment.row_stop, 1)[0])
        total = float(sources.sum())
        place = segment.placement
        on_host = isinstance(place, Host)
        load, at = (self.host, self.topology.node_of(rank)) if on_host else (self.load, rank)
        tier = place.tier if isinstance(place, OnRank) else Tier.HBM
        self._put(
            load, at, table, segment, tier=tier, samples=self.problem.batch_size, lookups=total, distinct=distinct,
            longest_bag=float(lookups.longest_bag(segment.row_start, segment.row_stop, 1, 1)[0, 0]),
        )  # fmt: skip
        self._asked[rank] += sources * INDEX_BYTES + self._length_bytes(table)
        if table.pooling is Pooling.NONE:
            self._back[rank, :] += sources * segment.columns * self._number_bytes
        self._send(table, sources, 1)

    def _row_wise(self, table: Table, segment: Segment, lookups: TableLookups, place: RowWise) -> tuple[str, int]:
        ranks = place.ranks
        nodes = {self.topology.node_of(rank) for rank in (ranks[0], ranks[-1])}
        whole = len(ranks) == self.world
        if not whole and (len(nodes) != 1 or len(ranks) != self.topology.devices_per_node):
            raise Unsupported(f"table '{table.name}': row-wise runs over all ranks or all ranks of one node")
        # Ranks ascend, so that either group is one range of them.
        at = slice(ranks[0], ranks[-1] + 1)
        start = deal_start(table.name, len(ranks))
        owned = lookups.dealt(segment.row_start, segment.row_stop, len(ranks))
        # Where all owners get as many, a column stands for all, and there is nothing to roll: with 1,024 ranks the
        # matrix would take longer than all else.
        alike = not owned.strides[1]
        owned = owned if alike else np.roll(owned, start, axis=1)
        each = owned[:, :1] if alike else owned
        distinct = np.roll(lookups.distinct(segment.row_start, segment.row_stop, len(ranks)), start)
        total = owned.sum(axis=0)
        longest = lookups.longest_bag(segment.row_start, segment.row_stop, 1, len(ranks))[0]
        self._put(
            self.load, at, table, segment, tier=place.tier, ways=len(ranks), samples=self.problem.batch_size,
            lookups=total, distinct=distinct, longest_bag=longest,
        )  # fmt: skip
        self._asked[at] += each.T * INDEX_BYTES + self._length_bytes(table)
        if table.pooling is Pooling.NONE:
            self._back[at, :] += each.T * segment.columns * self._number_bytes
        self._send(table, owned.sum(axis=1), len(ranks), dealt=True)
        return ("world", 0) if whole else ("node", nodes.pop())

    def _in_groups(
        self, table: Table, segment: Segment, lookups: TableLookups, place: GroupSharded | OnLocalRank
    ) -> None:
        """Count rows of which each sharding group has a copy, dealt over its ranks or whole on one of them."""
        owners, size = homes(place, self.groups), self.groups.shape[1]
        ways = owners.shape[1]
        owned = lookups.dealt(segment.row_start, segment.row_stop, ways)
        distinct = lookups.distinct_by_group(segment.row_start, segment.row_stop, self.groups, ways)
        start = deal_start(table.name, ways)
        if start:
            owned, distinct = np.roll(owned, start, axis=1), np.roll(distinct, start, axis=1)
        by_group = owned[self.groups]
        self._put(
            self.load, owners.ravel(), table, segment, tier=place.tier, ways=ways, samples=self.local_batch * size,
            lookups=by_group.sum(axis=1).ravel(), distinct=distinct.ravel(),
            longest_bag=self._longest_by_group(table, segment, lookups, ways).ravel(),
        )  # fmt: skip
        # No rank is in two groups.
        asks, owns = self.groups[:, :, None], owners[:, None, :]
        self._asked[owns, asks] += by_group * INDEX_BYTES + self._length_bytes(table)
        if table.pooling is Pooling.NONE and size > 1:
            self._back[owns, asks] += by_group * segment.columns * self._number_bytes
        self._send(table, owned.sum(axis=1), ways, dealt=isinstance(place, GroupSharded))
        # Blocks are padded to equal length, and copies are averaged block by block.
        at = place.local_rank if isinstance(place, OnLocalRank) else slice(None)
        self._copied_weights[at] += -(-segment.rows // ways) * segment.columns

    def _replicated(self, table: Table, segment: Segment, lookups: TableLookups, place: Replicated) -> None:
        ranks = list(place.ranks)
        total = lookups.by_source(segment.row_start, segment.row_stop)[ranks]
        alone = homes(place, self.groups)
        distinct = lookups.distinct_by_group(segment.row_start, segment.row_stop, alone, 1)[:, 0]
        self._put(
            self.load, ranks, table, segment, tier=Tier.HBM, samples=self.local_batch, lookups=total, distinct=distinct,
            longest_bag=lookups.longest_bag(segment.row_start, segment.row_stop, self.world, 1)[ranks, 0],
        )  # fmt: skip
        self._touched[ranks] += distinct * (INDEX_BYTES + segment.columns * VECTOR_BYTES)
        # Groups partition the world (validate), so that all copies together are all-reduced once.
        if ranks[0] == 0:
            self._replicated_weights += segment.rows * segment.columns
            self._replicas.add(kernel_of(segment, table, self.topology).columns)
            self._widths.add(segment.columns)

    @property
    def modules(self) -> int:
        """Return the number of sharding types of modules, copies on every rank among them."""
        return len(self._exchanges) + len(self._replicas)

    def collectives(self, dense_weights: int) -> dict[CollectiveName, Collective]:
        """Return every collective of the step by name, with its bytes by rank and its calls."""
        topology, forward = self.topology, self._vectors()
        in_world, in_node, in_group = self._sums()
        scatter = world_reduction(in_world, 1.0, topology) + node_reduction(in_node, topology)
        scatter = scatter + group_reduction(np.full(self.world, in_group), 1.0, self.groups, topology)
        group, place = self._of_group
        same = group[:, None] == group[None, :]
        # Weights and their gradients are all-reduced in the tables' own precision.
        weight_bytes = self.problem.precision.bytes
        if self._gathers_rows:
            replicas = pairwise(np.repeat(self._touched[:, None], self.world, axis=1), topology)
            # One for all widths: how many rows, then which, then their gradients.
            splits, modules = float(SPLIT_NUMBER_BYTES * len(self._widths)), 2 * bool(self._widths)
        else:
            replicas = self.replicas()
            splits, modules = 0.0, len(self._replicas)
        copied = self._copied_weights[place] * weight_bytes / self._sync_every
        copies = group_reduction(copied, 2.0, self.groups.T, topology)
        averaged = group_calls(self.groups.T, topology).times(bool(self._copied_weights.any()) / self._sync_every)
        lookups, vectors, sums = self._calls()
        return {
            CollectiveName.INPUT_SPLITS: pairwise(self._splits(same), topology).called(lookups),
            # Lengths, then indices.
            CollectiveName.INPUT_ALL_TO_ALL: pairwise(self._to(), topology).called(lookups.times(2)),
            CollectiveName.OUTPUT_ALL_TO_ALL: pairwise(forward, topology).called(vectors),
            CollectiveName.OUTPUT_REDUCE_SCATTER: scatter.called(sums),
            CollectiveName.BACKWARD_ALL_TO_ALL: pairwise(forward.T, topology).called(vectors),
            CollectiveName.BACKWARD_ALL_GATHER: scatter.called(sums),
            CollectiveName.ROWS_SPLITS: pairwise(np.full((self.world, self.world), splits), topology).called(
                grouped(topology, splits > 0)
            ),
            # One a module of replicas, and one for all copies.
            CollectiveName.ROWS_ALL_REDUCE: (replicas + copies).called(grouped(topology, modules).plus(averaged)),
            CollectiveName.DENSE_ALL_REDUCE: world_reduction(dense_weights * VECTOR_BYTES, 2.0, topology).called(
                grouped(topology, 1)
            ),
        }

    def replicas(self) -> Collective:
        """Return the part of the rows' all-reduce that is in DDP's buckets: gradients of rows that all ranks have."""
        if self._gathers_rows:
            return Collective.zeros(self.world)
        payload = self._replicated_weights * self.problem.precision.bytes
        reduced = world_reduction(payload, 2.0, self.topology)
        return reduced.called(grouped(self.topology, len(self._replicas)))

    def _vectors(self) -> Floats:
        """Return the bytes of vectors that rank s sends to rank r, [s, r]; what stays on a rank is on the diagonal."""
        sample_bytes, devices = self.local_batch * self._number_bytes, self.topology.devices_per_node
        local, node = np.arange(self.world) % devices, np.arange(self.world) // devices
        forward = self._back + self._columns["rank"][:, None] * sample_bytes
        # Table-row-wise: after the node's reduce-scatter, equal local ranks exchange across nodes.
        forward += (local[:, None] == local[None, :]) * (self._columns["node"][node] * sample_bytes)[:, None]
        if self.groups.shape[1] > 1:
            group, place = self._of_group
            forward += (group[:, None] == group[None, :]) * (self._columns["local"][place] * sample_bytes)[:, None]
        return np.asarray(forward)

    def _sums(self) -> tuple[float, Floats, float]:
        """Return bytes that each rank gives to reduce-scatters: over the world, in its node, [nodes], and its group."""
        sample_bytes = self.local_batch * self._number_bytes
        in_node = self._columns["node"] * self.world * sample_bytes
        in_group = float(self._columns["copies"][0] * self.groups.shape[1] * sample_bytes)
        return self._columns["world"][0] * self.world * sample_bytes, in_node, in_group

    def exchanged(self) -> Exchanged:
        """Return the bytes of vectors that ranks give to exchanges and get from them, in the exchange's format."""
        devices = self.topology.devices_per_node
        vectors, (in_world, in_node, in_group) = self._vectors(), self._sums()
        # A node, or a group, of one rank has no exchange inside.
        of_node, ways = in_node.repeat(devices) * (devices > 1), self.groups.shape[1]
        of_group = in_group * (ways > 1)
        sent, arrived = vectors.sum(axis=1), vectors.sum(axis=0)
        return Exchanged(
            sent=sent,
            given=sent + in_world + of_node + of_group,
            arrived=arrived,
            got=arrived + in_world / self.world + of_node / devices + of_group / ways,
        )

    def converted(self) -> Floats:
        """Return bytes that each rank copies to convert vectors to the exchange's format and back, [2, world].

        Forward, then backward, where the gradients take the way back. Nothing is converted to fp32, nor by one rank.
        Vectors of distinct ids are copied to all their places, and their gradients summed from there.
        """
        placed = np.tile(VECTOR_BYTES * self._placed_columns, (2, 1))
        if self.problem.exchange is Precision.FP32 or self.world == 1:
            return placed
        _, encoded, _, decoded = self.exchanged()
        passes = [ENCODE_BYTES * encoded + DECODE_BYTES * decoded, DECODE_BYTES * encoded + ENCODE_BYTES * decoded]
        return np.asarray(passes) / self._number_bytes + placed

    def lookup_bytes(self) -> tuple[Floats, Floats]:
        """Return the bytes of indices and lengths that ranks send and receive, their own among them, [world] each."""
        sent = self._to()
        return sent.sum(axis=1), sent.sum(axis=0)

    def held_weights(self) -> Floats:
        """Return the weights of each rank's replicas and of its copies by sharding group, blocks padded, [world]."""
        return self._replicated_weights + self._copied_weights[self._of_group[1]]

    def _calls(self) -> tuple[Calls, Calls, Calls]:
        """Return the calls that exchange lookups (splits, lengths or indices), return vectors, and return sums."""

        def calls(*kinds: str, pooled: bool | None = None) -> int:
            return sum(k.kind in kinds and pooled in (None, k.columns == 0) for k, _ in self._exchanges)

        topology, one = self.topology, group_calls(self.groups, self.topology)
        lookups = grouped(topology, calls("table_wise", "row_wise", "table_row_wise"))
        # Table-row-wise sums inside the node first, then exchanges between nodes.
        vectors = grouped(
            topology, calls("table_wise") + calls("row_wise", pooled=False), cross=calls("table_row_wise")
        )
        sums = grouped(topology, calls("row_wise", pooled=True), calls("table_row_wise", pooled=True))
        in_group = calls("node_sharded", pooled=False) + calls("node_table_wise")
        return (
            lookups.plus(one.times(calls(*_IN_GROUP))),
            vectors.plus(one.times(in_group)),
            sums.plus(one.times(calls("node_sharded", pooled=True))),
        )

    @cached_property
    def _of_group(self) -> tuple[Ints, Ints]:
        """Return the sharding group of each rank and its place in it, [world] each."""
        at = np.empty((2, self.world), dtype=np.int64)
        at[:, self.groups] = np.indices(self.groups.shape)
        return at[0], at[1]

    def _splits(self, same: Bools) -> Floats:
        in_group = sum(kernel.kind in _IN_GROUP for kernel, _ in self._exchanges)
        everywhere = len(self._exchanges) - in_group
        return np.asarray(float(SPLIT_BYTES) * (everywhere + in_group * same))
