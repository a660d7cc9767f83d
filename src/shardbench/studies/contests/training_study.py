"""A study of what a training does, stage by stage: how good the plans become, and the predictions they rest on."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.studies.contests.contest import SPLITS, judge, learner_of, tasks_of
from shardbench.studies.contests.contest_study import SEEDS
from shardbench.studies.study import Cell, Row, Study
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.pools import TaskRow
from shardbench.tasks.task import Task, random_placements

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained

HELD_OUT = 20
"""Random placements a task that the cost network is tested on."""


class TrainingStudy(Study):
    """A learner's plans and the errors of its cost network after each stage of its published training."""

    name = "training"
    strategy: str
    task_rows: Mapping[str, TaskRow]
    quick_rows: tuple[str, ...]

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give a few rows with all seeds."""
        names = self.quick_rows if quick else self.task_rows
        return [{"task": name, "seed": seed} for name in names for seed in (SEEDS[:1] if quick else SEEDS)]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train with the networks kept after every stage, then judge each."""
        row = self.task_rows[str(cell["task"])]
        train_tasks, test_tasks = (tasks_of(row, split, folder) for split in SPLITS)
        return self.learning_curve(train_tasks, test_tasks, int(cell["seed"] or 0), folder / "training")

    def learning_curve(
        self, train_tasks: Sequence[Task], test_tasks: Sequence[Task], seed: int, folder: Path
    ) -> list[Row]:
        """Make one row a stage, the first one untrained.

        ``random_error_pct`` and ``policy_error_pct``: mean absolute relative error of what the cost
        network predicts, against the oracle that it learns from, on random placements of test tasks
        and on the policy's own.
        """
        learner = learner_of(self.strategy)
        training = learner.training(train_tasks, SimulatedOracle(), seed)
        training.train(folder=folder)
        rng = np.random.default_rng([seed, 2])
        randoms = [random_placements(task, HELD_OUT, rng) for task in test_tasks]
        rows: list[Row] = []
        for trained in (training.untrained(), *training.snapshots(folder)):
            own = learner.place(trained, test_tasks)
            of_train, of_test = (
                judge(placements, tasks)
                for placements, tasks in ((learner.place(trained, train_tasks), train_tasks), (own, test_tasks))
            )
            of_random = self._all_errors(trained, test_tasks, randoms)
            of_policy = self._all_errors(trained, test_tasks, [placement[None] for placement in own])
            rows.append(
                {
                    "backend": "simulated",
                    **self.stage_row(trained, of_train, of_test, of_policy),
                    "random_error_pct": 100.0 * float(np.abs(of_random).mean()),
                    "policy_error_pct": 100.0 * float(np.abs(of_policy).mean()),
                    "oracle_calls": trained.oracle_calls,
                }
            )
        return rows

    @abstractmethod
    def stage_row(
        self,
        trained: "AnyTrained",
        of_train: Mapping[str, float | int],
        of_test: Mapping[str, float | int],
        policy_errors: Floats,
    ) -> Row:
        """Give the strategy's own columns: which stage, and what matters of its plans as ``judge`` has it, by split."""

    @abstractmethod
    def errors(self, trained: "AnyTrained", task: Task, placements: Ints) -> Floats:
        """Give relative errors of what the cost network predicts of placements int [n, tables], one after the other."""

    def _all_errors(self, trained: "AnyTrained", tasks: Sequence[Task], placements: Sequence[Ints]) -> Floats:
        return np.concatenate([self.errors(trained, t, p) for t, p in zip(tasks, placements, strict=True)])
