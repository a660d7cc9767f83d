"""DreamShard (NeurIPS 2022): a policy trained by REINFORCE on the costs that a learned cost network estimates."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from shardbench.base.errors import BadInput
from shardbench.learning.learner import Learner
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role

if TYPE_CHECKING:
    from shardbench.baselines.dreamshard.training import Settings, Trained

SUBSETS = 49
"""Training tasks drawn from a single problem's tables, besides the problem itself: 50 in all, as in the paper."""
FULL_FIT_S = 60.0
"""Fitting budget from which training is the paper's; below, it has proportionally fewer updates (deviation 6)."""


class DreamShard(Learner):
    """Cost network and policy of 21 table features, trained against the simulated oracle."""

    name = "dreamshard"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE})
    requires = ("torch",)
    trains: ClassVar[bool] = True

    def __init__(self) -> None:
        self._trained: Trained | None = None

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Train on the problems, or on random parts of a single one; what it asked of the oracle goes into the notes.

        ``budget.fit_s`` sets the number of updates, and not the clock, so that a seed gives one plan. With
        ``folder`` set it goes on from what is kept there.
        """
        # Imported late: torch takes seconds to import, and listing strategies must stay cheap.
        from shardbench.baselines.dreamshard.training import Settings, train, untrained  # noqa: PLC0415
        from shardbench.tasks.oracle import SimulatedOracle  # noqa: PLC0415
        from shardbench.tasks.subsets import training_tasks  # noqa: PLC0415

        start = time.process_time()
        # deviation 6
        tasks = training_tasks(problems, seed, SUBSETS)
        if self.trains:
            # deviation 5
            settings = settings_for(budget, Settings())
            self._trained = train(tasks, SimulatedOracle(), seed, settings, folder=self.folder, progress=self.tell)
        else:
            self._trained = untrained(tasks, seed)
        self.fit_cpu_s = time.process_time() - start + self._trained.earlier_cpu_s

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """The best legal device for every table, dearest table first; no randomness, nothing is measured.

        Raises BadInput before ``fit``, and Infeasible where a table has no device with room.
        """
        if self._trained is None:
            raise BadInput(f"{self.name} has not learned anything: call fit() before plan()")
        from shardbench.baselines.dreamshard.placing import place  # noqa: PLC0415
        from shardbench.tasks.task import table_set  # noqa: PLC0415

        (devices,) = place(self._trained, (table_set(problem),))
        return Plan(
            world_size=problem.world_size,
            segments=whole_tables(problem.tables, devices.tolist()),
            notes={"oracle_calls": self._trained.oracle_calls, "iterations": len(self._trained.history)},
        )


class DreamShardUntrained(DreamShard):
    """The same networks as they are before training: a control."""

    name = "dreamshard-untrained"
    role = Role.VARIANT
    trains = False


def settings_for(budget: Budget, settings: "Settings") -> "Settings":
    """Settings with their updates cut to what a small fitting budget affords; all ten iterations stay."""
    share = min(1.0, budget.fit_s / FULL_FIT_S)
    return replace(
        settings,
        cost_updates=max(1, round(share * settings.cost_updates)),
        policy_updates=max(1, round(share * settings.policy_updates)),
    )


def strategies() -> Iterable[DreamShard]:
    """DreamShard and its untrained control."""
    return (DreamShard(), DreamShardUntrained())
