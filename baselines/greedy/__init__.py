"""The greedy whole-table heuristics of AutoShard's and DreamShard's public code; RecShard's are a reconstruction."""

from abc import abstractmethod
from collections.abc import Iterable

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.cost.bounds.embedding import expected_table_loads
from shardbench.cost.collectives import vectors_exchange_s
from shardbench.cost.costmodel import embedding_ms
from shardbench.model.plan import Plan, Tier, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy


class _Greedy(Strategy):
    """Place the dearest table first, each on the device with the smallest cost sum that has room."""

    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE, Move.UVM})

    @abstractmethod
    def costs(self, problem: Problem) -> Floats:
        """Return the fixed cost of every table, float64 [tables]."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the greedy plan (no randomness); raises Infeasible at the first table that fits nowhere."""
        sizes = np.array([problem.weight_bytes(table) for table in problem.tables], dtype=np.int64)
        ranks, tiers = _place(self.costs(problem), sizes, problem)
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks, tiers))


class GreedySize(_Greedy):
    """Cost of a table = bytes of its weights."""

    name = "greedy-size"

    def costs(self, problem: Problem) -> Floats:
        """Return rows * dim * bytes of a weight for each table (deviation 3)."""
        return np.array([float(t.rows) * t.dim * problem.precision.bytes for t in problem.tables])


class GreedyDim(_Greedy):
    """Cost of a table = its width."""

    name = "greedy-dim"

    def costs(self, problem: Problem) -> Floats:
        """Return the width of each table."""
        return np.array([float(t.dim) for t in problem.tables])


class GreedyLookup(_Greedy):
    """Cost of a table = width times mean pooling factor."""

    name = "greedy-lookup"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE})

    def costs(self, problem: Problem) -> Floats:
        """Return dim * mean pooling of each table."""
        return np.array([t.dim * p.mean_pooling for t, p in zip(problem.tables, problem.profiles)])


class GreedySizeLookup(_Greedy):
    """Cost of a table = width times mean pooling factor times log10 of its rows."""

    name = "greedy-size-lookup"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE})

    def costs(self, problem: Problem) -> Floats:
        """Return dim * mean pooling * log10(rows) of each table; zero for a table of one row (deviation 4)."""
        return np.array([t.dim * p.mean_pooling * np.log10(t.rows) for t, p in zip(problem.tables, problem.profiles)])


class GreedyCost(_Greedy):
    """Cost of a table = what the cost model says that it costs alone: a control for learned strategies."""

    name = "greedy-cost"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    role = Role.VARIANT

    def costs(self, problem: Problem) -> Floats:
        """Return the milliseconds of forward, backward and both exchanges of each table alone on a device."""
        load = expected_table_loads(problem)
        alone = np.zeros((len(problem.tables), problem.world_size))
        alone[:, 0] = load.bag_bytes * problem.sent_ratio
        return embedding_ms(load, problem.machine.constants) + 2e3 * vectors_exchange_s(alone, problem.machine)[:, 0]


def _place(costs: Floats, sizes: Ints, problem: Problem) -> tuple[list[int], list[Tier]]:
    world, topology = problem.world_size, problem.topology
    free = {Tier.HBM: np.full(world, topology.hbm_bytes), Tier.UVM: np.full(world, topology.uvm_bytes)}
    cost_sums, used_bytes = np.zeros(world), np.zeros(world, dtype=np.int64)
    ranks, tiers = [0] * len(costs), [Tier.HBM] * len(costs)
    for table in np.lexsort((np.arange(len(costs)), -sizes, -costs)).tolist():
        # deviation 2: host memory where the machine has it
        tier = next((tier for tier in free if (free[tier] >= sizes[table]).any()), None)
        if tier is None:
            raise Infeasible(
                f"table '{problem.tables[table].name}' ({sizes[table]} bytes) fits on no device: at most "
                f"{int(free[Tier.HBM].max())} bytes of HBM and {int(free[Tier.UVM].max())} of UVM are left"
            )
        # deviation 1: a spilled table's device is found as any other's, by a sum that counts both tiers
        roomy = np.flatnonzero(free[tier] >= sizes[table])
        rank = int(roomy[np.lexsort((roomy, used_bytes[roomy], cost_sums[roomy]))[0]])
        ranks[table], tiers[table] = rank, tier
        free[tier][rank] -= sizes[table]
        used_bytes[rank] += sizes[table]
        cost_sums[rank] += costs[table]
    return ranks, tiers


def strategies() -> Iterable[Strategy]:
    """Return one strategy for each cost formula."""
    return (GreedySize(), GreedyDim(), GreedyLookup(), GreedySizeLookup(), GreedyCost())
