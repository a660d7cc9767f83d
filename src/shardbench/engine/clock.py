"""Time stamps that mean the same on a CPU (wall and CPU time) and on a GPU (events on the stream)."""

import time
from typing import Any, NamedTuple, Protocol

import torch

from shardbench.engine.processes.progress import RankProgress


class Clock(Protocol):
    """Stamps are taken in order and read after ``settle``; what has no CPU time needs not say so."""

    def now(self) -> Any:
        """Take a stamp of this moment."""

    def ms(self, start: Any, stop: Any) -> float:
        """Return the milliseconds between two stamps."""

    def thread_ms(self, start: Any, stop: Any) -> float | None:
        """Return the CPU time of the thread that took both stamps; None where the work is not a CPU's."""
        return None

    def process_ms(self, start: Any, stop: Any) -> float | None:
        """Return the CPU time of all threads of this process; None where the work is not a CPU's."""
        return None

    def settle(self) -> None:
        """Wait until everything stamped so far is done, where a stamp is taken before that."""
        return


class CpuStamp(NamedTuple):
    """The seconds of three clocks at one moment."""

    wall_s: float
    thread_s: float
    process_s: float


class CpuClock(Clock):
    """Wall and CPU time: CPU kernels and gloo waits block the caller."""

    def now(self) -> CpuStamp:
        """Read the monotonic performance counter, this thread's clock and the process's."""
        return CpuStamp(time.perf_counter(), time.thread_time(), time.process_time())

    def ms(self, start: CpuStamp, stop: CpuStamp) -> float:
        """Return the wall time between two stamps."""
        return 1e3 * (stop.wall_s - start.wall_s)

    def thread_ms(self, start: CpuStamp, stop: CpuStamp) -> float:
        """Return the CPU time of the thread that took both stamps."""
        return 1e3 * (stop.thread_s - start.thread_s)

    def process_ms(self, start: CpuStamp, stop: CpuStamp) -> float:
        """Return the CPU time of all threads of this process."""
        return 1e3 * (stop.process_s - start.process_s)


class CudaClock(Clock):
    """CUDA events: launching returns before the work is done."""

    def now(self) -> torch.cuda.Event:
        """Record an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Return the milliseconds between two events on the device's clock."""
        return float(start.elapsed_time(stop))

    def settle(self) -> None:
        """Wait until the device has done all its work."""
        torch.cuda.synchronize()


def clock_of(device: torch.device) -> Clock:
    """Return the clock of what runs on the device."""
    return CudaClock() if device.type == "cuda" else CpuClock()


class CountedClock:
    """A clock whose every stamp counts as progress."""

    def __init__(self, clock: Clock, progress: RankProgress) -> None:
        self._clock, self._progress = clock, progress
        self.ms, self.thread_ms, self.process_ms = clock.ms, clock.thread_ms, clock.process_ms
        self.settle = clock.settle

    def now(self) -> Any:
        """Take a stamp and count it as progress."""
        self._progress.step()
        return self._clock.now()
