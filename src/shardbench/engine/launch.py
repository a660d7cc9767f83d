"""Fresh processes with a hard deadline: planners, counters and process groups of ranks.

Children come from a fork server that has the heavy imports done (a fresh process costs a
fork, not ten seconds of imports) and has never seen a workload. Each child leads a process
group of its own, which is killed as a whole: by this process when it is done with it, and by
the child itself when this process is gone, however it ended.
"""

import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar

from shardbench.engine.blame import OutOfMemory, died, fault, stalled, without_result
from shardbench.engine.failures import LONGEST_CAUSE, TrialFailed, failed, failure_of
from shardbench.engine.limits import lift_memory_limit, limit_this_process
from shardbench.records.trial import Failure, Outcome

T = TypeVar("T")

RANK_VARIABLES = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}
"""A spinning OpenMP pool on shared cores slows a step thirtyfold; local ranks talk over loopback."""

# A planner that walks a set of names must make the same plan in every run, so that its record
# can be made again: children hash strings alike.
HASH_SEED = {"PYTHONHASHSEED": "0"}


def set_rank_variables() -> None:
    """Settings of planners and ranks, for this process and its children, unless the user set them."""
    for name, value in {**RANK_VARIABLES, **HASH_SEED}.items():
        os.environ.setdefault(name, value)


SAYS_MORE_S = 2.0
"""How long a lost connection waits for a report of why it was lost."""
_contexts: dict[str, Any] = {}
_lifelines: list[tuple[Connection, Connection]] = []
_starting = threading.Lock()
_answers: list[Connection] = []
"""In a child, where its answer goes."""
_MARK, _NONE = "mark", "none"
_LENGTH_BYTES = 8
LONGEST_ANSWER = 1 << 28
"""Bytes; a process that says it has more to tell is not believed."""
_children: set[Any] = set()
"""Processes of call_in_child that somebody waits for."""


def _context(preload: tuple[str, ...]) -> Any:
    """Fork server with ``preload`` imported; spawn where CUDA is about (it does not survive a fork)."""
    with _starting:
        if "context" not in _contexts:
            set_rank_variables()
            spawns = Path("/dev/nvidiactl").exists()
            context = mp.get_context("spawn" if spawns else "forkserver")
            with _silent_descriptors():
                resource_tracker.ensure_running()
                if not spawns:
                    context.set_forkserver_preload(list(preload))
                    forkserver.ensure_running()
            _contexts["context"] = context
    return _contexts["context"]


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


def own_lifeline() -> Connection:
    """Read end of a pipe whose write end only this process holds: its end of file is this process's end."""
    with _starting:
        if not _lifelines:
            _lifelines.append(mp.Pipe(duplex=False))
    return _lifelines[0][0]


PRELOAD = ("shardbench.engine.rank", "shardbench.cost.bounds", "shardbench.model.discovery")


def _become_leader(log: Path, lifeline: Connection) -> None:
    os.setsid()
    threading.Thread(target=_die_with, args=(lifeline,), daemon=True).start()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)


def _die_with(lifeline: Connection) -> None:
    try:
        lifeline.poll(None)
    finally:
        os.killpg(0, signal.SIGKILL)


def end_with(lifeline: Connection) -> None:
    """First thing of a pool's worker: from now on it ends, whatever it does, with the holder of the other end."""
    threading.Thread(target=_end_alone_with, args=(lifeline,), daemon=True).start()


def _end_alone_with(lifeline: Connection) -> None:
    try:
        lifeline.poll(None)
    finally:
        # Not the group: a pool's worker is in its starter's, which the shell may share.
        os._exit(1)


def mark(name: str) -> None:
    """In a child of ``call_in_child``: tell the parent that this point is reached, whose clock takes the time."""
    if _answers:
        _write_frame(_answers[0], bytes(ForkingPickler.dumps((_MARK, name))))


def _call(pipe: Any, lifeline: Connection, log: Path, payload: bytes, phase: str) -> None:
    _become_leader(log, lifeline)
    _answers.append(pipe)
    try:
        function, args = pickle.loads(payload)  # noqa: S301 - made by call_in_child
        limit_this_process()
        answer: tuple[str, Any] = ("ok", function(*args))
    except (Exception, SystemExit) as error:
        lift_memory_limit()
        traceback.print_exc()
        answer = ("failed", failure_of(error, phase))
    _write_frame(pipe, bytes(ForkingPickler.dumps(answer)))
    pipe.close()


def _write_frame(pipe: Connection, data: bytes) -> None:
    left = memoryview(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    while left:
        left = left[os.write(pipe.fileno(), left) :]


def _read_frame(pipe: Connection, deadline: float) -> bytes | None:
    """What the other end wrote whole; None where that is not there at the deadline. Raises EOFError at its end."""
    size = _read_bytes(pipe, _LENGTH_BYTES, deadline)
    return None if size is None else _read_bytes(pipe, int.from_bytes(size, "big"), deadline)


def _read_bytes(pipe: Connection, size: int, deadline: float) -> bytes | None:
    if size > LONGEST_ANSWER:
        raise EOFError
    data = bytearray()
    while len(data) < size:
        if not pipe.poll(max(deadline - time.monotonic(), 0.0)):
            return None
        some = os.read(pipe.fileno(), min(size - len(data), 1 << 20))
        if not some:
            raise EOFError
        data += some
    return bytes(data)


def call_in_child(
    function: Callable[..., T],
    args: tuple[Any, ...],
    *,
    timeout_s: float,
    phase: str,
    log: Path,
    marks: list[tuple[str, float]] | None = None,
) -> T:
    """``function(*args)`` in a fresh process; raises TrialFailed where it fails, dies or overruns.

    ``marks`` gets the points that the function marks, each with the seconds of this process's clock.
    """
    try:
        # Not left to start(): what cannot be read back must end as an answer, not as a dead child.
        payload = bytes(ForkingPickler.dumps((function, args)))
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_CAUSE]
        cause = f"cannot be pickled for a process of its own: {text}"
        raise failed(Outcome.ERROR, cause, phase) from error
    context, memory = _context(PRELOAD), OutOfMemory.now()
    ours, theirs = context.Pipe(duplex=False)
    # No daemon: a strategy may start processes of its own, which end with its group.
    process = context.Process(target=_call, args=(theirs, own_lifeline(), log, payload, phase))
    try:
        # Threads may wait for children of their own: the module multiprocessing has one list of all.
        with _starting:
            process.start()
            _children.add(process)
        theirs.close()
        deadline = time.monotonic() + timeout_s
        try:
            outcome, value = _answer(ours, deadline, marks)
        except EOFError as error:
            raise TrialFailed(died(_exit_code(process, 5.0), phase, None, memory, log)) from error
        if outcome == _NONE:
            raise failed(Outcome.TIMEOUT, f"no result from {phase} after {timeout_s:g} s", phase)
    finally:
        _kill(process)
        with _starting:
            _children.discard(process)
        ours.close()
    if outcome != "ok":
        raise TrialFailed(value)
    result: T = value
    return result


def _answer(pipe: Connection, deadline: float, marks: list[tuple[str, float]] | None) -> tuple[str, Any]:
    """What a child gave, after the marks that it set."""
    while True:
        frame = _read_frame(pipe, deadline)
        now = time.perf_counter()
        if frame is None:
            return _NONE, None
        kind, value = pickle.loads(frame)  # noqa: S301 - written by _call
        if kind != _MARK:
            return kind, value
        if marks is not None:
            marks.append((value, now))


def end_children() -> None:
    """Kill what ``call_in_child`` started and still runs, whichever thread waits for it."""
    with _starting:
        for process in _children:
            _signal(process)


def _kill(process: Any) -> None:
    if process.pid is not None:
        _signal(process)
        _exit_code(process, 10.0)


def _signal(process: Any) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _exit_code(process: Any, wait_s: float) -> int | None:
    """Of a process that ends within ``wait_s``."""
    wait([process.sentinel], wait_s)
    with _starting:
        process.join(0)
        code: int | None = process.exitcode
    return code


def start_server() -> None:
    """Make ready what children come from; for a process that will have threads."""
    _context(PRELOAD)


def _rank(lifeline: Connection, log: Path, folder: Path, rank: int, world: int) -> None:
    _become_leader(log, lifeline)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    # A file rendezvous needs no free port; these would send it elsewhere.
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    from shardbench.engine.rank import run_rank  # noqa: PLC0415 - torch is imported in the rank, not in the runner

    sys.exit(run_rank(folder))


def run_ranks(folder: Path, world_size: int, timeout_s: float) -> None:
    """Run a job folder on ``world_size`` local ranks; raises TrialFailed at the first that fails.

    Returns when all have written their results. All ranks are killed at the deadline, or as
    soon as one of them ends badly.
    """
    context, memory = _context(PRELOAD), OutOfMemory.now()
    deadline = time.monotonic() + timeout_s
    processes = [
        context.Process(target=_rank, args=(own_lifeline(), folder / f"rank{r}.log", folder, r, world_size))
        for r in range(world_size)
    ]
    try:
        for process in processes:
            process.start()
        _watch(folder, processes, deadline, timeout_s, memory)
    finally:
        for process in processes:
            if process.pid is not None:
                _kill(process)


def _watch(folder: Path, processes: list[Any], deadline: float, timeout_s: float, memory: OutOfMemory) -> None:
    running = dict(enumerate(processes))
    while running:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TrialFailed(stalled(folder, {rank: process.pid for rank, process in running.items()}, timeout_s))
        wait([process.sentinel for process in running.values()], timeout=min(left, 1.0))
        for rank, process in list(running.items()):
            if process.exitcode is None:
                continue
            del running[rank]
            if process.exitcode != 0:
                raise TrialFailed(_fault(folder, processes, memory))
            if not (folder / f"rank{rank}.json").is_file():
                raise TrialFailed(without_result(folder, rank))


def _fault(folder: Path, processes: list[Any], memory: OutOfMemory) -> Failure:
    """As soon as it is sure, or nobody says more for a while."""
    until = time.monotonic() + SAYS_MORE_S
    time.sleep(0.2)
    while True:
        found, sure = fault(folder, {rank: process.exitcode for rank, process in enumerate(processes)}, memory)
        if sure or time.monotonic() > until or all(process.exitcode is not None for process in processes):
            return found
        time.sleep(0.1)
