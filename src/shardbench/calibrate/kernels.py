"""Times FBGEMM's fused embedding kernels, the memory stream and collectives of the real process group on this rank."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from shardbench.calibrate.cases import BATCHES, MESSAGE_BYTES, KernelCase, bags
from shardbench.engine.clock import Clock
from shardbench.engine.operators import WEIGHT
from shardbench.engine.step import Stamps, time_kernels
from shardbench.model.plan import Tier
from shardbench.workloads.trace import Bags

VISIT = 2 * BATCHES
"""Iterations of a point before the next point's turn; the first half warms the caches, as earlier
iterations of a trial do, and is not counted."""
_EVICT_BYTES = 16 * 2**20
"""Bytes written between forward and backward, as the dense model does in a step."""
_STREAM_BYTES = 128 * 2**20

_LOCATIONS = {
    Tier.HBM: EmbeddingLocation.DEVICE,
    Tier.UVM: EmbeddingLocation.MANAGED,
    Tier.CACHED: EmbeddingLocation.MANAGED_CACHING,
}

Lookups = tuple[torch.Tensor, torch.Tensor]


class KernelBench:
    """All kernel points with their tables in memory at once, so that points can take turns."""

    def __init__(self, points: Iterable[KernelCase], device: torch.device, clock: Clock) -> None:
        self.points = tuple(points)
        self.clock = clock
        self.device = device
        self._fused = {
            point.kernel: fused_tables(
                device, [(point.rows, point.dim)] * point.tables, tier=point.tier, pooled=not point.unpooled
            )
            for point in self.points
        }
        self._lookups = [
            [on_device([bags(point, b, table) for table in range(point.tables)], device) for b in range(BATCHES)]
            for point in self.points
        ]
        self._evicted = torch.zeros(_EVICT_BYTES // 4, device=device)

    def round(self, number: int) -> list[list[tuple[float, float]]]:
        """Give every point a turn: (forward, backward) ms of its counted iterations."""
        return [self._visit(i, number) for i in range(len(self.points))]

    def _visit(self, point: int, number: int) -> list[tuple[float, float]]:
        fused, clock = self._fused[self.points[point].kernel], self.clock
        times = []
        for k in range(VISIT):
            ids, offsets = self._lookups[point][(number + k) % BATCHES]
            dist.barrier()
            self._evicted.add_(1.0)
            clock.settle()
            start = clock.now()
            pooled = fused(ids, offsets)
            forward = clock.now()
            gradient = torch.ones_like(pooled)
            self._evicted.add_(1.0)
            clock.settle()
            backward = time_backward(pooled, clock)
            pooled.backward(gradient)
            clock.settle()
            times.append((kernel_ms(clock, start, forward), sum(kernel_ms(clock, a, b) for a, b in backward)))
        return times[BATCHES:]

    def stream_bytes_per_s(self) -> float:
        """Measure the bytes read and written per second by a plain copy, all ranks at once."""
        source = torch.zeros(_STREAM_BYTES // 4, device=self.device)
        target = torch.zeros_like(source)
        times = []
        for _ in range(6):
            dist.barrier()
            start = self.clock.now()
            target.copy_(source)
            end = self.clock.now()
            self.clock.settle()
            times.append(self.clock.ms(start, end))
        return 2.0 * _STREAM_BYTES / (1e-3 * float(np.median(times[1:])))


class Messages:
    """Buffers of every size for collectives; each round times each collective once.

    An all-to-all of ``n`` bytes: every rank sends n / world bytes to each other rank (its own
    share stays). An all-reduce of ``n`` bytes reduces that many, and a reduce-scatter
    leaves n / world of them on each rank.
    """

    def __init__(self, world: int, device: torch.device, clock: Clock) -> None:
        self.clock = clock
        self.buffers = [torch.zeros(max(1, size // 4 // world) * world, device=device) for size in MESSAGE_BYTES]

    def round(self) -> list[tuple[float, float, float]]:
        """Time each collective once: (all-to-all, all-reduce, reduce-scatter) ms by size."""
        return [
            (self._time(_all_to_all, buffer), self._time(dist.all_reduce, buffer), self._time(_reduce_scatter, buffer))
            for buffer in self.buffers
        ]

    def _time(self, collective: object, buffer: torch.Tensor) -> float:
        dist.barrier()
        start = self.clock.now()
        collective(buffer)  # type: ignore[operator]
        end = self.clock.now()
        self.clock.settle()
        return self.clock.ms(start, end)


def _all_to_all(buffer: torch.Tensor) -> None:
    dist.all_to_all_single(torch.empty_like(buffer), buffer)


def _reduce_scatter(buffer: torch.Tensor) -> None:
    dist.reduce_scatter_tensor(buffer.new_empty(len(buffer) // dist.get_world_size()), buffer)


def kernel_ms(clock: Clock, start: Any, stop: Any) -> float:
    """Return the ms of a kernel between two stamps: CPU time of its thread, which other programs do not lengthen."""
    own = clock.thread_ms(start, stop)
    return clock.ms(start, stop) if own is None else own


def time_backward(pooled: torch.Tensor, clock: Clock) -> list[tuple[Any, Any]]:
    """Stamp every kernel of the backward pass to come, as a trial does; autograd's own time is left out."""
    stamps = Stamps()
    time_kernels([pooled], clock, stamps)
    return stamps.lookups


def fused_tables(
    device: torch.device,
    shapes: Iterable[tuple[int, int]],
    *,
    tier: Tier = Tier.HBM,
    optimizer: EmbOptimType = EmbOptimType.EXACT_SGD,
    pooled: bool = True,
    **options: Any,
) -> SplitTableBatchedEmbeddingBagsCodegen:
    """Return one fused module of tables (rows, columns); on a CPU every tier is its memory."""
    location, compute = _LOCATIONS[tier], ComputeDevice.CUDA
    if device.type != "cuda":
        location, compute = EmbeddingLocation.HOST, ComputeDevice.CPU
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, columns, location, compute) for rows, columns in shapes],
        optimizer=optimizer,
        learning_rate=0.01,
        device=device,
        pooling_mode=PoolingMode.SUM if pooled else PoolingMode.NONE,
        **options,
    )
    for weights in module.split_embedding_weights():
        weights.fill_(WEIGHT)
    return module


def on_device(of_tables: Sequence[Bags], device: torch.device) -> Lookups:
    """Return the ids of all tables' lookups, one table after the other, and the offsets of their bags."""
    ids = np.concatenate([one.values for one in of_tables]).astype(np.int64, copy=False)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([one.lengths for one in of_tables]))])
    return torch.from_numpy(ids).to(device), torch.from_numpy(offsets).to(device)
