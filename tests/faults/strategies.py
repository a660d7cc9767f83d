"""Strategies that go wrong: importable plug-ins of the processes that plan."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from misbehaving import Honest, answer_pipe


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


class Ends(BaseException):
    """What no ``except Exception`` keeps."""


class NoText(Exception):
    def __str__(self):
        raise ZeroDivisionError


def _raise(name: str) -> None:
    raise RAISED[name][0]()


def _raise_it(error: BaseException) -> None:
    raise error


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
    "what is no Exception": lambda: _raise_it(Ends("for all")),
    "what is no text": lambda: _raise_it(ValueError("byte \udc80 of a name")),
    "daemon": _leave_daemon,
    "daemon and exit": _daemon_then_exit,
    "thirty children": _fork_often,
    "kills who is above": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(5)),
    "stops who is above": lambda: _stop_and_wait(os.getppid()),
    "kills all others": lambda: os.kill(-1, signal.SIGKILL),
    "stops all others": lambda: os.kill(-1, signal.SIGSTOP),
    "nice for all of its user's": lambda: os.setpriority(os.PRIO_USER, 0, 19),
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


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "SystemExit": (lambda: SystemExit(0), "SystemExit: 0"),
    "SystemExit with words": (lambda: SystemExit("bye"), "SystemExit: bye"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "what is no Exception": (lambda: Ends("for all"), "Ends: for all"),
    "what has no text": (NoText, r"NoText: \(its text cannot be made\)"),
    "what is no text": (lambda: ValueError("byte \udc80 of a name"), r"ValueError: byte \\udc80 of a name"),
}
"""What a strategy raises, and what is said of it."""
IN_PICKLING = ("getstate", "reduce")
PLACES = (*IN_PICKLING, "unpickling", "plan", "requires")


class Raises(Honest):
    """Raises something at some place."""

    name = "shuffle"

    def __init__(self, where: str, what: str) -> None:
        self.where, self.what = where, what

    def _at(self, where: str) -> None:
        if self.where == where:
            _raise(self.what)

    @property
    def requires(self):
        self._at("requires")
        return ()

    def __getstate__(self):
        self._at("getstate")
        return vars(self)

    def __reduce__(self):
        self._at("reduce")
        if self.where == "unpickling":
            return _raise, (self.what,)
        return type(self), (self.where, self.what), self.__getstate__()

    def plan(self, problem, budget, seed):
        self._at("plan")
        return super().plan(problem, budget, seed)


class PicklesForEver(Honest):
    """Cannot be sent to the process that plans, and takes its time."""

    name = "shuffle"

    def __getstate__(self):
        time.sleep(1e6)
