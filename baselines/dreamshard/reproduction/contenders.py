"""Who takes part in the study of equal effort, and with what: one function a contender, all by one interface."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.learning.learner import Learner
from shardbench.model.discovery import get_strategy
from shardbench.model.strategy import Budget
from shardbench.studies.contest import place_all
from shardbench.tasks.best_found import best_found
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.task import Task

from .names import AUTOSHARD, COST_GREEDY, LOOKUP, OURS, SEARCH
from .oracle_search import oracle_search

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained

    from ..network_search import NetworkSearch

NETWORK_SEARCH = "greedy-network"
JOINT_NETWORK = "joint-network"
JOINT_WHOLE = "joint-whole-tables"
SEARCH_IN_ALL = "search-in-all"
SEARCH_A_TASK = "search-a-task"
UNLIMITED = "search-unlimited"


@dataclass(frozen=True, kw_only=True, eq=False)
class Effort:
    """What a contender is given: tasks to learn from, tasks to place, and oracle calls."""

    train: tuple[Task, ...]
    test: tuple[Task, ...]
    calls: int
    seed: int
    folder: Path
    """Where trainings are kept by content key: contenders that need the same one share it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Spent:
    """Placements of the test tasks, int64 [tables] each, and what they took."""

    placements: Sequence[Ints]
    learning_calls: int = 0
    """Oracle calls before the first test task was seen."""
    task_calls: float | None = 0.0
    """Oracle calls a test task, in the mean; None where they were not limited and not counted."""
    network_rated: float = 0.0
    """Placements that a learned network rated for a test task, in the mean."""


def dreamshard_trained(effort: Effort) -> "AnyTrained":
    """DreamShard's networks after its ten iterations, each of a tenth of the calls; all else as published."""
    from ..settings import Settings  # noqa: PLC0415
    from ..training import DreamShardTraining  # noqa: PLC0415 - needs torch, which listing does not

    settings = Settings()
    settings = replace(settings, measured=effort.calls // settings.iterations)
    return DreamShardTraining(effort.train, SimulatedOracle(), effort.seed, settings).train(folder=effort.folder)


def heuristic(name: str) -> "Callable[[Effort], Spent]":
    """A strategy that learns nothing and draws nothing; ``greedy-cost`` rates every table of a task alone."""

    def place(effort: Effort) -> Spent:
        # Joint reads the model's terms, again and again, and never has a placement rated: its calls are not counted.
        rated = None if name == JOINT_WHOLE else 0.0
        if name == COST_GREEDY:
            rated = sum(task.tables for task in effort.test) / len(effort.test)
        return Spent(placements=_placed(name, effort.test), task_calls=rated)

    return place


def policy(effort: Effort) -> Spent:
    """DreamShard as it is."""
    from .. import DreamShard  # noqa: PLC0415

    trained = dreamshard_trained(effort)
    return Spent(placements=DreamShard().place(trained, effort.test), learning_calls=trained.oracle_calls)


def policy_then_network(effort: Effort) -> Spent:
    """``dreamshard-search``: its network rates moves and swaps from its policy's plan on."""
    from ..network_search import place_and_search  # noqa: PLC0415

    trained = dreamshard_trained(effort)
    placements, rated = place_and_search(trained, effort.test)
    return Spent(placements=placements, learning_calls=trained.oracle_calls, network_rated=rated / len(effort.test))


def greedy_then_network(effort: Effort) -> Spent:
    """The same network and search without the policy: from lookup-greedy's plan on."""
    trained, starts = dreamshard_trained(effort), iter(_placed(LOOKUP, effort.test))
    return _searched(trained, effort.test, lambda search: next(starts))


def joint_under_network(effort: Effort) -> Spent:
    """Joint's way, with the learned network where joint has the cost model: packed by it, then moves and swaps."""
    return _searched(dreamshard_trained(effort), effort.test, lambda search: search.packed())


def _searched(trained: "AnyTrained", tasks: Sequence[Task], start: "Callable[[NetworkSearch], Ints]") -> Spent:
    """A descent under the network a task, from where ``start`` says."""
    from ..network_search import NetworkSearch  # noqa: PLC0415

    placements, rated = [], 0
    for task in tasks:
        search = NetworkSearch(trained, task)
        placements.append(search.descend(start(search)))
        rated += search.rated
    return Spent(placements=placements, learning_calls=trained.oracle_calls, network_rated=rated / len(tasks))


def autoshard(effort: Effort) -> Spent:
    """AutoShard with as many episodes as calls, of which each asks once; no unroll is shorter than a task."""
    learner = get_strategy(AUTOSHARD)
    if not isinstance(learner, Learner):
        raise BadInput(f"{AUTOSHARD} does not learn: it has no calls to be held to")
    published = learner.training(effort.train, SimulatedOracle(), effort.seed)
    tables = max(task.tables for task in effort.train)
    settings: Any = published.settings
    settings = replace(settings, unroll=max(settings.unroll, tables), total_steps=effort.calls * tables)
    trained = type(published)(effort.train, SimulatedOracle(), effort.seed, settings).train(folder=effort.folder)
    return Spent(placements=learner.place(trained, effort.test), learning_calls=trained.oracle_calls)


def search(effort: Effort, calls: int) -> Spent:
    """A search under the cost model itself, from lookup-greedy's plan on, with so many calls a task."""
    oracle = SimulatedOracle()
    placements = [
        oracle_search(task, start, oracle, calls, effort.seed * len(effort.test) + number)
        for number, (task, start) in enumerate(zip(effort.test, _placed(LOOKUP, effort.test)))
    ]
    return Spent(placements=placements, task_calls=oracle.spent.calls / len(effort.test))


def unlimited(effort: Effort) -> Spent:
    """The best that moves and swaps find under the cost model, on training profiles: a mark, no contender."""
    return Spent(placements=[best_found(task, counted=False) for task in effort.test], task_calls=None)


def _placed(name: str, tasks: Sequence[Task]) -> list[Ints]:
    found = place_all(get_strategy(name), tasks, Budget(fit_s=1.0), 0).placements
    placements = [np.asarray(placement) for placement in found if placement is not None]
    if len(placements) < len(tasks):
        raise BadInput(f"{name} leaves a table without room in a task of the study: choose a row that fits")
    return placements


Contender = Callable[[Effort], Spent]
FIXED: Mapping[str, Contender] = MappingProxyType(
    {
        LOOKUP: heuristic(LOOKUP),
        COST_GREEDY: heuristic(COST_GREEDY),
        JOINT_WHOLE: heuristic(JOINT_WHOLE),
        UNLIMITED: unlimited,
    }
)
"""Without a budget and without randomness: they run once a row."""
BUDGETED: Mapping[str, Contender] = MappingProxyType(
    {
        OURS: policy,
        SEARCH: policy_then_network,
        NETWORK_SEARCH: greedy_then_network,
        JOINT_NETWORK: joint_under_network,
        AUTOSHARD: autoshard,
        SEARCH_IN_ALL: lambda effort: search(effort, effort.calls // len(effort.test)),
        SEARCH_A_TASK: lambda effort: search(effort, effort.calls),
    }
)
"""Held to the same oracle calls; a further contender is one more line here."""
CONTENDERS: Mapping[str, Contender] = MappingProxyType({**FIXED, **BUDGETED})
