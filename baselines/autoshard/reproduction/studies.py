"""Studies of AutoShard: its own tasks, DreamShard's, transfer, training, unrolls, its region, and seconds."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats, Ints
from shardbench.model.discovery import get_strategy
from shardbench.model.strategy import Budget
from shardbench.runs.evaluate import RulesOnly, answer_of
from shardbench.studies.contest import (
    BEST_FOUND,
    cheapest,
    fitted,
    judge,
    place_all,
    shared_pools,
    tasks_of,
)
from shardbench.studies.contest_study import FIT_S, SEEDS, ContestStudy
from shardbench.studies.contest_tasks import task_table
from shardbench.studies.study import Cell, Plot, Row, Study
from shardbench.studies.training_study import TrainingStudy
from shardbench.tasks.pools import DLRM_ROWS, POOL_TABLES, TaskRow, join, load_pool, machine_of
from shardbench.tasks.task import Task

from .region import Region
from .unroll import Unroll

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained

OURS = "autoshard"
GREEDIES = ("greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup")
STRATEGIES = (
    "shuffle", *GREEDIES, OURS, "autoshard-untrained", "greedy-cost", "dreamshard", "search", BEST_FOUND,
)  # fmt: skip
ASKING = ("greedy-cost", "search", BEST_FOUND)
"""Learn nothing, but ask the cost model about every task that they place: their calls are left empty."""
DRAWN = ("greedy-dim", "greedy-lookup", "greedy-size-lookup", OURS, "greedy-cost", "dreamshard", "search", BEST_FOUND)
"""In plots; a strategy far below random would flatten all others."""
SEEDED = frozenset({"shuffle", OURS, "autoshard-untrained", "dreamshard"})
CAP_BYTES = 7 * 2**30  # deviation 11
ROOMY_BYTES = 40 << 30
"""Memory of a device that holds its share of all 856 tables."""
WIDTHS = (16, 32)
ROWS = {
    row.name: row
    for row in (
        TaskRow(name=f"Auto-{tables} ({devices})", tables=tables, devices=devices, widths=WIDTHS, cap_bytes=CAP_BYTES)
        for tables, devices in ((40, 4), (80, 8), (120, 8), (40, 2))
    )
}
"""The repository's tasks are 80 tables of widths 16 and 32 on 8 devices of 7 GB; the others test transfer."""
JUDGED = ("Auto-40 (4)", "Auto-80 (8)")
BESIDE = "greedy-lookup"
"""Whose time placing is held against, in the same process: the papers' best heuristic on tables of one width."""


class KernelContest(ContestStudy):
    """Kernel time of the slowest device, min/max balance, over 50 tasks of a row."""

    seeded = SEEDED

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a row of tasks, split and strategy; and kernel times, which AutoShard balances, task by task."""
        made = []
        random_ms = rows[rows["strategy"] == "shuffle"].groupby(["task", "split"])["kernel_ms"].mean().to_dict()
        for (task, split, strategy), part in rows.groupby(["task", "split", "strategy"], sort=False):
            mean_ms = float(part["kernel_ms"].mean())
            base = random_ms.get((task, split))
            made.append(
                {
                    "task": task,
                    "devices": self.task_rows[task].devices,
                    "split": split,
                    "strategy": strategy,
                    "backend": "simulated",
                    "kernel_ms_mean": mean_ms,
                    "kernel_ms_std": float(part["kernel_ms"].std(ddof=1)),
                    "n": len(part),
                    "vs_random_pct": 100.0 * (base / mean_ms - 1.0) if base else None,
                    "balance_min_over_max": float(part["balance"].mean()),
                    "cost_ms_mean": float(part["cost_ms"].mean()),
                    "cost_bound_ms": float(part["bound_ms"].mean()),
                    "cost_over_bound_pct": 100.0 * float(part["cost_ms"].mean() / part["bound_ms"].mean() - 1.0),
                    "tasks": int(part["tasks"].min()),
                    "infeasible": int(part["infeasible"].max()),
                    "oracle_calls": None if strategy in ASKING else int(part["oracle_calls"].max()),
                    "fit_cpu_s": float(part["fit_cpu_s"].mean()),
                    "plan_cpu_s": float(part["plan_cpu_s"].mean()),
                }
            )
        order = {name: number for number, name in enumerate(self.task_rows)}
        means = pd.DataFrame(made).sort_values(
            ["task", "split", "kernel_ms_mean"],
            key=lambda column: column.map(order) if column.name == "task" else column,
            kind="stable",
        )
        if "task_kernel_ms" not in rows:
            return {self.name: means}
        return {self.name: means, f"{self.name}_tasks": task_table(rows, "kernel_ms")}

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Gain over random."""
        return [
            Plot(
                title="Embedding kernel time of the slowest device: speed-up over random placement, in percent.",
                table=self.name, x="task", y="vs_random_pct", series="strategy", facet="split", shown=DRAWN, bars=True,
            )
        ]  # fmt: skip


class Contest(KernelContest):
    """AutoShard's tasks (widths 16 and 32): kernel time of the slowest device, min/max balance, over 50 tasks."""

    name = "table"
    task_rows = MappingProxyType({name: ROWS[name] for name in JUDGED})
    quick_rows = JUDGED
    strategies = STRATEGIES


class EqualWidths(KernelContest):
    """The ten equal-width rows of DreamShard's table, by what AutoShard balances: kernel time; heuristics beside it."""

    name = "equal"
    # Its records have means over tasks alone, which is all that is asked of them: AutoShard has not changed since.
    version = 1
    task_rows = MappingProxyType({row.name: row for row in DLRM_ROWS})
    quick_rows = ("DLRM-20 (4)",)
    strategies = ("shuffle", *GREEDIES, OURS)
    same_as = ("dreamshard", "table")

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Gain over random as a line: the rows have an order."""
        return [
            Plot(
                title="Embedding kernel time of the slowest device: speed-up over random placement, in percent.",
                table=self.name, x="task", y="vs_random_pct", series="strategy", facet="split", shown=DRAWN[:4],
            )
        ]  # fmt: skip


class Transfer(Study):
    """AutoShard trained on one row and used, untuned, on other numbers of tables and devices and on unseen tables."""

    name = "transfer"
    uses = GREEDIES
    version = 2
    columns = ("backend", "used_on", "task_set", "unseen_tables_pct", "kernel_ms", "best_greedy", "best_greedy_ms")
    SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One a training row and seed."""
        if quick:
            return [{"trained_on": JUDGED[0], "seed": 0}]
        return [{"trained_on": name, "seed": seed} for name in JUDGED for seed in SEEDS]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train once; judge on the test tasks of every row, and by share of unseen tables on the training row.

        Tasks of two shares differ only in the tables that were replaced.
        """
        seed, budget, own = int(cell["seed"] or 0), Budget(fit_s=FIT_S), str(cell["trained_on"])
        strategy, _ = fitted(OURS, tasks_of(ROWS[own], "train", folder), budget, seed, folder)
        sets = [(name, "test", 1.0, tasks_of(row, "test", folder)) for name, row in ROWS.items()]
        sets += [(own, "shares", share, tasks_of(ROWS[own], "train", folder, unseen=share)) for share in self.SHARES]
        rows: list[Row] = []
        for name, task_set, share, tasks in sets:
            ours = judge(place_all(strategy, tasks, budget, seed), tasks)
            best, best_ms = cheapest(GREEDIES, tasks, "kernel_ms")
            rows.append(
                {
                    "backend": "simulated",
                    "used_on": name,
                    "task_set": task_set,
                    "unseen_tables_pct": 100.0 * share,
                    "kernel_ms": ours["kernel_ms"],
                    "balance": ours["balance"],
                    "best_greedy": best,
                    "best_greedy_ms": best_ms,
                    "infeasible": ours["infeasible"],
                }
            )
        return rows


class Training(TrainingStudy):
    """Reward, kernel time of the policy's plans and error of the cost network after each stage of training."""

    columns = ("backend", "stage", "updates", "reward", "train_kernel_ms", "test_kernel_ms")
    strategy = OURS
    task_rows = MappingProxyType({JUDGED[0]: ROWS[JUDGED[0]]})
    quick_rows = JUDGED[:1]

    def stage_row(
        self,
        trained: "AnyTrained",
        of_train: Mapping[str, float | int],
        of_test: Mapping[str, float | int],
        policy_errors: Floats,
    ) -> Row:
        """``reward`` is the mean of the episodes sampled in the stage; the rest are means over tasks."""
        return {
            "stage": len(trained.history),
            "updates": trained.updates,
            "reward": trained.history[-1].reward if trained.history else None,
            "train_kernel_ms": of_train["kernel_ms"],
            "test_kernel_ms": of_test["kernel_ms"],
            "test_balance": of_test["balance"],
        }

    def errors(self, trained: "AnyTrained", task: Task, placements: Ints) -> Floats:
        """Of the kernel ms of devices with tables."""
        from .prediction import kernel_errors  # noqa: PLC0415 - needs torch, which listing does not

        return kernel_errors(trained, task, placements)

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Learning curves."""
        return [
            Plot(
                title="Kernel time (ms) of the slowest device, plans for test tasks after each stage; 0 is untrained.",
                table=self.name, x="stage", y="test_kernel_ms", series="seed", facet="task", log_y=True,
            ),
            Plot(
                title="Mean absolute relative error of the cost network, on random placements of test tasks.",
                table=self.name, x="stage", y="random_error_pct", series="seed", facet="task", log_y=True,
            ),
        ]  # fmt: skip


class Placing(Study):
    """CPU seconds to place 80, 400 and 856 tables on 8 devices with a trained policy, beside the lookup heuristic's."""

    name = "placing"
    version = 2
    exclusive = True
    uses = (BESIDE,)
    columns = ("backend", "plan_cpu_s_median", "plan_cpu_s_max", "busy_threads", "beside_cpu_s_median", "times_beside")
    REPEATS = 7

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One a number of tables."""
        return [{"strategy": OURS, "tables": n, "devices": 8} for n in ((80,) if quick else (80, 400, 856))]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train briefly (placing costs the same whatever was learned), place a few times, each after the heuristic.

        ``busy_threads`` are CPU seconds over wall seconds of our plans; ``times_beside`` is the median of ours over
        the heuristic's CPU seconds, pair by pair.
        """
        budget, row = Budget(fit_s=20.0), ROWS[JUDGED[1]]
        strategy, _ = fitted(OURS, tasks_of(row, "train", folder), budget, 0, folder)
        pools = [load_pool(side, shared_pools(folder), widths=WIDTHS) for side in ("train", "test")]
        wanted = int(cell["tables"] or 0)
        own, others = np.arange(min(wanted, POOL_TABLES)), np.arange(max(0, wanted - POOL_TABLES))
        parts = ((pools[0], own), (pools[1], others)) if len(others) else ((pools[0], own),)
        problem = join(parts, machine_of(row.machine, int(cell["devices"] or 0), ROOMY_BYTES), "placing").problem
        question, heuristic = RulesOnly(problem), get_strategy(BESIDE)
        pairs = [
            (answer_of(question, heuristic, budget).spent, answer_of(question, strategy, budget, fitted=True).spent)
            for _ in range(self.REPEATS)
        ]
        ours, beside = np.array([[our.plan_cpu_s, its.plan_cpu_s] for its, our in pairs]).T
        return [
            {
                "backend": "measured",
                "plan_cpu_s_median": float(np.median(ours)),
                "plan_cpu_s_max": float(ours.max()),
                "busy_threads": float(ours.sum() / sum(our.plan_s for _, our in pairs)),
                "beside": BESIDE,
                "beside_cpu_s_median": float(np.median(beside)),
                "times_beside": float(np.median(ours / beside)),
                "n": self.REPEATS,
            }
        ]


def studies() -> Iterable[Study]:
    """In the order they run."""
    return (Contest(), EqualWidths(), Transfer(), Training(), Unroll(), Region(), Placing())
