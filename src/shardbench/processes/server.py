"""The fork server that processes come from, and that it, and this process, stay as they were.

It has the heavy imports done (a fresh process costs a fork, not ten seconds of imports) and has never seen a workload.
It is spared the heaviest, the engine's (torch, torchrec), while nothing runs that needs them.
What runs beside it could stop it, end it, or give it other cores or another niceness, which all later processes would
inherit: it is then made anew.
"""

import multiprocessing as mp
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shardbench.base.errors import BadInput
from shardbench.processes.descendants import state_of

RANK_VARIABLES = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}
"""A spinning OpenMP pool on shared cores slows a step thirtyfold; local ranks talk over loopback."""

# A planner that walks a set of names must make the same plan in every run, so that its record
# can be made again: children hash strings alike.
HASH_SEED = {"PYTHONHASHSEED": "0"}
ENGINE = "shardbench.engine.rank"
PRELOAD = ("shardbench.cost.bounds.embedding", "shardbench.model.discovery", "shardbench.cli.main")
"""The last is what every process of the command imports again, as its main module: 0.08 s each."""
ANSWERS_S = 180.0
"""How long the fork server may take to start a process; its imports are among it, the first time."""

starting = threading.RLock()
"""Threads may wait for children of their own: the module multiprocessing has one list of all."""
_contexts: dict[str, Any] = {}
_lifelines: list[tuple[Connection, Connection]] = []
_standing: dict[str, "Standing"] = {}
_spared: list[None] = []
"""An item for everyone at work who spares the fork server the engine."""
_loads: dict[str, tuple[str, ...]] = {}
"""The modules that the fork server is started with; nothing before the first."""


@dataclass(frozen=True)
class Standing:
    """How the kernel treats a process."""

    cores: frozenset[int]
    """Those it may use; empty where the system has no affinity."""
    niceness: int

    @classmethod
    def of(cls, pid: int) -> "Standing":
        """Of a process that is there."""
        cores = os.sched_getaffinity(pid) if hasattr(os, "sched_getaffinity") else ()
        return cls(frozenset(cores), os.getpriority(os.PRIO_PROCESS, pid))


def set_rank_variables() -> None:
    """Settings of planners and ranks, for this process and its children, unless the user set them."""
    for name, value in {**RANK_VARIABLES, **HASH_SEED}.items():
        os.environ.setdefault(name, value)


def process_context() -> Any:
    """Where fresh processes come from, as it was when it was first asked for; spawn where CUDA is about.

    (CUDA does not survive a fork.) Raises BadInput where this process was made nicer and cannot be set back.
    """
    with starting:
        if "context" not in _contexts:
            set_rank_variables()
            spawns = Path("/dev/nvidiactl").exists()
            context = mp.get_context("spawn" if spawns else "forkserver")
            with _silent_descriptors():
                resource_tracker.ensure_running()
            _standing["own"] = Standing.of(os.getpid())
            _contexts["context"] = context
        _set_back()
        if _contexts["context"].get_start_method() == "forkserver":
            _serve()
    return _contexts["context"]


def start_server() -> None:
    """Make ready what children come from; for a process that will have threads."""
    process_context()


@contextmanager
def without_engine() -> Iterator[None]:
    """Meanwhile a fork server that is started does without the engine's imports; one that has them stays."""
    with starting:
        _spared.append(None)
    try:
        yield
    finally:
        with starting:
            _spared.pop()


def start(process: Any) -> None:
    """Start a process of ``process_context``; raises EOFError or OSError where two fork servers gave none."""
    with starting:
        try:
            _start(process)
        except (EOFError, OSError):
            # It ended meanwhile, or took too long.
            _end_server()
            process_context()
            _start(process)


def _start(process: Any) -> None:
    watch = threading.Timer(ANSWERS_S, _end_server)
    watch.daemon = True
    watch.start()
    try:
        process.start()
    finally:
        watch.cancel()


def own_lifeline() -> Connection:
    """Read end of a pipe whose write end only this process holds: its end of file is this process's end."""
    with starting:
        if not _lifelines:
            _lifelines.append(mp.Pipe(duplex=False))
    return _lifelines[0][0]


def _set_back() -> None:
    """Give this process the cores and the niceness that it had."""
    own, now = _standing["own"], Standing.of(os.getpid())
    if now.cores != own.cores:
        os.sched_setaffinity(os.getpid(), own.cores)
    if now.niceness != own.niceness:
        try:
            os.setpriority(os.PRIO_PROCESS, os.getpid(), own.niceness)
        except PermissionError as error:
            changed = f"from {own.niceness} to {now.niceness}"
            raise BadInput(
                f"the niceness of this process was changed {changed} while it ran, and cannot be set back: run again"
            ) from error


def _serve() -> None:
    """See that the fork server runs and is as it was, and make it anew where it is not."""
    pid = _server()
    state = state_of(pid) if pid is not None else None
    if pid is not None and state is not None and (state[0] in "Tt" or Standing.of(pid) != _standing["own"]):
        _end_server()
    loads = PRELOAD if _spared else (ENGINE, *PRELOAD)
    loaded = _loads.get("modules")
    if loaded is None or not set(loads) <= set(loaded):
        _end_server()
        _contexts["context"].set_forkserver_preload(list(loads))
        _loads["modules"] = loads
    with _silent_descriptors():
        forkserver.ensure_running()


def _server() -> int | None:
    """Process id of the fork server that this process started."""
    pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return pid


def _end_server() -> None:
    pid = _server()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        # Left to the module multiprocessing to reap, which then starts another.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@contextmanager
def _silent_descriptors() -> Iterator[None]:
    """What starts here must not hold this process's output open: a reader of a pipe waits for its end."""
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
