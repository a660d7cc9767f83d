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
from numpy.typing import NDArray

from shardbench.base.arrays import Floats, Ints
from shardbench.base.atomic import whole_file
from shardbench.base.code import JUDGE_VERSION
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
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


DLRM_ROWS = tuple(
    TaskRow(name=f"DLRM-{tables} ({devices})", tables=tables, devices=devices)
    for devices, sizes in ((4, (20, 40, 60, 80, 100)), (8, (40, 80, 120, 160, 200)))
    for tables in sizes
)
"""The paper's rows on the open tables, all of width 16."""
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


def join(parts: Sequence[tuple[Pool, Sequence[int] | Ints]], machine: Machine, name: str) -> Task:
    """Make a task of chosen tables of several pools, which must be of one batch size and share no table."""
    batches = {pool.batch_size for pool, _ in parts}
    if len(batches) != 1:
        raise BadInput(f"task {name}: its pools have batch sizes {sorted(batches)}; use pools of one batch size")
    selections = [(pool, np.asarray(ids, dtype=np.int64)) for pool, ids in parts]
    tables = tuple(pool.tables[i] for pool, ids in selections for i in ids)
    profiles = tuple(pool.profiles[i] for pool, ids in selections for i in ids)
    problem = Problem.of(
        name, tables, profiles, machine,
        batch_size=batches.pop(), precision=Precision.FP16, optimizer=Optimizer.SGD,
    )  # fmt: skip
    return Task(
        problem=problem,
        features=table_features(problem),
        expected=Load.joined([pool.expected(ids) for pool, ids in selections]),
        counted=Load.joined([pool.counted(ids) for pool, ids in selections]),
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
    if not 0.0 <= share <= 1.0 or (share > 0 and other is None):
        raise BadInput(f"{row.name}: a share of {share} needs to be within 0..1, and another pool where above 0")
    machine = machine_of(row.machine, row.devices, row.cap_bytes)
    foreign = round(share * row.tables)
    if row.tables - foreign > len(pool.tables) or (other is not None and foreign > len(other.tables)):
        raise BadInput(f"{row.name}: more tables than its pools have; lower its tables or the share {share}")
    # The zero is there for tasks of one pool to stay what they were.
    rng = np.random.default_rng([seed, row.tables, row.devices, 0])
    tasks = []
    for number in range(count):
        own: Ints = rng.permutation(len(pool.tables))[: row.tables - foreign]
        parts: list[tuple[Pool, Sequence[int] | Ints]] = [(pool, own)] if len(own) else []
        if other is not None:
            # Drawn at every share, so that the tasks after this one do not depend on it.
            theirs: Ints = rng.permutation(len(other.tables))[:foreign]
            parts += [(other, theirs)] if foreign else []
        tasks.append(join(parts, machine, f"{pool.name}-{row.tables}x{row.devices}-{number}"))
    return tuple(tasks)


def load_pool(
    side: Side,
    folder: Path,
    *,
    widths: tuple[int, ...] = (16,),
    tables: int = POOL_TABLES,
    batch_size: int = BATCH,
) -> Pool:
    """Load a pool of the synthetic tables; what is drawn is kept under ``folder`` (about a minute a pool).

    A table keeps its width in every task. Widths do not change its lookups: one file serves all.
    """
    workload = _workload(side, folder, tables, batch_size, {})
    widened: dict[str, object] = {"dim": widths[0]} if len(widths) == 1 else {"dims": widths}
    widened_tables = _workload(side, folder, tables, batch_size, widened).tables
    path = folder / f"pool-{side}-{content_hash(workload.fingerprint, JUDGE_VERSION)}.npz"
    if not path.is_file():
        arrays = _draw(workload)
        with whole_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    return _read(path, side, widened_tables, batch_size)


def _workload(side: Side, folder: Path, tables: int, batch_size: int, widths: dict[str, object]) -> Workload:
    base = {"dataset": "synthetic", "name": f"pool-{side}", "pool": side, "tables": tables}
    sizes = {"batch_size": batch_size, "profile_samples": batch_size}
    return workload_config({**base, **sizes, **widths}, f"pool {side}").build(folder)


def pool_bags(
    split: Split, folder: Path, *, tables: int = POOL_TABLES, batch_size: int = BATCH
) -> tuple[Callable[[Table], Bags], str]:
    """Read lookups of any table of both pools in batch 0 of a split, and name them: they are what is measured.

    Training tasks are measured on the training split, placements are judged on the test split.
    """
    sides: tuple[Side, ...] = ("train", "test")
    workloads = [_workload(side, folder, tables, batch_size, {}) for side in sides]
    homes = {table.name: (workload, i) for workload in workloads for i, table in enumerate(workload.tables)}

    def bags(table: Table) -> Bags:
        if table.name not in homes:
            raise BadInput(f"table {table.name} is in neither pool: measure tasks of the pools' tables")
        workload, i = homes[table.name]
        return workload.bags(split, _BATCH_NUMBER, i)

    return bags, content_hash([workload.fingerprint for workload in workloads], split.value, _BATCH_NUMBER)


def _draw(workload: Workload) -> dict[str, NDArray[np.generic]]:
    """Draw profiles of the training split and counts of one test batch, as arrays."""
    profiles, batch = [], []
    for i, table in enumerate(workload.tables):
        profile = workload.profiles[i]
        lookups = CountedLookups(workload.bags(Split.TEST, _BATCH_NUMBER, i), table.rows, 1, f"table {table.name}")
        profiles.append(profile)
        batch.append((
            lookups.by_source(0, table.rows).sum(),
            lookups.distinct(0, table.rows, 1)[0],
            lookups.longest_bag(0, table.rows, 1, 1)[0, 0],
        ))  # fmt: skip
    return {
        "rows": np.array([p.rows for p in profiles]),
        "samples": np.array([p.samples for p in profiles]),
        "present": np.array([p.present for p in profiles]),
        "runs": np.array([len(p.counts) for p in profiles]),
        "counts": np.concatenate([np.asarray(p.counts, dtype=np.int64) for p in profiles]),
        "row_counts": np.concatenate([np.asarray(p.row_counts, dtype=np.int64) for p in profiles]),
        "batch": np.array(batch, dtype=np.float64),
    }


_NAMES = ("rows", "samples", "present", "runs", "counts", "row_counts")
POOL_BYTES = 1 << 28
"""Most bytes of a pool; the paper's 428 tables take a tenth of it."""


def _read(path: Path, side: str, tables: tuple[Table, ...], batch_size: int) -> Pool:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            size = sum(info.file_size for info in file.zip.infolist())
            if size > POOL_BYTES:
                raise ValueError(f"it unpacks to {size} bytes; {POOL_BYTES} is the most")
            arrays = dict(file)
        wrong = [name for name in _NAMES if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu"]
        if wrong:
            raise ValueError(f"{wrong[0]} are {arrays[wrong[0]].dtype} {arrays[wrong[0]].shape}, not whole numbers")
        ends = np.cumsum(arrays["runs"])[:-1]
        runs = zip(np.split(arrays["counts"], ends), np.split(arrays["row_counts"], ends))
        profiles = tuple(
            AccessProfile(
                rows=int(rows), samples=int(samples), present=int(present),
                counts=tuple(counts.tolist()), row_counts=tuple(each.tolist()),
            )
            for rows, samples, present, (counts, each) in zip(
                arrays["rows"], arrays["samples"], arrays["present"], runs, strict=True
            )
        )  # fmt: skip
        batch = arrays["batch"].astype(np.float64).reshape(len(tables), 3)
    except Exception as error:
        # numpy and zipfile raise all kinds of errors for damaged bytes.
        raise BadInput(
            f"{path} is no pool of {len(tables)} tables ({str(error)[:300]}): delete it to draw it again"
        ) from error
    lookups, distinct, longest = batch.T
    return Pool(
        name=side, tables=tables, profiles=profiles, batch_size=batch_size,
        lookups=lookups, distinct=distinct, longest_bag=longest,
    )  # fmt: skip
