"""One sharding type for every table, as TorchRec names them: row-wise, column-wise, table-row-wise."""

from abc import abstractmethod
from collections.abc import Iterable

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import Infeasible
from shardbench.model.plan import OnRank, Plan, RowWise, Segment, whole_table
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.model.table import Table
from shardbench.model.validate import dealt, memory_bytes

MIN_COLUMNS = 8
"""Narrowest column shard (deviation 2)."""


class _Uniform(Strategy):
    """Largest table first, every one by the same rule; device memory only."""

    sees = frozenset({Sees.TABLES})

    @abstractmethod
    def place(self, table: Table, used_bytes: Ints, problem: Problem) -> tuple[Segment, ...]:
        """Return the segments of a table; adds its bytes to ``used_bytes`` [world], those of the tables before it."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the plan (no randomness); raises Infeasible where a device's HBM is too small for its share."""
        used_bytes = np.zeros(problem.world_size, dtype=np.int64)
        order = sorted(problem.tables, key=problem.weight_bytes, reverse=True)
        plan = Plan(
            world_size=problem.world_size,
            segments=tuple(segment for table in order for segment in self.place(table, used_bytes, problem)),
        )
        worst, capacity = int(memory_bytes(plan, problem).hbm.max()), problem.topology.hbm_bytes
        if worst > capacity:
            raise Infeasible(f"{self.name} needs {worst} bytes of HBM on one device, it has {capacity}")
        return plan


def _whole(table: Table, ranks: Iterable[int], used_bytes: Ints, problem: Problem) -> tuple[Segment, ...]:
    """Place the table on the emptiest of ``ranks``."""
    choice = np.fromiter(ranks, dtype=np.int64)
    rank = int(choice[used_bytes[choice].argmin()])
    used_bytes[rank] += problem.weight_bytes(table)
    return (whole_table(table, OnRank(rank=rank)),)


def _deal(table: Table, ranks: tuple[int, ...], used_bytes: Ints, problem: Problem) -> tuple[Segment, ...]:
    """Deal the table's rows over ``ranks``, or place it on one of them where it has too few (deviation 1)."""
    if table.rows < len(ranks):
        return _whole(table, ranks, used_bytes, problem)
    used_bytes[list(ranks)] += dealt(table.name, table.rows, len(ranks)) * (problem.weight_bytes(table) // table.rows)
    return (whole_table(table, RowWise(ranks=ranks)),)


class UniformRowWise(_Uniform):
    """Deal every table's rows over all devices."""

    name = "row-wise"
    moves = frozenset({Move.TABLE, Move.ROWS})

    def place(self, table: Table, used_bytes: Ints, problem: Problem) -> tuple[Segment, ...]:
        """Deal the rows over the world."""
        return _deal(table, tuple(range(problem.world_size)), used_bytes, problem)


class UniformTableRowWise(_Uniform):
    """Place every table on one node, its rows dealt over the node's devices."""

    name = "table-row-wise"
    moves = frozenset({Move.TABLE, Move.ROWS})

    def place(self, table: Table, used_bytes: Ints, problem: Problem) -> tuple[Segment, ...]:
        """Deal the rows over the node that has least to hold, those of unpooled tables too (deviation 3)."""
        topology = problem.topology
        node = int(used_bytes.reshape(topology.nodes, -1).sum(axis=1).argmin())
        return _deal(table, topology.node_ranks(node), used_bytes, problem)


class UniformColumnWise(_Uniform):
    """Split every table's columns over as many devices as give shards of at least eight columns."""

    name = "column-wise"
    moves = frozenset({Move.TABLE, Move.COLUMNS})

    def place(self, table: Table, used_bytes: Ints, problem: Problem) -> tuple[Segment, ...]:
        """Place equal column ranges on the emptiest devices, one each."""
        shards = column_shards(table.dim, problem.world_size)
        width = table.dim // shards
        homes = np.argsort(used_bytes, kind="stable")[:shards]
        row_bytes = width * problem.precision.bytes + problem.optimizer.state_bytes(width)
        used_bytes[homes] += table.rows * row_bytes
        return tuple(
            whole_table(table, OnRank(rank=rank), (i * width, (i + 1) * width)) for i, rank in enumerate(homes.tolist())
        )


def column_shards(dim: int, devices: int) -> int:
    """Return the most equal shards of ``dim`` columns that are wide enough, each a multiple of four."""
    wide = [n for n in range(1, devices + 1) if dim % (4 * n) == 0 and dim // n >= MIN_COLUMNS]
    return max(wide, default=1)


def strategies() -> Iterable[Strategy]:
    """Return one strategy for each sharding type."""
    return (UniformRowWise(), UniformColumnWise(), UniformTableRowWise())
