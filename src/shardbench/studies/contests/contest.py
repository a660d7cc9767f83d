"""Strategies on the papers' task sets: trained on training tasks, judged on a counted batch of train and test tasks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.learned.learner import Learner
from shardbench.learned.tasks.best_found import best_found
from shardbench.learned.tasks.bound import placement_bound_ms
from shardbench.learned.tasks.oracle import Costs, SimulatedOracle
from shardbench.learned.tasks.pools import (
    BATCH,
    PUBLIC,
    PUBLIC_BATCH,
    SYNTHETIC,
    Pool,
    Side,
    TaskRow,
    draw_tasks,
    load_pool,
)
from shardbench.learned.tasks.task import Task
from shardbench.model.plan import OnRank, Plan
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.cell import Row, Series, SeriesRow
from shardbench.records.trial import Outcome
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import Answer, Question, evaluate
from shardbench.trials.planning import fit, learns

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained

J = TypeVar("J")

TASKS = 50
"""Training tasks and test tasks of a row, as in the papers."""
TASK_SEED = 0
"""All strategies and seeds get the same tasks."""
SPLITS = ("train", "test")
SIDES: tuple[Side, ...] = ("train", "test")
JUDGED_SPLIT = "test"
BEST_FOUND = "best-found"


@dataclass(frozen=True, kw_only=True)
class Answers(Generic[J]):
    """What a strategy answered to some questions."""

    answers: tuple[Answer[J] | None, ...]
    """One answer a question; None where the strategy found it infeasible."""
    plan_cpu_s: float
    """CPU seconds a question that was answered or refused."""

    @property
    def judged(self) -> tuple[J | None, ...]:
        """Give what each answer was judged to be; None where there is none."""
        return tuple(None if answer is None else answer.judged for answer in self.answers)

    @property
    def notes(self) -> Mapping[str, object]:
        """Give the notes of the first plan; they are empty without any."""
        return next((answer.plan.notes for answer in self.answers if answer is not None), {})


@lru_cache(maxsize=32)
def tasks_of(row: TaskRow, split: str, folder: Path, unseen: float | None = None) -> tuple[Task, ...]:
    """Draw the row's tasks of a split; with ``unseen`` that share (0..1) of each's tables is from the test pool."""
    pools: dict[str, Pool] = {side: pool_of(side, folder, row.widths, row.dataset) for side in SIDES}
    if unseen is not None:
        return draw_tasks(row, pools["train"], TASKS, seed=TASK_SEED + 1, other=pools["test"], share=unseen)
    return draw_tasks(row, pools[split], TASKS, seed=TASK_SEED)


@lru_cache(maxsize=8)
def pool_of(side: Side, folder: Path, widths: tuple[int, ...], dataset: str = SYNTHETIC) -> Pool:
    """Load a pool once a process: what names it is a sample of its lookups, which takes longer than most cells."""
    batch_size = PUBLIC_BATCH if dataset == PUBLIC else BATCH
    return load_pool(side, shared_pools(folder), widths=widths, batch_size=batch_size, dataset=dataset)


def shared_pools(folder: Path) -> Path:
    """Name the folder in which all baselines keep the pools, beside their own: drawing them takes minutes."""
    return folder.parent / "pools"


def fit_strategy(name: str, tasks: Sequence[Task], budget: Budget, seed: int, folder: Path) -> tuple[Strategy, float]:
    """Give a strategy after ``fit`` on the tasks' problems, and the CPU seconds of that.

    Trainings are kept in ``training`` under ``folder``: a finished one is not made again. The seconds are then those
    that it took.
    """
    strategy = get_strategy(name)
    if isinstance(strategy, Learner):
        strategy.folder = folder / "training"
    spent = fit(strategy, [task.problem for task in tasks], budget, seed)
    if spent.fit_s > budget.fit_s:
        raise BadInput(f"{name}: fitting took {spent.fit_s:.1f} s, its budget is {budget.fit_s:g} s")
    return strategy, strategy.fit_cpu_s if isinstance(strategy, Learner) else spent.fit_cpu_s


def learner_of(name: str) -> Learner:
    """Find a strategy that learns; raises BadInput for one that does not."""
    strategy = get_strategy(name)
    if not isinstance(strategy, Learner):
        raise BadInput(f"{name} does not learn: name a strategy that has a training")
    return strategy


def trained_with(
    learner: Learner, tasks: Sequence[Task], seed: int, folder: Path | None, **changes: Any
) -> tuple["AnyTrained", float]:
    """Train as published, but for ``changes`` of the settings, on the simulated oracle; gives the CPU seconds too.

    With ``folder`` the training is kept in ``training`` under it, as ``fit_strategy`` keeps it.
    """
    kind = learner.training_type()
    training = kind(tasks, SimulatedOracle(), seed, replace(kind.settings_type(), **changes))
    trained = training.train(folder=None if folder is None else folder / "training")
    return trained, training.cpu_s


@lru_cache(maxsize=32)
def cheapest(names: tuple[str, ...], tasks: tuple[Task, ...], measure: str) -> tuple[str, float]:
    """Find the strategy with the smallest ``measure``, and that, of some that learn nothing and draw nothing.

    ``measure`` is a key of ``judge``: means over tasks are compared, as in the papers' tables.
    """
    budget = Budget(fit_s=1.0)
    means = {name: judge(place_all(get_strategy(name), tasks, budget, 0).judged, tasks)[measure] for name in names}
    best = min(means, key=means.__getitem__)
    return best, float(means[best])


def beside(random: str, others: tuple[str, ...], tasks: tuple[Task, ...], measure: str, seed: int) -> Row:
    """Give columns to hold a learner against: random placement's ``measure``, and the best of ``others`` and its."""
    shuffled = place_all(get_strategy(random), tasks, Budget(fit_s=1.0), seed)
    best, best_ms = cheapest(others, tasks, measure)
    return {"random_ms": judge(shuffled.judged, tasks)[measure], "best_greedy": best, "best_greedy_ms": best_ms}


class PlacementQuestion(Question[Ints]):
    """A task, whose plans place whole tables in device memory: judged by ``judge``, many placements at once."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.problem)
        self.task = task

    def judge(self, plan: Plan) -> Ints:
        """Give the device of every table, int64 [tables]; raises BadInput for a table that is not whole on one."""
        home = {s.table: s.placement.rank for s in plan.segments if isinstance(s.placement, OnRank)}
        if len(plan.segments) != self.task.tables or len(home) != self.task.tables:
            raise BadInput(f"task {self.problem.name}: the plan splits tables; these tasks place whole ones")
        return np.array([home[table.name] for table in self.problem.tables], dtype=np.int64)


def ask_all(strategy: Strategy, questions: Sequence[Question[J]], budget: Budget, seed: int) -> Answers[J]:
    """Ask a strategy that has learned what it learns, each question by a seed of its own.

    Raises BadInput where it fails otherwise than by declining.
    """
    answers: list[Answer[J] | None] = []
    plan_cpu_s = 0.0
    for number, question in enumerate(questions):
        own_seed = seed * len(questions) + number
        start_cpu_s = time.process_time()
        answer = evaluate(question, strategy, budget, own_seed, sealed=False, fitted=True)
        if isinstance(answer, Answer):
            answers.append(answer)
            plan_cpu_s += answer.spent.plan_cpu_s
        elif answer.outcome is Outcome.INFEASIBLE:
            answers.append(None)
            plan_cpu_s += time.process_time() - start_cpu_s
        else:
            raise BadInput(f"{strategy.name} on {question.problem.name}: {answer.outcome}: {answer.cause}")
    return Answers(answers=tuple(answers), plan_cpu_s=plan_cpu_s / len(questions))


def place_all(strategy: Strategy, tasks: Sequence[Task], budget: Budget, seed: int) -> Answers[Ints]:
    """Have a strategy that has learned what it learns place tasks; raises BadInput for any other kind of plan."""
    return ask_all(strategy, [PlacementQuestion(task) for task in tasks], budget, seed)


def learning_calls(strategy: Strategy, notes: Mapping[str, object]) -> int:
    """Count the oracle calls that a strategy's plan states to have gone into learning; none where it learns not."""
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

    @classmethod
    def of(cls, costs: Sequence[Costs | None], bound_ms: Sequence[float]) -> "Judged":
        """Judge costs [1, devices] of one placement a task, None where there is none; BadInput where all are None."""
        by_task = np.full((3, len(costs)), np.nan)
        for number, cost in enumerate(costs):
            if cost is not None:
                device_ms = (cost.forward_ms + cost.backward_ms)[0]
                by_task[:, number] = cost.overall_ms[0], device_ms.max(), device_ms.min() / device_ms.max()
        if np.isnan(by_task[0]).all():
            raise BadInput("no task was placed: all are infeasible for the strategy")
        return cls(cost_ms=by_task[0], kernel_ms=by_task[1], balance=by_task[2], bound_ms=np.array(bound_ms))

    def means(self) -> dict[str, float | int]:
        """Average over the tasks that were placed, and count them."""
        is_placed = ~np.isnan(self.cost_ms)
        return {
            **{name: float(values[is_placed].mean()) for name, values in vars(self).items()},
            "tasks": int(is_placed.sum()),
            "infeasible": int((~is_placed).sum()),
        }

    def of_tasks(self) -> dict[str, Series]:
        """Give costs task by task, so that strategies can be compared in pairs; to a nanosecond."""
        return {
            f"task_{name}": tuple(None if np.isnan(ms) else round(float(ms), 6) for ms in values)
            for name, values in (("cost_ms", self.cost_ms), ("kernel_ms", self.kernel_ms))
        }


def judge_tasks(placements: Sequence[Ints | None], tasks: Sequence[Task]) -> Judged:
    """Judge placements int64 [tables] on a counted batch; raises BadInput where no task was placed."""
    oracle = SimulatedOracle(counted=True)
    each = zip(placements, tasks, strict=True)
    costs = [None if placement is None else oracle.measure(task, placement[None]) for placement, task in each]
    return Judged.of(costs, [placement_bound_ms(task, counted=True) for task in tasks])


def judge(placements: Sequence[Ints | None], tasks: Sequence[Task]) -> dict[str, float | int]:
    """Average costs over the tasks that were placed, and bounds over the same; milliseconds."""
    return judge_tasks(placements, tasks).means()


def contest_row(judged: Judged, *, fit_cpu_s: float, plan_cpu_s: float, oracle_calls: int) -> SeriesRow:
    """Give the columns that a row of any contest has."""
    return {
        "backend": "simulated",
        **judged.means(),
        **judged.of_tasks(),
        "fit_cpu_s": fit_cpu_s,
        "plan_cpu_s": plan_cpu_s,
        "oracle_calls": oracle_calls,
    }


def _best_found_row(row: TaskRow, folder: Path) -> SeriesRow:
    """Judge the best that local search finds on a row's test tasks: it knows the very batch that it is judged on."""
    tasks = tasks_of(row, JUDGED_SPLIT, folder)
    start = time.process_time()
    placements = [best_found(task, counted=True) for task in tasks]
    plan_cpu_s = (time.process_time() - start) / len(tasks)
    judged = judge_tasks(placements, tasks)
    return {"split": JUDGED_SPLIT, **contest_row(judged, fit_cpu_s=0.0, plan_cpu_s=plan_cpu_s, oracle_calls=0)}


def contest(row: TaskRow, name: str, seed: int, folder: Path, budget: Budget) -> list[SeriesRow]:
    """Fit one strategy on a row's training tasks by one seed, and judge it on its training and test tasks.

    ``BEST_FOUND`` is no strategy, but the best that local search finds, on test tasks only.
    """
    if name == BEST_FOUND:
        return [_best_found_row(row, folder)]
    strategy, fit_cpu_s = fit_strategy(name, tasks_of(row, "train", folder), budget, seed, folder)
    rows: list[SeriesRow] = []
    for split in SPLITS:
        tasks = tasks_of(row, split, folder)
        answers = place_all(strategy, tasks, budget, seed)
        calls = learning_calls(strategy, answers.notes)
        judged = judge_tasks(answers.judged, tasks)
        more = contest_row(judged, fit_cpu_s=fit_cpu_s, plan_cpu_s=answers.plan_cpu_s, oracle_calls=calls)
        rows.append({"split": split, **more})
    return rows
