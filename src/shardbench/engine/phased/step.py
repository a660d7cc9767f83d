"""A plan with a batch schedule on one rank: cold and hot mini-batches, and the copies between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardbench.cost.phases import StepPhase
from shardbench.engine.clock import Clock
from shardbench.engine.phased.copies import Copies
from shardbench.engine.step import LocalBatch, Stamps, TrainingStep
from shardbench.engine.turns import Readable
from shardbench.model.plan import PhaseKind


@dataclass(frozen=True, kw_only=True)
class WeightedStamps:
    """Stamps of the parts of one mean step, each with what it counts for."""

    parts: Sequence[tuple[float, Readable]]

    def read(self, clock: Clock) -> dict[str, float]:
        """Return the parts' milliseconds, weighted and added up."""
        return _weighted([(weight, part.read(clock)) for weight, part in self.parts])

    def read_cpu(self, clock: Clock) -> dict[str, float] | None:
        """Return the parts' CPU milliseconds, weighted and added up, where they have some."""
        read = [(weight, part.read_cpu(clock)) for weight, part in self.parts]
        timed_parts = [(weight, times) for weight, times in read if times is not None]
        return _weighted(timed_parts) if timed_parts else None


def _weighted(read: Sequence[tuple[float, dict[str, float]]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for weight, times in read:
        for name, value in times.items():
            total[name] = total.get(name, 0.0) + weight * value
    return total


Turn = Mapping[PhaseKind, LocalBatch]
"""A mini-batch of each kind that there is."""


class PhasedStep:
    """Call it with a turn: a cold mini-batch, a switch, a hot mini-batch, a switch back.

    The stamps read as one mean step of the schedule: each mini-batch's time times the share of the
    samples that are of its kind, each switch's times how often it comes a mini-batch, which is in
    the phase ``synchronise``. Ranks begin each part together; they are not timed while they wait for
    that. ``copies`` are None where the schedule has one kind of phase. ``shares`` of the samples by kind add up to 1;
    ``switches`` are those of one direction over the mini-batches of an epoch.
    """

    def __init__(
        self,
        steps: Mapping[PhaseKind, TrainingStep],
        copies: Copies | None,
        shares: Mapping[PhaseKind, float],
        switches: float,
        clock: Clock,
    ) -> None:
        self.steps, self._copies, self._shares, self._switches, self._clock = steps, copies, shares, switches, clock
        self.kind = PhaseKind.COLD if PhaseKind.COLD in steps else PhaseKind.HOT
        """Whose copy of the hot rows is current: the replicas' in a hot phase, else the masters'."""

    def __call__(self, turn: Turn) -> tuple[torch.Tensor, WeightedStamps]:
        """Train on a turn; returns the last mini-batch's logits [b] (detached) and the stamps."""
        parts: list[tuple[float, Readable]] = []
        logits = torch.empty(0)
        for kind in (PhaseKind.COLD, PhaseKind.HOT):
            if kind in self.steps:
                parts += self._switch(kind)
            if kind in turn:
                logits, stamps = self.train(kind, turn[kind])
                parts.append((self._shares[kind], stamps))
                self._together()
        parts += self._switch(PhaseKind.COLD)
        return logits, WeightedStamps(parts=parts)

    def train(self, kind: PhaseKind, batch: LocalBatch) -> tuple[torch.Tensor, Readable]:
        """Train on one mini-batch of the phase that is on, or of another after the copies it needs."""
        self._switch(kind)
        return self.steps[kind](batch)

    def end(self) -> None:
        """Bring the hot rows back to their masters, if they have any."""
        self._switch(PhaseKind.COLD)

    @property
    def copied_bytes(self) -> tuple[float, float]:
        """Copied on this rank for one mean step: into its replicas, and into its masters."""
        if self._copies is None:
            return 0.0, 0.0
        return self._switches * self._copies.device_bytes, self._switches * self._copies.host_bytes

    def _switch(self, kind: PhaseKind) -> list[tuple[float, Readable]]:
        if self._copies is None or kind is self.kind:
            return []
        self.kind = kind
        stamps = Stamps(marks=[self._clock.now()], laps=[StepPhase.SYNCHRONISE])
        if kind is PhaseKind.HOT:
            self._copies.to_devices()
        else:
            self._copies.to_hosts()
        stamps.marks.append(self._clock.now())
        self._together()
        return [(self._switches, stamps)]

    def _together(self) -> None:
        self._clock.settle()
        dist.barrier()
