"""Studies of NeuroShard: its tasks, a stand-in for production, how much pre-training is enough, parts of the search."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shardbench.base.statistics import log_mean
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget
from shardbench.records.cell import SeriesRow
from shardbench.studies.contests.contest import fit_strategy, trained_with
from shardbench.studies.contests.contest_study import FIT_S, PLAN_S, SEEDS
from shardbench.studies.contests.contest_tasks import gain_pct, ratios, task_table
from shardbench.studies.contests.split_contest import judged_rows
from shardbench.studies.study import Cell, Plot, Study, Tables, grid

from .. import NeuroShard, SearchLimits
from ..shards import augmented
from .tasks import PRODUCTION, TaskSet, production, published_tasks, test_bags

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained

OURS = "neuroshard"
UNTRAINED = "neuroshard-untrained"
WHOLE = "neuroshard-whole"
RANDOM = "shuffle"
COST_GREEDY = "greedy-cost"
"""It looks at the oracle's own costs of single tables."""
OTHERS = (
    RANDOM, "greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup", "autoshard", "dreamshard",
    "torchrec-table-wise",
)  # fmt: skip
"""The paper's: the best of them is what a margin is over."""
CONTROLS = (COST_GREEDY, "search", "column-wise", WHOLE, UNTRAINED)
"""Not the paper's: what the cost model, more search, plain halving, and each part of NeuroShard give."""
MORE_MOVES = ("torchrec-fused", "joint")
"""They may split by rows and copy too."""
SEEDED = frozenset({OURS, RANDOM, "dreamshard"})
"""Strategies with randomness that have several seeds; the others' trainings take too long, or they have none."""
FEWER_TASKS = 20
"""Tasks where every plan takes seconds to count: the first of the 100."""
SOME_TASKS = 20
UNSEEN_SAMPLES = 5000
QUICK = ("greedy-lookup", OURS)
"""The strategies of a quick run."""
SIZES = ((1_000, 60), (5_000, 60), (20_000, 60), (100_000, 20), (100_000, 60), (100_000, 120))
"""Samples and epochs: what is run, fewer of either, and twice the epochs."""


def compare(rows: pd.DataFrame, tasks: pd.DataFrame, ours: str = OURS) -> pd.DataFrame:
    """Make one row a strategy, cheapest first: means over the tasks that it placed, and against ``ours``.

    ``over_ours_pct`` is 100 (its cost / ours - 1), the geometric mean over the ``pairs`` tasks that both placed, with
    its 95 % interval by t over them; seeds are averaged first. ``over_bound_pct`` is the same over the proven bound on
    column shards, in the mean of the tasks that it placed.
    """
    lines = []
    for name, part in rows.groupby("strategy", sort=False):
        strategy = str(name)
        own = np.asarray(tasks[strategy], dtype=np.float64)
        value, low, high, pairs = gain_pct(ratios(tasks, strategy, ours) if strategy != ours else ())
        bounds = np.array(part["task_bound_ms"].iloc[0], dtype=np.float64)
        lines.append(
            {
                "strategy": strategy,
                "backend": "simulated",
                "cost_ms": float(np.nanmean(own)),
                "kernel_ms": float(part["kernel_ms"].mean()),
                "balance_min_over_max": float(part["balance"].mean()),
                "over_ours_pct": value,
                "low_pct": low,
                "high_pct": high,
                "pairs": pairs,
                "over_bound_pct": 100.0 * (log_mean((own / bounds)[~np.isnan(own)].tolist()).value - 1.0),
                "tasks": int((~np.isnan(own)).sum()),
                "infeasible": int(np.isnan(own).sum()),
                "seeds": len(part),
                "segments_a_table": float(part["segments_a_table"].mean()),
                "oracle_calls": int(part["oracle_calls"].max()),
                "fit_cpu_s": float(part["fit_cpu_s"].mean()),
                "plan_cpu_s": float(part["plan_cpu_s"].mean()),
            }
        )
    return pd.DataFrame(lines).sort_values("over_ours_pct", kind="stable", na_position="first")


def _contest(
    name: str,
    title: str,
    strategies: Sequence[str],
    task_set: Callable[[Path], TaskSet],
    *,
    tests: int | None = None,
    seeds: Sequence[int] = SEEDS[:1],
    plan_s: Mapping[str, float] = MappingProxyType({}),
) -> Study:
    """Make a study of every strategy on a set of tasks: the first ``tests`` test tasks, or all.

    ``seeds`` are those of strategies with randomness, ``plan_s`` planning budgets of a task that are not PLAN_S, for
    strategies that search as long as they may.
    """

    def cells(quick: bool) -> list[Cell]:
        return [
            {"strategy": strategy, "seed": seed}
            for strategy in strategies
            if strategy in QUICK or not quick
            for seed in (seeds if strategy in SEEDED and not quick else seeds[:1])
        ]

    def judge(folder: Path, strategy: str, seed: int) -> list[SeriesRow]:
        tasks, budget = task_set(folder), Budget(fit_s=FIT_S, plan_s=plan_s.get(strategy, PLAN_S))
        learned, fit_cpu_s = fit_strategy(strategy, tasks.train, budget, seed, folder)
        rows = judged_rows(learned, tasks.test[:tests], test_bags(), budget, seed, fit_cpu_s=fit_cpu_s)
        return [{"split": "test", "task": name, **row} for row in rows]

    def tables(rows: pd.DataFrame) -> Tables:
        of_tasks = task_table(rows)
        return {name: compare(rows, of_tasks), f"{name}_tasks": of_tasks}

    over_ours = Plot(
        title="Cost over NeuroShard's on the tasks that both place, in percent (geometric mean).",
        table=name, x="strategy", y="over_ours_pct", bars=True,
    )  # fmt: skip
    return Study(
        name=name, title=title, strategies=strategies, cells=cells, judge=judge, summary=tables, plots=(over_ours,),
        columns=("backend", "split", "task", "cost_ms", "bound_ms", "tasks", "infeasible"),
    )  # fmt: skip


PUBLISHED_TASKS = _contest(
    "table",
    "The paper's 100 tasks: cost of the slowest device's kernels and exchanges, beside NeuroShard's.",
    (OURS, *OTHERS, *CONTROLS),
    published_tasks,
    seeds=SEEDS,
)
MOVES = _contest(
    "moves",
    "The first 20 of these tasks for strategies that may also split by rows and copy tables, counted anew.",
    (OURS, *MORE_MOVES),
    published_tasks,
    tests=FEWER_TASKS,
    plan_s=MappingProxyType({"joint": 5.0}),
)
ALL_TABLES = _contest(
    PRODUCTION,
    "A stand-in for its production model: all 428 test tables on 16 A100 of two nodes, five draws of widths.",
    (OURS, *OTHERS, *CONTROLS),
    production,
)


def unseen_errors(trained: "AnyTrained", tasks: Sequence[Task]) -> SeriesRow:
    """Give each network's error on fresh samples of the tasks' tables at all widths, under training profiles.

    ``*_ms2`` mean squared, ``*_error_pct`` mean absolute over mean, ``*_spearman`` rank correlation over all samples
    and devices.
    """
    # What listing does not need takes seconds to import.
    import torch  # noqa: PLC0415
    from scipy.stats import spearmanr  # noqa: PLC0415

    from ..training import NETWORKS, SET_TABLES, WIDTHS, collect  # noqa: PLC0415

    tables, rng = augmented(tasks, WIDTHS), np.random.default_rng(7)
    data = collect(tables, trained.scaling, SimulatedOracle(), most=SET_TABLES, count=UNSEEN_SAMPLES, rng=rng)
    with torch.no_grad():
        predictions = data.predict(trained.networks, np.arange(UNSEEN_SAMPLES))
    row: dict[str, float] = {}
    for name in NETWORKS:
        ours, truth = (values.numpy().astype(np.float64).reshape(-1) for values in predictions[name])
        row[f"{name}_ms2"] = float(np.square(ours - truth).mean())
        row[f"{name}_error_pct"] = 100.0 * float(np.abs(ours - truth).mean() / truth.mean())
        row[f"{name}_spearman"] = float(spearmanr(ours, truth).statistic)
    return row


def _pre_train(folder: Path, samples: int, epochs: int) -> SeriesRow:
    """Pre-train, predict samples of the test pool's tables, place the first test tasks."""
    tasks = published_tasks(folder)
    trained, fit_cpu_s = trained_with(NeuroShard(), tasks.train, 0, folder, samples=samples, epochs=epochs)
    row = place(trained, SearchLimits(), tasks.test[:SOME_TASKS])
    best = {f"validation_{name}": loss for name, loss in trained.history[-1].items()}
    return {**row, **best, **unseen_errors(trained, tasks.test), "fit_cpu_s": fit_cpu_s}


PRE_TRAINING = Study(
    name="networks",
    title="How much pre-training is enough: errors on unseen tables' sets and exchanges, and cost of the plans.",
    cells=lambda quick: [{"samples": n, "epochs": epochs} for n, epochs in SIZES[: 1 if quick else None]],
    judge=_pre_train,
    # One row a size, without the tasks.
    summary=lambda rows: rows[[name for name in rows if not name.startswith("task_")]],
    uses=(OURS,),
    columns=("backend", "compute_ms2", "compute_error_pct", "compute_spearman"),
    plots=(
        Plot(
            title="Mean squared error (ms^2) of the compute network on sets of unseen tables.",
            table="networks", x="samples", y="compute_ms2", series="epochs", log_y=True,
        ),
    ),
)  # fmt: skip


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


SEARCHED_TASKS = 50
"""Number of test tasks, the first of the 100: eight searches take as long as the whole contest."""


def _search(folder: Path, search: str) -> SeriesRow:
    """Search the first test tasks with the networks of seed 0."""
    tasks = published_tasks(folder)
    strategy, _ = fit_strategy(OURS, tasks.train, Budget(fit_s=FIT_S), 0, folder)
    if not isinstance(strategy, NeuroShard):
        raise TypeError(f"{OURS} is a {type(strategy).__name__}")
    return place(strategy.fitted, SEARCHES[search], tasks.test[:SEARCHED_TASKS])


def _search_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a search: what it costs over the published one, on the tasks that both place."""
    whole = rows.assign(strategy=rows["search"], split="test", task="ablation", seed=0)
    return compare(whole, task_table(whole), "as published").rename(columns={"strategy": "search"})


ABLATION = Study(
    name="ablation",
    title="What each part of the search adds: halvings, beams, candidates and caps, on the same networks.",
    cells=lambda quick: grid(search=list(SEARCHES)[: 2 if quick else None]),
    judge=_search,
    summary=_search_table,
    uses=(OURS,),
    columns=("backend", "cost_ms", "tasks", "infeasible"),
)


def place(trained: "AnyTrained", limits: SearchLimits, tasks: Sequence[Task]) -> SeriesRow:
    """Place tasks by a search with these networks."""
    strategy = NeuroShard()
    strategy.trained, strategy.limits = trained, limits
    (row,) = judged_rows(strategy, tasks, test_bags(), Budget(plan_s=PLAN_S), 0)
    return row


def studies() -> Sequence[Study]:
    """Give the studies in the order in which they run."""
    return (PRE_TRAINING, PUBLISHED_TASKS, ABLATION, MOVES, ALL_TABLES)
