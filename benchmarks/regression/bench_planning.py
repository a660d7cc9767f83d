"""Plan time, memory and quality of every strategy there is, at three sizes."""

from functools import cache
from typing import Any

from shardbench.cost.bounds.demand import expected_demand
from shardbench.cost.bounds.step import DEVICE_MOVES, step_bound
from shardbench.cost.costmodel import estimate
from shardbench.model.discovery import strategies
from shardbench.model.strategy import Budget, Role, Strategy
from shardbench.model.table import DenseShape

from .made_up import TABLES, cpu_s, made_problem

NAMES = [name for name, found in strategies().items() if found.role is not Role.VARIANT]
"""asv needs the parameters before anything runs; a strategy that appears later adds rows of its own."""
FITTED_ON = 20
FIT = Budget(fit_s=1.0)
"""A learned strategy makes as many updates as this budget has room for by its own count: a seed gives one network."""
PLAN = Budget(plan_s=20.0)
PLANS = {"joint": Budget(plan_s=3.0)}
"""Of those that work, by their own count, as much as they are given."""
SIZES = ("small", "middle", "large")
TABLES_OF = {"torchrec-2d": (5, 10, 20), "torchrec-fused": (4, 8, 12), "torchrec-table-wise": (20, 40, 80)}
"""TorchRec's planner takes minutes for 200 tables, which are no time of ours."""
DENSE = DenseShape()
SEARCHING = ["joint", "recshard", "search"]
"""Those that hold more in memory than the tables' numbers."""


@cache
def bound_ms(tables: int) -> float:
    """That no plan on devices can beat under the training profiles."""
    problem = made_problem(tables)
    return step_bound(expected_demand(problem), problem, DENSE, DEVICE_MOVES).ms


class Planning:
    """Each strategy on problems of 16 devices, of which it sees what it declares."""

    params = (NAMES, list(SIZES))
    param_names = ("strategy", "size")
    timeout = 120
    timer = staticmethod(cpu_s)

    def setup_cache(self) -> dict[str, Strategy]:
        """All strategies, the learned ones fitted."""
        fitted = {name: strategies()[name] for name in NAMES}
        for strategy in fitted.values():
            strategy.fit((made_problem(FITTED_ON).restricted_to(strategy.sees),), FIT, 0)
        return fitted

    def setup(self, fitted: dict[str, Strategy], name: str, size: str) -> None:
        """The problem, as the strategy may see it."""
        self.strategy, self.budget = fitted[name], PLANS.get(name, PLAN)
        self.tables = TABLES_OF.get(name, TABLES)[SIZES.index(size)]
        self.seen = made_problem(self.tables).restricted_to(self.strategy.sees)

    def time_plan(self, fitted: dict[str, Strategy], name: str, size: str) -> None:
        """CPU seconds."""
        self.strategy.plan(self.seen, self.budget, 0)

    def track_step_over_bound(self, fitted: dict[str, Strategy], name: str, size: str) -> float:
        """Plan quality under the training profiles: the estimated step, in bounds that no plan can beat."""
        plan = self.strategy.plan(self.seen, self.budget, 0)
        return float(estimate(plan, made_problem(self.tables), DENSE).step_ms) / bound_ms(self.tables)

    track_step_over_bound.unit = "bounds"


class PlanningMemory:
    """Of those that search."""

    params = (SEARCHING,)
    param_names = ("strategy",)
    timeout = 120

    def setup(self, name: str) -> None:
        """The largest problem."""
        self.strategy: Any = strategies()[name]
        self.seen = made_problem(TABLES[-1]).restricted_to(self.strategy.sees)

    def peakmem_plan(self, name: str) -> None:
        """Bytes of the process at its largest."""
        self.strategy.plan(self.seen, PLANS.get(name, PLAN), 0)
