"""AutoShard: whole tables placed by a policy that was trained to even out the devices' kernel times."""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardbench.base.errors import BadInput
from shardbench.learning.learner import Learner
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

if TYPE_CHECKING:
    from .training import Trained

# Imported late, below: torch takes a second to import, and listing strategies must stay cheap.


class AutoShard(Learner):
    """Whole tables placed by an LSTM policy trained for even kernel times (KDD 2022)."""

    name = "autoshard"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE})
    requires = ("torch",)

    def __init__(self) -> None:
        self.trained: Trained | None = None
        """What ``plan`` uses; set by ``fit``, or by hand."""

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Train on the problems, or on one and random subsets of its tables, with the simulated oracle.

        A short budget means fewer steps (the plan's notes tell how many), and at 80 % of it, in CPU
        seconds, training stops in any case. With ``folder`` set it goes on from what is kept there.
        """
        from shardbench.tasks.oracle import SimulatedOracle  # noqa: PLC0415
        from shardbench.tasks.subsets import training_tasks  # noqa: PLC0415

        from .fitting import BUDGET_SHARE, SUBSETS, settings_for  # noqa: PLC0415
        from .kept_training import train  # noqa: PLC0415

        start = time.process_time()
        tasks = training_tasks(problems, seed, SUBSETS)
        settings = settings_for(budget, max(t.devices for t in tasks), max(t.tables for t in tasks))
        self.trained = train(
            tasks, SimulatedOracle(), seed, settings,
            folder=self.folder, progress=self.tell, limit_cpu_s=BUDGET_SHARE * budget.fit_s,
        )  # fmt: skip
        self.fit_cpu_s = time.process_time() - start + self.trained.earlier_cpu_s

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """The policy's best legal device for every table; no randomness.

        Raises Infeasible where it leaves a table without room, BadInput before ``fit``.
        """
        from shardbench.tasks.task import table_set  # noqa: PLC0415

        from .placing import place  # noqa: PLC0415

        trained = self.trained
        if trained is None:
            raise BadInput(f"{self.name} has no networks yet: call fit() before plan()")
        (ranks,) = place(trained, [table_set(problem)])
        notes: dict[str, float | int | str] = {
            "environment_steps": trained.steps,
            "oracle_calls": trained.oracle_calls,
            "training": "complete" if trained.complete else "ran out of time",
        }
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks.tolist()), notes=notes)


class AutoShardUntrained(AutoShard):
    """Control: AutoShard's networks as they are drawn, before any training."""

    name = "autoshard-untrained"
    role = Role.VARIANT

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Draw the networks that training would start from."""
        from shardbench.tasks.subsets import training_tasks  # noqa: PLC0415

        from .fitting import SUBSETS  # noqa: PLC0415
        from .training import untrained  # noqa: PLC0415

        start = time.process_time()
        self.trained = untrained(training_tasks(problems, seed, SUBSETS), seed)
        self.fit_cpu_s = time.process_time() - start


def strategies() -> Iterable[Strategy]:
    """AutoShard and its untrained control."""
    return (AutoShard(), AutoShardUntrained())
