"""FlexShard: rows of sequence tables in three tiers by how often they are looked up (a reconstruction: deviation 1)."""

import sys
from collections.abc import Iterable
from enum import StrEnum

import numpy as np

from shardbench.base.errors import BadInput, Infeasible
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy
from shardbench.model.table import Optimizer
from shardbench.model.validate import dealt

from .search import search
from .shape import least_bytes, make_plan


class ComparedPlan(StrEnum):
    """The plan whose fullest device sets the budget (deviation 2)."""

    TABLE_ROW_WISE = "table-row-wise"
    """Each table's rows are dealt over one node, largest first to the emptiest node; sequences are deviation 10."""
    WHOLE_TABLE = "whole-table"
    """Each table is whole on one device, largest first to the emptiest."""


def fullest_device_bytes(problem: Problem, compared: ComparedPlan) -> int:
    """Return the bytes of weights and optimiser state on the fullest device of the compared plan."""
    topology = problem.topology
    group = {
        ComparedPlan.TABLE_ROW_WISE: topology.devices_per_node,
        ComparedPlan.WHOLE_TABLE: 1,
    }[compared]
    used_bytes = np.zeros((topology.world_size // group, group), dtype=np.int64)
    for table in sorted(problem.tables, key=problem.weight_bytes, reverse=True):
        row_bytes = problem.weight_bytes(table) // table.rows
        home = int(used_bytes.sum(axis=1).argmin())
        if table.rows < group:
            used_bytes[home, used_bytes[home].argmin()] += table.rows * row_bytes
        else:
            used_bytes[home] += dealt(table.name, table.rows, group) * row_bytes
    return int(used_bytes.max())


class FlexShard(Strategy):
    """Hot rows on every rank, warm rows once a node, cold rows over the cluster (FlexShard, arXiv 2301.02959)."""

    name = "flexshard"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE, Move.ROWS, Move.REPLICATE})

    def __init__(
        self,
        *,
        compared: ComparedPlan = ComparedPlan.TABLE_ROW_WISE,
        budget_bytes: int | None = None,
        warm_tier: bool = True,
    ) -> None:
        """``budget_bytes`` a device replaces the compared plan's memory."""
        if not isinstance(compared, ComparedPlan):
            raise BadInput(f"{self.name} is compared with one of {', '.join(ComparedPlan)}, not {compared!r}")
        limit = 1 if budget_bytes is None else budget_bytes
        if not isinstance(limit, int | float) or not 0 < limit <= sys.float_info.max:
            raise BadInput(f"{self.name} needs a positive, finite budget, got {budget_bytes} bytes")
        self.compared, self.budget_bytes = compared, budget_bytes
        self.warm_tier = warm_tier

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the plan with the smallest expected communication time that the rule gives (no randomness).

        Raises Infeasible where the tables fit no device, or a given budget holds no plan.
        """
        limit = self.limit_bytes(problem)
        self._check_room(problem, limit)
        with_warm = self.warm_tier and problem.optimizer is Optimizer.SGD  # deviation 6
        best = search(problem, limit, with_warm=with_warm)
        if with_warm:
            warm = "used" if best.tiers.warm.any() else "offered, not worth it"
        else:
            warm = "left out: averaging is exact for sgd only" if self.warm_tier else "left out by choice"
        notes: dict[str, float | int | str] = {
            "hot_rows": int(best.tiers.hot.sum()),
            "warm_rows": int(best.tiers.warm.sum()),
            "budget_bytes": limit,
            "budget_of": self.compared.value if self.budget_bytes is None else "given",
            "expected_communication_ms": 1e3 * best.seconds,
            "warm_tier": warm,
        }
        return make_plan(problem, best.homes, best.tiers, notes)

    def limit_bytes(self, problem: Problem) -> int:
        """Return bytes that a device may hold: the compared plan's fullest device, or what was given, within HBM."""
        own_bytes = self.budget_bytes
        budget_bytes = fullest_device_bytes(problem, self.compared) if own_bytes is None else own_bytes
        return int(min(budget_bytes, problem.topology.hbm_bytes))

    def _check_room(self, problem: Problem, limit: int) -> None:
        needed, capacity = least_bytes(problem), problem.topology.hbm_bytes
        if needed > capacity:
            raise Infeasible(f"row-wise without any copy needs {needed} bytes of HBM on one device, it has {capacity}")
        # Without a budget of the user's, no copies at all may exceed the compared plan by rounding (deviation 2).
        if self.budget_bytes is not None and needed > limit:
            row = max(problem.weight_bytes(table) // table.rows for table in problem.tables)
            fault = f"smaller than one row ({row} bytes)" if limit < row else "too small"
            raise Infeasible(
                f"a budget of {limit} bytes a device is {fault}: without any copy the tables need {needed}; raise it"
            )


class FlexShardNoWarmTier(FlexShard):
    """Ablation: rows are on every rank or dealt over the cluster, with nothing between."""

    name = "flexshard-no-warm-tier"
    role = Role.VARIANT

    def __init__(self) -> None:
        super().__init__(warm_tier=False)


class FlexShardWholeTableBudget(FlexShard):
    """Variant: as much memory as the fullest device of whole tables, placed greedily by size, needs."""

    name = "flexshard-whole-table-budget"
    role = Role.VARIANT

    def __init__(self) -> None:
        super().__init__(compared=ComparedPlan.WHOLE_TABLE)


def strategies() -> Iterable[Strategy]:
    """Return FlexShard, FlexShard without its warm tier, and FlexShard with a larger budget."""
    return (FlexShard(), FlexShardNoWarmTier(), FlexShardWholeTableBudget())
