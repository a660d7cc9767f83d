"""Who takes part in the study of equal effort, and with what: one function a contender, all by one interface."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.learned.tasks.best_found import best_found
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import learner_of, place_all, trained_with
from shardbench.trials.discovery import get_strategy

from .. import DreamShard
from .names import AUTOSHARD, COST_GREEDY, LOOKUP, OURS, SEARCH
from .oracle_search import oracle_search

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained

    from ..network_search import NetworkSearch

NETWORK_SEARCH = "greedy-network"
JOINT_NETWORK = "joint-network"
JOINT_WHOLE = "joint-whole-tables"
SEARCH_IN_ALL = "search-in-all"
SEARCH_A_TASK = "search-a-task"
UNLIMITED = "search-unlimited"


@dataclass(frozen=True, kw_only=True, eq=False)
class Exercise:
    """What every contender gets: tasks to learn from, tasks to place, and oracle calls."""

    train: tuple[Task, ...]
    test: tuple[Task, ...]
    calls: int
    seed: int
    folder: Path
    """Trainings are kept in it by content key: contenders that need the same one share it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contribution:
    """Placements of the test tasks, int64 [tables] each, and what they took."""

    placements: Sequence[Ints]
    learning_calls: int = 0
    """Oracle calls before the first test task was seen."""
    task_calls: float | None = 0.0
    """Oracle calls a test task, in the mean; None where they were not limited and not counted."""
    network_rated: float = 0.0
    """Placements that a learned network rated for a test task, in the mean."""


def train_dreamshard(exercise: Exercise) -> "AnyTrained":
    """Train DreamShard in its ten iterations, each of a tenth of the calls; all else is as published."""
    iterations = DreamShard().training_type().settings_type().iterations
    calls = exercise.calls // iterations
    trained, _ = trained_with(DreamShard(), exercise.train, exercise.seed, exercise.folder, measured=calls)
    return trained


def heuristic(name: str) -> "Callable[[Exercise], Contribution]":
    """Make a contender of a strategy that learns and draws nothing; ``greedy-cost`` rates every table alone."""

    def place(exercise: Exercise) -> Contribution:
        # Joint reads the model's terms, again and again, and never has a placement rated: its calls are not counted.
        task_calls = None if name == JOINT_WHOLE else 0.0
        if name == COST_GREEDY:
            task_calls = sum(task.tables for task in exercise.test) / len(exercise.test)
        return Contribution(placements=_place(name, exercise.test), task_calls=task_calls)

    return place


def policy(exercise: Exercise) -> Contribution:
    """Place with DreamShard as it is."""
    trained = train_dreamshard(exercise)
    return Contribution(placements=DreamShard().place(trained, exercise.test), learning_calls=trained.oracle_calls)


def policy_then_network(exercise: Exercise) -> Contribution:
    """Place as ``dreamshard-search``: its network rates moves and swaps from its policy's plan on."""
    from ..network_search import place_and_search  # noqa: PLC0415

    trained = train_dreamshard(exercise)
    placements, ratings = place_and_search(trained, exercise.test)
    return Contribution(
        placements=placements, learning_calls=trained.oracle_calls, network_rated=ratings / len(exercise.test)
    )


def greedy_then_network(exercise: Exercise) -> Contribution:
    """Search under the same network without the policy: from lookup-greedy's plan on."""
    trained, starts = train_dreamshard(exercise), iter(_place(LOOKUP, exercise.test))
    return _descend(trained, exercise.test, lambda search: next(starts))


def joint_under_network(exercise: Exercise) -> Contribution:
    """Go joint's way with the learned network in place of the cost model: pack by it, then move and swap."""
    return _descend(train_dreamshard(exercise), exercise.test, lambda search: search.pack())


def _descend(trained: "AnyTrained", tasks: Sequence[Task], start: "Callable[[NetworkSearch], Ints]") -> Contribution:
    """Descend under the network on each task, from where ``start`` says."""
    from ..network_search import NetworkSearch  # noqa: PLC0415

    placements, ratings = [], 0
    for task in tasks:
        search = NetworkSearch(trained, task)
        placements.append(search.descend(start(search)))
        ratings += search.rated
    return Contribution(placements=placements, learning_calls=trained.oracle_calls, network_rated=ratings / len(tasks))


def autoshard(exercise: Exercise) -> Contribution:
    """Train AutoShard in as many episodes as calls, each of which asks once; no unroll is shorter than a task."""
    learner, tables = learner_of(AUTOSHARD), max(task.tables for task in exercise.train)
    unroll = max(learner.training_type().settings_type().unroll, tables)
    changes = {"unroll": unroll, "total_steps": exercise.calls * tables}
    trained, _ = trained_with(learner, exercise.train, exercise.seed, exercise.folder, **changes)
    return Contribution(placements=learner.place(trained, exercise.test), learning_calls=trained.oracle_calls)


def search(exercise: Exercise, calls: int) -> Contribution:
    """Search under the cost model itself, from lookup-greedy's plan on, with so many calls a task."""
    oracle = SimulatedOracle()
    placements = [
        oracle_search(task, start, oracle, calls, exercise.seed * len(exercise.test) + number)
        for number, (task, start) in enumerate(zip(exercise.test, _place(LOOKUP, exercise.test)))
    ]
    return Contribution(placements=placements, task_calls=oracle.calls / len(exercise.test))


def unlimited(exercise: Exercise) -> Contribution:
    """Give the best that moves and swaps find under the cost model, on training profiles: a mark, no contender."""
    return Contribution(placements=[best_found(task, counted=False) for task in exercise.test], task_calls=None)


def _place(name: str, tasks: Sequence[Task]) -> list[Ints]:
    attempts = place_all(get_strategy(name), tasks, Budget(fit_s=1.0), 0).judged
    placements = [np.asarray(placement) for placement in attempts if placement is not None]
    if len(placements) < len(tasks):
        raise BadInput(f"{name} leaves a table without room in a task of the study: choose a row that fits")
    return placements


Contender = Callable[[Exercise], Contribution]
FIXED: Mapping[str, Contender] = MappingProxyType(
    {**{name: heuristic(name) for name in (LOOKUP, COST_GREEDY, JOINT_WHOLE)}, UNLIMITED: unlimited}
)
"""Contenders without a budget and without randomness: they run once a row."""
BUDGETED: Mapping[str, Contender] = MappingProxyType(
    {
        OURS: policy,
        SEARCH: policy_then_network,
        NETWORK_SEARCH: greedy_then_network,
        JOINT_NETWORK: joint_under_network,
        AUTOSHARD: autoshard,
        SEARCH_IN_ALL: lambda exercise: search(exercise, exercise.calls // len(exercise.test)),
        SEARCH_A_TASK: lambda exercise: search(exercise, exercise.calls),
    }
)
"""Contenders that are held to the same oracle calls; a further one is one more line here."""
CONTENDERS: Mapping[str, Contender] = MappingProxyType({**FIXED, **BUDGETED})
