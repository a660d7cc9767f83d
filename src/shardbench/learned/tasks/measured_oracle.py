"""The measured oracle: FBGEMM's fused kernels of each table set, timed on this machine.

As the papers' benchmarks do, the devices of a placement are measured one after the other on one
device (AutoShard's ``bench.py``), on the whole batch. Exchanges are the cost model's: modelled, not
measured.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash
from shardbench.calibrate.kernels import fused_tables, on_device, time_backward
from shardbench.cost.collectives import vectors_exchange_s
from shardbench.engine.clock import clock_of
from shardbench.engine.lower import NO_BF16_ON_CPU
from shardbench.learned.tasks.oracle import NO_TABLE, Costs, Oracle
from shardbench.learned.tasks.task import Task, one_hot
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling, Precision, Table
from shardbench.workloads.trace import Bags

WARMUPS, RUNS = 2, 5
"""The papers take 5 and 10 on a GPU; a CPU's kernels take a thousand times as long."""
_EVICT_BYTES = 64 * 2**20
"""Written before every timed run, so that no run finds the last one's rows in the cache."""


class MeasuredOracle(Oracle):
    """Forward and backward of each device's table set, timed; a set that was timed before costs nothing.

    ``bags`` gives a table's lookups in one batch and ``lookups`` names where they come from (a
    workload's fingerprint, split and batch): it must change whenever they do.
    """

    def __init__(self, bags: Callable[[Table], Bags], lookups: str) -> None:
        super().__init__()
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._bags, self._lookups = bags, lookups
        self._environment = Environment.here().hash
        self._times_by_key: dict[str, tuple[float, float]] = {}
        """Median forward and backward ms of the fused kernels of a table set on one device."""

    @property
    def identity(self) -> str:
        """Name what the times depend on besides the tables: the device, this machine and the lookups."""
        return f"measured on {self._device.type} {self._environment} with {self._lookups}"

    def _measure(self, task: Task, assignments: Ints) -> Costs:
        members = one_hot(assignments, task.devices).astype(np.bool_).reshape(-1, task.tables)
        different, which = np.unique(members, axis=0, return_inverse=True)
        times = self._times(task, [tuple(np.flatnonzero(row).tolist()) for row in different])
        per_device = times[which.reshape(-1)].reshape(len(assignments), task.devices, 2)
        bag_bytes = one_hot(assignments, task.devices) @ task.expected.bag_bytes * task.problem.sent_ratio
        exchange_ms = 1e3 * vectors_exchange_s(bag_bytes, task.problem.machine)
        return Costs(
            forward_ms=per_device[:, :, 0],
            forward_comm_ms=exchange_ms,
            backward_comm_ms=exchange_ms.copy(),
            backward_ms=per_device[:, :, 1],
        )

    def _measure_sets(self, task: Task, sets: Ints) -> tuple[Floats, Floats]:
        different, which = np.unique(np.sort(sets, axis=1), axis=0, return_inverse=True)
        times = self._times(task, [tuple(row[row != NO_TABLE].tolist()) for row in different])[which.reshape(-1)]
        return times[:, 0], times[:, 1]

    def _times(self, task: Task, sets: Sequence[tuple[int, ...]]) -> Floats:
        """Forward and backward ms of sets of the task's tables, float64 [sets, 2]; those not known yet are timed."""
        if task.problem.precision is Precision.BF16 and self._device.type == "cpu":
            raise Unsupported(NO_BF16_ON_CPU)
        # An empty device runs no kernel.
        return np.array([self._time_of(task.problem, numbers) if numbers else (0.0, 0.0) for numbers in sets])

    def _time_of(self, problem: Problem, numbers: tuple[int, ...]) -> tuple[float, float]:
        """The times of a set of tables, measured where they are not known; the order of the tables does not count."""
        tables = tuple(problem.tables[i] for i in numbers)
        conditions = problem.batch_size, problem.precision.value
        key = content_hash(conditions, sorted(content_hash(table) for table in tables))
        if key not in self._times_by_key:
            self._times_by_key[key] = self._time(tables, problem)
        return self._times_by_key[key]

    def _time(self, tables: tuple[Table, ...], problem: Problem) -> tuple[float, float]:
        """Median forward and backward ms of the fused kernels of some of a problem's tables."""
        clock = clock_of(self._device)
        fused = fused_tables(
            self._device, [(table.rows, table.dim) for table in tables],
            weights_precision=SparseType(problem.precision.value),
        )  # fmt: skip
        ids, offsets = on_device([self._bags_of(table, problem.batch_size) for table in tables], self._device)
        width = sum(table.dim for table in tables)
        gradient = torch.randn(problem.batch_size, width, device=self._device)
        evicted = torch.zeros(_EVICT_BYTES // 4, device=self._device)
        times = []
        for _ in range(WARMUPS + RUNS):
            evicted.add_(1.0)
            clock.settle()
            start = clock.now()
            pooled = fused(ids, offsets)
            forward = clock.now()
            evicted.add_(1.0)
            clock.settle()
            backward = time_backward(pooled, clock)
            pooled.backward(gradient)
            clock.settle()
            times.append((clock.ms(start, forward), sum(clock.ms(a, b) for a, b in backward)))
        forward_ms, backward_ms = np.median(times[WARMUPS:], axis=0)
        return float(forward_ms), float(backward_ms)

    def _bags_of(self, table: Table, batch_size: int) -> Bags:
        bags = self._bags(table)
        if bags.batch_size != batch_size:
            raise BadInput(f"table {table.name}: {bags.batch_size} bags given, wanted a batch of {batch_size}")
        if table.features > 1:
            raise BadInput(f"table {table.name}: only tables of one feature are measured, not shared ones")
        if table.pooling is not Pooling.SUM:
            raise BadInput(f"table {table.name}: only summed bags are measured, not sequences")
        return bags
