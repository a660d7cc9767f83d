"""Time stamps that mean the same on a CPU (wall and CPU time) and on a GPU (events on the stream)."""

import time
from typing import Any, NamedTuple, Protocol

import torch

from shardbench.processes.progress import RankProgress


class Clock(Protocol):
    """Stamps are taken in order and read after ``settle``."""

    def now(self) -> Any:
        """A stamp."""

    def ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two stamps."""

    def thread_ms(self, start: Any, stop: Any) -> float | None:
        """CPU time of the thread that took both stamps; None where the work is not a CPU's."""

    def process_ms(self, start: Any, stop: Any) -> float | None:
        """CPU time of all threads of this process; None where the work is not a CPU's."""

    def settle(self) -> None:
        """Wait until everything stamped so far is done."""


class CpuStamp(NamedTuple):
    """Seconds."""

    wall_s: float
    thread_s: float
    process_s: float


class CpuClock:
    """Wall and CPU time: CPU kernels and gloo waits block the caller."""

    def now(self) -> CpuStamp:
        """Of the monotonic performance counter, this thread's clock and the process's."""
        return CpuStamp(time.perf_counter(), time.thread_time(), time.process_time())

    def ms(self, start: CpuStamp, stop: CpuStamp) -> float:
        """Wall time."""
        return 1e3 * (stop.wall_s - start.wall_s)

    def thread_ms(self, start: CpuStamp, stop: CpuStamp) -> float:
        """See Clock."""
        return 1e3 * (stop.thread_s - start.thread_s)

    def process_ms(self, start: CpuStamp, stop: CpuStamp) -> float:
        """See Clock."""
        return 1e3 * (stop.process_s - start.process_s)

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

    def thread_ms(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> None:
        """The device works, not the thread."""

    def process_ms(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> None:
        """The device works, not the process."""

    def settle(self) -> None:
        """See Clock."""
        torch.cuda.synchronize()


def clock_of(device: torch.device) -> Clock:
    """The clock of what runs on the device."""
    return CudaClock() if device.type == "cuda" else CpuClock()


class CountedClock:
    """A clock whose every stamp counts as progress."""

    def __init__(self, clock: Clock, progress: RankProgress) -> None:
        self._clock, self._progress = clock, progress
        self.ms, self.thread_ms, self.process_ms = clock.ms, clock.thread_ms, clock.process_ms
        self.settle = clock.settle

    def now(self) -> Any:
        """See Clock."""
        self._progress.step()
        return self._clock.now()
