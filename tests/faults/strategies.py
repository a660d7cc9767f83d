"""Strategies that go wrong: importable plug-ins of the processes that plan."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from misbehaving import Honest, answer_pipe
from process_table import state_of


def _server() -> int:
    """The fork server, parent of the process above this one."""
    above = state_of(os.getppid())
    return above[1] if above is not None else 0


def _leave_daemon() -> None:
    subprocess.Popen(
        [sys.executable, "-c", "import os, time; os.fork(); os.setsid(); os.fork(); time.sleep(1e6)"],
        start_new_session=True,
    )
    time.sleep(0.3)


def _daemon_then_exit() -> None:
    _leave_daemon()
    os._exit(4)


def _spin() -> None:
    while True:
        pass


def _fork_often() -> None:
    for _ in range(30):
        if os.fork() == 0:
            os.setsid()
            time.sleep(1e6)


def _nice_server() -> None:
    os.setpriority(os.PRIO_PROCESS, _server(), os.getpriority(os.PRIO_PROCESS, _server()) + 1)


def _recurse() -> None:
    _recurse()


def _all_memory() -> None:
    bytearray(1 << 45)


def _close_all() -> None:
    os.closerange(3, 256)
    time.sleep(0.2)


def _nonsense() -> None:
    os.write(answer_pipe().fileno(), (9).to_bytes(8, "big") + b"no pickle")
    time.sleep(1e6)


def _half() -> None:
    os.write(answer_pipe().fileno(), (1000).to_bytes(8, "big") + b"half")
    time.sleep(1e6)


def _stop_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


HARMS: dict[str, Callable[[], object]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGABRT": os.abort,
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exits": lambda: os._exit(3),
    "leaves": lambda: sys.exit(0),
    "raises": lambda: 1 // 0,
    "recurses": _recurse,
    "hangs": lambda: time.sleep(1e6),
    "spins": _spin,
    "all memory": _all_memory,
    "half an answer": _half,
    "nonsense": _nonsense,
    "closes all": _close_all,
    "daemon": _leave_daemon,
    "daemon and exit": _daemon_then_exit,
    "thirty children": _fork_often,
    "kills who is above": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(5)),
    "stops who is above": lambda: _stop_and_wait(os.getppid()),
    "kills the fork server": lambda: os.kill(_server(), signal.SIGKILL),
    "stops the fork server": lambda: _stop_and_wait(_server()),
    "nice fork server": _nice_server,
}
"""What goes wrong while it plans."""


class Harmful(Honest):
    """Does harm after a moment, and plans then if it still can."""

    name = "shuffle"

    def __init__(self, harm: str, delay_s: float) -> None:
        self.harm, self.delay_s = harm, delay_s

    def plan(self, problem, budget, seed):
        time.sleep(self.delay_s)
        HARMS[self.harm]()
        return super().plan(problem, budget, seed)


class PicklesForEver(Honest):
    """Cannot be sent to the process that plans, and takes its time."""

    name = "shuffle"

    def __getstate__(self):
        time.sleep(1e6)
