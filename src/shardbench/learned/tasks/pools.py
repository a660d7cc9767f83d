"""The papers' tasks: disjoint pools of training and test tables, and tasks drawn from them.

DreamShard (NeurIPS 2022, ``gen_tasks.py``): 856 tables shuffled once, 428 to a side, 50 + 50 tasks a
row, tables drawn without replacement, fp16 weights, batches of 65,536, 5 GB a GPU (read as GiB, the
unit of the published size feature).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass as pydantic_dataclass

from shardbench.base.arrays import Floats, Ints
from shardbench.base.atomic import write_atomically
from shardbench.base.code import JUDGE_VERSION
from shardbench.base.errors import BadInput
from shardbench.base.reading import file_bytes
from shardbench.base.serialise import STRICT, content_hash, from_json, to_json
from shardbench.cost.load import Load, segment_load
from shardbench.cost.lookups import CountedLookups
from shardbench.learned.tasks.features import table_features
from shardbench.learned.tasks.task import Task
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Tier
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Optimizer, Precision, Table
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.trace import Bags, Split
from shardbench.workloads.workload import Workload

Side = Literal["train", "test"]

POOL_TABLES = 428
BATCH = 65_536
SYNTHETIC, PUBLIC = "synthetic", "dlrm_datasets"
PUBLIC_BATCH = BATCH // 2
"""The public file has one batch: one half of its samples trains, the other is tested."""
DATA = Path("data")
"""The folder with the user's files, as the commands' --data has it by default; studies are told no other."""
CAP_BYTES = 5 * 2**30
MIXED_WIDTHS = (16, 32, 64, 128)
_BATCH_NUMBER = 0


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One row of the paper's table: tasks of ``tables`` tables on ``devices`` devices."""

    name: str
    tables: int
    devices: int
    widths: tuple[int, ...] = (16,)
    """One width for all tables, or those that each table's is drawn from."""
    machine: str = "2080ti-1x4"
    """Machine whose constants count; its number of devices is replaced."""
    cap_bytes: int | None = CAP_BYTES
    """Memory of a device for tables; None takes the machine's."""
    dataset: str = SYNTHETIC
    """Whose tables: SYNTHETIC, or the PUBLIC ones that the papers drew from, where the user has their file."""


DLRM_ROWS = tuple(
    TaskRow(name=f"DLRM-{tables} ({devices})", tables=tables, devices=devices)
    for devices, sizes in ((4, (20, 40, 60, 80, 100)), (8, (40, 80, 120, 160, 200)))
    for tables in sizes
)
"""The paper's rows on the open tables, all of width 16."""
PUBLIC_ROWS = tuple(replace(row, dataset=PUBLIC) for row in DLRM_ROWS)
MIXED_ROWS = tuple(
    TaskRow(
        name=f"Mixed-{tables} ({devices})", tables=tables, devices=devices, widths=MIXED_WIDTHS,
        machine="v100-32gb-1x8", cap_bytes=None,
    )
    for tables, devices in ((20, 2), (40, 4), (80, 8))
)  # fmt: skip
"""Stand-ins for the paper's production rows (Prod-20, 40, 80), whose tables are not public.

On a larger device: at width 128 single tables are 10 GB, twice the other rows' cap.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Tables to draw tasks from, with all that is computed once a table.

    ``lookups`` and so on, float64 [tables], are counted in one test batch of ``batch_size``.
    """

    name: str
    tables: tuple[Table, ...]
    profiles: tuple[AccessProfile, ...]
    batch_size: int
    lookups: Floats
    distinct: Floats
    longest_bag: Floats

    def counted(self, ids: Ints) -> Load:
        """Give the counted load of each table alone in device memory, [ids]."""
        return self._load(ids, self.lookups[ids], self.distinct[ids], self.longest_bag[ids])

    def expected(self, ids: Ints) -> Load:
        """Give the expected load of each table alone in device memory under its profile, [ids]."""
        profiles = [self.profiles[i] for i in ids]
        lookups = np.array([p.mean_pooling * self.batch_size for p in profiles])
        distinct = np.array([p.expected_distinct(n) for p, n in zip(profiles, lookups)])
        return self._load(ids, lookups, distinct, np.zeros(len(ids)))

    def _load(self, ids: Ints, lookups: Floats, distinct: Floats, longest: Floats) -> Load:
        shapes = np.array([(self.tables[i].rows, self.tables[i].dim) for i in ids], dtype=np.float64).reshape(-1, 2)
        return segment_load(
            lookups=lookups, distinct=distinct, bags=np.full(len(ids), float(self.batch_size)), longest_bag=longest,
            rows=shapes[:, 0], columns=shapes[:, 1], tier=Tier.HBM, precision=Precision.FP16, state=0,
        )  # fmt: skip


def join(parts: Sequence[tuple[Pool, Ints]], machine: Machine, name: str) -> Task:
    """Make a task of chosen tables of several pools, which must be of one batch size and share no table."""
    tables = tuple(pool.tables[i] for pool, ids in parts for i in ids)
    profiles = tuple(pool.profiles[i] for pool, ids in parts for i in ids)
    problem = Problem.of(
        name, tables, profiles, machine,
        batch_size=parts[0][0].batch_size, precision=Precision.FP16, optimizer=Optimizer.SGD,
    )  # fmt: skip
    return Task(
        problem=problem,
        features=table_features(problem),
        expected=Load.joined([pool.expected(ids) for pool, ids in parts]),
        counted=Load.joined([pool.counted(ids) for pool, ids in parts]),
    )


def machine_of(name: str, devices: int, cap_bytes: int | None = None) -> Machine:
    """Describe a machine as one node of another number of devices and memory, without host memory to spill to."""
    base = load_machine(name)
    topology = replace(
        base.topology,
        nodes=1,
        devices_per_node=devices,
        hbm_bytes=cap_bytes if cap_bytes is not None else base.topology.hbm_bytes,
        uvm_bytes=0,
        host_bytes=0,
    )
    return replace(base, name=f"{name.rpartition('-')[0]}-1x{devices}", topology=topology)


def draw_tasks(
    row: TaskRow,
    pool: Pool,
    count: int = 50,
    *,
    seed: int,
    other: Pool | None = None,
    share: float = 0.0,
) -> tuple[Task, ...]:
    """Draw ``count`` tasks of a row, tables without replacement within a task.

    A ``share`` (0..1) of each task's tables comes from ``other``: with the training pool as ``pool``
    and the test pool as ``other`` it is the share of unseen tables. Same seed, same tasks; and of two
    shares the larger one's tasks are the smaller one's with more of the tables replaced.
    """
    machine = machine_of(row.machine, row.devices, row.cap_bytes)
    foreign = round(share * row.tables)
    # The zero is there for tasks of one pool to stay what they were.
    rng = np.random.default_rng([seed, row.tables, row.devices, 0])
    tasks = []
    for number in range(count):
        own: Ints = rng.permutation(len(pool.tables))[: row.tables - foreign]
        parts = [(pool, own)]
        if other is not None:
            # Drawn at every share, so that the tasks after this one do not depend on it.
            parts.append((other, rng.permutation(len(other.tables))[:foreign]))
        tasks.append(join(parts, machine, f"{pool.name}-{row.tables}x{row.devices}-{number}"))
    return tuple(tasks)


def load_pool(
    side: Side,
    folder: Path,
    *,
    widths: tuple[int, ...] = (16,),
    tables: int = POOL_TABLES,
    batch_size: int = BATCH,
    dataset: str = SYNTHETIC,
) -> Pool:
    """Load a pool of a data set's tables; what is drawn is kept under ``folder`` (about a minute a pool).

    A table keeps its width in every task. Widths do not change its lookups: one file serves all.
    Raises BadInput where the data set's file is not there.
    """
    workload = _workload(side, tables, batch_size, {"dataset": dataset})
    widened = {"dim": widths[0]} if len(widths) == 1 else {"dims": widths}
    widened_tables = _workload(side, tables, batch_size, {"dataset": dataset, **widened}).tables
    path = folder / f"pool-{side}-{content_hash(workload.fingerprint, JUDGE_VERSION)}.json"
    if not path.is_file():
        write_atomically(path, to_json(_draw(workload)))
    drawn = from_json(DrawnPool, file_bytes(path), f"{path} is no pool: delete it to draw it again")
    lookups, distinct, longest = np.array(drawn.batch).T
    return Pool(
        name=side, tables=widened_tables, profiles=drawn.profiles, batch_size=batch_size,
        lookups=lookups, distinct=distinct, longest_bag=longest,
    )  # fmt: skip


def _workload(side: Side, tables: int, batch_size: int, changes: dict[str, object]) -> Workload:
    base = {"dataset": SYNTHETIC, "name": f"pool-{side}", "pool": side, "tables": tables}
    sizes = {"batch_size": batch_size, "profile_samples": batch_size}
    if changes.get("dataset") == PUBLIC:
        sizes["test_batches"] = 1
    return workload_config({**base, **sizes, **changes}, f"pool {side}").build(DATA)


def pool_bags(
    split: Split, *, tables: int = POOL_TABLES, batch_size: int = BATCH
) -> tuple[Callable[[Table], Bags], str]:
    """Read lookups of any table of both pools in batch 0 of a split, and name them: they are what is measured.

    Training tasks are measured on the training split, placements are judged on the test split.
    """
    sides: tuple[Side, ...] = ("train", "test")
    workloads = [_workload(side, tables, batch_size, {}) for side in sides]
    homes = {table.name: (workload, i) for workload in workloads for i, table in enumerate(workload.tables)}

    def bags(table: Table) -> Bags:
        if table.name not in homes:
            raise BadInput(f"table {table.name} is in neither pool: measure tasks of the pools' tables")
        workload, i = homes[table.name]
        return workload.bags(split, _BATCH_NUMBER, i)

    return bags, content_hash([workload.fingerprint for workload in workloads], split.value, _BATCH_NUMBER)


@pydantic_dataclass(frozen=True, kw_only=True, config=STRICT)
class DrawnPool:
    """What of a pool is drawn, and kept in a file: profiles of the training split, and counts of a test batch."""

    profiles: tuple[AccessProfile, ...]
    batch: tuple[tuple[float, float, float], ...]
    """Lookups, distinct rows and the longest bag of each table."""


def _draw(workload: Workload) -> DrawnPool:
    batch = []
    for i, table in enumerate(workload.tables):
        lookups = CountedLookups(workload.bags(Split.TEST, _BATCH_NUMBER, i), table.rows, 1, f"table {table.name}")
        batch.append((
            float(lookups.by_source(0, table.rows).sum()),
            float(lookups.distinct(0, table.rows, 1)[0]),
            float(lookups.longest_bag(0, table.rows, 1, 1)[0, 0]),
        ))  # fmt: skip
    # As the papers' statistics, which know no lookups that were left out.
    profiles = tuple(replace(workload.profiles[i], held_out=None) for i in range(len(workload.tables)))
    return DrawnPool(profiles=profiles, batch=tuple(batch))
