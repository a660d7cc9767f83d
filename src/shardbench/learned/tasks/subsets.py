"""Training tasks out of the problems that a strategy is given."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.learned.tasks.task import Task
from shardbench.model.problem import Problem

SUBSETS = 49
"""Training tasks drawn from a single problem's tables, besides the problem itself: 50 in all, as in the papers."""


def training_tasks(problems: Sequence[Problem], seed: int) -> tuple[Task, ...]:
    """Make tasks of the problems; a single problem is joined by SUBSETS random parts of it.

    Each part has between half and all of the tables, so that a strategy meets other sets of them
    than the one that it will place. The papers train on many tasks; a trial has one problem.
    Raises BadInput where there is none.
    """
    if not problems:
        raise BadInput("a learned strategy needs at least one problem to train on")
    tasks = tuple(Task.of(problem) for problem in problems)
    if len(tasks) != 1:
        return tasks
    (whole,) = tasks
    rng = np.random.default_rng([seed, 2])
    counts = rng.integers((whole.tables + 1) // 2, whole.tables + 1, SUBSETS).tolist()
    return (whole, *(part(whole, np.sort(rng.permutation(whole.tables)[:count])) for count in counts))


def part(task: Task, ids: Ints) -> Task:
    """Make the task of some of a task's tables, int64 [chosen], on the same machine."""
    problem = task.problem
    part_problem = replace(
        problem,
        name=f"{problem.name}-{len(ids)}",
        tables=tuple(problem.tables[i] for i in ids),
        profiles=tuple(problem.profiles[i] for i in ids),
        inputs=None,
    )
    counted = None if task.counted is None else task.counted[ids]
    return Task(problem=part_problem, features=task.features[ids], expected=task.expected[ids], counted=counted)
