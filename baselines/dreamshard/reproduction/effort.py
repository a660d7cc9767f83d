"""Study of equal effort: what network, policy and search contribute at the same number of oracle calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.learned.tasks.best_found import best_found
from shardbench.learned.tasks.oracle import Oracle, SimulatedOracle
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget
from shardbench.records.cell import SeriesRow
from shardbench.studies.contests.contest import JUDGED_SPLIT, SPLITS, judge_tasks, place_all, tasks_of, trained_with
from shardbench.studies.contests.contest_study import SEEDS
from shardbench.studies.contests.contest_tasks import gain_pct, over_rows, task_table
from shardbench.studies.study import Cell, Study, grid
from shardbench.trials.discovery import get_strategy

from .. import DreamShard
from .contests import ROWS
from .names import COST_GREEDY, LOOKUP, OURS, SEARCH

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained

JOINT_NETWORK = "joint-network"
JOINT_WHOLE = "joint-whole-tables"
SEARCH_IN_ALL = "search-in-all"
SEARCH_A_TASK = "search-a-task"
UNLIMITED = "search-unlimited"
DRAWS = 100
"""Changes that a search draws for one that fits; none of them fitting ends it."""
EFFORT_ROWS = ("DLRM-40 (4)", "DLRM-80 (8)", "Mixed-40 (4)")
"""Rows of either number of devices, with few of the paper's numbers of tables, and of mixed widths; three, so that all
seeds of all contenders take minutes."""
CALLS = (100, 1000)
"""Calls: as many as DreamShard's published training asks, and ten times as many; AutoShard's asks even more."""
EFFORT_TASKS = 20
"""Test tasks of a row: the first of its 50; training tasks are all 50."""
ALL_ROWS = "all rows"


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
        return Contribution(placements=_plans_of(name, exercise.test), task_calls=task_calls)

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


def joint_under_network(exercise: Exercise) -> Contribution:
    """Go joint's way with the learned network in place of the cost model: pack by it, then move and swap."""
    from ..network_search import NetworkSearch  # noqa: PLC0415

    trained = train_dreamshard(exercise)
    placements, ratings = [], 0
    for task in exercise.test:
        search = NetworkSearch(trained, task)
        placements.append(search.descend(search.pack()))
        ratings += search.rated
    return Contribution(
        placements=placements, learning_calls=trained.oracle_calls, network_rated=ratings / len(exercise.test)
    )


def search(exercise: Exercise, calls: int) -> Contribution:
    """Search under the cost model itself, from lookup-greedy's plan on, with so many calls a task."""
    oracle = SimulatedOracle()
    placements = [
        oracle_search(task, start, oracle, calls, exercise.seed * len(exercise.test) + number)
        for number, (task, start) in enumerate(zip(exercise.test, _plans_of(LOOKUP, exercise.test)))
    ]
    return Contribution(placements=placements, task_calls=oracle.calls / len(exercise.test))


def oracle_search(task: Task, start: Ints, oracle: Oracle, calls: int, seed: int) -> Ints:
    """Find the cheapest placement int64 [tables] with ``calls`` calls, the first of which asks about ``start``.

    A change gives a table of the costliest device (as the last answer has it) to another device, or swaps it with a
    table there, all drawn alike; it is kept where the oracle says that it is cheaper.
    """
    rng, best = np.random.default_rng(seed), start
    costs = oracle.measure(task, best[None])
    for _ in range(calls - 1):
        changed = _draw_change(task, best, int(costs.device_ms[0].argmax()), rng)
        if changed is None:
            break
        changed_costs = oracle.measure(task, changed[None])
        if changed_costs.overall_ms[0] < costs.overall_ms[0]:
            best, costs = changed, changed_costs
    return best


def _draw_change(task: Task, placement: Ints, giver: int, rng: np.random.Generator) -> Ints | None:
    giver_tables = np.flatnonzero(placement == giver)
    for _ in range(DRAWS):
        changed = placement.copy()
        device = (giver + int(rng.integers(1, task.devices))) % task.devices
        device_tables = np.flatnonzero(placement == device)
        changed[rng.choice(giver_tables)] = device
        if back := int(rng.integers(len(device_tables) + 1)):
            changed[device_tables[back - 1]] = giver
        if not task.over_capacity(changed[None])[0]:
            return changed
    return None


def unlimited(exercise: Exercise) -> Contribution:
    """Give the best that moves and swaps find under the cost model, on training profiles: a mark, no contender."""
    return Contribution(placements=[best_found(task, counted=False) for task in exercise.test], task_calls=None)


def _plans_of(name: str, tasks: Sequence[Task]) -> list[Ints]:
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
        JOINT_NETWORK: joint_under_network,
        SEARCH_IN_ALL: lambda exercise: search(exercise, exercise.calls // len(exercise.test)),
        SEARCH_A_TASK: lambda exercise: search(exercise, exercise.calls),
    }
)
"""Contenders that are held to the same oracle calls; a further one is one more line here."""
CONTENDERS: Mapping[str, Contender] = MappingProxyType({**FIXED, **BUDGETED})


def _cells(quick: bool) -> list[Cell]:
    """List rows, contenders, budgets and seeds; contenders without a budget run once a row."""
    few = 1 if quick else None
    rows = EFFORT_ROWS[:few]
    fixed = grid(task=rows, contender=FIXED, calls=[0], seed=[0])
    return fixed + grid(task=rows, contender=BUDGETED, calls=CALLS[:few], seed=SEEDS[:few])


def _place(folder: Path, task: str, contender: str, calls: int, seed: int) -> SeriesRow:
    """Place the row's test tasks and judge them on a counted batch."""
    train, test = (tasks_of(ROWS[task], split, folder) for split in SPLITS)
    exercise = Exercise(train=train, test=test[:EFFORT_TASKS], calls=calls, seed=seed, folder=folder)
    contribution = CONTENDERS[contender](exercise)
    judgement = judge_tasks(contribution.placements, exercise.test)
    return {
        **judgement.means(),
        **judgement.of_tasks(),
        "learning_calls": contribution.learning_calls,
        "task_calls": contribution.task_calls,
        "network_rated": contribution.network_rated,
    }


def _tables(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a budget, row of tasks and contender: milliseconds, and over DreamShard's policy."""
    comparisons = []
    for calls in CALLS:
        part = rows[rows["calls"].isin((0, calls))]
        if OURS in set(part["contender"]):
            comparisons += _compare(part, calls)
    return pd.DataFrame(comparisons)


def _compare(rows: pd.DataFrame, calls: int) -> list[dict[str, object]]:
    """Compare paired over tasks, seeds averaged first; over all rows, the i-th task's geometric mean is the unit."""
    tasks = task_table(rows.assign(split=JUDGED_SPLIT, strategy=rows["contender"]))
    groups = {str(name): rows[rows["task"] == name] for name in dict.fromkeys(rows["task"])}
    comparisons: list[dict[str, object]] = []
    for task, group in {**groups, ALL_ROWS: rows}.items():
        held_against = list(groups) if task == ALL_ROWS else [task]
        for contender, part in group.groupby("contender", sort=False):
            over, low, high, n = gain_pct(over_rows(tasks, dict.fromkeys(held_against, str(contender)), OURS))
            cost_ms, bound_ms = (None if task == ALL_ROWS else float(part[x].mean()) for x in ("cost_ms", "bound_ms"))
            comparisons.append(
                {
                    "calls": calls,
                    "task": task,
                    "contender": contender,
                    "backend": "simulated",
                    "cost_ms": cost_ms,
                    "over_bound_pct": 100.0 * (cost_ms / bound_ms - 1.0) if cost_ms and bound_ms else None,
                    "over_policy_pct": over,
                    "over_policy_low_pct": low,
                    "over_policy_high_pct": high,
                    "n": n,
                    "seeds": part["seed"].nunique(),
                    "learning_calls": float(part["learning_calls"].mean()),
                    "task_calls": float(part["task_calls"].mean()),
                    "network_rated": float(part["network_rated"].mean()),
                }
            )
    return comparisons


EQUAL_EFFORT = Study(
    name="effort",
    title="DreamShard, its search, joint and plain searches at equal oracle calls, on unseen tasks.",
    cells=_cells,
    judge=_place,
    summary=_tables,
    uses=(LOOKUP, COST_GREEDY, JOINT_WHOLE, OURS, SEARCH),
    columns=("backend", "cost_ms", "bound_ms", "learning_calls", "task_calls", "network_rated"),
)
