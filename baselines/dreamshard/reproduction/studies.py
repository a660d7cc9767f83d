"""Studies of DreamShard: its result table, mixed widths, transfer, what training does to it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pandas as pd

from shardbench.base.arrays import Floats, Ints
from shardbench.model.strategy import Budget
from shardbench.studies.contest import (
    BEST_FOUND,
    SPLITS,
    TASKS,
    Placed,
    cheapest,
    fitted,
    judge,
    place_all,
    tasks_of,
)
from shardbench.studies.contest_study import FIT_S, SEEDS, ContestStudy
from shardbench.studies.study import Cell, Plot, Row, Study
from shardbench.studies.training_study import TrainingStudy
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.pools import DLRM_ROWS, MIXED_ROWS
from shardbench.tasks.task import Task

from .. import DreamShard
from .paired_differences import PARTS, paired_table
from .paper_table import published_as, published_ms

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained

OURS = "dreamshard"
UNTRAINED = "dreamshard-untrained"
RANDOM = "shuffle"
GREEDIES = ("greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup")
RNN = "rnn-rl"
PUBLISHED = (RANDOM, *GREEDIES, RNN, OURS)
CONTROLS = (UNTRAINED, "greedy-cost", "autoshard", "autoshard-untrained", "search", BEST_FOUND)
"""What the paper's table lacks: untrained networks, greedy on single-table costs, AutoShard, the best found."""
ASKING = ("greedy-cost", "search", BEST_FOUND)
"""Learn nothing, but ask the cost model about every task that they place: their calls are left empty."""
DRAWN = ("greedy-dim", "greedy-lookup", "greedy-size-lookup", UNTRAINED, OURS, "greedy-cost", BEST_FOUND)
"""In plots; a strategy far below random would flatten all others."""
SEEDED = frozenset({RANDOM, RNN, OURS, UNTRAINED, "autoshard", "autoshard-untrained"})
QUICK_ROWS = ("DLRM-20 (4)", "DLRM-40 (4)", "Mixed-20 (2)")
ROWS = {row.name: row for row in (*DLRM_ROWS, *MIXED_ROWS)}


class Contest(ContestStudy):
    """Every strategy on the paper's rows: mean cost over 50 tasks, mean and spread over seeds, beside the paper's."""

    quick_rows = QUICK_ROWS
    strategies = (*PUBLISHED, *CONTROLS)
    seeded = SEEDED

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a task, split and strategy."""
        return {self.name: contest_table(rows)}

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Gain over random and distance to the bound of the strategies that matter, all of them in the table."""
        return [
            Plot(
                title="Speed-up over random placement on test and training tasks, in percent.",
                table=self.name, x="task", y="vs_random_pct", series="strategy", facet="split", shown=DRAWN,
            ),
            Plot(
                title="Cost over the proven lower bound on test and training tasks, in percent.",
                table=self.name, x="task", y="over_bound_pct", series="strategy", facet="split", shown=DRAWN,
            ),
        ]  # fmt: skip


class EqualWidths(Contest):
    """The paper's rows on open tables (width 16): mean cost over 50 tasks, mean and std over seeds."""

    name = "table"
    task_rows = MappingProxyType({row.name: row for row in DLRM_ROWS})


class MixedWidths(Contest):
    """Stand-ins for the paper's production rows: widths 16 to 128 drawn for every open table."""

    name = "mixed"
    task_rows = MappingProxyType({row.name: row for row in MIXED_ROWS})


def contest_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, the relation to random and to the bound, and the paper's numbers."""
    made = []
    random_ms = rows[rows["strategy"] == RANDOM].groupby(["task", "split"])["cost_ms"].mean().to_dict()
    for (task, split, strategy), part in rows.groupby(["task", "split", "strategy"], sort=False):
        mean_ms = float(part["cost_ms"].mean())
        ours = random_ms.get((task, split))
        paper = published_ms(task, split, strategy)
        paper_random = published_ms(task, split, RANDOM)
        bound = float(part["bound_ms"].mean())
        made.append(
            {
                "task": task,
                "devices": ROWS[task].devices,
                "split": split,
                "strategy": strategy,
                "backend": "simulated",
                "cost_ms_mean": mean_ms,
                "cost_ms_std": float(part["cost_ms"].std(ddof=1)),
                "n": len(part),
                "vs_random_pct": 100.0 * (ours / mean_ms - 1.0) if ours else None,
                "published_as": published_as(task),
                "paper_ms": paper,
                "paper_vs_random_pct": 100.0 * (paper_random / paper - 1.0) if paper and paper_random else None,
                "bound_ms": bound,
                "over_bound_pct": 100.0 * (mean_ms / bound - 1.0),
                "kernel_ms_mean": float(part["kernel_ms"].mean()),
                "balance_mean": float(part["balance"].mean()),
                "tasks": int(part["tasks"].min()),
                "infeasible": int(part["infeasible"].max()),
                "oracle_calls": None if strategy in ASKING else int(part["oracle_calls"].max()),
                "fit_cpu_s": float(part["fit_cpu_s"].mean()),
                "plan_cpu_s": float(part["plan_cpu_s"].mean()),
            }
        )
    order = {name: number for number, name in enumerate(ROWS)}
    return pd.DataFrame(made).sort_values(
        ["task", "split", "cost_ms_mean"], key=lambda c: c.map(order) if c.name == "task" else c, kind="stable"
    )


class Transfer(Study):
    """DreamShard trained on one row and used on another, and on tasks with a share of unseen tables, untuned."""

    name = "transfer"
    uses = GREEDIES
    version = 2
    columns = ("backend", "split", "cost_ms")
    ROWS = ("DLRM-20 (4)", "DLRM-40 (4)", "DLRM-80 (4)", "DLRM-40 (8)", "DLRM-80 (8)", "DLRM-160 (8)")
    UNSEEN_ROW = "DLRM-40 (4)"
    SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One a training row and seed; each is used on all rows."""
        if quick:
            return [{"trained_on": self.ROWS[0], "seed": 0}]
        return [{"trained_on": name, "seed": seed} for name in self.ROWS for seed in SEEDS]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train once; cost on the test tasks of every row, and by share of unseen tables on one of them.

        Tasks of two shares differ only in the tables that were replaced.
        """
        seed, budget = int(cell["seed"] or 0), Budget(fit_s=FIT_S)
        trained_on = ROWS[str(cell["trained_on"])]
        strategy, _ = fitted(OURS, tasks_of(trained_on, "train", folder), budget, seed, folder)
        sets: list[tuple[str, float | None, tuple[Task, ...]]] = [
            (name, None, tasks_of(ROWS[name], "test", folder)) for name in self.ROWS
        ]
        sets += [
            (self.UNSEEN_ROW, share, tasks_of(ROWS[self.UNSEEN_ROW], "train", folder, TASKS, share))
            for share in self.SHARES
        ]
        rows: list[Row] = []
        for name, share, tasks in sets:
            ours = judge(place_all(strategy, tasks, budget, seed), tasks)
            best, best_ms = cheapest(GREEDIES, tasks, "cost_ms")
            rows.append(
                {
                    "backend": "simulated",
                    "used_on": name,
                    "unseen_tables_pct": 100.0 if share is None else 100.0 * share,
                    "cost_ms": ours["cost_ms"],
                    "bound_ms": ours["bound_ms"],
                    "best_greedy": best,
                    "best_greedy_ms": best_ms,
                    "infeasible": ours["infeasible"],
                    "task_set": "test" if share is None else "shares",
                }
            )
        return rows

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a pair of rows: cost, against training on the row itself, and against lookup-greedy."""
        own = rows[(rows["trained_on"] == rows["used_on"]) & (rows["task_set"] == "test")]
        own_ms = own.groupby("used_on")["cost_ms"].mean().to_dict()
        made = []
        keys = ["trained_on", "used_on", "task_set", "unseen_tables_pct"]
        for (trained, used, task_set, unseen), part in rows.groupby(keys, sort=False):
            mean_ms = float(part["cost_ms"].mean())
            trained_there = own_ms.get(used) if task_set == "test" else None
            made.append(
                {
                    "trained_on": trained,
                    "used_on": used,
                    "task_set": task_set,
                    "unseen_tables_pct": unseen,
                    "backend": "simulated",
                    "cost_ms_mean": mean_ms,
                    "cost_ms_std": float(part["cost_ms"].std(ddof=1)),
                    "n": len(part),
                    "over_trained_there_pct": 100.0 * (mean_ms / trained_there - 1.0) if trained_there else None,
                    "bound_ms": float(part["bound_ms"].mean()),
                    "over_bound_pct": 100.0 * (mean_ms / float(part["bound_ms"].mean()) - 1.0),
                    "best_greedy": part["best_greedy"].iloc[0],
                    "margin_pct": 100.0 * (float(part["best_greedy_ms"].mean()) / mean_ms - 1.0),
                    "infeasible": int(part["infeasible"].max()),
                }
            )
        return {self.name: pd.DataFrame(made)}


class Training(TrainingStudy):
    """Cost of the policy's plans and error of the cost network after each iteration of training."""

    version = 2
    columns = ("backend", "iteration", "train_cost_ms", "test_cost_ms", "test_bound_ms", "test_over_bound_pct")
    strategy = OURS
    task_rows = MappingProxyType({name: ROWS[name] for name in ("DLRM-40 (4)", "DLRM-80 (8)", "Mixed-40 (4)")})
    quick_rows = QUICK_ROWS[1:2]

    def stage_row(
        self,
        trained: "AnyTrained",
        of_train: Mapping[str, float | int],
        of_test: Mapping[str, float | int],
        policy_errors: Floats,
    ) -> Row:
        """Means over tasks; ``policy_bias_pct`` is ``policy_error_pct`` with its sign."""
        return {
            "iteration": trained.updates,
            "train_cost_ms": of_train["cost_ms"],
            "test_cost_ms": of_test["cost_ms"],
            "test_bound_ms": of_test["bound_ms"],
            "test_over_bound_pct": 100.0 * (of_test["cost_ms"] / of_test["bound_ms"] - 1.0),
            "policy_bias_pct": 100.0 * float(policy_errors.mean()),
        }

    def errors(self, trained: "AnyTrained", task: Task, placements: Ints) -> Floats:
        """Of the placements' overall costs."""
        from .prediction import cost_errors  # noqa: PLC0415 - needs torch, which listing does not

        return cost_errors(trained, task, placements)

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Learning curves."""
        return [
            Plot(
                title="Mean cost (ms) of the policy's plans for test tasks after each iteration; 0 is untrained.",
                table=self.name, x="iteration", y="test_cost_ms", series="seed", facet="task",
            ),
            Plot(
                title="Mean absolute relative error of the cost network, on random placements of test tasks.",
                table=self.name, x="iteration", y="random_error_pct", series="seed", facet="task", log_y=True,
            ),
        ]  # fmt: skip


class Effort(Study):
    """How the margin over the greedy heuristics moves with more training than the paper's 10 iterations."""

    name = "effort"
    uses = GREEDIES
    columns = ("backend", "train_cost_ms", "test_cost_ms", "best_greedy_train_ms", "best_greedy_test_ms")
    ITERATIONS = (10, 30, 100)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Two rows of equal and two of mixed widths; none in a quick run."""
        names = () if quick else ("DLRM-40 (4)", "DLRM-100 (4)", "Mixed-20 (2)", "Mixed-40 (4)")
        return [
            {"task": name, "iterations": iterations, "seed": seed}
            for name in names
            for iterations in self.ITERATIONS
            for seed in SEEDS
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train so long, all else as published; cost on training and test tasks, and the best heuristic's."""
        from ..settings import Settings  # noqa: PLC0415
        from ..training import DreamShardTraining  # noqa: PLC0415 - needs torch, which listing does not

        row, seed = ROWS[str(cell["task"])], int(cell["seed"] or 0)
        tasks = {split: tasks_of(row, split, folder) for split in SPLITS}
        greedy_ms = {f"best_greedy_{split}_ms": cheapest(GREEDIES, tasks[split], "cost_ms")[1] for split in SPLITS}
        start = time.process_time()
        settings = Settings(iterations=int(cell["iterations"] or 0))
        trained = DreamShardTraining(tasks["train"], SimulatedOracle(), seed, settings).train()
        fit_cpu_s = time.process_time() - start
        placed = {s: Placed(placements=tuple(DreamShard().place(trained, tasks[s])), plan_cpu_s=0.0) for s in SPLITS}
        return [
            {
                "backend": "simulated",
                **{f"{split}_cost_ms": judge(placed[split], tasks[split])["cost_ms"] for split in SPLITS},
                "oracle_calls": trained.oracle_calls,
                "fit_cpu_s": fit_cpu_s,
                **greedy_ms,
            }
        ]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a task and number of iterations: margins over the best greedy, means over seeds."""
        made = []
        for (task, iterations), part in rows.groupby(["task", "iterations"], sort=False):
            made.append(
                {
                    "task": task,
                    "iterations": iterations,
                    "backend": "simulated",
                    "n": len(part),
                    **{
                        f"margin_{split}_pct": 100.0
                        * (float(part[f"best_greedy_{split}_ms"].mean()) / float(part[f"{split}_cost_ms"].mean()) - 1.0)
                        for split in SPLITS
                    },
                    "test_cost_ms_mean": float(part["test_cost_ms"].mean()),
                    "test_cost_ms_std": float(part["test_cost_ms"].std(ddof=1)),
                    "oracle_calls": int(part["oracle_calls"].max()),
                    "fit_cpu_s": float(part["fit_cpu_s"].mean()),
                }
            )
        return {self.name: pd.DataFrame(made)}

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Margin against iterations."""
        return [
            Plot(
                title="Margin (%) over the best of four greedies on test tasks, against iterations of training.",
                table=self.name, x="iterations", y="margin_test_pct", series="task", log_x=True,
            )
        ]  # fmt: skip


class MeasuredKernels(Study):
    """DreamShard trained and judged on real FBGEMM kernel times of this machine (DLRM-20 on 4); exchanges modelled."""

    name = "measured"
    uses = (RANDOM, *GREEDIES, "greedy-cost", OURS, UNTRAINED)
    version = 2
    exclusive = True
    columns = ("strategy", "test_task", "backend", *PARTS)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One training; none in a quick run, since it takes minutes of kernels."""
        return [] if quick else [{"task": "DLRM-20 (4)", "batch_size": 1024, "seed": 0}]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train on the training split's kernel times, measure everyone's plans on the test split's."""
        from .kernel_times import measured_rows  # noqa: PLC0415 - needs torch and fbgemm, which listing does not

        return measured_rows(int(cell["seed"] or 0), folder)

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a strategy: means over test tasks, and how much slower than DreamShard on the same tasks."""
        cell = {name: rows[name].iloc[0] for name in ("task", "batch_size", "seed")}
        made = paired_table(rows.drop(columns=list(cell))).assign(**cell)
        return {self.name: made[[*cell, *made.columns.drop(list(cell))]]}


def studies() -> Iterable[Study]:
    """In the order they run."""
    return (EqualWidths(), MixedWidths(), Transfer(), Training(), Effort(), MeasuredKernels())
