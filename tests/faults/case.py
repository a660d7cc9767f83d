"""A fault, what is seen of it, and what must not be left of it."""

import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from process_table import state_of

from shardbench.engine.processes import server
from shardbench.records.trial import Failure, Outcome

MARKER = "SHARDBENCH_FAULTS"
"""Environment variable of all processes that a fault's run starts: they are found by it, whoever adopted them."""
GONE_S = 15.0
"""How long a process that was ended may be seen."""
HANG_S = 240.0
"""Beyond any limit that a fault sets, on a busy machine."""


@dataclass(frozen=True)
class Seen:
    """What became of a fault."""

    said: str
    """Outcome and cause in words."""
    outcome_right: bool
    """Outcome and phase are those of the fault, or what the program does is."""
    rank_right: bool | None = None
    """None where a fault is of no rank."""
    cause_right: bool | None = None
    """The words say what went wrong; None where there is nothing to be said."""
    lost: int = 0
    """Records that were acknowledged and are not there afterwards."""
    hang: bool = False
    orphans: int = 0
    """Processes, and temporary folders, that are left."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where, and how to see what becomes of it."""

    kind: str
    phase: str
    name: str
    run: Callable[[Path, random.Random], Seen]
    """In a folder of its own, with what it draws from."""


class Hangs(Exception):
    """Nothing came within HANG_S."""


def expected(
    failure: Failure | None, outcome: Outcome, cause: str, rank: int | None = None, phase: str | None = None
) -> Seen:
    """Whether a failure is the one that the fault is; ``cause`` is a pattern, None of the others is any."""
    if failure is None:
        fine = outcome is Outcome.OK
        return Seen("no failure", fine, None if rank is None else False, None if fine else False)
    said = f"{failure.outcome} in {failure.phase} (rank {failure.rank}): {failure.cause}"
    right = failure.outcome is outcome and phase in (None, failure.phase)
    told = re.search(cause, failure.cause) is not None
    return Seen(said, right, None if rank is None else failure.rank == rank, told)


def run(fault: Fault, seed: int) -> Seen:
    """One fault, drawn by ``seed``, with what it leaves counted."""
    there = _marked()
    with tempfile.TemporaryDirectory(prefix="faults-") as name, _own_temporary(Path(name)) as temporary:
        folder = Path(name) / "case"
        folder.mkdir()
        try:
            with _watched():
                seen = fault.run(folder, random.Random(f"{fault.kind} {fault.phase} {fault.name} {seed}"))
        except (Hangs, subprocess.TimeoutExpired):
            seen = Seen("hangs", outcome_right=False, hang=True)
        except Exception as error:
            seen = Seen(f"a traceback: {type(error).__name__}: {error}", outcome_right=False)
        left = left_processes(there)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return replace(seen, orphans=seen.orphans + len(left) + len(list(temporary.glob("shardbench.run-*"))))


def left_processes(there: set[int]) -> set[int]:
    """Processes that carry the marker and were not there, once those that are ending had time to."""
    until = time.monotonic() + GONE_S
    while (left := _marked() - there) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _marked() -> set[int]:
    """Those that are of no use: neither this process, its fork server nor its tracker of resources."""
    own = {os.getpid(), server.server_pid()}
    marker = f"{MARKER}={os.environ[MARKER]}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            marked = marker in (entry / "environ").read_bytes()
            tracks = b"resource_tracker" in (entry / "cmdline").read_bytes()
        except OSError:
            # Gone, or another user's.
            continue
        state = state_of(int(entry.name))
        if marked and state is not None and state[0] != "Z" and not (tracks and state[1] == os.getpid()):
            found.add(int(entry.name))
    return found


@contextmanager
def _own_temporary(folder: Path) -> Iterator[Path]:
    """Temporary folders of the program are made here meanwhile, where what is left of them is seen."""
    temporary, before = folder / "temporary", tempfile.tempdir
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    try:
        yield temporary
    finally:
        tempfile.tempdir = before


@contextmanager
def _watched() -> Iterator[None]:
    """Raises Hangs in the main thread after HANG_S."""

    def ring(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGUSR1, ring)
    main = threading.main_thread().ident
    watch = threading.Timer(HANG_S, lambda: signal.pthread_kill(main or 0, signal.SIGUSR1))
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        signal.signal(signal.SIGUSR1, before)


def soon(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether something comes true within so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True
