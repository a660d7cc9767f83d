"""Steps that take turns in one process group, so that whatever drifts on a machine hits all of them alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist

from shardbench.engine.clock import Clock

B = TypeVar("B")


class Readable(Protocol):
    """The stamps that a step leaves to be read after the clock settled."""

    def read(self, clock: Clock) -> dict[str, float]:
        """Return milliseconds by phase, and of the whole ``step``."""

    def read_cpu(self, clock: Clock) -> dict[str, float] | None:
        """Return CPU milliseconds by phase; None where the work is not a CPU's."""


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
        for name, value in stamps.read(clock).items():
            self.ms.setdefault(name, []).append(value)
        for name, value in (stamps.read_cpu(clock) or {}).items():
            self.cpu_ms.setdefault(name, []).append(value)


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
