"""Studies of NeuroShard: its tasks, a stand-in for production, how much pre-training is enough, parts of the search."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pandas as pd

from shardbench.model.strategy import Budget
from shardbench.records.cell import SeriesRow
from shardbench.studies.contests.contest import fitted, trained_with
from shardbench.studies.contests.contest_study import FIT_S, PLAN_S, SEEDS
from shardbench.studies.contests.contest_tasks import task_table
from shardbench.studies.contests.split_contest import judged_rows
from shardbench.studies.study import Cell, Plot, Study
from shardbench.tasks.task import Task

from .. import NeuroShard
from ..limits import SearchLimits
from .comparison import compared
from .names import CONTROLS, MORE_MOVES, OTHERS, OURS, SEEDED
from .tasks import PRODUCTION, TaskSet, production, published, test_bags

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained

FEWER_TASKS = 20
"""Tasks where every plan takes seconds to count: the first of the 100."""
SOME_TASKS = 20


class SplitContest(Study):
    """A set of tasks, every strategy on it."""

    columns = ("backend", "split", "task", "cost_ms", "bound_ms", "tasks", "infeasible")
    strategies: tuple[str, ...]
    quick: tuple[str, ...] = ("greedy-lookup", OURS)
    tasks: int | None = None
    """Number of test tasks, the first ones; None for all."""
    seeds: Sequence[int] = SEEDS
    plan_s: Mapping[str, float] = MappingProxyType({})
    """Planning budgets of a task that are not PLAN_S, for strategies that search as long as they may."""

    def task_set(self, folder: Path) -> TaskSet:
        """Draw the tasks to learn from and to judge on."""
        return published(folder)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one cell a strategy and seed."""
        return [
            {"strategy": name, "seed": seed}
            for name in self.strategies
            if name in self.quick or not quick
            for seed in (self.seeds if name in SEEDED and not quick else self.seeds[:1])
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Fit on the training tasks, place and judge the test tasks."""
        name, seed, tasks = str(cell["strategy"]), int(cell["seed"] or 0), self.task_set(folder)
        budget = Budget(fit_s=FIT_S, plan_s=self.plan_s.get(name, PLAN_S))
        strategy, fit_cpu_s = fitted(name, tasks.train, budget, seed, folder)
        rows = judged_rows(strategy, tasks.test[: self.tasks], test_bags(folder), budget, seed, fit_cpu_s=fit_cpu_s)
        return [{"split": "test", "task": self.name, **row} for row in rows]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make one row a strategy, beside NeuroShard task by task; and every task."""
        of_tasks = task_table(rows)
        return {self.name: compared(rows, of_tasks), f"{self.name}_tasks": of_tasks}

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot the cost of others over NeuroShard's."""
        return [
            Plot(
                title="Cost over NeuroShard's on the tasks that both place, in percent (geometric mean).",
                table=self.name, x="strategy", y="over_ours_pct", bars=True,
            )
        ]  # fmt: skip


class PublishedTasks(SplitContest):
    """The paper's 100 tasks: cost of the slowest device's kernels and exchanges, beside NeuroShard's."""

    name = "table"
    strategies = (OURS, *OTHERS, *CONTROLS)


class MoreMoves(SplitContest):
    """The first 20 of these tasks for strategies that may also split by rows and copy tables, counted anew."""

    name = "moves"
    strategies = (OURS, *MORE_MOVES)
    tasks = FEWER_TASKS
    seeds = SEEDS[:1]
    plan_s = MappingProxyType({"joint": 5.0})


class Production(SplitContest):
    """A stand-in for its production model: all 428 test tables on 16 A100 of two nodes, five draws of widths."""

    name = PRODUCTION
    strategies = (OURS, *OTHERS, *CONTROLS)
    seeds = SEEDS[:1]

    def task_set(self, folder: Path) -> TaskSet:
        """Draw the stand-in for the production model."""
        return production(folder)


class PreTraining(Study):
    """How much pre-training is enough: errors on unseen tables' sets and exchanges, and cost of the plans."""

    name = "networks"
    uses = (OURS,)
    columns = ("backend", "compute_ms2", "compute_error_pct", "compute_spearman")
    SIZES = ((1_000, 60), (5_000, 60), (20_000, 60), (100_000, 20), (100_000, 60), (100_000, 120))
    """Samples and epochs: what is run, fewer of either, and twice the epochs."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one cell a size."""
        return [{"samples": n, "epochs": epochs} for n, epochs in (self.SIZES[:1] if quick else self.SIZES)]

    def run(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Pre-train, predict samples of the test pool's tables, place the first test tasks."""
        from .prediction import unseen_errors  # noqa: PLC0415 - needs torch, which listing does not

        tasks = published(folder)
        samples, epochs = int(cell["samples"] or 0), int(cell["epochs"] or 0)
        trained, fit_cpu_s = trained_with(NeuroShard(), tasks.train, 0, folder, samples=samples, epochs=epochs)
        row = placed(trained, SearchLimits(), tasks.test[:SOME_TASKS], folder)
        best = {f"validation_{name}": loss for name, loss in vars(trained.history[-1]).items() if name != "epochs"}
        return [{**row, **best, **unseen_errors(trained, tasks.test), "fit_cpu_s": fit_cpu_s}]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Leave out the tasks: one row a size."""
        return {self.name: rows[[name for name in rows if not name.startswith("task_")]]}

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot the learning curves by size."""
        return [
            Plot(
                title="Mean squared error (ms^2) of the compute network on sets of unseen tables.",
                table=self.name, x="samples", y="compute_ms2", series="epochs", log_y=True,
            )
        ]  # fmt: skip


SEARCHES = MappingProxyType({
    "as published": SearchLimits(),
    "no halving": SearchLimits(splits=0),
    "2 halvings": SearchLimits(splits=2),
    "5 halvings": SearchLimits(splits=5),
    "20 halvings": SearchLimits(splits=20),
    "1 beam": SearchLimits(beams=1),
    "3 candidates": SearchLimits(candidates=3),
    "no caps": SearchLimits(caps=(float("inf"),)),
})  # fmt: skip


class SearchAblation(Study):
    """What each part of the search adds: halvings, beams, candidates and caps, on the same networks."""

    name = "ablation"
    uses = (OURS,)
    columns = ("backend", "cost_ms", "tasks", "infeasible")
    TASKS = 50
    """Number of test tasks, the first of the 100: eight searches take as long as the whole contest."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one cell a search."""
        return [{"search": name} for name in (list(SEARCHES)[:2] if quick else SEARCHES)]

    def run(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Search the first test tasks with the networks of seed 0."""
        tasks = published(folder)
        strategy, _ = fitted(OURS, tasks.train, Budget(fit_s=FIT_S), 0, folder)
        if not isinstance(strategy, NeuroShard):
            raise TypeError(f"{OURS} is a {type(strategy).__name__}")
        return [placed(strategy.fitted, SEARCHES[str(cell["search"])], tasks.test[: self.TASKS], folder)]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make one row a search: what it costs over the published one, on the tasks that both place."""
        whole = rows.assign(strategy=rows["search"], split="test", task=self.name, seed=0)
        return {self.name: compared(whole, task_table(whole), "as published").rename(columns={"strategy": "search"})}


def placed(trained: "AnyTrained", limits: SearchLimits, tasks: Sequence[Task], folder: Path) -> SeriesRow:
    """Place tasks by a search with these networks."""
    strategy = NeuroShard()
    strategy.trained, strategy.limits = trained, limits
    (row,) = judged_rows(strategy, tasks, test_bags(folder), Budget(plan_s=PLAN_S), 0)
    return row


def studies() -> Iterable[Study]:
    """Give the studies in the order in which they run."""
    return (PreTraining(), PublishedTasks(), SearchAblation(), MoreMoves(), Production())
