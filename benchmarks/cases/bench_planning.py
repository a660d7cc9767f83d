"""Plan time, memory and quality of every strategy there is, at three sizes."""

from functools import cache

from shardbench.cost.bounds.demand import expected_demand
from shardbench.cost.bounds.step import DEVICE_MOVES, step_bound
from shardbench.cost.costmodel import estimate
from shardbench.model.plan import Plan
from shardbench.model.strategy import Budget, Strategy
from shardbench.model.table import DenseShape
from shardbench.trials.discovery import strategies

from .case import PlanCase
from .made_up import TABLES, made_problem

NAMES = [name for name, strategy in strategies().items() if not strategy.role.named_only]
"""asv needs the parameters before anything runs; a strategy that appears later adds rows of its own."""
FITTED_ON = 20
FIT = Budget(fit_s=1.0)
"""A learned strategy makes as many updates as this budget has room for by its own count: a seed gives one network."""
PLAN = Budget(plan_s=20.0)
PLANS = {"joint": Budget(plan_s=3.0)}
"""Budgets of strategies that work, by their own count, as long as they may."""
SIZES = ("small", "middle", "large")
TABLES_OF = {"torchrec-2d": (5, 10, 20), "torchrec-fused": (4, 8, 12), "torchrec-table-wise": (20, 40, 80)}
"""TorchRec's planner takes minutes for 200 tables, which are no time of ours."""
DENSE = DenseShape()
SEARCHING = ["joint", "recshard", "search"]
"""Strategies that hold more in memory than the tables' numbers."""


@cache
def bound_ms(tables: int) -> float:
    """Return the step that no plan on devices can beat under the training profiles."""
    problem = made_problem(tables)
    return step_bound(expected_demand(problem), problem, DENSE, DEVICE_MOVES).ms


def fit(strategy: Strategy) -> Strategy:
    """Fit a strategy on the smallest problem, and return it; one that does not learn stays as it is."""
    strategy.fit((made_problem(FITTED_ON).restricted_to(strategy.sees),), FIT, 0)
    return strategy


class Planning(PlanCase):
    """Each strategy on problems of 16 devices, of which it sees what it declares."""

    params = (NAMES, list(SIZES))
    param_names = ("strategy", "size")
    timeout = 120

    def setup_cache(self) -> dict[str, Strategy]:
        """Return all strategies, the learned ones fitted."""
        return {name: fit(strategies()[name]) for name in NAMES}

    def setup(self, fitted: dict[str, Strategy], name: str, size: str) -> None:
        """Make the problem of that size."""
        tables = TABLES_OF.get(name, TABLES)[SIZES.index(size)]
        self.ask(fitted[name], made_problem(tables), PLANS.get(name, PLAN))

    def time_plan(self, fitted: dict[str, Strategy], name: str, size: str) -> Plan:
        """Plan the problem of that size."""
        return self.plan()

    def track_step_over_bound(self, fitted: dict[str, Strategy], name: str, size: str) -> float:
        """Return the plan's quality under the training profiles: its step, in bounds that no plan can beat."""
        return float(estimate(self.plan(), self.problem, DENSE).step_ms) / bound_ms(len(self.problem.tables))

    track_step_over_bound.unit = "bounds"


class PlanningMemory(PlanCase):
    """Strategies that search, on the largest problem."""

    params = (SEARCHING,)
    param_names = ("strategy",)
    timeout = 120

    def setup(self, name: str) -> None:
        """Make the largest problem."""
        self.ask(strategies()[name], made_problem(TABLES[-1]), PLANS.get(name, PLAN))

    def peakmem_plan(self, name: str) -> None:
        """Plan the largest problem."""
        self.plan()
