"""Time stamps that mean the same on a CPU (wall and CPU time) and on a GPU (events on the stream).

By them steps are timed that take turns in one process group, so that whatever drifts on a machine hits all of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist

from shardbench.engine.processes.trial_folder import RankProgress

B = TypeVar("B")


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


class Readable(Protocol):
    """The stamps that a step leaves to be read after the clock settled."""

    def read(self, clock: Clock) -> tuple[dict[str, float], dict[str, float]]:
        """Return milliseconds by phase, and of the whole ``step``, and those of CPUs; none where the work is none's."""


@dataclass(frozen=True, kw_only=True)
class Contender(Generic[B]):
    """A step and this rank's batches, which its iterations go through in turn."""

    step: Callable[[B], tuple[torch.Tensor, Readable]]
    """Trains on a batch, whatever that is to it; returns the logits [b] (detached) and the stamps."""
    batches: Sequence[B]

    def take(self, iteration: int) -> tuple[torch.Tensor, Readable]:
        """Make one step; return its logits and stamps."""
        return self.step(self.batches[iteration % len(self.batches)])


@dataclass(kw_only=True)
class Times:
    """Milliseconds by phase, one number an iteration; CPU time is empty where the work is not a CPU's."""

    ms: dict[str, list[float]] = field(default_factory=dict)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)

    def add(self, stamps: Readable, clock: Clock) -> None:
        """Add the times of one more iteration."""
        for kept, times in zip((self.ms, self.cpu_ms), stamps.read(clock)):
            for name, value in times.items():
                kept.setdefault(name, []).append(value)


def take_turns(contenders: Sequence[Contender[Any]], iterations: int, clock: Clock) -> list[Times]:
    """Return the times of each contender: all step once an iteration, each after a barrier.

    Who goes first goes last in the next iteration (ABBA), so that none has the better place.
    """
    times = [Times() for _ in contenders]
    turns = list(zip(contenders, times))
    for iteration in range(iterations):
        for contender, own in turns if iteration % 2 == 0 else reversed(turns):
            dist.barrier()
            _, stamps = contender.take(iteration)
            clock.settle()
            own.add(stamps, clock)
    return times
