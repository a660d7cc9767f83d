"""The measured oracle: FBGEMM's fused kernels of each table set, timed on this machine.

As the papers' benchmarks do, the devices of a placement are measured one after the other on one
device (AutoShard's ``bench.py``), on the whole batch. Exchanges are the cost model's: modelled, not
measured.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.calibrate.kernels import time_backward
from shardbench.engine.clock import clock_of
from shardbench.model.table import Pooling, Precision, Table
from shardbench.tasks.recorded_oracle import Conditions, SetOracle, SetTime, SetTimes
from shardbench.tasks.task import Task
from shardbench.workloads.trace import Bags

WARMUPS, RUNS = 2, 5
"""The papers take 5 and 10 on a GPU; a CPU's kernels take a thousand times as long."""
_EVICT_BYTES = 64 * 2**20
"""Written before every timed run, so that no run finds the last one's rows in the cache."""
_PRECISIONS = {Precision.FP32: SparseType.FP32, Precision.FP16: SparseType.FP16}


class MeasuredOracle(SetOracle):
    """Forward and backward of each device's table set, timed; a set that was timed before costs nothing.

    ``bags`` gives a table's lookups in one batch and ``lookups`` names where they come from (a
    workload's fingerprint, split and batch): it must change whenever they do. Times are kept at
    ``path``, by which a RecordedOracle can answer later.
    """

    def __init__(
        self,
        bags: Callable[[Table], Bags],
        lookups: str,
        batch_size: int,
        precision: Precision,
        path: Path | None = None,
        *,
        warmups: int = WARMUPS,
        runs: int = RUNS,
    ) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        conditions = Conditions(
            environment=Environment.here().hash,
            device=self._device.type,
            lookups=lookups,
            batch_size=batch_size,
            precision=precision.value,
            warmups=warmups,
            runs=runs,
        )
        super().__init__(SetTimes(conditions, path))
        self._bags, self._precision = bags, precision

    @property
    def identity(self) -> str:
        """See Oracle."""
        conditions = self.sets.conditions
        return f"measured on {conditions.device} {conditions.environment} with {conditions.lookups}"

    def _find(self, task: Task, wanted: dict[str, tuple[int, ...]]) -> None:
        for key, numbers in wanted.items():
            tables = tuple(task.problem.tables[i] for i in numbers)
            forward_ms, backward_ms = self._time(tables)
            # One by one, so that a killed run loses one set.
            names = tuple(table.name for table in tables)
            self.sets.add([SetTime(key=key, tables=names, forward_ms=forward_ms, backward_ms=backward_ms)])

    def _time(self, tables: tuple[Table, ...]) -> tuple[float, float]:
        """Median forward and backward ms of the tables' fused kernels."""
        clock = clock_of(self._device)
        fused = _fused(tables, self._precision, self._device)
        ids, offsets = _lookups([self._checked(table) for table in tables], self._device)
        width = sum(table.dim for table in tables)
        gradient = torch.randn(self.sets.conditions.batch_size, width, device=self._device)
        evicted = torch.zeros(_EVICT_BYTES // 4, device=self._device)
        times = []
        for _ in range(self.sets.conditions.warmups + self.sets.conditions.runs):
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
        forward_ms, backward_ms = np.median(times[self.sets.conditions.warmups :], axis=0)
        return float(forward_ms), float(backward_ms)

    def _checked(self, table: Table) -> Bags:
        bags, wanted = self._bags(table), self.sets.conditions.batch_size
        if bags.batch_size != wanted:
            raise BadInput(f"table {table.name}: {bags.batch_size} bags given, wanted a batch of {wanted}")
        if table.features > 1:
            raise BadInput(f"table {table.name}: only tables of one feature are measured, not shared ones")
        if table.pooling is not Pooling.SUM:
            raise BadInput(f"table {table.name}: only summed bags are measured, not sequences")
        return bags


def _fused(
    tables: tuple[Table, ...], precision: Precision, device: torch.device
) -> SplitTableBatchedEmbeddingBagsCodegen:
    on_gpu = device.type == "cuda"
    location = EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST
    compute = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(table.rows, table.dim, location, compute) for table in tables],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=0.01,
        weights_precision=_PRECISIONS[precision],
        device=device,
    )
    # Memory that was never written is one page of zeros, which always hits the cache.
    for weights in module.split_embedding_weights():
        weights.fill_(0.01)
    return module


def _lookups(of_tables: list[Bags], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    ids = np.concatenate([bags.values for bags in of_tables]).astype(np.int64, copy=False)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([bags.lengths for bags in of_tables]))])
    return torch.from_numpy(ids).to(device), torch.from_numpy(offsets).to(device)
