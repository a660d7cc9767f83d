"""The task sets of NeuroShard's studies: its published ones, and a stand-in for its production model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardbench.learned.tasks.pools import Side, load_pool, pool_bags
from shardbench.learned.tasks.split_tasks import WIDTHS, draw_split_tasks, split_task
from shardbench.learned.tasks.task import Task
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.table import Table
from shardbench.studies.contests.contest import shared_pools
from shardbench.workloads.trace import Bags, Split

TASKS = 100
TRAINING_TASKS = 50
TASK_SEED = 0
"""All strategies and seeds get the same tasks."""
PRODUCTION = "production"
PRODUCTION_MACHINE = "a100-40gb-2x8"
PRODUCTION_TASKS = 5
"""Tasks, each by another draw of widths."""


@dataclass(frozen=True, kw_only=True)
class TaskSet:
    """Tasks to learn from and to be judged on: of disjoint pools of tables (deviation 10)."""

    train: tuple[Task, ...]
    test: tuple[Task, ...]


@lru_cache(maxsize=2)
def published_tasks(folder: Path) -> TaskSet:
    """Draw the published tasks; those to learn from hold no table larger than a device: others place whole tables."""
    pools = {side: load_pool(side, shared_pools(folder)) for side in ("train", "test")}
    return TaskSet(
        train=draw_split_tasks(pools["train"], TRAINING_TASKS, seed=TASK_SEED, whole=True),
        test=draw_split_tasks(pools["test"], TASKS, seed=TASK_SEED),
    )


@lru_cache(maxsize=2)
def production(folder: Path) -> TaskSet:
    """Draw tasks of all tables of a pool on 16 devices of two nodes; a task is a draw of widths.

    The production model is not public, nor what it runs on. Many tables of unlike widths on devices with room are what
    is known of such models; its terabytes are not here.
    """
    machine = production_machine()

    def draw(side: Side) -> tuple[Task, ...]:
        pool = load_pool(side, shared_pools(folder))
        ids = np.arange(len(pool.tables))
        widths = [np.random.default_rng([TASK_SEED, n]).choice(WIDTHS, len(ids)) for n in range(PRODUCTION_TASKS)]
        return tuple(split_task(pool, ids, of, machine, f"{side}-production-{n}") for n, of in enumerate(widths))

    return TaskSet(train=draw("train"), test=draw("test"))


def production_machine() -> Machine:
    """Describe two nodes of eight A100, whose host memory holds no tables."""
    machine = load_machine(PRODUCTION_MACHINE)
    return replace(machine, topology=replace(machine.topology, uvm_bytes=0, host_bytes=0))


@lru_cache(maxsize=1)
def test_bags(folder: Path) -> Callable[[Table], Bags]:
    """Read the lookups of any pool's table in the batch that plans are judged on."""
    return pool_bags(Split.TEST, shared_pools(folder))[0]
