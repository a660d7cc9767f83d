"""A plan with a batch schedule on one rank: cold and hot mini-batches, and copies between them.

Hot rows and their optimiser state are in master tables on hosts and in every rank's replicas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardbench.base.errors import Unsupported
from shardbench.cost.phases import StepPhase
from shardbench.engine.clock import Clock, Readable
from shardbench.engine.lower import LogicalTable, Lowered, home_rank
from shardbench.engine.phased.hot import HotStep
from shardbench.engine.processes.job import TO_DEVICE, TO_HOST
from shardbench.engine.sent_bytes import StepPart
from shardbench.engine.step import LocalBatch, Stamps, TrainingStep, local_shards
from shardbench.model.plan import PhaseKind


@dataclass(frozen=True, kw_only=True)
class _Home:
    """The hot rows whose masters one rank holds: views of its replicas and, on that rank, of the masters."""

    rank: int
    replicas: tuple[torch.Tensor, ...]
    masters: tuple[torch.Tensor, ...]
    """Empty on other ranks."""
    passed: torch.Tensor
    """Where they lie one after the other on their way, on the rank's device."""
    staged: torch.Tensor
    """The same on the host, pinned where the device is a GPU."""


class Copies:
    """Makes the copies that a switch between phases needs; ``hot`` and ``cold`` are this rank's steps."""

    def __init__(self, hot: HotStep, cold: TrainingStep) -> None:
        self._group = cold.groups.world
        self._me = cold.groups.rank
        self._hot = hot
        pairs: dict[int, list[tuple[LogicalTable, LogicalTable]]] = {}
        for replica in hot.lowered.logical:
            rank, master = _master(replica, cold.lowered)
            pairs.setdefault(rank, []).append((replica, master))
        self._homes = [self._home(rank, pairs[rank], cold) for rank in sorted(pairs)]

    def _home(self, rank: int, pairs: list[tuple[LogicalTable, LogicalTable]], cold: TrainingStep) -> _Home:
        replicas: list[torch.Tensor] = []
        masters: list[torch.Tensor] = []
        mine = rank == self._me
        weights = local_shards(cold.modules) if mine else {}
        moments = {name: own for module in cold.modules for name, own in module.moments().items()} if mine else {}
        for replica, master in pairs:
            store, start, stop = self._hot.rows.place(replica)
            first = replica.segment.row_start - master.segment.row_start
            rows = slice(first, first + replica.rows)
            replicas.append(store.weights[start:stop])
            if mine:
                masters.append(weights[master.name][0][1][rows])
            if store.moments is not None:
                replicas.append(store.moments[start:stop])
                if mine:
                    masters.append(moments[master.name][rows])
        size, device = sum(part.numel() for part in replicas), self._hot.device
        passed = torch.empty(size, device=device)
        staged = torch.empty(size, pin_memory=True) if device.type == "cuda" and mine else passed
        return _Home(rank=rank, replicas=tuple(replicas), masters=tuple(masters), passed=passed, staged=staged)

    def to_devices(self) -> None:
        """Copy the masters into every rank's replicas."""
        for home in self._homes:
            if home.rank == self._me:
                torch.cat([part.reshape(-1) for part in home.masters], out=home.staged)
                if home.staged is not home.passed:
                    home.passed.copy_(home.staged, non_blocking=True)
            if self._hot.groups.topology.world_size > 1:
                self._hot.enter(StepPart.SYNCHRONISE)
                dist.broadcast(home.passed, home.rank, group=self._group)
            _spread(home.passed, home.replicas)

    def to_hosts(self) -> None:
        """Copy the replicas of the masters' own ranks, which are those of all others, into the masters."""
        for home in self._homes:
            if home.rank == self._me:
                torch.cat([part.reshape(-1) for part in home.replicas], out=home.passed)
                if home.staged is not home.passed:
                    home.staged.copy_(home.passed)
                _spread(home.staged, home.masters)

    @property
    def copied(self) -> dict[str, int]:
        """Bytes into this rank's replicas where a hot phase begins, and into its masters where one ends."""
        by_home = {home.rank: home.passed.nbytes for home in self._homes}
        return {TO_DEVICE: sum(by_home.values()), TO_HOST: by_home.get(self._me, 0)}


def _spread(flat: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        for part, values in zip(parts, flat.split([part.numel() for part in parts])):
            part.copy_(values.view_as(part))


def _master(replica: LogicalTable, cold: Lowered) -> tuple[int, LogicalTable]:
    """Return the rank that holds a replica's master, and the master."""
    own = replica.segment
    for master in cold.logical:
        segment = master.segment
        home = home_rank(segment, cold.topology)
        same_columns = (segment.column_start, segment.columns) == (own.column_start, own.columns)
        same = master.table == replica.table and same_columns
        if same and home is not None and segment.row_start <= own.row_start and own.row_stop <= segment.row_stop:
            return home, master
    raise Unsupported(f"rows {own.row_start}..{own.row_stop} of table '{own.table}' have no master copy")


@dataclass(frozen=True, kw_only=True)
class WeightedStamps:
    """Stamps of the parts of one mean step, each with what it counts for."""

    parts: Sequence[tuple[float, Readable]]

    def read(self, clock: Clock) -> tuple[dict[str, float], dict[str, float]]:
        """Return the parts' milliseconds, weighted and added up."""
        totals: tuple[dict[str, float], dict[str, float]] = {}, {}
        for weight, part in self.parts:
            for total, times in zip(totals, part.read(clock)):
                for name, value in times.items():
                    total[name] = total.get(name, 0.0) + weight * value
        return totals


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
    def copied(self) -> dict[str, float]:
        """Bytes copied on this rank for one mean step, by direction; empty where the schedule has one kind of phase."""
        copied = self._copies.copied if self._copies is not None else {}
        return {direction: self._switches * size for direction, size in copied.items()}

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
