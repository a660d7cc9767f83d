"""Studies of NeuroShard: its tasks, a stand-in for production, how much pre-training is enough, parts of the search."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pandas as pd

from shardbench.model.strategy import Budget
from shardbench.records.cell import SeriesRow
from shardbench.studies.contest import fitted
from shardbench.studies.contest_study import FIT_S, PLAN_S, SEEDS
from shardbench.studies.contest_tasks import task_table
from shardbench.studies.split_contest import judged_rows
from shardbench.studies.study import Cell, Plot, Study
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.task import Task

from .. import NeuroShard
from ..effort import Effort
from .comparison import compared
from .names import CONTROLS, MORE_MOVES, OTHERS, OURS, SEEDED
from .tasks import PRODUCTION, TaskSet, production, published, test_bags

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained

FEWER_TASKS = 20
"""Of the 100, where every plan takes seconds to count: the first ones."""
SOME_TASKS = 20


class SplitContest(Study):
    """A set of tasks, every strategy on it."""

    columns = ("backend", "split", "task", "cost_ms", "bound_ms", "tasks", "infeasible")
    strategies: tuple[str, ...]
    quick: tuple[str, ...] = ("greedy-lookup", OURS)
    tasks: int | None = None
    """How many of the test tasks; None for all."""
    seeds: Sequence[int] = SEEDS
    plan_s: Mapping[str, float] = MappingProxyType({})
    """Planning budgets of a task that are not PLAN_S: of what searches for as long as it may."""

    def task_set(self, folder: Path) -> TaskSet:
        """What is learned from and judged on."""
        return published(folder)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One a strategy and seed."""
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
        """One row a strategy, beside NeuroShard task by task; and every task."""
        of_tasks = task_table(rows)
        return {self.name: compared(rows, of_tasks), f"{self.name}_tasks": of_tasks}

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Cost of others over NeuroShard's."""
        return [
            Plot(
                title="Cost over NeuroShard's on the tasks that both place, in percent (geometric mean).",
                table=self.name, x="strategy", y="over_ours_pct", bars=True,
            )
        ]  # fmt: skip


class Published(SplitContest):
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
        """See SplitContest."""
        return production(folder)


class Networks(Study):
    """How much pre-training is enough: errors on unseen tables' sets and exchanges, and cost of the plans."""

    name = "networks"
    uses = (OURS,)
    columns = ("backend", "compute_ms2", "compute_error_pct", "compute_spearman")
    SIZES = ((1_000, 60), (5_000, 60), (20_000, 60), (100_000, 20), (100_000, 60), (100_000, 120))
    """Samples and epochs: what is run, fewer of either, and twice the epochs."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One a size."""
        return [{"samples": n, "epochs": epochs} for n, epochs in (self.SIZES[:1] if quick else self.SIZES)]

    def run(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Pre-train, predict samples of the test pool's tables, place the first test tasks."""
        from ..settings import Settings  # noqa: PLC0415
        from ..training import NeuroShardTraining  # noqa: PLC0415 - needs torch, which listing does not
        from .prediction import unseen_errors  # noqa: PLC0415

        tasks = published(folder)
        settings = Settings(samples=int(cell["samples"] or 0), epochs=int(cell["epochs"] or 0))
        training = NeuroShardTraining(tasks.train, SimulatedOracle(), 0, settings)
        trained = training.train(folder=folder / "training")
        fit_cpu_s = training.clock.seconds
        row = placed(trained, Effort(), tasks.test[:SOME_TASKS], folder)
        best = {f"validation_{name}": loss for name, loss in vars(trained.history[-1]).items() if name != "epochs"}
        return [{**row, **best, **unseen_errors(trained, tasks.test), "fit_cpu_s": fit_cpu_s}]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a size."""
        return {self.name: rows[[name for name in rows if not name.startswith("task_")]]}

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Learning curves by size."""
        return [
            Plot(
                title="Mean squared error (ms^2) of the compute network on sets of unseen tables.",
                table=self.name, x="samples", y="compute_ms2", series="epochs", log_y=True,
            )
        ]  # fmt: skip


EFFORTS = MappingProxyType({
    "as published": Effort(),
    "no halving": Effort(splits=0),
    "2 halvings": Effort(splits=2),
    "5 halvings": Effort(splits=5),
    "20 halvings": Effort(splits=20),
    "1 beam": Effort(beams=1),
    "3 candidates": Effort(candidates=3),
    "no caps": Effort(caps=(float("inf"),)),
})  # fmt: skip


class Ablation(Study):
    """What each part of the search adds: halvings, beams, candidates and caps, on the same networks."""

    name = "ablation"
    uses = (OURS,)
    columns = ("backend", "cost_ms", "tasks", "infeasible")
    TASKS = 50
    """Of the 100 the first ones: eight searches take as long as the whole contest."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One an effort."""
        return [{"search": name} for name in (list(EFFORTS)[:2] if quick else EFFORTS)]

    def run(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """The networks of seed 0 on the first test tasks."""
        tasks = published(folder)
        strategy, _ = fitted(OURS, tasks.train, Budget(fit_s=FIT_S), 0, folder)
        if not isinstance(strategy, NeuroShard):
            raise TypeError(f"{OURS} is a {type(strategy).__name__}")
        return [placed(strategy.fitted, EFFORTS[str(cell["search"])], tasks.test[: self.TASKS], folder)]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row an effort: what it costs over the published one, on the tasks that both place."""
        whole = rows.assign(strategy=rows["search"], split="test", task=self.name, seed=0)
        return {self.name: compared(whole, task_table(whole), "as published").rename(columns={"strategy": "search"})}


def placed(trained: "AnyTrained", effort: Effort, tasks: Sequence[Task], folder: Path) -> SeriesRow:
    """What the search makes of tasks with these networks."""
    strategy = NeuroShard()
    strategy.trained, strategy.effort = trained, effort
    (row,) = judged_rows(strategy, tasks, test_bags(folder), Budget(plan_s=PLAN_S), 0)
    return row


def studies() -> Iterable[Study]:
    """In the order they run."""
    return (Networks(), Published(), Ablation(), MoreMoves(), Production())
