"""Planning of hundreds of tables, and training of the strategies that learn: minutes, so that asv does not ask."""

import importlib

import numpy as np

from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.subsets import part
from shardbench.learned.tasks.task import Task
from shardbench.model.plan import Plan
from shardbench.model.strategy import Budget, Strategy
from shardbench.trials.discovery import get_strategy

from .case import Case, PlanCase
from .made_up import made_problem

MOST_GREEDIES = {
    # strategy: {(tables, devices): CPU seconds of its plan over lookup-greedy's, at the most}
    "search": {(200, 8): 160.0, (856, 8): 70.0, (856, 128): 12.0},
    "joint": {(200, 8): 140.0, (856, 8): 180.0, (856, 128): 100.0},
}
"""Three times what was seen when a line was written: beyond that, planning has become another thing."""
PLAN_S = {"search": 120.0, "joint": 1.0}
LEARNED = ["autoshard", "dreamshard"]


class Searching(PlanCase):
    """Strategies that search, on up to 856 tables and 128 devices; at most so many greedy plans' time."""

    params = (list(MOST_GREEDIES), list(MOST_GREEDIES["search"]))

    def setup(self, name: str, size: tuple[int, int]) -> None:
        """Make the problem of so many tables and devices."""
        self.ask(get_strategy(name), made_problem(*size), Budget(plan_s=PLAN_S[name]))
        self.most = MOST_GREEDIES[name][size]

    def long_plan(self, name: str, size: tuple[int, int]) -> Plan:
        """Plan the problem of that size."""
        return self.plan()


class Solving(PlanCase):
    """RecShard's program of 397 made-up tables on 16 devices: a proven gap of 1 % well within its budget of 60 s."""

    params = ([318, 635, 1270],)
    param_names = ("size_gib",)
    repeats = 1

    def setup(self, size_gib: int) -> None:
        """Draw the model of that size."""
        drawn = importlib.import_module("shardbench.baselines.recshard.reproduction.production_like")
        self.ask(get_strategy("recshard"), drawn.production_like(size_gib), Budget(plan_s=60.0))

    def long_plan(self, size_gib: int) -> Plan:
        """Plan the model, within the budget."""
        start = self.timer()
        plan = self.plan()
        assert self.timer() - start <= self.budget.plan_s
        return plan

    def check(self, plan: Plan) -> None:
        """Raise an error where the plan is not valid, or its gap too large."""
        super().check(plan)
        assert plan.notes["gap_pct"] <= 1.0


class PlacingLearned(PlanCase):
    """Learned strategies that place up to 856 tables on 8 devices, features included."""

    params = (LEARNED, [80, 400, 856])

    def setup_cache(self) -> dict[str, Strategy]:
        """Return the strategies, fitted a little: placing takes as long whatever they learned."""
        fitted = {name: get_strategy(name) for name in LEARNED}
        for strategy in fitted.values():
            strategy.fit((made_problem(20, 8), made_problem(30, 8, 1)), Budget(fit_s=1.0), 0)
        return fitted

    def setup(self, fitted: dict[str, Strategy], name: str, tables: int) -> None:
        """Make the problem of so many tables."""
        self.ask(fitted[name], made_problem(tables, 8), Budget())

    def long_plan(self, fitted: dict[str, Strategy], name: str, tables: int) -> Plan:
        """Place the tables by what was learned."""
        return self.plan()


class TrainingAutoShard(PlanCase):
    """AutoShard's training on 80 tables and 8 devices: 12,000 steps, an eighth of the paper's."""

    repeats = 2

    def setup(self) -> None:
        """Make the one problem that it learns on, and the settings."""
        self.ask(get_strategy("autoshard"), made_problem(80, 8), Budget())
        settings = importlib.import_module("shardbench.baselines.autoshard.settings")
        self.training = importlib.import_module("shardbench.baselines.autoshard.training").AutoShardTraining
        self.settings = settings.AutoShardSettings(total_steps=12_000)

    def long_train(self) -> object:
        """Train with costs that take no time to ask for."""
        return self.training([Task.of(self.problem)], SimulatedOracle(), 0, self.settings).train()

    def check(self, trained: object) -> None:
        """Raise an error where an update is missing."""
        assert trained.updates == self.settings.updates


class TrainingDreamShard(Case):
    """DreamShard's training with default settings on 50 tasks of 4 devices."""

    params = ([40, 80],)
    param_names = ("tables",)
    against = "the greedy-lookup plans of its tasks"
    repeats = 2

    def setup(self, tables: int) -> None:
        """Draw the tasks from a pool of 428 tables."""
        pool, rng = Task.of(made_problem(428, 4)), np.random.default_rng(0)
        self.tasks = [part(pool, rng.permutation(pool.tables)[:tables]) for _ in range(50)]

    def long_train(self, tables: int) -> object:
        """Train with costs that take no time to ask for."""
        return get_strategy("dreamshard").training(self.tasks, SimulatedOracle(), 0).train()

    def check(self, trained: object) -> None:
        """Raise an error where the oracle was asked otherwise than the settings say."""
        assert trained.oracle_calls == 100

    def reference(self) -> object:
        """Return the greedy plans of all tasks."""
        return [get_strategy("greedy-lookup").plan(task.problem, Budget(), 0) for task in self.tasks]
