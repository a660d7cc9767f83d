"""NeuroShard's tasks: tables of very different widths, some larger than a device, on four devices.

NeuroShard (MLSys 2023, ``tools/gen_tasks.py``): 100 tasks, 4 GPUs, 10 to 59 tables, each table's width drawn from six,
15 GB of tables at the most, 4 GB a GPU, fp32. The tables are those of the other papers' pools, with their lookups.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.learned.tasks.column_shards import shard_loads
from shardbench.learned.tasks.features import table_features
from shardbench.learned.tasks.pools import Pool, machine_of
from shardbench.learned.tasks.task import Task
from shardbench.model.machine import Machine
from shardbench.model.problem import Problem
from shardbench.model.table import Optimizer, Precision

WIDTHS = (4, 8, 16, 32, 64, 128)
DEVICES = 4
LEAST_TABLES, MOST_TABLES = 10, 59
CAP_BYTES = 4 * 2**30
MOST_BYTES = 15 * 2**30
MACHINE = "2080ti-1x4"


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
