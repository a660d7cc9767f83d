"""Processes that a process left behind, and the one above them that ends them.

What a process starts may leave its group and outlive it. On Linux a process can be named the one to whom all that
it started fall when their own parents end; so it sees every one of them, and ends them.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Names of two options of Linux' prctl."""
LINUX = sys.platform == "linux"
"""Elsewhere nobody adopts what is left behind: only a process's own group ends with it."""
SWEEP_S = 5.0
"""How long left-over processes are looked for, where some start others all the time."""


def run_above(work: Callable[[], None], leash: Connection, closes: Sequence[Connection]) -> int:
    """Run ``work`` in a process of its own group and end all that it leaves; its exit code, minus a signal's number.

    It is ended, with everything that it started, once nobody holds the other end of ``leash`` any more. When it ends
    before, what it left ends at once; it stays a zombie, whose CPU time can be read, until the leash is let go.
    ``closes`` are ends of pipes for the work alone.
    """
    os.setsid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    worker = os.fork()
    if worker == 0:
        _run(work)
    for pipe in closes:
        pipe.close()
    poll = select.poll()
    poll.register(leash.fileno(), select.POLLIN)
    ended = os.pidfd_open(worker) if LINUX else None
    if ended is not None:
        poll.register(ended, select.POLLIN)
    while (ready := [descriptor for descriptor, _ in poll.poll()]) and leash.fileno() not in ready:
        poll.unregister(ready[0])
        end_descendants(worker)
    end_descendants(worker, spare=False)
    _, status = os.waitpid(worker, 0)
    return os.waitstatus_to_exitcode(status)


def _run(work: Callable[[], None]) -> None:
    """Do the work, in the process that is there for it; never returns."""
    code = 1
    try:
        # Who ends is who would clean up behind it.
        end_with_parent()
        os.setsid()
        work()
        code = 0
    finally:
        os._exit(code)


def end_with_parent() -> None:
    """Have this process killed when the one that forked it has ended, on Linux."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def leave_like(code: int) -> None:
    """End this process as one with that exit code, or by that signal where it is negative; never returns."""
    if code < 0:
        import resource  # noqa: PLC0415 - not on every system

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def end_descendants(leader: int, *, spare: bool = True) -> None:
    """Kill and reap what descends from this process; ``spare``: ``leader``, a child of it, has ended and stays.

    ``leader`` leads a group, which ends with it.
    """
    kill_group(leader, spare=spare)
    until = time.monotonic() + SWEEP_S
    while (left := [pid for pid in descendants(os.getpid()) if pid != leader]) and time.monotonic() < until:
        kill_all(left)
        for pid in left:
            _reap(pid)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        # Its parent's to wait for, as long as that lives.
        time.sleep(0.001)


def descendants(of: int) -> list[int]:
    """Return the processes below one, with ended ones that nobody waited for; empty where the system has no /proc."""
    parents = {pid: stat[1] for pid in _pids() if (stat := state_of(pid)) is not None}
    found, below = [], {of}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        found += sorted(below)
    return found


def state_of(pid: int) -> tuple[str, int] | None:
    """Return the state letter of a process and its parent; None where there is no such process."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split(maxsplit=2)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return state, int(parent)


def _pids() -> list[int]:
    folder = Path("/proc")
    return [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []


def kill_all(pids: Iterable[int]) -> None:
    """Kill those of the processes that are there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_group(leader: int, *, spare: bool = False) -> None:
    """Kill the group that a process leads, and the process itself unless it is spared."""
    for kill in (os.killpg,) if spare else (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(leader, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"prctl {option}")
