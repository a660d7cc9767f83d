"""The fork server that processes come from.

It has the heavy imports done (a fresh process costs a fork, not ten seconds of imports) and has never seen a workload.
It is spared the heaviest, the engine's (torch, torchrec), while nothing runs that needs them.
"""

import multiprocessing as mp
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, Final, Protocol

from shardbench.base.host import missing_driver

RANK_VARIABLES = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}
"""Settings of ranks: a spinning OpenMP pool on shared cores slows a step thirtyfold; local ranks use loopback."""

# A planner that walks a set of names must make the same plan in every run, so that its record
# can be made again: children hash strings alike.
HASH_SEED = {"PYTHONHASHSEED": "0"}
ENGINE = "shardbench.engine.rank"
PRELOAD = ("shardbench.cost.bounds.embedding", "shardbench.runs.discovery", "shardbench.cli.main")
"""Modules that all processes need; the last is what each of the command imports again as its main module: 0.08 s."""
ANSWERS_S = 180.0
"""How long the fork server may take to start a process; its imports are among it, the first time."""


class Stoppable(Protocol):
    """Something that a thread waits for and that any thread can tell to end."""

    def let_go(self) -> None:
        """Tell it to end."""


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
        self.waited_for: set[Stoppable] = set()
        """Workers that somebody waits for."""
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
                with _silent_descriptors():
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
                _start(process)
            except (EOFError, OSError):
                # It ended meanwhile, or took too long.
                end_server()
                self.context()
                _start(process)

    def end_workers(self) -> None:
        """End the processes of all workers, whichever threads wait for their answers."""
        with self.starting:
            for worker in self.waited_for:
                worker.let_go()

    def _serve(self) -> None:
        """Make sure that the fork server runs."""
        # What of the engine cannot be loaded ends the fork server; whoever needs it is told why.
        loads = PRELOAD if self._spared or missing_driver() else (ENGINE, *PRELOAD)
        if self.loaded is None or not set(loads) <= set(self.loaded):
            end_server()
            self._context.set_forkserver_preload(list(loads))
            self.loaded = loads
        # Where this process takes warnings for errors, the engine's own would end the server as it imports it.
        options, sys.warnoptions[:] = sys.warnoptions[:], []
        try:
            with _silent_descriptors():
                forkserver.ensure_running()
        finally:
            sys.warnoptions[:] = options


FORK_SERVER: Final = ForkServer()
"""The fork server of this process."""


def _start(process: Any) -> None:
    watch = threading.Timer(ANSWERS_S, end_server)
    watch.daemon = True
    watch.start()
    try:
        process.start()
    finally:
        watch.cancel()


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
def _silent_descriptors() -> Iterator[None]:
    """Close this process's output to what starts meanwhile: a reader of a pipe waits for everyone's end."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        for descriptor, copy in enumerate(kept, 1):
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)
