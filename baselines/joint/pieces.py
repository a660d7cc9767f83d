"""Ranges of rows and columns of a table, where they may be, and what each adds to the sums of a plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES, Sources
from shardbench.cost.caching import CacheWork, Part, SteadyCache, steady_cache
from shardbench.cost.costmodel import caching_s, sources_s
from shardbench.cost.kernel_numbers import BACKWARD, FORWARD, KernelNumbers
from shardbench.cost.load import Load, segment_load
from shardbench.cost.published.gpus import shared
from shardbench.model.caching import ROWWISE_STATE_BYTES, CachedPart, cache_bytes
from shardbench.model.machine import Constants
from shardbench.model.plan import GroupSharded, OnRank, Replicated, RowWise, Segment, Tier
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling, Table
from shardbench.model.validate import dealt

NUMBERS = 10
"""The numbers of ``KernelNumbers`` for all kinds of repeats and for sequences, and last the bags: without any nothing
runs."""
TIERS = (Tier.HBM, Tier.UVM, Tier.CACHED)
CACHED = TIERS.index(Tier.CACHED)
NONE = 1e-6
"""Bags below which a device has none: what rounding leaves of pieces that were taken away."""


class PieceKernels:
    """The times of pieces' kernels and of the copies around them on a machine, from numbers that add up over pieces.

    The copies before and after a kernel lengthen the step as its work does, so that they count as work.
    """

    def __init__(self, constants: Constants) -> None:
        self._numbers = KernelNumbers(constants, placing=True)
        self._launch, self._dispatch = 1e3 * constants.launch_s, 1e3 * constants.dispatch_s
        self._backward_launch = 1e3 * constants.backward_launch_s

    def numbers(self, load: Load) -> Floats:
        """Return ten numbers of loads, [..., NUMBERS]; raises BadInput for counted loads, which have a longest bag."""
        return np.stack([*self._numbers.of(load), load.bags], axis=-1)

    def work_ms(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return milliseconds of forward and of backward work, without launch and dispatch, [...] each."""
        forward, backward = self._numbers.work_s(numbers.T[:-1])
        return 1e3 * forward.T, 1e3 * backward.T

    def times_ms(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return milliseconds of devices' forward and backward kernels and copies; zero without a bag.

        ``numbers`` are [NUMBERS, ...], what is returned [...] each.
        """
        forward, backward = self._numbers.work_s(numbers[:-1])
        busy = numbers[-1] > NONE
        return (
            np.maximum(self._dispatch, self._launch + 1e3 * forward) * busy,
            (self._backward_launch + 1e3 * backward) * busy,
        )


class Holders(IntEnum):
    """The devices that get a piece."""

    RANK = 0
    """One device has the piece."""
    NODE = 1
    """The rows are dealt over the devices of one node."""
    WORLD = 2
    """The rows are dealt over all devices."""
    NODES = 3
    """Every node has a copy, whose rows are dealt over its devices."""
    COPIES = 4
    """Every device has a copy."""


class Cache(NamedTuple):
    """A cache in HBM of a table in host memory, alone or beside others of its age."""

    ratio: float
    """The share of the rows that it has slots for."""
    age: float
    """The number of batches whose rows it holds."""


class PieceCut(NamedTuple):
    """A piece before it is counted; ``width`` columns of rows [start, stop) of table ``table``."""

    table: int
    scope: Holders
    start: int
    stop: int
    width: int
    tier: Tier = Tier.HBM
    alone: bool = True
    """False for a second range of rows that is pooled with the first before anything is sent."""
    cache: Cache | None = None
    """The cache of one in the tier CACHED."""

    def segment(self, table: Table, ranks: Sequence[int], first_column: int = 0) -> Segment:
        """Return the piece, in its columns from this one on, as a segment on the devices ``ranks``."""
        ratio = None if self.cache is None else self.cache.ratio
        placement: OnRank | RowWise | GroupSharded | Replicated
        if self.scope is Holders.RANK:
            placement = OnRank(rank=ranks[0], tier=self.tier, cache_ratio=ratio)
        elif self.scope in (Holders.NODE, Holders.WORLD):
            placement = RowWise(ranks=tuple(ranks), tier=self.tier, cache_ratio=ratio)
        elif self.scope is Holders.NODES:
            placement = GroupSharded(tier=self.tier)
        else:
            placement = Replicated(ranks=tuple(ranks))
        return Segment(
            table=table.name, row_start=self.start, row_stop=self.stop, column_start=first_column,
            column_stop=first_column + self.width, placement=placement,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class CountedPieces:
    """What pieces add to the sums of a plan under the training profile, [pieces] each.

    Expected lookups are the same for every rank's samples, so that a number a device is enough.
    """

    cuts: tuple[PieceCut, ...]
    numbers: Floats
    """The numbers of ``PieceKernels`` of every device that has the piece, [pieces, NUMBERS]."""
    loads: Load
    """What the kernels of every device that has the piece do, [pieces]."""
    sent: Sources
    """What each rank puts in place of its samples' lookups to send it, [pieces]."""
    received: Floats
    """Bytes of lengths and indices that each rank sends to each device that has it."""
    sources: Floats
    """Milliseconds in which each rank puts the lookups of its samples in place to send them."""
    returned: Floats
    """Bytes of vectors that each device that has it sends to each rank whose samples ask."""
    pooled: Floats
    """Columns of pooled vectors that are summed over the devices that have it."""
    weights: Floats
    """Weights whose gradients the copies all-reduce, of a whole table or of one device's share of a node's copy."""
    size: Floats
    """Bytes of all its copies in HBM, of weights, state and caches."""
    fullest: Floats
    """The same bytes on the device that has most of it, in HBM and in host memory, [pieces, 2]."""
    scope: Ints
    """The ``Holders`` of it."""
    module: Ints
    """Columns of the module of unpooled tables that it is in; 0 is the module of all pooled tables."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TablePiece:
    """One counted piece; its fields mean what they mean in ``CountedPieces``."""

    cut: PieceCut
    columns: tuple[int, int]
    numbers: Floats
    load: Floats
    sent: Floats
    received: float
    sources: float
    returned: float
    pooled: float
    weights: float
    held_bytes: Floats
    """Bytes in HBM and in host memory by device of the scope, in the scope's order; [2, 1] where all hold the same."""
    module: int
    """Columns of the module of unpooled tables that it is in; 0 is the module of all pooled tables."""

    @property
    def scope(self) -> Holders:
        """The devices that get it."""
        return self.cut.scope


Form = tuple[tuple[TablePiece, ...], ...]
"""Pieces of a table in groups that go to one place each: the tiers of a device's rows stay together."""


class Counter:
    """Counts the pieces of a problem's tables."""

    def __init__(self, problem: Problem, *, averaging_s: float = 0.0, check: Callable[[], None] = lambda: None) -> None:
        """``averaging_s`` and ``check`` are those of a ``Space``."""
        self.problem, topology = problem, problem.topology
        self.averaging_s, self._check = averaging_s, check
        self.kernels = PieceKernels(problem.machine.constants)
        world, local = topology.world_size, topology.devices_per_node
        self.ways = np.array([1, local, world, local, 1])
        """Devices that share the rows of a piece, by scope."""
        self.askers = np.array([world, world, world, local, 1])
        """Ranks whose samples ask a device that has it, by scope."""
        self.holders = np.array([1, local, world, world, world])
        self.unpooled = np.array([table.pooling is Pooling.NONE for table in problem.tables])
        self.features = np.array([table.features for table in problem.tables])
        self.lookups = np.array([profile.mean_pooling for profile in problem.profiles]) * problem.batch_size

    def count(self, cuts: Sequence[PieceCut]) -> CountedPieces:
        """Return what the pieces add, counted all at once."""
        problem = self.problem
        *columns, tiers, alone_cuts, _ = zip(*cuts)
        table, scope, start, stop, width = np.array(columns, dtype=np.int64)
        alone, tier = np.array(alone_cuts), np.array([TIERS.index(one) for one in tiers])
        ways, askers, world = self.ways[scope], self.askers[scope], problem.world_size
        share, distinct = self._shares(table, scope, start, stop)
        device_lookups = self.lookups[table] * share * askers / world / ways
        samples = problem.batch_size // world * askers
        unpooled, features = self.unpooled[table], self.features[table]
        bags = np.where(unpooled, device_lookups, samples * features)
        widths, of_width = np.unique(width, return_inverse=True)
        state = np.array([problem.optimizer.state_bytes(one) for one in widths.tolist()])[of_width]
        load, missed = Load.zeros(len(cuts)), self._missed(cuts)
        for kind in np.unique(np.stack([unpooled, tier, state], axis=1), axis=0):
            at = np.flatnonzero((unpooled == kind[0]) & (tier == kind[1]) & (state == kind[2]))
            load.values[at] = segment_load(
                lookups=device_lookups[at],
                distinct=distinct[at] / ways[at],
                bags=bags[at],
                rows=((stop - start) / ways)[at],
                columns=width[at],
                unpooled=bool(kind[0]),
                tier=TIERS[kind[1]],
                precision=problem.precision,
                state=int(kind[2]),
                missed=missed[at, 1],
                missed_lookups=missed[at, 2],
            ).values
        load.tables[...] = features * (bags > 0)
        own = scope == Holders.COPIES
        lookups, local_batch = device_lookups / askers * ways, problem.batch_size // world
        # Making ids distinct takes as long under every plan.
        dealt_lookups = np.where(scope == Holders.RANK, 0.0, lookups)
        sent = Sources(lookups, ways * local_batch * features, dealt_lookups, np.zeros_like(lookups))
        sent = Sources(*(np.where(own, 0.0, part) for part in sent))
        rows = stop - start
        row_bytes = width * problem.precision.bytes + state
        numbers = self.kernels.numbers(load)
        # A device's kernels and its averaging follow one another.
        numbers[:, BACKWARD] += self.averaging_s * np.where(own, 0.0, rows * width / ways)
        numbers[:, FORWARD] += self._caching_s(device_lookups, missed[:, 0], width) * (tier == CACHED)
        fullest = self._fullest_bytes(cuts, -(-rows // ways), width, state)
        shared = -(-rows // self.ways[Holders.NODES]) * width
        return CountedPieces(
            cuts=tuple(cuts),
            numbers=numbers,
            loads=load,
            sent=sent,
            received=np.where(
                own, 0.0, device_lookups / askers * INDEX_BYTES + samples / askers * features * LENGTH_BYTES
            ),
            sources=1e3 * sources_s(sent, problem.machine.constants),
            returned=np.where(unpooled & ~own, device_lookups / askers * width * problem.exchange.bytes, 0.0),
            pooled=np.where(alone & ~unpooled & ~own, width * features, 0).astype(np.float64),
            weights=np.where(own, rows * width, np.where(scope == Holders.NODES, shared, 0)).astype(np.float64),
            size=np.where(
                tier == 0, rows * row_bytes * self.holders[scope] / ways, fullest[:, 0] * self.holders[scope]
            ),
            fullest=fullest,
            scope=scope,
            module=np.where(unpooled, width, 0),
        )

    def cache(self, table: int, *, ratio: float | None = None, age: float = 1.0) -> Cache:
        """Return the cache of a table with slots for a ``ratio`` of its rows, or for the rows of ``age`` batches."""
        rows = self.problem.tables[table].rows
        if ratio is not None:
            return Cache(ratio, self._steady(PieceCut(table, Holders.RANK, 0, rows, 0, cache=Cache(ratio, age))).age)
        distinct = self.problem.profiles[table].expected_distinct(self.lookups[table] * age)
        return Cache(min(max(distinct, 1.0) / rows, 1.0), age)

    def _steady(self, cut: PieceCut) -> SteadyCache:
        """Return the cache of a piece, as if no other table had slots in it."""
        problem, table, ways = self.problem, self.problem.tables[cut.table], int(self.ways[cut.scope])
        segment = cut._replace(width=table.dim, tier=Tier.CACHED).segment(table, range(ways))
        part = CachedPart(rank=0, way=0, ways=ways, rows=-(-segment.rows // ways), group=None)
        asks = 1.0 / problem.world_size if table.distinct else None
        profile = problem.profiles[cut.table]
        return steady_cache([Part(segment, 0, part, profile, cut.table, float(problem.batch_size), asks)])

    def _missed(self, cuts: Sequence[PieceCut]) -> Floats:
        """Return rows inserted, rows in conflict and their lookups of each piece's cache, [pieces, 3]."""
        missed, by_cache = np.zeros((len(cuts), 3)), dict[PieceCut, Floats]()
        for at, cut in enumerate(cuts):
            if cut.cache is not None:
                self._check()
                key = cut._replace(width=0, alone=True)
                if key not in by_cache:
                    by_cache[key] = self._steady(cut).batch_counts(cut.cache.age)[0, :3]
                missed[at] = by_cache[key]
        return missed

    def _caching_s(self, lookups: Floats, inserted: Floats, width: Ints) -> Floats:
        """Return the seconds in which caches find rows and fetch as many as leave, [pieces]."""
        work = CacheWork.of(lookups, inserted, inserted, width * self.problem.precision.bytes)
        return caching_s(work, self.problem.machine.constants, shared()["cache_directory_s"])

    def _fullest_bytes(self, cuts: Sequence[PieceCut], rows: Ints, width: Ints, state: Ints) -> Floats:
        """Return the bytes in HBM and in host memory of so many rows of each piece, [pieces, 2].

        Slots are as wide as the widest of the tables that may share them.
        """
        each, fullest = self.problem.precision.bytes, np.zeros((len(cuts), 2))
        fullest[np.arange(len(cuts)), [int(cut.tier is not Tier.HBM) for cut in cuts]] = rows * (width * each + state)
        pooled = [cut.width for cut in cuts if cut.cache is not None and not self.unpooled[cut.table]]
        for at, cut in enumerate(cuts):
            if cut.cache is not None:
                number, widest = int(rows[at]), cut.width if self.unpooled[cut.table] else max(pooled)
                fullest[at, 0] = cache_bytes(number * cut.cache.ratio, number, widest * each)
                if state[at] <= ROWWISE_STATE_BYTES:
                    fullest[at] += number * int(state[at]) * np.array([1.0, -1.0])
        return fullest

    def _shares(self, table: Ints, scope: Ints, start: Ints, stop: Ints) -> tuple[Floats, Floats]:
        """Return each piece's share of its table's lookups, and distinct rows that its askers want, [pieces] each.

        Ranks that make ids distinct ask for less than a share of 1 in all.
        """
        share, distinct, order = np.zeros(len(table)), np.zeros(len(table)), np.argsort(table, kind="stable")
        first = np.searchsorted(table[order], np.arange(len(self.problem.tables) + 1))
        for index, profile in enumerate(self.problem.profiles):
            self._check()
            of = order[first[index] : first[index + 1]]
            if not len(of):
                continue
            ends, asker_counts = np.array([start[of], stop[of]]), self.askers[scope[of]]
            of_rank = self.lookups[index] / self.problem.world_size
            if self.problem.tables[index].distinct and of_rank:
                shares = profile.distinct_below(of_rank, ends) / of_rank
            else:
                shares = profile.cdf(ends)
            share[of] = shares[1] - shares[0]
            for askers in set(asker_counts.tolist()):
                alike = asker_counts == askers
                below = profile.distinct_below(self.lookups[index] * askers / self.problem.world_size, ends[:, alike])
                distinct[of[alike]] = below[1] - below[0]
        return share, distinct

    def piece(self, counted: CountedPieces, at: int, first_column: int = 0) -> TablePiece:
        """Return piece ``at`` of the counted ones, in the columns from ``first_column`` on."""
        cut = counted.cuts[at]
        table = self.problem.tables[cut.table]
        rows, ways, held_bytes = cut.stop - cut.start, int(self.ways[cut.scope]), counted.fullest[at][:, None]
        if ways > 1 and cut.cache is None:
            held_bytes = held_bytes / -(-rows // ways) * dealt(table.name, rows, ways)
        return TablePiece(
            cut=cut,
            columns=(first_column, first_column + cut.width),
            numbers=counted.numbers[at],
            load=counted.loads.values[at],
            sent=np.array([part[at] for part in counted.sent]),
            received=float(counted.received[at]),
            sources=float(counted.sources[at]),
            returned=float(counted.returned[at]),
            pooled=float(counted.pooled[at]),
            weights=float(counted.weights[at]),
            held_bytes=held_bytes,
            module=int(counted.module[at]),
        )
