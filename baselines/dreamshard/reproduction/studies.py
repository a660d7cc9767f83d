"""Studies of DreamShard: its result table, mixed widths, transfer, its region, real kernels."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.statistics import t_mean
from shardbench.learned.learner import Learner
from shardbench.learned.tasks.oracle import Oracle, SimulatedOracle
from shardbench.learned.tasks.pools import MIXED_ROWS, TaskRow, draw_tasks, load_pool, pool_bags
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import (
    SPLITS,
    cheapest,
    judge,
    place_all,
    shared_pools,
    tasks_of,
    trained_with,
)
from shardbench.studies.contests.contest_study import SEEDS, transfer_study
from shardbench.studies.regions.placement_region import placement_region
from shardbench.studies.study import Row, Study, grid
from shardbench.trials.discovery import get_strategy
from shardbench.workloads.trace import Split

from .. import DreamShard
from .contests import EQUAL_WIDTHS, MIXED_WIDTHS, PUBLIC_TABLES, ROWS
from .names import GREEDIES, MEASURED_STRATEGIES, OURS

MEAN_WIDTH = 4.0
"""The variant with relative widths has this mean: it is of the size of the other scores."""
PARTS = ("kernel_ms", "exchange_ms_modelled", "cost_ms_partly_modelled", "modelled_cost_ms")
"""Numbers that a row of `measured` has of a strategy and a test task."""
BATCH = 1024
"""A CPU's kernels take a thousand times as long as a GPU's."""
TIMED_ROW = TaskRow(name="DLRM-20 (4)", tables=20, devices=4, machine="cpu-1x4", cap_bytes=5 << 30)
TRAIN_TASKS, TEST_TASKS = 50, 10
TRAINED_ON = ("DLRM-20 (4)", "DLRM-40 (4)", "DLRM-40 (8)", "DLRM-160 (8)")


def _policies(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a trained policy: what those of the row itself cost over its cost, where it was not trained."""
    tests, at_home = rows["task_set"] == "test", rows["trained_on"] == rows["used_on"]
    own_ms = rows[tests & at_home].groupby("used_on")["cost_ms"].mean()
    transfers = rows[tests & ~at_home]
    ratios = transfers["used_on"].map(own_ms) / transfers["cost_ms"]
    log_ratios = np.log(ratios).groupby([transfers["trained_on"], transfers["seed"]], sort=False)
    means = np.exp(log_ratios.mean()).rename("trained_there_over_ours").reset_index()
    return means.assign(rows=log_ratios.count().to_numpy(), backend="simulated")


TRANSFER = transfer_study(
    title="DreamShard trained on one row and used on another, and on tasks with a share of unseen tables, untuned.",
    version=3,
    strategy=OURS,
    greedies=GREEDIES,
    measure="cost_ms",
    beside="bound_ms",
    task_rows={name: ROWS[name] for name in TRAINED_ON},
    training_rows=TRAINED_ON,
    unseen_row="DLRM-40 (4)",
    columns=("backend", "used_on", "task_set", "unseen_tables_pct", "cost_ms", "best_greedy", "best_greedy_ms"),
    summary=lambda rows: {"transfer": rows, "transfer_policies": _policies(rows)},
)


def _with_width(folder: Path, task: str, width: str, seed: int) -> Row:
    """Train with widths so, all else as published; cost on training and test tasks, and the best heuristic's."""
    tasks = {split: tasks_of(ROWS[task], split, folder) for split in SPLITS}
    mean_width = None if width == "raw" else MEAN_WIDTH
    trained, fit_cpu_s = trained_with(DreamShard(), tasks["train"], seed, folder, mean_width=mean_width)
    placements = {split: DreamShard().place(trained, tasks[split]) for split in SPLITS}
    return {
        **{f"{split}_cost_ms": judge(placements[split], tasks[split])["cost_ms"] for split in SPLITS},
        **{f"best_greedy_{split}_ms": cheapest(GREEDIES, tasks[split], "cost_ms")[1] for split in SPLITS},
        "oracle_calls": trained.oracle_calls,
        "fit_cpu_s": fit_cpu_s,
    }


def _width_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a set of tasks and kind of width: margins over the best greedy, means over seeds."""
    by = rows.groupby(["task", "width"], sort=False)
    margins = {
        f"margin_{split}_pct": 100.0 * (by[f"best_greedy_{split}_ms"].mean() / by[f"{split}_cost_ms"].mean() - 1.0)
        for split in SPLITS
    }
    table = by.agg(backend=("backend", "first"), n=("seed", "size")).assign(
        **margins,
        test_cost_ms_mean=by["test_cost_ms"].mean(),
        test_cost_ms_std=by["test_cost_ms"].std(),
        oracle_calls=by["oracle_calls"].max(),
        fit_cpu_s=by["fit_cpu_s"].mean(),
    )
    return table.reset_index()


WIDTHS = Study(
    name="widths",
    title="Widths fed raw, as published, and divided by a quarter of their mean: 4 for the mean table.",
    cells=lambda quick: [] if quick else grid(
        task=[row.name for row in MIXED_ROWS], width=("raw", "relative"), seed=SEEDS
    ),
    judge=_with_width,
    summary=_width_table,
    uses=GREEDIES,
    columns=("backend", "train_cost_ms", "test_cost_ms", "best_greedy_train_ms", "best_greedy_test_ms"),
)  # fmt: skip


REGION = placement_region(
    title="Cost with exchanges, the best greedy's over DreamShard's, at 64 points of four knobs. Each point is one "
    "short training for tasks of its own; `effort` is the share of the published updates of the cost network and of "
    "the policy, in ten iterations of ten measured placements as published.",
    strategy=OURS,
    scaled=("cost_updates", "policy_updates"),
    greedies=GREEDIES,
    judged="cost_ms",
)


def _measure(folder: Path, task: str, batch_size: int, seed: int) -> list[Row]:
    """Train on the training split's kernel times, measure everyone's plans on the test split's."""
    # It needs torch and fbgemm, which listing does not.
    from shardbench.learned.tasks.measured_oracle import MeasuredOracle  # noqa: PLC0415

    splits = (Split.TRAIN, Split.TEST)
    teacher, judge = (MeasuredOracle(*pool_bags(of, batch_size=BATCH)) for of in splits)
    return timed_rows(seed, folder, teacher, judge)


def timed_rows(
    seed: int, folder: Path, teacher: Oracle, judge: Oracle, strategies: Sequence[str] = MEASURED_STRATEGIES
) -> list[Row]:
    """Make one row a strategy and test task: DreamShard learns from one oracle, the other judges all plans.

    Kernels are theirs, exchanges are modelled; beside them stands what the cost model says of all.
    """
    pools = {side: load_pool(side, shared_pools(folder), batch_size=BATCH) for side in ("train", "test")}
    train_tasks = draw_tasks(TIMED_ROW, pools["train"], TRAIN_TASKS, seed=0)
    tasks = draw_tasks(TIMED_ROW, pools["test"], TEST_TASKS, seed=0)
    rows = []
    for name in strategies:
        strategy, calls = get_strategy(name), 0
        if isinstance(strategy, Learner):
            training = strategy.training(train_tasks, teacher, seed)
            trained = training.train(folder=folder / "timed") if strategy.trains else training.untrained()
            plans, calls = strategy.place(trained, tasks), trained.oracle_calls
        else:
            plans = [plan for plan in place_all(strategy, tasks, Budget(fit_s=1.0), seed).judged if plan is not None]
        rows += [{**row, "training_placements": calls} for row in _rows_of(name, tasks, plans, judge)]
    return rows


def _rows_of(name: str, tasks: Sequence[Task], plans: Sequence[np.ndarray], judge: Oracle) -> list[Row]:
    """Make one row a task. The slowest device decides each: by kernels, by exchanges, and by both together."""
    modelled = SimulatedOracle(counted=True)
    rows: list[Row] = []
    for number, (task, placement) in enumerate(zip(tasks, plans, strict=True)):
        cost = judge.measure(task, placement[None])
        rows.append(
            {
                "strategy": name,
                "test_task": number,
                "kernel_ms": float((cost.forward_ms + cost.backward_ms).max()),
                "exchange_ms_modelled": float((cost.forward_comm_ms + cost.backward_comm_ms).max()),
                "cost_ms_partly_modelled": float(cost.overall_ms[0]),
                "modelled_cost_ms": float(modelled.measure(task, placement[None]).overall_ms[0]),
            }
        )
    return rows


def paired_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a strategy: means of PARTS over test tasks, and how much slower than DreamShard on the same tasks.

    ``kernel_over_ours_ms`` and ``cost_over_ours_ms`` are means over tasks of what the strategy takes
    longer than DreamShard, with 95 % intervals by t over the tasks; absent where DreamShard is.
    """
    ours = rows[rows["strategy"] == OURS].set_index("test_task")
    lines = []
    for strategy, part in rows.groupby("strategy", sort=False):
        of_task = part.set_index("test_task")
        row = {name: rows[name].iloc[0] for name in ("task", "batch_size", "seed")}
        row |= {"strategy": strategy, "backend": "measured"}
        row |= {f"{name}_mean": float(part[name].mean()) for name in PARTS}
        row["kernel_ms_sem"] = float(part["kernel_ms"].sem())
        if len(ours):
            for short, name in (("kernel", "kernel_ms"), ("cost", "cost_ms_partly_modelled")):
                difference = t_mean([float(x) for x in of_task[name] - ours[name]])
                row |= {
                    f"{short}_over_ours_ms": difference.value,
                    f"{short}_over_ours_low_ms": difference.low,
                    f"{short}_over_ours_high_ms": difference.high,
                }
        row |= {"tasks": len(part), "training_placements": int(part["training_placements"].max())}
        lines.append(row)
    return pd.DataFrame(lines)


MEASURED = Study(
    name="measured",
    title="DreamShard trained and judged on real FBGEMM kernel times of this machine (DLRM-20 on 4); exchanges "
    "modelled.",
    version=2,
    # Not in a quick run: it takes minutes of kernels.
    cells=lambda quick: [] if quick else [{"task": "DLRM-20 (4)", "batch_size": 1024, "seed": 0}],
    judge=_measure,
    summary=paired_table,
    backend="measured",
    uses=MEASURED_STRATEGIES,
    exclusive=True,
    columns=("strategy", "test_task", "backend", *PARTS),
)


def studies() -> Sequence[Study]:
    """Give the studies in the order in which they run."""
    return (EQUAL_WIDTHS, MIXED_WIDTHS, PUBLIC_TABLES, TRANSFER, WIDTHS, REGION, MEASURED)
