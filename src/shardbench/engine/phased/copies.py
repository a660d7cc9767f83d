"""Copies of hot rows and their optimiser state between the master tables on hosts and every rank's replicas."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardbench.base.errors import Unsupported
from shardbench.engine.lower import LogicalTable, Lowered, home_rank
from shardbench.engine.phased.hot import HotStep
from shardbench.engine.sent_bytes import StepPart
from shardbench.engine.step import TrainingStep, local_shards


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
        self._homes = [self._home(rank, cold) for rank in sorted({rank for rank, _, _ in _pairs(hot, cold)})]

    def _home(self, rank: int, cold: TrainingStep) -> _Home:
        replicas: list[torch.Tensor] = []
        masters: list[torch.Tensor] = []
        mine = rank == self._me
        weights = local_shards(cold.modules) if mine else {}
        moments = {name: own for module in cold.modules for name, own in module.moments().items()} if mine else {}
        for home, replica, master in _pairs(self._hot, cold):
            if home != rank:
                continue
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
    def device_bytes(self) -> int:
        """Written into this rank's replicas where a hot phase begins."""
        return sum(home.passed.nbytes for home in self._homes)

    @property
    def host_bytes(self) -> int:
        """Written into this rank's masters where one ends."""
        return sum(home.passed.nbytes for home in self._homes if home.rank == self._me)


def _spread(flat: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        for part, values in zip(parts, flat.split([part.numel() for part in parts])):
            part.copy_(values.view_as(part))


def _pairs(hot: HotStep, cold: TrainingStep) -> list[tuple[int, LogicalTable, LogicalTable]]:
    """List for every replicated segment the rank of its master, the replica and the master."""
    return [_pair(replica, cold.lowered) for replica in hot.lowered.logical]


def _pair(replica: LogicalTable, cold: Lowered) -> tuple[int, LogicalTable, LogicalTable]:
    own = replica.segment
    for master in cold.logical:
        segment = master.segment
        home = home_rank(segment, cold.topology)
        same_columns = (segment.column_start, segment.columns) == (own.column_start, own.columns)
        same = master.table == replica.table and same_columns
        if same and home is not None and segment.row_start <= own.row_start and own.row_stop <= segment.row_stop:
            return home, replica, master
    raise Unsupported(f"rows {own.row_start}..{own.row_stop} of table '{own.table}' have no master copy")
