"""Time stamps that mean the same on a CPU (wall clock) and on a GPU (events on the stream)."""

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Stamps are taken in order and read after ``settle``."""

    def now(self) -> Any:
        """A stamp."""

    def ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two stamps."""

    def settle(self) -> None:
        """Wait until everything stamped so far is done."""


class CpuClock:
    """Wall clock: CPU kernels and gloo waits block the caller."""

    def now(self) -> float:
        """Seconds of the monotonic performance counter."""
        return time.perf_counter()

    def ms(self, start: float, stop: float) -> float:
        """See Clock."""
        return 1e3 * (stop - start)

    def settle(self) -> None:
        """Nothing is outstanding."""


class CudaClock:
    """CUDA events: launching returns before the work is done."""

    def now(self) -> torch.cuda.Event:
        """An event recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """See Clock."""
        return float(start.elapsed_time(stop))

    def settle(self) -> None:
        """See Clock."""
        torch.cuda.synchronize()
