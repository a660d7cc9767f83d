"""A study of what a training does, stage by stage: how good the plans become, and the predictions they rest on."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.pools import TaskRow
from shardbench.learned.tasks.task import Task, random_placements
from shardbench.report.plot import Plot
from shardbench.studies.contests.contest import SPLITS, judge, learner_of, tasks_of
from shardbench.studies.contests.contest_study import SEEDS
from shardbench.studies.study import Row, Study, grid

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained

HELD_OUT = 20
"""Random placements a task that the cost network is tested on."""
Means = Mapping[str, float | int]
"""Means over tasks, as ``judge`` gives them."""
StageRow = Callable[["AnyTrained", Means, Means, Floats], Row]
"""Makes own columns of the network, the means of its plans for training and for test tasks, and its errors."""
Errors = Callable[["AnyTrained", Task, Ints], Floats]
"""Makes relative errors of what the cost network predicts of placements int [n, tables], one after the other."""


def training_study(
    *,
    title: str,
    strategy: str,
    task_rows: Mapping[str, TaskRow],
    stage_row: StageRow,
    errors: Errors,
    columns: Sequence[str],
    plots: Sequence[Plot],
    version: int = 1,
) -> Study:
    """Make a study of a learner's plans and the errors of its cost network after each stage of its training."""

    def run(folder: Path, task: str, seed: int) -> list[Row]:
        train_tasks, test_tasks = (tasks_of(task_rows[task], split, folder) for split in SPLITS)
        return learning_curve(
            strategy=strategy, train_tasks=train_tasks, test_tasks=test_tasks, seed=seed, folder=folder / "training",
            stage_row=stage_row, errors=errors,
        )  # fmt: skip

    return Study(
        name="training", title=title, version=version, columns=columns, judge=run, plots=plots,
        cells=lambda quick: grid(task=task_rows, seed=SEEDS[:1] if quick else SEEDS),
    )  # fmt: skip


def learning_curve(
    *,
    strategy: str,
    train_tasks: Sequence[Task],
    test_tasks: Sequence[Task],
    seed: int,
    folder: Path,
    stage_row: StageRow,
    errors: Errors,
) -> list[Row]:
    """Train as published and make one row a stage, the first one untrained; ``folder`` keeps the networks.

    ``random_error_pct`` and ``policy_error_pct``: mean absolute relative error of what the cost network predicts,
    against the oracle that it learns from, on random placements of test tasks and on the policy's own.
    """
    learner = learner_of(strategy)
    training = learner.training(train_tasks, SimulatedOracle(), seed)
    training.train(folder=folder)
    rng = np.random.default_rng([seed, 2])
    randoms = [random_placements(task, HELD_OUT, rng) for task in test_tasks]
    rows: list[Row] = []
    for trained in (training.untrained(), *training.snapshots(folder)):
        own = learner.place(trained, test_tasks)
        of_train = judge(learner.place(trained, train_tasks), train_tasks)
        of_test = judge(own, test_tasks)
        of_random, of_policy = (
            np.concatenate([errors(trained, task, each) for task, each in zip(test_tasks, placements, strict=True)])
            for placements in (randoms, [placement[None] for placement in own])
        )
        rows.append(
            {
                **stage_row(trained, of_train, of_test, of_policy),
                "random_error_pct": 100.0 * float(np.abs(of_random).mean()),
                "policy_error_pct": 100.0 * float(np.abs(of_policy).mean()),
                "oracle_calls": trained.oracle_calls,
            }
        )
    return rows
