"""Strategies on the papers' task sets: trained on training tasks, judged on a counted batch of train and test tasks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.learning.learner import Learner
from shardbench.model.discovery import get_strategy
from shardbench.model.plan import OnRank, Plan
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.cell import Series, SeriesRow
from shardbench.records.trial import Outcome
from shardbench.runs.evaluate import Answer, Question, evaluate
from shardbench.runs.planning import fit, learns
from shardbench.tasks.best_found import best_found
from shardbench.tasks.bound import placement_bound_ms
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.pools import Pool, Side, TaskRow, draw_tasks, load_pool
from shardbench.tasks.task import Task

J = TypeVar("J")

TASKS = 50
"""Training tasks and test tasks of a row, as in the papers."""
TASK_SEED = 0
"""All strategies and seeds get the same tasks."""
SPLITS = ("train", "test")
SIDES: tuple[Side, ...] = ("train", "test")
JUDGED_SPLIT = "test"
BEST_FOUND = "best-found"
PROGRESS = "progress.log"
"""In the folder of trainings: a line after every stage of each."""


@dataclass(frozen=True, kw_only=True)
class Asked(Generic[J]):
    """What a strategy answered to some questions."""

    answers: tuple[Answer[J] | None, ...]
    """None where the strategy found it infeasible."""
    plan_cpu_s: float
    """CPU seconds a question that was answered or refused."""

    @property
    def notes(self) -> Mapping[str, object]:
        """Of the first plan; empty without any."""
        return next((answer.plan.notes for answer in self.answers if answer is not None), {})


@dataclass(frozen=True, kw_only=True)
class Placed:
    """What a strategy made of some tasks."""

    placements: tuple[Ints | None, ...]
    """Device of every table, int64 [tables] a task; None where the strategy found it infeasible."""
    plan_cpu_s: float
    """CPU seconds a task that was placed or refused."""
    notes: Mapping[str, object] = field(default_factory=dict)
    """Of the first plan."""


@lru_cache(maxsize=32)
def tasks_of(
    row: TaskRow, split: str, folder: Path, count: int = TASKS, unseen: float | None = None
) -> tuple[Task, ...]:
    """The row's tasks of a split; with ``unseen`` that share (0..1) of each task's tables is from the test pool."""
    pools: dict[str, Pool] = {side: _pool(side, folder, row.widths) for side in SIDES}
    if unseen is not None:
        return draw_tasks(row, pools["train"], count, seed=TASK_SEED + 1, other=pools["test"], share=unseen)
    return draw_tasks(row, pools[split], count, seed=TASK_SEED)


@lru_cache(maxsize=8)
def _pool(side: Side, folder: Path, widths: tuple[int, ...]) -> Pool:
    """A pool, once a process: what names it is a sample of its lookups, which takes longer than most cells."""
    return load_pool(side, shared_pools(folder), widths=widths)


def shared_pools(folder: Path) -> Path:
    """Where all baselines keep the pools, beside their own folders: drawing them takes minutes."""
    return folder.parent / "pools"


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def fitted(name: str, tasks: Sequence[Task], budget: Budget, seed: int, folder: Path) -> tuple[Strategy, float]:
    """A strategy after ``fit`` on the tasks' problems, and the CPU seconds of that.

    Trainings are kept in ``training`` under ``folder``: a killed one goes on, and a finished one is
    not made again. The seconds are then those that it took. Their stages are lines of a file there.
    """
    strategy = get_strategy(name)
    if isinstance(strategy, Learner):
        strategy.folder = folder / "training"
        strategy.progress = partial(_append, strategy.folder / PROGRESS)
    spent = fit(strategy, [task.problem for task in tasks], budget, seed)
    if spent.fit_s > budget.fit_s:
        raise BadInput(f"{name}: fitting took {spent.fit_s:.1f} s, its budget is {budget.fit_s:g} s")
    return strategy, strategy.fit_cpu_s if isinstance(strategy, Learner) else spent.fit_cpu_s


@lru_cache(maxsize=32)
def cheapest(names: tuple[str, ...], tasks: tuple[Task, ...], measure: str) -> tuple[str, float]:
    """Of strategies that learn nothing and draw nothing the one with the smallest ``measure``, and that.

    ``measure`` is a key of ``judge``: means over tasks are compared, as in the papers' tables.
    """
    budget = Budget(fit_s=1.0)
    found = {name: judge(place_all(get_strategy(name), tasks, budget, 0), tasks)[measure] for name in names}
    best = min(found, key=found.__getitem__)
    return best, float(found[best])


class PlacementQuestion(Question[Ints]):
    """A task, whose plans place whole tables in device memory: judged by ``judge``, many placements at once."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.problem)
        self.task = task

    def judge(self, plan: Plan) -> Ints:
        """Device of every table, int64 [tables]; raises BadInput where a table is not whole on one device."""
        home = {s.table: s.placement.rank for s in plan.segments if isinstance(s.placement, OnRank)}
        if len(plan.segments) != self.task.tables or len(home) != self.task.tables:
            raise BadInput(f"task {self.problem.name}: the plan splits tables; these tasks place whole ones")
        return np.array([home[table.name] for table in self.problem.tables], dtype=np.int64)


def ask_all(strategy: Strategy, questions: Sequence[Question[J]], budget: Budget, seed: int) -> Asked[J]:
    """Answers of a strategy that has learned what it learns, each by a seed of its own.

    Raises BadInput where it fails otherwise than by declining.
    """
    answers: list[Answer[J] | None] = []
    plan_cpu_s = 0.0
    for number, question in enumerate(questions):
        own_seed = seed * len(questions) + number
        begun = time.process_time()
        answer = evaluate(question, strategy, budget, own_seed, sealed=False, fitted=True)
        if isinstance(answer, Answer):
            answers.append(answer)
            plan_cpu_s += answer.spent.plan_cpu_s
        elif answer.outcome is Outcome.INFEASIBLE:
            answers.append(None)
            plan_cpu_s += time.process_time() - begun
        else:
            raise BadInput(f"{strategy.name} on {question.problem.name}: {answer.outcome}: {answer.cause}")
    return Asked(answers=tuple(answers), plan_cpu_s=plan_cpu_s / len(questions))


def place_all(strategy: Strategy, tasks: Sequence[Task], budget: Budget, seed: int) -> Placed:
    """Placements by a strategy that has learned what it learns; raises BadInput for any other kind of plan."""
    asked = ask_all(strategy, [PlacementQuestion(task) for task in tasks], budget, seed)
    placements = tuple(None if answer is None else answer.judged for answer in asked.answers)
    return Placed(placements=placements, plan_cpu_s=asked.plan_cpu_s, notes=asked.notes)


def learning_calls(strategy: Strategy, notes: Mapping[str, object]) -> int:
    """Oracle calls that a strategy states, in a plan's notes, to have spent on learning; none where it learns not."""
    return int(str(notes.get("oracle_calls", 0))) if learns(strategy) else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """What placements of tasks cost, float64 [tasks] each; NaN where a task was not placed.

    ``cost_ms`` is the papers' (slowest device's forward, exchanges and backward), ``kernel_ms`` the
    slowest device's kernels alone, ``balance`` the fastest over the slowest device's kernels,
    ``bound_ms`` what no placement can cost less than.
    """

    cost_ms: Floats
    kernel_ms: Floats
    balance: Floats
    bound_ms: Floats

    def means(self) -> dict[str, float | int]:
        """Over the tasks that were placed, and how many those are."""
        placed = ~np.isnan(self.cost_ms)
        return {
            "cost_ms": float(self.cost_ms[placed].mean()),
            "kernel_ms": float(self.kernel_ms[placed].mean()),
            "balance": float(self.balance[placed].mean()),
            "bound_ms": float(self.bound_ms[placed].mean()),
            "tasks": int(placed.sum()),
            "infeasible": int((~placed).sum()),
        }

    def of_tasks(self) -> dict[str, Series]:
        """Costs task by task, so that strategies can be compared in pairs; to a nanosecond."""
        return {
            f"task_{name}": tuple(None if np.isnan(ms) else round(float(ms), 6) for ms in values)
            for name, values in (("cost_ms", self.cost_ms), ("kernel_ms", self.kernel_ms))
        }


def judge_tasks(placed: Placed, tasks: Sequence[Task]) -> Judged:
    """Costs of placements on a counted batch; raises BadInput where none was placed."""
    oracle = SimulatedOracle(counted=True)
    found = np.full((4, len(tasks)), np.nan)
    for number, (placement, task) in enumerate(zip(placed.placements, tasks, strict=True)):
        if placement is None:
            continue
        measured = oracle.measure(task, placement[None])
        device_ms = (measured.forward_ms + measured.backward_ms)[0]
        slowest_ms = device_ms.max()
        bound_ms = placement_bound_ms(task, counted=True)
        found[:, number] = measured.overall_ms[0], slowest_ms, device_ms.min() / slowest_ms, bound_ms
    if np.isnan(found[0]).all():
        raise BadInput("no task was placed: all are infeasible for the strategy")
    return Judged(cost_ms=found[0], kernel_ms=found[1], balance=found[2], bound_ms=found[3])


def judge(placed: Placed, tasks: Sequence[Task]) -> dict[str, float | int]:
    """Mean costs over the tasks that were placed, and mean bound over the same; milliseconds."""
    return judge_tasks(placed, tasks).means()


def best_found_rows(row: TaskRow, folder: Path) -> list[SeriesRow]:
    """The best that local search finds on a row's test tasks: it knows the very batch that it is judged on."""
    tasks = tasks_of(row, JUDGED_SPLIT, folder)
    start = time.process_time()
    found = tuple(best_found(task, counted=True) for task in tasks)
    spent = (time.process_time() - start) / len(tasks)
    judged = judge_tasks(Placed(placements=found, plan_cpu_s=spent), tasks)
    return [_row(JUDGED_SPLIT, judged, fit_cpu_s=0.0, plan_cpu_s=spent, oracle_calls=0)]


def _row(split: str, judged: Judged, *, fit_cpu_s: float, plan_cpu_s: float, oracle_calls: int) -> SeriesRow:
    return {
        "backend": "simulated",
        "split": split,
        **judged.means(),
        **judged.of_tasks(),
        "fit_cpu_s": fit_cpu_s,
        "plan_cpu_s": plan_cpu_s,
        "oracle_calls": oracle_calls,
    }


def contest(row: TaskRow, name: str, seed: int, folder: Path, budget: Budget) -> list[SeriesRow]:
    """One strategy and seed on a row: fitted on its training tasks, judged on training and test tasks.

    ``BEST_FOUND`` is no strategy, but the best that local search finds, on test tasks only.
    """
    if name == BEST_FOUND:
        return best_found_rows(row, folder)
    strategy, fit_cpu_s = fitted(name, tasks_of(row, "train", folder), budget, seed, folder)
    rows: list[SeriesRow] = []
    for split in SPLITS:
        tasks = tasks_of(row, split, folder)
        placed = place_all(strategy, tasks, budget, seed)
        calls = learning_calls(strategy, placed.notes)
        judged = judge_tasks(placed, tasks)
        rows.append(_row(split, judged, fit_cpu_s=fit_cpu_s, plan_cpu_s=placed.plan_cpu_s, oracle_calls=calls))
    return rows
