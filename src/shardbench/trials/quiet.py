"""Lets times be taken on a quiet machine alone: waits for one, and takes a time again that others disturbed."""

import time
from collections.abc import Callable
from typing import TypeVar

from shardbench.base.errors import BadInput
from shardbench.engine.processes.cpu_use import CpuUse, Others, cpu_use, taken_by_others

T = TypeVar("T")

BUSY_SHARE = 0.05
"""Share of the cores' time from which on others disturb: about what repeats of one plan differ by anyway."""
WINDOW_S = 1.0
"""Seconds over which the machine is looked at before a time is taken: a hundred of the kernel's ticks a core."""
WAIT_S = 10.0
"""Seconds until it is looked at again."""
TRIES = 6
"""So often it is looked at, and so often a time is taken that others disturb, before the session ends."""


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
        """Wait until nobody else uses the machine."""
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
