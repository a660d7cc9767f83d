"""EMBark's greedy over shards, costliest first, and the rounds that split the costliest table in two.

How a table is split into shards, and what the planner says that a shard costs a device, is here, too (deviation 1).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.model.plan import OnRank, Placement, RowWise, Segment, whole_table
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling
from shardbench.model.validate import COLUMN_MULTIPLE, dealt

WORK_RATIO = 8.0 / 2.0
"""Bytes of memory moved for a looked-up number against bytes of links for a returned one: the planner's default."""
HIERARCHICAL_LINKS = 1.5
"""Exchanges of a shard that a node's devices share, against one device's (the planner's constant)."""
WIDEST_WHOLE = 32
"""Columns up to which a shard is split by rows, and beyond which by columns."""
ROUNDS = 20
"""How many splits are tried at most once every shard has room."""


class RowSpread(StrEnum):
    """The devices over which the rows of a shard are dealt."""

    DEVICE = "device"
    NODE = "node"
    WORLD = "world"


@dataclass(frozen=True, kw_only=True)
class TableSplit:
    """A table's shards: ``columns`` equal column ranges, each of which lies on its own device or is dealt."""

    table: int
    width: int
    """Columns of each range."""
    columns: int = 1
    spread: RowSpread = RowSpread.DEVICE


class TableSplits:
    """The shards that a problem's tables may be cut into; ``hierarchical`` where a bucket is a node."""

    def __init__(self, problem: Problem, *, hierarchical: bool) -> None:
        self.problem, self.hierarchical = problem, hierarchical
        constants, topology = problem.machine.constants, problem.topology
        # Buckets exchange over the slowest link that there is (deviation 4).
        link = constants.inter_bytes_per_s if topology.nodes > 1 else constants.intra_bytes_per_s
        self._link_ratio = constants.hbm_bytes_per_s / link

    def whole(self, i: int) -> TableSplit:
        """Return table i before any split, as one shard on one bucket."""
        table = self.problem.tables[i]
        # deviation 5: what cannot be dealt inside a node lies on one of its devices
        dealable = table.pooling is Pooling.SUM and table.rows >= self.problem.topology.devices_per_node
        return TableSplit(
            table=i, width=table.dim, spread=RowSpread.NODE if self.hierarchical and dealable else RowSpread.DEVICE
        )

    def halved(self, split: TableSplit) -> TableSplit | None:
        """Split once more, wide shards by columns, others by rows (deviation 3); None where no split is left."""
        if split.width > WIDEST_WHOLE and split.width % (2 * COLUMN_MULTIPLE) == 0:
            return replace(split, columns=2 * split.columns, width=split.width // 2)
        enough = self.problem.tables[split.table].rows >= self.problem.world_size
        return replace(split, spread=RowSpread.WORLD) if enough and split.spread is not RowSpread.WORLD else None

    def cost(self, split: TableSplit) -> float:
        """Return what a shard costs each device that holds a part of it, in numbers moved in memory a sample."""
        topology = self.problem.topology
        table, pooling = self.problem.tables[split.table], self.problem.profiles[split.table].mean_pooling
        # A vector for each feature that shares the table: deviation 7.
        work, links = WORK_RATIO * pooling * split.width, self._link_ratio * table.features * split.width
        if not self.hierarchical or split.spread is RowSpread.DEVICE:
            return work / (self.problem.world_size if split.spread is RowSpread.WORLD else 1) + links
        buckets = topology.nodes if split.spread is RowSpread.WORLD else 1
        return (work / buckets + HIERARCHICAL_LINKS * links) / topology.devices_per_node

    def row_bytes(self, split: TableSplit) -> int:
        """Return the bytes of weights and optimiser state of one row of one shard."""
        return split.width * self.problem.precision.bytes + self.problem.optimizer.state_bytes(split.width)

    def bytes(self, split: TableSplit) -> Ints:
        """Return the bytes of one shard on each device that holds a part of it, int64 [ways]."""
        topology = self.problem.topology
        ways = {RowSpread.DEVICE: 1, RowSpread.NODE: topology.devices_per_node, RowSpread.WORLD: topology.world_size}
        table = self.problem.tables[split.table]
        if split.spread is RowSpread.DEVICE:
            return np.array([table.rows * self.row_bytes(split)], dtype=np.int64)
        return dealt(table.name, table.rows, ways[split.spread]) * self.row_bytes(split)


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """All shards of a round on their devices."""

    segments: tuple[Segment, ...]
    worst: float
    """Cost of the dearest device."""


def best_round(splits: TableSplits, tables: Iterable[int], free: Ints) -> RoundPlan:
    """Return the cheapest of the rounds for these tables on devices with ``free`` bytes, int64 [world].

    Raises Infeasible where a table finds no room however it is split.
    """
    current = {i: splits.whole(i) for i in tables}
    if not current:
        return RoundPlan(segments=(), worst=0.0)
    best: RoundPlan | None = None
    rounds = 0
    while rounds <= ROUNDS:  # the first without a split
        attempt = _place(splits, current.values(), free)
        if isinstance(attempt, TableSplit):
            # What finds no room is split first, and counts as no round (deviation 6).
            half = splits.halved(attempt)
            if half is None:
                break
            current[attempt.table] = half
            continue
        rounds += 1
        if best is None or attempt.worst < best.worst:
            best = attempt
        finer = {i: two for i, split in current.items() if (two := splits.halved(split)) is not None}
        if not finer:
            break
        hottest = max(finer, key=lambda i: (splits.cost(current[i]), -i))
        current[hottest] = finer[hottest]
    if best is None:
        raise Infeasible("EMBark: a table finds no room in HBM, however it is split")
    return best


def _place(splits: TableSplits, splits_in_round: Iterable[TableSplit], free: Ints) -> RoundPlan | TableSplit:
    """Place shards, costliest first, each in the cheapest bucket with room; return the split that finds none, if so."""
    free = free.copy()
    costs = np.zeros(len(free))
    segments: list[Segment] = []
    for split in sorted(splits_in_round, key=lambda s: (-splits.cost(s), s.table)):
        cost, bytes_ = splits.cost(split), splits.bytes(split)
        for shard in range(split.columns):
            at = _cheapest(bytes_, free, costs)
            if at is None:
                return split
            costs[at] += cost
            free[at] -= bytes_
            segments.append(_segment(splits, split, shard, at))
    return RoundPlan(segments=tuple(segments), worst=float(costs.max()))


def _cheapest(bytes_: Ints, free: Ints, costs: Floats) -> Ints | None:
    """Return the devices of the bucket with room whose dearest device is the cheapest; the first of equals."""
    ways = len(bytes_)
    room = (free.reshape(-1, ways) >= bytes_).all(axis=1)
    if not room.any():
        return None
    dearest = np.where(room, costs.reshape(-1, ways).max(axis=1), np.inf)
    first = ways * int(dearest.argmin())
    return np.arange(first, first + ways)


def _segment(splits: TableSplits, split: TableSplit, shard: int, at: Ints) -> Segment:
    table = splits.problem.tables[split.table]
    whole = split.spread is RowSpread.DEVICE
    place: Placement = OnRank(rank=int(at[0])) if whole else RowWise(ranks=tuple(at.tolist()))
    return whole_table(table, place, (shard * split.width, (shard + 1) * split.width))
