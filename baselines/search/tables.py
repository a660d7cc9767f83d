"""The numbers of a problem's tables that the search knows, and a placement of them as sums by device."""

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.bounds.embedding import expected_table_loads
from shardbench.cost.costmodel import embedding_ms, gather_rate
from shardbench.cost.kernel_numbers import KernelNumbers
from shardbench.cost.load import Load, in_uvm
from shardbench.model.plan import Tier
from shardbench.model.problem import Problem

TIERS = (Tier.HBM, Tier.UVM)
SPILL = TIERS.index(Tier.UVM)


class Tables:
    """Numbers of every table in each tier, bytes and capacities; host memory only where it can be of use."""

    def __init__(self, problem: Problem, *, uvm: bool | None = None) -> None:
        """``uvm`` decides whether host memory may be used; None: where HBM is too small for all tables, or slower."""
        self.problem, self.world = problem, problem.world_size
        self.loads = expected_table_loads(problem)
        """Of each table alone in HBM, [tables]."""
        self.sizes: Ints = np.array([problem.weight_bytes(t) for t in problem.tables], dtype=np.int64)
        topology = problem.topology
        capacity = np.array([topology.hbm_bytes, topology.uvm_bytes], dtype=np.int64)
        constants = problem.machine.constants
        useful = int(self.sizes.sum()) > self.world * int(capacity[0])
        useful |= constants.uvm_bytes_per_s > gather_rate(constants)
        self.uvm = useful if uvm is None else uvm
        self.tiers = 2 if self.uvm else 1
        self.capacity: Ints = capacity[: self.tiers]
        tiers = Load(np.stack([self.loads.values, in_uvm(self.loads).values][: self.tiers]))
        self.numbers = KernelNumbers.needed(tiers, constants)
        self.values: Floats = self.numbers.of(tiers)
        """Numbers of each table alone, [numbers, tiers, tables]."""
        self.alone: Floats = self.numbers.work_ms(self.values)
        """Milliseconds of each table's work alone, [tiers, tables]."""

    def __len__(self) -> int:
        return len(self.sizes)

    def slowest_ms(self, rank: Ints, tier: Ints) -> float:
        """Time the slowest device by the cost model itself."""
        sums = Load.zeros(self.world)
        values = np.stack([self.loads.values, in_uvm(self.loads).values])
        sums.add_at(rank, Load(values[tier, np.arange(len(self))]))
        return float(embedding_ms(sums, self.problem.machine.constants).max())


class TablePlacement:
    """A placement: rank and tier of every table, [tables] each, and what they sum up to on every device."""

    def __init__(self, tables: Tables, rank: Ints, tier: Ints) -> None:
        self.tables, self.rank, self.tier = tables, rank, tier
        values = tables.values[:, tier, np.arange(len(tables))]
        self.sums: Floats = np.stack([np.bincount(rank, weights=row, minlength=tables.world) for row in values])
        """[numbers, devices]."""
        self.used: Ints = np.zeros((tables.tiers, tables.world), dtype=np.int64)
        np.add.at(self.used, (tier, rank), tables.sizes)
        self.ms: Floats = tables.numbers.ms(self.sums)

    @property
    def slowest_ms(self) -> float:
        """Time the slowest device, which is the objective."""
        return float(self.ms.max())

    def put(self, changes: list[tuple[int, int, int]]) -> None:
        """Move tables, each to a rank and tier; the devices' sums are made afresh: rounding does not build up."""
        devices = {rank for _, rank, _ in changes} | {int(self.rank[table]) for table, _, _ in changes}
        for table, rank, tier in changes:
            self.used[self.tier[table], self.rank[table]] -= self.tables.sizes[table]
            self.used[tier, rank] += self.tables.sizes[table]
            self.rank[table], self.tier[table] = rank, tier
        for device in devices:
            own = np.flatnonzero(self.rank == device)
            self.sums[:, device] = self.tables.values[:, self.tier[own], own].sum(axis=1)
        self.ms = self.tables.numbers.ms(self.sums)

    def copy(self) -> "TablePlacement":
        """Make another placement that is alike."""
        return TablePlacement(self.tables, self.rank.copy(), self.tier.copy())
