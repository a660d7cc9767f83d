"""DreamShard on real kernel times: trained and judged by FBGEMM's kernels on this machine."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardbench.learned.learner import Learner
from shardbench.learned.tasks.measured_oracle import MeasuredOracle
from shardbench.learned.tasks.oracle import Oracle, SimulatedOracle
from shardbench.learned.tasks.pools import TaskRow, draw_tasks, load_pool, pool_bags
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import place_all, shared_pools
from shardbench.studies.study import Row
from shardbench.trials.discovery import get_strategy
from shardbench.workloads.trace import Split

from .names import MEASURED_STRATEGIES

BATCH = 1024
"""A CPU's kernels take a thousand times as long as a GPU's."""
ROW = TaskRow(name="DLRM-20 (4)", tables=20, devices=4, machine="cpu-1x4", cap_bytes=5 << 30)
TRAIN_TASKS, TEST_TASKS = 50, 10


def measured_rows(seed: int, folder: Path) -> list[Row]:
    """Make one row a strategy and test task: kernels measured, exchanges modelled, and what the cost model says of all.

    ``folder`` keeps what the kernels took, so that a killed run goes on where it was.
    """
    return timed_rows(seed, folder, _oracle(Split.TRAIN, folder), _oracle(Split.TEST, folder))


def timed_rows(
    seed: int, folder: Path, teacher: Oracle, judge: Oracle, strategies: Sequence[str] = MEASURED_STRATEGIES
) -> list[Row]:
    """Make these rows where DreamShard learns from one oracle and the other judges the plans of all strategies."""
    pools = {side: load_pool(side, shared_pools(folder), batch_size=BATCH) for side in ("train", "test")}
    train_tasks = draw_tasks(ROW, pools["train"], TRAIN_TASKS, seed=0)
    tasks = draw_tasks(ROW, pools["test"], TEST_TASKS, seed=0)
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


def _oracle(split: Split, folder: Path) -> MeasuredOracle:
    bags, lookups = pool_bags(split, shared_pools(folder), batch_size=BATCH)
    path = folder / f"times-dlrm20-{split.value}.jsonl"
    return MeasuredOracle(bags, lookups, path)
