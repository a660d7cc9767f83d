"""Lets times be taken on a quiet machine alone: waits for one, and takes a time again that others disturbed.

The kernel counts the CPU time of all processes by core, and of every process with its children that have ended. What is
left of the first without the second, of this process and all that it started, is other people's. A busy mean load says
less: ranks make one themselves.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shardbench.base.errors import BadInput
from shardbench.base.host import cores
from shardbench.base.reading import line_of

T = TypeVar("T")

BUSY_SHARE = 0.05
"""Share of the cores' time from which on others disturb: about what repeats of one plan differ by anyway."""
WINDOW_S = 1.0
"""Seconds over which the machine is looked at before a time is taken: a hundred of the kernel's ticks a core."""
WAIT_S = 10.0
"""Seconds until it is looked at again."""
TRIES = 6
"""So often it is looked at, and so often a time is taken that others disturb, before the session ends."""
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_USER, _NICE, _SYSTEM, _STOLEN = 0, 1, 2, 7
"""Columns of a core's line. Interrupts are left out: messages between ranks are such, and belong to no process."""
_PARENT, _TIMES = 1, slice(11, 15)
"""Fields of a process behind its name: the parent; user and system time, its own and of children that were waited for.
"""
_TRIES = 20


@dataclass(frozen=True, kw_only=True)
class CpuUse:
    """Seconds since some moment, on all cores that this process may use together."""

    at_s: float
    used_s: float
    """CPU time of all processes."""
    own_s: float
    """CPU time of this process and of all that it started."""
    stolen_s: float
    """Time in which a process was ready and its core was given to another machine, or its group had used up its quota.
    """
    cores: int


@dataclass(frozen=True, kw_only=True)
class Others:
    """What others took of this machine for a while."""

    used_cores: float
    """Mean number of cores that other processes used."""
    stolen_cores: float
    """Mean number of cores that were not given to this machine or group although it was ready."""
    cores: int

    @property
    def share(self) -> float:
        """Return the share of all cores that others took, 0 to 1."""
        return (self.used_cores + self.stolen_cores) / self.cores

    def __str__(self) -> str:
        used, stolen = f"{self.used_cores:.2f} of {self.cores} cores", f"{self.stolen_cores:.2f}"
        return f"other processes used {used}, {stolen} were taken from this machine"


def cpu_use(proc: Path = PROC, cgroups: Path = CGROUPS, of: int | None = None) -> CpuUse | None:
    """Read the use up to now; None where the system does not count it.

    ``of`` is the process that counts with all that it started, by default this one.
    """
    stat = proc / "stat"
    if not stat.is_file() or not hasattr(os, "sched_getaffinity"):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    named = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    rows = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
    counted = [[int(number) for number in row[1:]] for row in rows if row[0] in named]
    if len(counted) < len(named):
        return None
    return CpuUse(
        at_s=time.monotonic(),
        used_s=sum(row[_USER] + row[_NICE] + row[_SYSTEM] for row in counted) / ticks,
        own_s=_tree_ticks(proc, os.getpid() if of is None else of) / ticks,
        stolen_s=sum(row[_STOLEN] for row in counted if len(row) > _STOLEN) / ticks + _throttled_s(proc, cgroups),
        cores=cores(),
    )


def taken_by_others(before: CpuUse, after: CpuUse) -> Others:
    """Return what others took between two readings.

    Kernels sample the one time and measure the other, so that what is ours may seem to be more than all: that is none.
    """
    seconds = max(after.at_s - before.at_s, 1e-9)
    used = (after.used_s - before.used_s) - (after.own_s - before.own_s)
    stolen = after.stolen_s - before.stolen_s
    return Others(used_cores=max(used, 0.0) / seconds, stolen_cores=max(stolen, 0.0) / seconds, cores=after.cores)


def _tree_ticks(proc: Path, of: int) -> int:
    """Sum the CPU time of a process and all below it, in ticks."""
    last: dict[int, int] = {}
    for _ in range(_TRIES):
        ticks = _tree(proc, of)
        # What ends between two of the files is in both or in none of them.
        if ticks.keys() == last.keys():
            break
        last = ticks
    return sum(ticks.values())


def _tree(proc: Path, of: int) -> dict[int, int]:
    processes = {int(path.name): facts for path in proc.glob("[0-9]*") if (facts := _process(path)) is not None}
    ticks: dict[int, int] = {}
    below = {of} & processes.keys()
    while below:
        ticks |= {pid: processes[pid][1] for pid in below}
        below = {pid for pid, (parent, _) in processes.items() if parent in below}
    return ticks


def _process(folder: Path) -> tuple[int, int] | None:
    """Return the parent of a process and its CPU time in ticks; None where it has ended and is gone."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[_PARENT]), sum(map(int, fields[_TIMES]))


def _throttled_s(proc: Path, cgroups: Path) -> float:
    """Return for how long this process's group was held back by its quota; 0 where it has none or it is not said."""
    own = line_of(proc / "self" / "cgroup", "0::")
    throttled = line_of(cgroups / own.lstrip("/") / "cpu.stat", "throttled_usec ") if own is not None else None
    return int(throttled or 0) / 1e6


class MachineBusy(BadInput):
    """Others use the machine: whatever is measured now is no time of what is measured."""


class Quiet:
    """What takes times on this machine; ``limit`` is the share that others may take, None for any."""

    def __init__(
        self,
        limit: float | None = None,
        note: Callable[[str], None] = lambda _: None,
        *,
        read: Callable[[], CpuUse | None] = cpu_use,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit, self._note = limit, note
        self._read, self._sleep = read, sleep
        self._undisturbed = False

    def take(self, work: Callable[[], T], name: str) -> tuple[T, float | None]:
        """Do the work, again where others disturbed it, and return what it gave with the share that others took.

        The share is None where the system does not say it. Raises MachineBusy where others go on and on, and what the
        work raises.
        """
        for _ in range(TRIES):
            # Work that nobody disturbed was a look as well.
            if not self._undisturbed:
                self._wait()
            before = self._read()
            outcome = work()
            after = self._read()
            if before is None or after is None:
                return outcome, None
            others = taken_by_others(before, after)
            self._undisturbed = self._bears(others)
            if self._undisturbed:
                return outcome, others.share
            self._note(f"{name} is taken again: meanwhile {others}")
        raise _busy(others)

    def _wait(self) -> None:
        if self._limit is None:
            return
        for tries_left in reversed(range(TRIES)):
            before = self._read()
            self._sleep(WINDOW_S)
            after = self._read()
            if before is None or after is None:
                return
            others = taken_by_others(before, after)
            if self._bears(others):
                return
            if tries_left:
                self._note(f"the machine is busy, looked at again in {WAIT_S:.0f} s: {others}")
                self._sleep(WAIT_S)
        raise _busy(others)

    def _bears(self, others: Others) -> bool:
        return self._limit is None or others.share <= self._limit


def _busy(others: Others) -> MachineBusy:
    return MachineBusy(
        f"the machine is busy: {others}; stop them and run this again (what is recorded stays), or give --busy-ok"
    )
