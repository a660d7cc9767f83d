"""Fresh processes with a hard deadline: planners, counters and process groups of ranks.

Each comes from the fork server and leads a process group of its own, which is killed as a whole: by this process when
it is done with it, and by the child itself, or the process above it, when this process is gone, however it ended.
"""

import contextlib
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from shardbench.base.deadline import interrupts, within
from shardbench.base.errors import described
from shardbench.processes.answers import BEGAN, FAILED, MARK, OBJECT, TEXT, message, read, taken_apart
from shardbench.processes.blame import OutOfMemory, died, fault, removed, stalled, without_result
from shardbench.processes.descendants import descendants, kill_all, leave_like, run_above
from shardbench.processes.failures import (
    LEAST_BYTES,
    LONGEST_CAUSE,
    TrialFailed,
    failed,
    failure_of,
    not_started,
    too_little_memory,
)
from shardbench.processes.frames import read_frame, write_frame
from shardbench.processes.limits import FILE_BYTES, lift_memory_limit, limit_this_process
from shardbench.processes.server import ANSWERS_S, FORK_SERVER
from shardbench.records.trial import Failure, Outcome

T = TypeVar("T")

SAYS_MORE_S = 2.0
"""How long a lost connection waits for a report of why it was lost."""
PICKLING_S = 60.0
"""How long a call's function and arguments may take to be pickled: they may be somebody else's objects."""
ENDS_S = 10.0
"""How long a process may take to end when it is told to."""
MarkPoint = Callable[[str], None]
"""Tells who waits for a call that it reached a point, by whose clock the time is taken."""


@dataclass(frozen=True)
class Mark:
    """A point that a call reached."""

    name: str
    at: float
    """Seconds of the ``perf_counter`` of the process that waits."""
    cpu_s: float
    """CPU seconds that the process spent until then, as the kernel counts them."""


class Worker:
    """A process of its own that answers calls one after the other, in which what it loaded stays between them.

    It is above no other work: whoever could not answer in time, or died, is ended with all that it started.
    """

    def __init__(self, log: Path, file_bytes: int | None = FILE_BYTES) -> None:
        """``log`` gets what the process prints; no file that it writes is larger than ``file_bytes``."""
        self._log, self._file_bytes = log, file_bytes
        self._process: Any = None
        self._leash: Connection | None = None
        self._pid, self._cpu_s = 0, 0.0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def call(
        self,
        function: Callable[..., T],
        args: tuple[Any, ...],
        *,
        timeout_s: float,
        phase: str,
        marks: dict[str, list[Mark]] | None = None,
        grace_s: float = 0.0,
        text: bool = False,
    ) -> T:
        """Return ``function(*args)`` of the process; raises TrialFailed where it fails, dies or overruns.

        Where ``marks`` are given, the function gets a MarkPoint as ``mark``, and they get the points that it marks, of
        those that they name. The first to be reached may take ``grace_s`` more, from which the time then counts; from
        the last of them the answer has ``grace_s`` more. ``text`` says that the function returns a string and may run
        somebody's code, so that its answer is not unpickled.
        """
        request = pickle.dumps((phase, tuple(marks or ()), text, pickled((function, args), phase)))
        if self._process is None:
            self._begin(phase)
        deadline = time.monotonic() + grace_s + timeout_s
        try:
            write_frame(self._requests, request, deadline)
            kind, content = self._answer(deadline, timeout_s, marks, grace_s)
        except (EOFError, BrokenPipeError) as error:
            failure = self._died(phase)
            self.end()
            raise TrialFailed(failure) from error
        except TimeoutError as error:
            self.spent()
            self.end()
            raise failed(Outcome.TIMEOUT, f"no result from {phase} after {timeout_s:g} s", phase) from error
        value: Any = read(kind, content, text=text)
        if kind == FAILED:
            raise TrialFailed(value)
        result: T = value
        return result

    def spent(self, name: str = "") -> Mark:
        """Return the time, and what the process has spent; as it was when that could last be seen."""
        if self._pid:
            with contextlib.suppress(OSError):
                # The kernel's number of the clock of another process; an ended one has it until it is reaped.
                self._cpu_s = time.clock_gettime((~self._pid << 3) | 2)
        return Mark(name, time.perf_counter(), self._cpu_s)

    def end(self) -> None:
        """End the process with all that it started; the next call begins another."""
        self.let_go()
        if self._process is not None and self._code() is None:
            # Stopped, or killing without end.
            kill_all([*descendants(self._process.pid), self._process.pid])
            self._code()
        self._process, self._pid = None, 0
        with FORK_SERVER.starting:
            FORK_SERVER.waited_for.discard(self)

    def let_go(self) -> None:
        """Tell the process to end; from any thread."""
        with FORK_SERVER.starting:
            if self._leash is not None:
                for pipe in (self._requests, self._leash):
                    pipe.close()

    def _begin(self, phase: str) -> None:
        context, self._memory = FORK_SERVER.context(), OutOfMemory.now()
        requests, self._requests = context.Pipe(duplex=False)
        self._answers, answers = context.Pipe(duplex=False)
        leash, self._leash = context.Pipe(duplex=False)
        # No daemon: a strategy may start processes of its own.
        process = context.Process(target=_above, args=(requests, answers, leash, self._log, self._file_bytes))
        try:
            with FORK_SERVER.starting:
                FORK_SERVER.start(process)
                self._process = process
                FORK_SERVER.waited_for.add(self)
            for pipe in (requests, answers, leash):
                pipe.close()
            # Before anybody else's code runs there.
            self._pid = int(self._message(time.monotonic() + ANSWERS_S)[1])
        except (OSError, EOFError) as error:
            self.end()
            raise not_started(error, phase) from error

    def _answer(
        self, deadline: float, timeout_s: float, marks: dict[str, list[Mark]] | None, grace_s: float
    ) -> tuple[str, bytes]:
        """Return the kind and the content that the process gave, after the marks that it set."""
        last = list(marks)[-1] if marks else None
        while True:
            kind, content = self._message(deadline)
            if kind != MARK:
                return kind, content
            name = content.decode(errors="replace")
            if marks is None or name not in marks:
                continue
            if not any(marks.values()):
                deadline = min(deadline, time.monotonic() + timeout_s)
            elif name == last and not marks[name]:
                deadline += grace_s
            marks[name].append(self.spent(name))

    def _message(self, deadline: float) -> tuple[str, bytes]:
        return taken_apart(read_frame(self._answers, deadline))

    def _died(self, phase: str) -> Failure:
        """Return the failure of a process that closed its end of the pipe."""
        self.spent()
        if hasattr(os, "pidfd_open"):
            process = os.pidfd_open(self._pid)
            ended, _, _ = select.select([process], [], [], ENDS_S)
            os.close(process)
            if not ended:
                cause = f"the process closed the pipe for its answer in phase {phase} and went on"
                return Failure(outcome=Outcome.ERROR, cause=cause, phase=phase)
        self.let_go()
        return died(self._code(), phase, None, self._memory, self._log)

    def _code(self) -> int | None:
        """Return the exit code of a process that ends soon."""
        wait([self._process.sentinel], ENDS_S)
        with FORK_SERVER.starting:
            self._process.join(0)
            code: int | None = self._process.exitcode
        return code


def call_in_child(
    function: Callable[..., T],
    args: tuple[Any, ...],
    *,
    timeout_s: float,
    phase: str,
    log: Path,
    marks: dict[str, list[Mark]] | None = None,
    grace_s: float = 0.0,
    text: bool = False,
) -> T:
    """Return ``function(*args)`` of a fresh process that prints to ``log``, by the rules of ``Worker.call``."""
    with Worker(log) as worker:
        return worker.call(function, args, timeout_s=timeout_s, phase=phase, marks=marks, grace_s=grace_s, text=text)


def unmarked(name: str) -> None:
    """Take no note of a point that is reached: nobody waits for it."""


def pickled(value: object, phase: str) -> bytes:
    """Pickle a value for another process; raises TrialFailed where that cannot be, or takes for ever."""
    try:
        return within(PICKLING_S, lambda: bytes(ForkingPickler.dumps(value)))
    except BaseException as error:
        if interrupts(error):
            raise
        outcome = Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.ERROR
        raise failed(
            outcome, f"cannot be pickled for a process of its own: {described(error, LONGEST_CAUSE)}", phase
        ) from error


def _above(requests: Connection, answers: Connection, leash: Connection, log: Path, file_bytes: int | None) -> None:
    """Run the worker below this fresh process, which ends all that the worker leaves behind."""
    _print_to(log)
    leave_like(run_above(lambda: _serve(requests, answers, file_bytes), leash, (requests, answers)))


def _serve(requests: Connection, answers: Connection, file_bytes: int | None) -> None:
    """Answer one request after the other, in a worker's process."""
    write_frame(answers, message(BEGAN, os.getpid()))
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        phase = "start"
        try:
            phase, marks, text, call = pickle.loads(request)  # noqa: S301 - made by Worker.call
            function, args = pickle.loads(call)  # noqa: S301
            limit_this_process(file_bytes=file_bytes)
            given = {"mark": partial(_mark, answers, frozenset(marks))} if marks else {}
            answer = message(TEXT if text else OBJECT, function(*args, **given))
        except BaseException as error:
            lift_memory_limit()
            traceback.print_exc()
            answer = message(FAILED, failure_of(error, phase))
        # The next call's is taken of what is free then.
        lift_memory_limit()
        sys.stdout.flush()
        write_frame(answers, answer)


def _mark(answers: Connection, names: frozenset[str], name: str) -> None:
    if name in names:
        write_frame(answers, message(MARK, name))


def _become_leader(log: Path, lifeline: Connection) -> None:
    os.setsid()
    threading.Thread(target=_die_with, args=(lifeline,), daemon=True).start()
    _print_to(log)


def _print_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # What other people's code says may not be text that can be written.
    sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")


def _die_with(lifeline: Connection) -> None:
    try:
        lifeline.poll(None)
    finally:
        os.killpg(0, signal.SIGKILL)


def _rank(body: Callable[[Path], int], folder: Path, rank: int, world: int, lifeline: Connection) -> None:
    _become_leader(folder / f"rank{rank}.log", lifeline)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    # A file rendezvous needs no free port; these would send it elsewhere.
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    sys.exit(body(folder))


def _kill(process: Any) -> None:
    if process.pid is not None:
        _signal(process)
        wait([process.sentinel], ENDS_S)
        process.join(0)


def _signal(process: Any) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def run_ranks(body: Callable[[Path], int], folder: Path, world_size: int, timeout_s: float) -> None:
    """Run ``body`` on a job folder in ``world_size`` local ranks; raises TrialFailed at the first that fails.

    ``body`` returns a rank's exit status and finds its number in the environment, as under torchrun.
    Returns when all have written their results. All ranks are killed at the deadline, or as
    soon as one of them ends badly.
    """
    limited = too_little_memory(LEAST_BYTES)
    if limited:
        raise failed(Outcome.OOM, limited, "start")
    context, lifeline, memory = FORK_SERVER.context(), FORK_SERVER.lifeline(), OutOfMemory.now()
    processes = [
        context.Process(target=_rank, args=(body, folder, rank, world_size, lifeline)) for rank in range(world_size)
    ]
    # The open folder is the same one as long as it is not removed, or made again.
    opened = os.open(folder, os.O_RDONLY)
    try:
        for process in processes:
            try:
                FORK_SERVER.start(process)
            except (OSError, EOFError) as error:
                raise not_started(error, "start") from error
        # The first one waits for the fork server's imports, which are no rank's.
        _watch(folder, opened, processes, timeout_s, memory)
    except TrialFailed as error:
        if _is_there(folder, opened):
            raise
        raise TrialFailed(removed(folder)) from error
    finally:
        os.close(opened)
        for process in processes:
            if process.pid is not None:
                _kill(process)


def _is_there(folder: Path, opened: int) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), folder.stat())
    except FileNotFoundError:
        return False


def _watch(folder: Path, opened: int, processes: list[Any], timeout_s: float, memory: OutOfMemory) -> None:
    running, deadline = dict(enumerate(processes)), time.monotonic() + timeout_s
    while running:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TrialFailed(stalled(folder, {rank: process.pid for rank, process in running.items()}, timeout_s))
        wait([process.sentinel for process in running.values()], timeout=min(left, 1.0))
        if not _is_there(folder, opened):
            raise TrialFailed(removed(folder))
        for rank, process in list(running.items()):
            if process.exitcode is None:
                continue
            del running[rank]
            if process.exitcode != 0:
                raise TrialFailed(_fault(folder, processes, memory))
            left_nothing = without_result(folder, rank)
            if left_nothing is not None:
                raise TrialFailed(left_nothing)


def _fault(folder: Path, processes: list[Any], memory: OutOfMemory) -> Failure:
    """Return who is at fault, as soon as that is sure or nobody says more for a while."""
    until = time.monotonic() + SAYS_MORE_S
    time.sleep(0.2)
    while True:
        found, sure = fault(folder, {rank: process.exitcode for rank, process in enumerate(processes)}, memory)
        if sure or time.monotonic() > until or all(process.exitcode is not None for process in processes):
            return found
        time.sleep(0.1)
