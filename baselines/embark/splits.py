"""How a table is split into shards, and what EMBark's planner says that a shard costs a device (deviation 1)."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling
from shardbench.model.validate import COLUMN_MULTIPLE, dealt

WORK_RATIO = 8.0 / 2.0
"""Bytes of memory moved for a looked-up number against bytes of links for a returned one: the planner's default."""
HIERARCHICAL_LINKS = 1.5
"""Exchanges of a shard that a node's devices share, against one device's (the planner's constant)."""
WIDEST_WHOLE = 32
"""Columns up to which a shard is split by rows, and beyond which by columns."""


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
