"""Studies of DreamShard: its result table, mixed widths, transfer, what training does to it, equal effort."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats, Ints
from shardbench.studies.contests.contest import JUDGED_SPLIT, SPLITS, cheapest, judge, tasks_of, trained_with
from shardbench.studies.contests.contest_study import SEEDS
from shardbench.studies.contests.training_study import TrainingStudy
from shardbench.studies.contests.transfer_study import TransferStudy
from shardbench.studies.study import Cell, Plot, Row, Study
from shardbench.tasks.pools import DLRM_ROWS, MIXED_ROWS
from shardbench.tasks.task import Task

from .. import DreamShard
from .beside_paper import machine_table
from .contests import ROWS, EqualWidths, MixedWidths
from .effort import EqualEffort
from .names import COST_GREEDY, GREEDIES, LOOKUP, OURS, RANDOM, UNTRAINED
from .paired_differences import PARTS, paired_table
from .region import DreamShardRegion

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained

MEAN_WIDTH = 4.0
"""The variant with relative widths has this mean: it is of the size of the other scores."""
CURVES = ("DLRM-40 (4)",)
"""Rows whose trainings are looked at stage by stage."""


class DreamShardTransfer(TransferStudy):
    """DreamShard trained on one row and used on another, and on tasks with a share of unseen tables, untuned."""

    uses = GREEDIES
    version = 3
    columns = ("backend", "split", "cost_ms")
    strategy = OURS
    measure, beside = "cost_ms", "bound_ms"
    trained_on = ("DLRM-20 (4)", "DLRM-40 (4)", "DLRM-40 (8)", "DLRM-160 (8)")
    task_rows = MappingProxyType({name: ROWS[name] for name in trained_on})
    unseen_on = "DLRM-40 (4)"

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make one row a pair of rows: cost, against training on the row itself, and against lookup-greedy."""
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
        return {self.name: pd.DataFrame(made), f"{self.name}_policies": _policies(rows, own_ms)}


def _policies(rows: pd.DataFrame, own_ms: Mapping[object, float]) -> pd.DataFrame:
    """Make one row a trained policy: what those of the row itself cost over its cost, where it was not trained."""
    used = rows[(rows["task_set"] == "test") & (rows["trained_on"] != rows["used_on"])]
    ratios = used["used_on"].map(own_ms) / used["cost_ms"]
    grouped = np.log(ratios).groupby([used["trained_on"], used["seed"]], sort=False)
    found = np.exp(grouped.mean()).rename("trained_there_over_ours").reset_index()
    return found.assign(rows=grouped.count().to_numpy(), backend="simulated")


class DreamShardCurve(TrainingStudy):
    """Cost of the policy's plans and error of the cost network after each iteration of training."""

    version = 3
    columns = ("backend", "iteration", "train_cost_ms", "test_cost_ms", "test_bound_ms", "test_over_bound_pct")
    strategy = OURS
    task_rows = MappingProxyType({name: ROWS[name] for name in CURVES})
    quick_rows = CURVES

    def stage_row(
        self,
        trained: "AnyTrained",
        of_train: Mapping[str, float | int],
        of_test: Mapping[str, float | int],
        policy_errors: Floats,
    ) -> Row:
        """Average over tasks; ``policy_bias_pct`` is ``policy_error_pct`` with its sign."""
        return {
            "iteration": trained.updates,
            "train_cost_ms": of_train["cost_ms"],
            "test_cost_ms": of_test["cost_ms"],
            "test_bound_ms": of_test["bound_ms"],
            "test_over_bound_pct": 100.0 * (of_test["cost_ms"] / of_test["bound_ms"] - 1.0),
            "policy_bias_pct": 100.0 * float(policy_errors.mean()),
        }

    def errors(self, trained: "AnyTrained", task: Task, placements: Ints) -> Floats:
        """Give the errors of the placements' overall costs."""
        from .prediction import cost_errors  # noqa: PLC0415 - needs torch, which listing does not

        return cost_errors(trained, task, placements)

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot the learning curves by iteration."""
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


class Widths(Study):
    """Widths fed raw, as published, and divided by a quarter of their mean: 4 for the mean table."""

    name = "widths"
    uses = GREEDIES
    columns = ("backend", "train_cost_ms", "test_cost_ms", "best_greedy_train_ms", "best_greedy_test_ms")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give rows of mixed widths, both ways, with all seeds; none in a quick run."""
        if quick:
            return []
        return [
            {"task": row.name, "width": width, "seed": seed}
            for row in MIXED_ROWS
            for width in ("raw", "relative")
            for seed in SEEDS
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train with widths so, all else as published; cost on training and test tasks, and the best heuristic's."""
        row, seed = ROWS[str(cell["task"])], int(cell["seed"] or 0)
        tasks = {split: tasks_of(row, split, folder) for split in SPLITS}
        greedy_ms = {f"best_greedy_{split}_ms": cheapest(GREEDIES, tasks[split], "cost_ms")[1] for split in SPLITS}
        mean_width = None if cell["width"] == "raw" else MEAN_WIDTH
        trained, fit_cpu_s = trained_with(DreamShard(), tasks["train"], seed, folder, mean_width=mean_width)
        placed = {split: DreamShard().place(trained, tasks[split]) for split in SPLITS}
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
        """Make one row a set of tasks and kind of width: margins over the best greedy, means over seeds."""
        made = []
        for (task, width), part in rows.groupby(["task", "width"], sort=False):
            made.append(
                {
                    "task": task,
                    "width": width,
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


class Machines(Study):
    """The equal-width rows under two devices' constants, beside the paper's: which of them its rows may have run on."""

    name = "machines"
    uses = (LOOKUP,)
    columns = ("backend", "cost_ms")
    MACHINES = ("2080ti-1x4", "v100-32gb-1x8")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give all rows on both machines."""
        rows = DLRM_ROWS[:1] if quick else DLRM_ROWS
        return [{"task": row.name, "machine": machine} for machine in self.MACHINES for row in rows]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Average the cost of lookup-greedy on the test tasks: it needs no training, and is the paper's best."""
        row = replace(ROWS[str(cell["task"])], machine=str(cell["machine"]))
        _, cost_ms = cheapest((LOOKUP,), tasks_of(row, JUDGED_SPLIT, folder), "cost_ms")
        return [{"backend": "simulated", "cost_ms": cost_ms}]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Give least, geometric mean and most of ours over the paper's milliseconds, by devices and machine."""
        return {self.name: machine_table(rows)}


class MeasuredKernels(Study):
    """DreamShard trained and judged on real FBGEMM kernel times of this machine (DLRM-20 on 4); exchanges modelled."""

    name = "measured"
    uses = (RANDOM, *GREEDIES, COST_GREEDY, OURS, UNTRAINED)
    version = 2
    exclusive = True
    columns = ("strategy", "test_task", "backend", *PARTS)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one training; none in a quick run, since it takes minutes of kernels."""
        return [] if quick else [{"task": "DLRM-20 (4)", "batch_size": 1024, "seed": 0}]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train on the training split's kernel times, measure everyone's plans on the test split's."""
        from .kernel_times import measured_rows  # noqa: PLC0415 - needs torch and fbgemm, which listing does not

        return measured_rows(int(cell["seed"] or 0), folder)

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make one row a strategy: means over test tasks, and how much slower than DreamShard on the same tasks."""
        cell = {name: rows[name].iloc[0] for name in ("task", "batch_size", "seed")}
        made = paired_table(rows.drop(columns=list(cell))).assign(**cell)
        return {self.name: made[[*cell, *made.columns.drop(list(cell))]]}


def studies() -> Iterable[Study]:
    """Give the studies in the order in which they run."""
    return (
        EqualWidths(),
        MixedWidths(),
        DreamShardTransfer(),
        DreamShardCurve(),
        Widths(),
        Machines(),
        EqualEffort(),
        DreamShardRegion(),
        MeasuredKernels(),
    )
