"""Studies of AutoShard: its own tasks, DreamShard's, transfer, training, unrolls, its region, and seconds."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats, Ints
from shardbench.model.strategy import Budget
from shardbench.runs.discovery import get_strategy
from shardbench.runs.evaluate import RulesOnly, answer_of
from shardbench.studies.contests.contest import BEST_FOUND, SIDES, fitted, pool_of, tasks_of
from shardbench.studies.contests.contest_study import ContestStudy
from shardbench.studies.contests.contest_tasks import task_table
from shardbench.studies.contests.training_study import TrainingStudy
from shardbench.studies.contests.transfer_study import TransferStudy
from shardbench.studies.study import Cell, Plot, Row, Study
from shardbench.tasks.pools import DLRM_ROWS, POOL_TABLES, join, machine_of
from shardbench.tasks.task import Task

from .names import COST_GREEDY, DREAMSHARD, GREEDIES, LOOKUP, OURS, RANDOM, SEARCH, UNTRAINED
from .region import AutoShardRegion
from .rows import JUDGED, ROWS, WIDTHS
from .size_feature import SizeFeature
from .unroll import Unroll

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained

STRATEGIES = (RANDOM, *GREEDIES, OURS, UNTRAINED, COST_GREEDY, DREAMSHARD, SEARCH, BEST_FOUND)
DRAWN = (*GREEDIES[1:], OURS, COST_GREEDY, DREAMSHARD, SEARCH, BEST_FOUND)
"""Plots show these; a strategy far below random would flatten all others."""
ROOMY_BYTES = 40 << 30
"""Memory of a device that holds its share of all 856 tables."""


class KernelContest(ContestStudy):
    """Kernel time of the slowest device, min/max balance, over 50 tasks of a row."""

    seeded = frozenset({RANDOM, OURS, UNTRAINED, DREAMSHARD})
    random = RANDOM
    measure = "kernel_ms"
    asking = (COST_GREEDY, SEARCH, BEST_FOUND)

    def own_columns(self, task: str, split: str, strategy: str, part: pd.DataFrame) -> Mapping[str, object]:
        """Give the balance, and DreamShard's cost, which has a bound."""
        cost_ms, bound_ms = float(part["cost_ms"].mean()), float(part["bound_ms"].mean())
        return {
            "balance_min_over_max": float(part["balance"].mean()),
            "cost_ms_mean": cost_ms,
            "cost_bound_ms": bound_ms,
            "cost_over_bound_pct": 100.0 * (cost_ms / bound_ms - 1.0),
        }

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make a table of means; and kernel times, which AutoShard balances, task by task."""
        means = {self.name: self.means(rows)}
        return means | ({f"{self.name}_tasks": task_table(rows, "kernel_ms")} if "task_kernel_ms" in rows else {})

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot the gain over random placement."""
        return [
            Plot(
                title="Embedding kernel time of the slowest device: speed-up over random placement, in percent.",
                table=self.name, x="task", y="vs_random_pct", series="strategy", facet="split", shown=DRAWN, bars=True,
            )
        ]  # fmt: skip


class OwnTasks(KernelContest):
    """AutoShard's tasks (widths 16 and 32): kernel time of the slowest device, min/max balance, over 50 tasks."""

    name = "table"
    task_rows = MappingProxyType({name: ROWS[name] for name in JUDGED})
    quick_rows = JUDGED
    strategies = STRATEGIES


class KernelsOfEqualWidths(KernelContest):
    """The ten equal-width rows of DreamShard's table, by what AutoShard balances: kernel time; heuristics beside it."""

    name = "equal"
    version = 1
    task_rows = MappingProxyType({row.name: row for row in DLRM_ROWS})
    quick_rows = ("DLRM-20 (4)",)
    strategies = (RANDOM, *GREEDIES, OURS)
    same_as = ("dreamshard", "table")

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot the gain over random placement as a line: the rows have an order."""
        return [
            Plot(
                title="Embedding kernel time of the slowest device: speed-up over random placement, in percent.",
                table=self.name, x="task", y="vs_random_pct", series="strategy", facet="split", shown=DRAWN[:4],
            )
        ]  # fmt: skip


class AutoShardTransfer(TransferStudy):
    """AutoShard trained on one row and used, untuned, on other numbers of tables and devices and on unseen tables."""

    uses = GREEDIES
    version = 2
    columns = ("backend", "used_on", "task_set", "unseen_tables_pct", "kernel_ms", "best_greedy", "best_greedy_ms")
    strategy = OURS
    measure, beside = "kernel_ms", "balance"
    task_rows = MappingProxyType(ROWS)
    trained_on = JUDGED


class AutoShardCurve(TrainingStudy):
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
        """Give the stage's means: ``reward`` is that of the episodes sampled in it, the rest are over tasks."""
        return {
            "stage": len(trained.history),
            "updates": trained.updates,
            "reward": trained.history[-1].reward if trained.history else None,
            "train_kernel_ms": of_train["kernel_ms"],
            "test_kernel_ms": of_test["kernel_ms"],
            "test_balance": of_test["balance"],
        }

    def errors(self, trained: "AnyTrained", task: Task, placements: Ints) -> Floats:
        """Give the errors of the kernel ms of devices with tables."""
        from .prediction import kernel_errors  # noqa: PLC0415 - needs torch, which listing does not

        return kernel_errors(trained, task, placements)

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot the learning curves by stage."""
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


class PlacingSeconds(Study):
    """CPU seconds to place 80 to 856 tables on 8 devices with a trained policy, beside the lookup heuristic's."""

    name = "placing"
    version = 2
    exclusive = True
    uses = (LOOKUP,)
    columns = ("backend", "plan_cpu_s_median", "plan_cpu_s_max", "busy_threads", "beside_cpu_s_median", "times_beside")
    REPEATS = 7

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one cell a number of tables."""
        return [
            {"strategy": OURS, "tables": n, "devices": 8} for n in ((80,) if quick else (80, 200, 300, 400, 600, 856))
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train briefly (placing costs the same whatever was learned), place a few times, each after the heuristic.

        ``busy_threads`` are CPU seconds over wall seconds of our plans; ``times_beside`` is the median of ours over
        the heuristic's CPU seconds, pair by pair.
        """
        budget, row = Budget(fit_s=20.0), ROWS[JUDGED[1]]
        strategy, _ = fitted(OURS, tasks_of(row, "train", folder), budget, 0, folder)
        pools = [pool_of(side, folder, WIDTHS) for side in SIDES]
        wanted = int(cell["tables"] or 0)
        own, others = np.arange(min(wanted, POOL_TABLES)), np.arange(max(0, wanted - POOL_TABLES))
        parts = ((pools[0], own), (pools[1], others)) if len(others) else ((pools[0], own),)
        problem = join(parts, machine_of(row.machine, int(cell["devices"] or 0), ROOMY_BYTES), "placing").problem
        question, heuristic = RulesOnly(problem), get_strategy(LOOKUP)
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
                "beside": LOOKUP,
                "beside_cpu_s_median": float(np.median(beside)),
                "times_beside": float(np.median(ours / beside)),
                "n": self.REPEATS,
            }
        ]


def studies() -> Iterable[Study]:
    """Give the studies in the order in which they run."""
    return (
        OwnTasks(),
        KernelsOfEqualWidths(),
        AutoShardTransfer(),
        AutoShardCurve(),
        Unroll(),
        SizeFeature(),
        AutoShardRegion(),
        PlacingSeconds(),
    )
