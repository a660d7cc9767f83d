"""DreamShard's result table on real kernels: what every device of a placement takes, one after the other on one GPU.

As the papers measured computation: the fused kernels of a device's tables on the whole batch, fp16 weights, plain SGD.
The tasks are the first test tasks of the table's ten rows of open tables, the placements those of placements.json
(place.py made it). A task is measured whole, with all its strategies in a drawn order; the rows' first tasks come in a
drawn order, then their second ones. Where there is no time left for a task, there may be for a smaller one.

Of every device there are forward and backward, of every placement its slowest device's forward and backward
(``slowest device``, from medians) and both exchanges of the device that they take longest (``exchange``), which are
predicted and never measured. AutoShard's premise is that a fused set costs less than its tables: of one device a task
each table is measured alone as well (``table alone``), and the medians are added up (``tables alone, summed``).

All predictions are of the cost model on loads that are counted from the very lookups that are measured.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from box import Box, Refused
from cases import IDLE, Lookups, Stopwatch
from drawing import drawing_processes
from fbgemm_gpu.split_embedding_configs import SparseType
from pool_lookups import WIDTH, TableLookups, draw, draw_all, processes_here, tables_of_pool

from shardbench.base.arrays import Ints
from shardbench.calibrate.kernels import fused_tables
from shardbench.cost.costmodel import backward_s, forward_s
from shardbench.learned.tasks.oracle import costs_of, device_loads
from shardbench.learned.tasks.pools import BATCH, Pool, machine_of

PLACEMENTS = Path(__file__).with_name("placements.json")
SEED = 0
ALONE = "shuffle"
"""The strategy whose fullest device has its tables measured alone: a random set of them."""
LOOKUP_BYTES = 64
"""Bytes of device memory that a lookup may take in a backward pass: its id and copies of it, sorted and not."""
SET_S = 0.5
"""No other placement is begun where so little time is left."""


class Sizes(NamedTuple):
    """What is measured, and how often."""

    batch: int
    warmups: int
    runs: int
    processes: int
    """Processes that draw lookups."""
    table_s: float
    """Seconds that one table of one placement is expected to take before any was measured."""

    @classmethod
    def of(cls, box: Box) -> "Sizes":
        """Return the papers' sizes on a GPU; a small batch in a rehearsal."""
        return cls(64, 1, 1, 0, 0.0) if box.cpu else cls(BATCH, 3, 10, processes_here(), 0.006)


class SlideTask(NamedTuple):
    """Tables to be placed, and who places them where."""

    row: str
    number: int
    devices: int
    tables: Ints
    """Numbers of the test pool's tables, int64 [tables]."""
    placements: dict[str, Ints]
    """Device of every table by strategy, int64 [tables]."""

    @property
    def label(self) -> str:
        """Name the task in the log."""
        return f"{self.row}, task {self.number}"

    @property
    def work(self) -> int:
        """Count the tables of all placements, by which the time of a task is estimated."""
        return len(self.tables) * len(self.placements)


def measure(box: Box) -> None:
    """Measure task by task, as many as there is time for."""
    sizes, data = Sizes.of(box), json.loads(PLACEMENTS.read_text())
    slide = Slide(box, sizes, data["counts"])
    tasks = ordered_tasks(data["rows"])
    left_s, table_s, work = box.left_s(), sizes.table_s, 0
    with drawing_processes(sizes.processes) as processes:
        for task in [slide.cut(tasks[0])] if box.cpu else tasks:
            if box.over(SET_S):
                break
            if box.over(table_s * task.work):
                box.skip(task.label, "no time is left for all of it")
                continue
            with box.attempt(task.label):
                slide.draw(processes, task.tables)
                slide.measure_task(task)
            work += task.work
            table_s = (left_s - box.left_s()) / work
        slide.compare_counts()


def ordered_tasks(rows: Mapping[str, Any]) -> list[SlideTask]:
    """Return all tasks: the first ones of all rows in a drawn order, then the second ones."""
    rng, names, tasks = np.random.default_rng(SEED), list(rows), []
    for number in range(max(len(row["tasks"]) for row in rows.values())):
        for name in rng.permutation(len(names)):
            row = rows[names[name]]
            task = row["tasks"][number]
            placements = {
                strategy: np.array([int(device) for device in digits], dtype=np.int64)
                for strategy, digits in task["placements"].items()
            }
            tables = np.array(task["tables"], dtype=np.int64)
            tasks.append(SlideTask(names[name], number, row["devices"], tables, placements))
    return tasks


class Slide:
    """The tables of the test pool, of which those of the tasks so far have their lookups on the device."""

    def __init__(self, box: Box, sizes: Sizes, counts: Sequence[Sequence[int]]) -> None:
        """``counts`` are the lookups, distinct rows and longest bags that placements.json has of all tables."""
        self._box, self._sizes, self._counts = box, sizes, counts
        workload = tables_of_pool(sizes.batch)
        unknown = np.full((3, len(workload.tables)), np.nan)
        self._pool = Pool(
            name="test", tables=workload.tables, profiles=(), batch_size=sizes.batch,
            lookups=unknown[0], distinct=unknown[1], longest_bag=unknown[2],
        )  # fmt: skip
        self._bags: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._compared, self._different = 0, 0
        self._stopwatch = Stopwatch(box)

    def cut(self, task: SlideTask) -> SlideTask:
        """Leave the two smallest tables of each device of one placement."""
        order = np.argsort([self._pool.tables[table].rows for table in task.tables], kind="stable")
        homes = task.placements[ALONE][order]
        numbers = np.concatenate([order[homes == device][:2] for device in range(task.devices)])
        return task._replace(tables=task.tables[numbers], placements={ALONE: task.placements[ALONE][numbers]})

    def draw(self, processes: Executor | None, tables: Ints) -> None:
        """Draw the lookups of those tables that have none yet, the longest first."""
        missing = sorted(set(tables.tolist()) - self._bags.keys(), key=lambda table: -self._counts[table][0])
        sizes = self._sizes
        for lookups in draw_all(processes, missing, sizes.batch, self._box.left_s()):
            # Both travel as int32 and are widened on the device.
            ids, lengths = (
                torch.from_numpy(array).to(self._box.device).to(torch.int64) for array in (lookups.ids, lookups.lengths)
            )
            for values, count in zip((self._pool.lookups, self._pool.distinct, self._pool.longest_bag), lookups.counts):
                values[lookups.table] = count
            self._bags[lookups.table] = ids, lengths
            if sizes.batch == BATCH:
                self._compare(lookups)

    def compare_counts(self) -> None:
        """Note whether lookups are the same here as where the placements were made; without any, draw one table's."""
        if not self._compared:
            self._compare(draw(min(range(len(self._counts)), key=lambda table: self._counts[table][0]), BATCH))
        self._box.note(compared_tables=self._compared, with_other_counts=self._different)

    def _compare(self, lookups: TableLookups) -> None:
        self._compared += 1
        self._different += list(lookups.counts) != self._counts[lookups.table]

    def measure_task(self, task: SlideTask) -> None:
        """Measure every device of every placement, strategies in a drawn order; then single tables."""
        names = sorted(task.placements)
        for name in np.random.default_rng([SEED, task.number, task.devices, len(task.tables)]).permutation(names):
            if self._box.over(SET_S):
                self._box.skip(f"the rest of {task.label}", "no time is left")
                return
            with self._box.attempt(f"{task.label}, {name}"):
                self._measure_placement(task, str(name))
        with self._box.attempt(f"{task.label}, tables alone"):
            self._measure_alone(task)

    def _measure_placement(self, task: SlideTask, strategy: str) -> None:
        machine = machine_of(self._box.machine_name, task.devices)
        placement = task.placements[strategy]
        load = device_loads(self._pool.counted(task.tables), placement[None], task.devices)
        costs = costs_of(load, machine)
        predicted = {"forward": costs.forward_ms[0], "backward": costs.backward_ms[0]}
        slowest = 0.0
        for device in range(task.devices):
            device_tables = task.tables[placement == device]
            if len(device_tables):  # an empty device runs no kernel
                times = self._time(device_tables)
                slowest = max(slowest, float(np.median(times["forward"]) + np.median(times["backward"])))
                for phase, of_devices in predicted.items():
                    what = self._what(task, strategy, device, device_tables)
                    self._add(times[phase], of_devices[device], of="device", phase=phase, **what)
        of_placement = {"row": task.row, "task": task.number, "strategy": strategy, "devices": task.devices}
        modelled = float((costs.forward_ms + costs.backward_ms).max())
        exchange = float((costs.forward_comm_ms + costs.backward_comm_ms).max())
        self._add([slowest], modelled, of="placement", phase="slowest device", **of_placement)
        self._add([], exchange, of="placement", phase="exchange", **of_placement)

    def _measure_alone(self, task: SlideTask) -> None:
        """Measure each table alone of a device whose fused set was measured just before."""
        placement, constants = task.placements[ALONE], self._box.whole_machine.constants
        device = int(np.bincount(placement).argmax())
        device_tables = task.tables[placement == device]
        loads = self._pool.counted(device_tables)
        predicted = {"forward": 1e3 * forward_s(loads, constants), "backward": 1e3 * backward_s(loads, constants)}
        sums = dict.fromkeys(predicted, 0.0)
        for at in range(len(device_tables)):
            if self._box.over(SET_S):
                self._box.skip(f"the rest of {task.label}, tables alone", "no time is left")
                return
            times = self._time(device_tables[at : at + 1])
            what = self._what(task, ALONE, device, device_tables[at : at + 1])
            for phase, of_tables in predicted.items():
                sums[phase] += float(np.median(times[phase]))
                self._add(times[phase], of_tables[at], of="table alone", phase=phase, **what)
        for phase, of_tables in predicted.items():
            what = self._what(task, ALONE, device, device_tables)
            self._add([sums[phase]], of_tables.sum(), of="tables alone, summed", phase=phase, **what)

    def _what(self, task: SlideTask, strategy: str, device: int, tables: Ints) -> dict[str, Any]:
        return {
            "row": task.row, "task": task.number, "strategy": strategy, "device": device, "tables": len(tables),
            "held": " ".join(str(table) for table in tables), "lookups": int(self._pool.lookups[tables].sum()),
        }  # fmt: skip

    def _add(self, repeats: Sequence[float], predicted: float, **what: Any) -> None:
        same: dict[str, Any] = {"batch": self._sizes.batch, "columns": WIDTH, "weights": "fp16", "optimizer": "sgd"}
        self._box.add("slide", repeats, float(predicted), **what, **same)

    def _time(self, table_set: Ints) -> dict[str, list[float]]:
        """Time the fused kernels of some tables as ``learned.tasks.measured_oracle`` does, and keep every run."""
        box, sizes = self._box, self._sizes
        shapes = [(self._pool.tables[table].rows, WIDTH) for table in table_set]
        self._check_room(shapes, int(self._pool.lookups[table_set].sum()))
        fused = fused_tables(box.device, shapes, weights_precision=SparseType.FP16)
        ids = torch.cat([self._bags[table][0] for table in table_set.tolist()])
        lengths = torch.cat([self._bags[table][1] for table in table_set.tolist()])
        lookups = Lookups(ids, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), ())
        return self._stopwatch.times(fused, lookups, how=IDLE, warmups=sizes.warmups, runs=sizes.runs)

    def _check_room(self, shapes: Sequence[tuple[int, int]], lookups: int) -> None:
        """Raise Refused where a set may take more than half of what the device has free."""
        if self._box.cpu:
            return
        vectors = 4 * 4 * self._sizes.batch * WIDTH * len(shapes)
        needed = 2 * sum(rows * width for rows, width in shapes) + LOOKUP_BYTES * lookups + vectors
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if 2 * needed > free:
            raise Refused(f"{needed} bytes for {len(shapes)} tables, {free} are free")
