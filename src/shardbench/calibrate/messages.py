"""Times all-to-alls, all-reduces and reduce-scatters of the real process group, by size."""

import torch
import torch.distributed as dist

from shardbench.calibrate.points import MESSAGE_BYTES
from shardbench.engine.clock import Clock


class Messages:
    """Buffers of every size; each round times each collective once.

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
