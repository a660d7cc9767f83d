"""The fork server that processes come from.

It has the heavy imports done (a fresh process costs a fork, not ten seconds of imports) and has never seen a workload.
It is spared the heaviest, the engine's (torch, torchrec), while nothing runs that needs them.
"""

import multiprocessing as mp
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, Final

from shardbench.base.deadline import within
from shardbench.base.generated import silence
from shardbench.base.host import missing_driver

RANK_VARIABLES = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}
"""Settings of ranks: a spinning OpenMP pool on shared cores slows a step thirtyfold; local ranks use loopback."""

# A planner that walks a set of names must make the same plan in every run, so that its record
# can be made again: children hash strings alike.
HASH_SEED = {"PYTHONHASHSEED": "0"}
ENGINE = "shardbench.engine.rank"
PRELOAD = ("shardbench.trials.run_trial", "shardbench.trials.discovery", "shardbench.cli.main")
"""Modules that all processes need; the last is what each of the command imports again as its main module: 0.08 s."""
_BY_FLAGS = ("default", "default::BytesWarning", "error::BytesWarning")
"""Options of warnings that Python makes of its flags, and looks for where it hands these flags on."""
ANSWERS_S = 180.0
"""How long the fork server may take to start a process; its imports are among it, the first time."""
LONGEST_PATH = 75
"""Bytes of the path of a folder in which there is room for a socket's, of 107 at most."""
ENDS_S = 10.0
"""How long a process may take to end when it is told to."""


def set_rank_variables() -> None:
    """Set what planners and ranks need in this process and its children, unless the user set it."""
    for name, value in {**RANK_VARIABLES, **HASH_SEED}.items():
        os.environ.setdefault(name, value)


class ForkServer:
    """The state of the fork server.

    The module multiprocessing has one fork server a process, so there is one owner of it: FORK_SERVER.
    """

    def __init__(self) -> None:
        self.starting = threading.RLock()
        """Threads may wait for children of their own: the module multiprocessing has one list of all."""
        self._running: set[Any] = set()
        self.loaded: tuple[str, ...] | None = None
        """The modules that the fork server is started with; None before the first."""
        self._context: Any = None
        self._spared = 0

    def context(self) -> Any:
        """Return where fresh processes come from; spawn where CUDA is about, which does not survive a fork."""
        with self.starting:
            if self._context is None:
                set_rank_variables()
                spawns = Path("/dev/nvidiactl").exists()
                context = mp.get_context("spawn" if spawns else "forkserver")
                # A reader of a pipe waits for everyone's end.
                with silence():
                    resource_tracker.ensure_running()
                self._context = context
            if self._context.get_start_method() == "forkserver":
                self._serve()
        return self._context

    @contextmanager
    def without_engine(self) -> Iterator[None]:
        """Let a fork server that is started meanwhile do without the engine's imports; one that has them stays."""
        with self.starting:
            self._spared += 1
        try:
            yield
        finally:
            with self.starting:
                self._spared -= 1

    def start(self, process: Any) -> None:
        """Start a process of ``context``; raises EOFError or OSError where two fork servers gave none."""
        with self.starting:
            try:
                within(ANSWERS_S, process.start)
            except (EOFError, OSError):
                # It ended meanwhile, or took too long.
                end_server()
                self.context()
                within(ANSWERS_S, process.start)
            self._running.add(process)

    def end(self, process: Any) -> None:
        """Kill a process that was started, with its group."""
        kill_group(process)
        self.exit_code(process)
        with self.starting:
            self._running.discard(process)

    def exit_code(self, process: Any) -> int | None:
        """Return the exit code of a process that ends soon; None where it goes on."""
        until = time.monotonic() + ENDS_S
        wait([process.sentinel], ENDS_S)
        while True:
            with self.starting:
                process.join(0)
                code: int | None = process.exitcode
            if code is not None or time.monotonic() > until:
                return code
            # A spawned process lets go of its files a moment before it can be asked how it ended.
            time.sleep(0.01)

    def kill_all(self) -> None:
        """Kill all processes, whichever threads wait for them."""
        with self.starting:
            for process in self._running:
                kill_group(process)

    def _serve(self) -> None:
        """Make sure that the fork server runs."""
        # What of the engine cannot be loaded ends the fork server; whoever needs it is told why.
        loads = PRELOAD if self._spared or missing_driver() else (ENGINE, *PRELOAD)
        if self.loaded is None or not set(loads) <= set(self.loaded):
            end_server()
            self._context.set_forkserver_preload(list(loads))
            self.loaded = loads
        # Where this process takes warnings for errors, the engine's own would end the server as it imports it.
        options, sys.warnoptions[:] = sys.warnoptions[:], [one for one in sys.warnoptions if one in _BY_FLAGS]
        # By this signal it hears that a process ended, however its starter is.
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        try:
            with silence(), _short_path():
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            sys.warnoptions[:] = options


FORK_SERVER: Final = ForkServer()
"""The fork server of this process."""


def kill_group(process: Any) -> None:
    """Kill a process with its group; one that has no group yet, alone."""
    try:
        # What a process started is there after it, too.
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        if process.exitcode is None:
            process.kill()


def server_pid() -> int | None:
    """Return the process id of the fork server that this process started; None where there is none."""
    pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return pid


def end_server() -> None:
    """Kill the fork server, where there is one."""
    pid = server_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        # Left to the module multiprocessing to reap, which then starts another.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@contextmanager
def _short_path() -> Iterator[None]:
    """Have the module multiprocessing make its folder of sockets in /tmp where a path there may be too long for one."""
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_PATH:
        tempfile.tempdir = "/tmp"  # noqa: S108 - the folder that is made there is this user's own
    try:
        get_temp_dir()
        yield
    finally:
        tempfile.tempdir = before
