"""RNN baseline: device placement by a sequence policy and REINFORCE on measured costs."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardbench.base.errors import BadInput
from shardbench.learning.learner import Learner
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move

if TYPE_CHECKING:
    from .training import Settings, Trained

# Imported late, below: torch takes a second to import, and listing strategies must stay cheap.

SUBSETS = 49
"""Training tasks drawn from a single problem's tables, besides the problem itself."""
BUDGET_SHARE = 0.8
"""Share of the fitting budget, in CPU seconds, after which training stops where it is."""
PLANNED_SHARE = 0.25
"""Share of the fitting budget that training is planned for: machines may be slower than ours, and busy."""
UPDATE_S = 0.015
TABLE_UPDATE_S = 5e-4
"""Seconds of an update, and what each of the task's tables adds: measured on one core, rounded up."""


class RnnPlacer(Learner):
    """Whole tables placed by an LSTM encoder-decoder that learns from the cost of each of its placements."""

    name = "rnn-rl"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE})
    requires = ("torch",)

    def __init__(self) -> None:
        self.trained: Trained | None = None
        """What ``plan`` uses; set by ``fit``, or by hand."""

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Train on the problems, or on one and random subsets of its tables, with the simulated oracle.

        A short budget means fewer updates (the plan's notes tell how many placements were measured),
        and at 80 % of it, in CPU seconds, training stops in any case. With ``folder`` set it goes on
        from what is kept there.
        """
        from shardbench.tasks.oracle import SimulatedOracle  # noqa: PLC0415
        from shardbench.tasks.subsets import training_tasks  # noqa: PLC0415

        from .training import Settings, train  # noqa: PLC0415

        start = time.process_time()
        tasks = training_tasks(problems, seed, SUBSETS)
        settings = settings_for(budget, max(task.tables for task in tasks), Settings())
        self.trained = train(
            tasks, SimulatedOracle(), seed, settings,
            folder=self.folder, progress=self.tell, limit_cpu_s=BUDGET_SHARE * budget.fit_s,
        )  # fmt: skip
        self.fit_cpu_s = time.process_time() - start + self.trained.earlier_cpu_s

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """The decoder's best legal device for every table; no randomness.

        Raises Infeasible where it leaves a table without room; BadInput before ``fit``, and for a
        number of devices that it was not fitted on.
        """
        from shardbench.tasks.task import table_set  # noqa: PLC0415

        from .training import place  # noqa: PLC0415

        trained = self.trained
        if trained is None:
            raise BadInput(f"{self.name} has no networks yet: call fit() before plan()")
        ranks = place(trained, table_set(problem))
        notes: dict[str, float | int | str] = {
            "oracle_calls": trained.oracle_calls,
            "training": "complete" if trained.complete else "ran out of time",
        }
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks.tolist()), notes=notes)


def settings_for(budget: Budget, tables: int, settings: "Settings") -> "Settings":
    """Settings with no more updates than surely fit the budget; decided beforehand, so that a seed gives one plan."""
    affordable = int(PLANNED_SHARE * budget.fit_s / (UPDATE_S + TABLE_UPDATE_S * tables))
    return replace(settings, updates=max(1, min(settings.updates, affordable)))


def strategies() -> Iterable[RnnPlacer]:
    """The one strategy."""
    return (RnnPlacer(),)
