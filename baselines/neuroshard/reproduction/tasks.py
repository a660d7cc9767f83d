"""The task sets of NeuroShard's studies: its published ones, and a stand-in for its production model.

NeuroShard (MLSys 2023, ``tools/gen_tasks.py``): 100 tasks, 4 GPUs, 10 to 59 tables, each table's width drawn from six,
15 GB of tables at the most, 4 GB a GPU, fp32. The tables are those of the other papers' pools, with their lookups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.learned.tasks.features import table_features
from shardbench.learned.tasks.pools import Pool, Side, load_pool, machine_of, pool_bags
from shardbench.learned.tasks.task import Task
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.problem import Problem
from shardbench.model.table import Optimizer, Precision, Table
from shardbench.studies.contests.contest import shared_pools
from shardbench.workloads.trace import Bags, Split

from ..shards import shard_loads

WIDTHS = (4, 8, 16, 32, 64, 128)
DEVICES = 4
LEAST_TABLES, MOST_TABLES = 10, 59
CAP_BYTES = 4 * 2**30
MOST_BYTES = 15 * 2**30
MACHINE = "2080ti-1x4"
TASKS = 100
TRAINING_TASKS = 50
TASK_SEED = 0
"""All strategies and seeds get the same tasks."""
PRODUCTION = "production"
PRODUCTION_MACHINE = "a100-40gb-2x8"
PRODUCTION_TASKS = 5
"""Tasks, each by another draw of widths."""


def draw_split_tasks(pool: Pool, count: int, *, seed: int, whole: bool = False) -> tuple[Task, ...]:
    """Draw ``count`` tasks out of a pool; the same seed gives the same tasks, however many.

    A task's number of tables is drawn first, then tables and widths until they are small enough. ``whole``: no single
    table is larger than a device, so that whole tables can be placed.
    """
    machine = machine_of(MACHINE, DEVICES, CAP_BYTES)
    tasks = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        ids, widths = _draw(pool, int(rng.integers(LEAST_TABLES, MOST_TABLES + 1)), rng, whole=whole)
        tasks.append(split_task(pool, ids, widths, machine, f"{pool.name}-split-{number}"))
    return tuple(tasks)


def _draw(pool: Pool, tables: int, rng: np.random.Generator, *, whole: bool) -> tuple[Ints, Ints]:
    rows = np.array([table.rows for table in pool.tables], dtype=np.int64)
    while True:
        ids = rng.permutation(len(rows))[:tables]
        widths = rng.choice(WIDTHS, tables)
        sizes = rows[ids] * widths * Precision.FP32.bytes
        if sizes.sum() <= MOST_BYTES and not (whole and sizes.max() > CAP_BYTES):
            return ids, widths


def split_task(pool: Pool, ids: Ints, widths: Sequence[int] | Ints, machine: Machine, name: str) -> Task:
    """Make a task of the pool's tables ``ids`` at other widths, in fp32 with plain SGD."""
    new_widths = np.asarray(widths, dtype=np.int64)
    tables = tuple(replace(pool.tables[i], dim=int(width)) for i, width in zip(ids, new_widths))
    profiles = tuple(pool.profiles[i] for i in ids)
    problem = Problem.of(
        name, tables, profiles, machine,
        batch_size=pool.batch_size, precision=Precision.FP32, optimizer=Optimizer.SGD,
    )  # fmt: skip
    narrow = Task(
        problem=problem,
        features=table_features(problem),
        expected=pool.expected(ids),
        counted=pool.counted(ids),
    )
    # The pool's loads have the pool's widths and precision; lookups and rows are what counts in them.
    every = np.arange(len(tables))
    expected, counted = (shard_loads(narrow, every, new_widths, counted=kind) for kind in (False, True))
    return replace(narrow, expected=expected, counted=counted)


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
def test_bags() -> Callable[[Table], Bags]:
    """Read the lookups of any pool's table in the batch that plans are judged on."""
    return pool_bags(Split.TEST)[0]
