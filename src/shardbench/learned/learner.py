"""Strategies that learn to place whole tables: ``fit`` is a training, ``plan`` asks the trained networks."""

import pkgutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy

if TYPE_CHECKING:
    from shardbench.learned.tasks.oracle import Oracle
    from shardbench.learned.tasks.task import TableSet, Task
    from shardbench.learned.training import AnyTrained, AnyTraining


class Learner(Strategy):
    """A strategy whose ``fit`` is a training."""

    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE})
    requires = ("torch",)
    trainings: ClassVar[str]
    """The class of its trainings, as module:class: torch takes a second to import, and listing must stay cheap."""
    trains: ClassVar[bool] = True
    """A control does not train: it places with its networks as they are drawn."""
    limit_share: ClassVar[float] = 0.8
    """Share of the fitting budget, in CPU seconds, after which training stops where it is; infinite: it never does."""

    folder: Path | None = None
    """Set before ``fit``, which keeps a whole training here by content key, and finds it again; None keeps nothing."""
    fit_cpu_s: float = 0.0
    """CPU seconds that the last ``fit``'s training took, in an earlier process where it was found again."""

    def __init__(self) -> None:
        self.trained: AnyTrained | None = None
        """The networks that ``plan`` uses; set by ``fit``, or by hand."""

    @property
    def fitted(self) -> "AnyTrained":
        """Give what ``fit`` learned; raises BadInput before it."""
        if self.trained is None:
            raise BadInput(f"{self.name} has no networks yet: call fit() before plan()")
        return self.trained

    def training_type(self) -> "type[AnyTraining]":
        """Import the class of its trainings."""
        kind: type[AnyTraining] = pkgutil.resolve_name(self.trainings)
        return kind

    def training(
        self, tasks: "Sequence[Task]", oracle: "Oracle", seed: int, budget: Budget | None = None
    ) -> "AnyTraining":
        """Give a training that is yet to begin: as published, or as much of it as the fitting budget allows."""
        kind = self.training_type()
        settings = kind.settings_type() if budget is None else kind.settings_type.within(budget, tasks)
        return kind(tasks, oracle, seed, settings)

    def place(self, trained: "AnyTrained", tasks: "Sequence[TableSet]") -> list[Ints]:
        """Place every table of every task, int64 [tables] a task; nothing is measured, nothing is random.

        Raises Infeasible where a table finds no device with room.
        """
        return self.training_type().place(trained, tasks)

    def notes(self) -> dict[str, float | int | str]:
        """Give what the plan's notes tell of the training."""
        trained = self.fitted
        outcome = "ran out of time" if trained.out_of_time else "complete"
        return {"oracle_calls": trained.oracle_calls, "training": outcome}

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Train on the problems, or on one and random subsets of its tables, with the simulated oracle.

        A short budget means fewer updates, decided beforehand, so that a seed gives one plan.
        """
        from shardbench.learned.tasks.oracle import SimulatedOracle  # noqa: PLC0415
        from shardbench.learned.tasks.task import training_tasks  # noqa: PLC0415

        start = time.process_time()
        training = self.training(training_tasks(problems, seed), SimulatedOracle(), seed, budget)
        if self.trains:
            self.trained = training.train(folder=self.folder, limit_cpu_s=self.limit_share * budget.fit_s)
        else:
            self.trained = training.untrained()
        self.fit_cpu_s = time.process_time() - start + training.earlier_cpu_s

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Give every table the networks' best device with room; no randomness.

        Raises Infeasible where they leave a table without room, BadInput before ``fit``.
        """
        from shardbench.learned.tasks.task import table_set  # noqa: PLC0415

        (ranks,) = self.place(self.fitted, [table_set(problem)])
        segments = whole_tables(problem.tables, ranks.tolist())
        return Plan(world_size=problem.world_size, segments=segments, notes=self.notes())
