"""Fresh processes with a hard deadline: planners, counters and process groups of ranks.

Each comes from the fork server, leads a process group of its own, and ends with it when this process is done with it,
or gone, however it ended. What runs other people's code is a new Python behind a wall (``base.wall``).
"""

import contextlib
import fcntl
import os
import pickle
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
from shardbench.base.memory import free_memory_bytes
from shardbench.base.wall import Wall
from shardbench.processes.answers import BEGAN, FAILED, MARK, OBJECT, TEXT, message, read, taken_apart
from shardbench.processes.blame import OutOfMemory, died, fault, removed, stalled, without_result
from shardbench.processes.failures import (
    LEAST_BYTES,
    LONGEST_CAUSE,
    TrialFailed,
    failed,
    failure_of,
    not_started,
    too_little_memory,
)
from shardbench.processes.frames import TooLong, read_frame, write_frame
from shardbench.processes.limits import FILE_BYTES, MEMORY_SHARE, be_first_to_go, lift_memory_limit, limit_this_process
from shardbench.processes.server import ANSWERS_S, FORK_SERVER
from shardbench.records.trial import Failure, Outcome

T = TypeVar("T")

SAYS_MORE_S = 2.0
"""How long a lost connection waits for a report of why it was lost."""
PICKLING_S = 60.0
"""How long a call's function and arguments may take to be pickled: they may be somebody else's objects."""
ENDS_S = 10.0
"""How long a process may take to end when it is told to."""
REQUESTS, ANSWERS = 3, 4
"""The files of a program behind a wall."""
_FILE_BYTES = "SHARDBENCH_FILE_BYTES"
"""The variable that tells such a program its limit of files."""
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

    Whoever could not answer in time, or died, is ended, with its process group; behind a wall, with all it started.
    """

    def __init__(self, log: Path, file_bytes: int | None = FILE_BYTES, wall: Wall | None = None) -> None:
        """``log`` gets what the process prints; no file that it writes is larger than ``file_bytes``.

        Behind a ``wall`` it runs somebody else's code.
        """
        self._log, self._file_bytes, self._wall = log, file_bytes, wall
        self._process: Any = None
        self._leash: Connection | None = None
        self._pid, self._cpu_s = 0, 0.0
        self.took_s, self.took_cpu_s = 0.0, 0.0
        """Wall and CPU seconds of the last call, from sending it to the last byte of its answer."""

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
        those that they name. The first to be reached may take ``grace_s`` more, from which the time then counts.
        ``text`` says that the function returns a string and may run somebody's code, so that its answer is not
        unpickled; it gets a dictionary ``held``, which such calls of a process have in common.
        """
        memory_bytes = int(MEMORY_SHARE * free_memory_bytes())
        request = pickle.dumps((phase, tuple(marks or ()), text, memory_bytes, pickled((function, args), phase)))
        if self._process is None:
            self._begin(phase)
        deadline = time.monotonic() + grace_s + timeout_s
        sent = self.spent()
        try:
            write_frame(self._requests, request, deadline)
            kind, content = self._answer(deadline, timeout_s, marks, grace_s)
            answered = self.spent()
            self.took_s, self.took_cpu_s = answered.at - sent.at, answered.cpu_s - sent.cpu_s
        except TooLong as error:
            self.end()
            raise failed(Outcome.ERROR, f"an answer that cannot be read: {error}", phase) from error
        except TimeoutError as error:
            self.spent()
            self.end()
            raise failed(Outcome.TIMEOUT, f"no result from {phase} after {timeout_s:g} s", phase) from error
        except (EOFError, OSError) as error:
            # Another thread may have told the process to end.
            failure = self._died(phase)
            self.end()
            raise TrialFailed(failure) from error
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
        """End the process and its group; the next call begins another."""
        self.let_go()
        if self._process is not None:
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
            if self._process is not None and self._process.pid is not None:
                kill_group(self._process)

    def _begin(self, phase: str) -> None:
        context, self._memory = FORK_SERVER.context(), OutOfMemory.now()
        requests, self._requests = context.Pipe(duplex=False)
        self._answers, answers = context.Pipe(duplex=False)
        leash, self._leash = context.Pipe(duplex=False)
        # No daemon: a strategy may start processes of its own.
        pipes = (requests, answers, leash)
        command = None
        if self._wall is not None:
            # The files that the program is to use are put in when it starts.
            command = self._wall.around([sys.executable, "-P", "-c", f"from {__name__} import serve_on; serve_on()"])
        process = context.Process(target=_work, args=(pipes, self._log, self._file_bytes, command))
        try:
            with FORK_SERVER.starting:
                FORK_SERVER.start(process)
                self._process = process
                FORK_SERVER.waited_for.add(self)
            for pipe in pipes:
                pipe.close()
            # Before anybody else's code runs there.
            self._message(time.monotonic() + ANSWERS_S)
            self._pid = lowest(process.pid)
        except (OSError, EOFError) as error:
            self.end()
            raise not_started(error, phase) from error

    def _answer(
        self, deadline: float, timeout_s: float, marks: dict[str, list[Mark]] | None, grace_s: float
    ) -> tuple[str, bytes]:
        """Return the kind and the content that the process gave, after the marks that it set."""
        while True:
            kind, content = self._message(deadline)
            if kind != MARK:
                return kind, content
            name = content.decode(errors="replace")
            if marks is None or name not in marks:
                continue
            if not any(marks.values()):
                deadline = min(deadline, time.monotonic() + timeout_s)
            marks[name].append(self.spent(name))

    def _message(self, deadline: float) -> tuple[str, bytes]:
        return taken_apart(read_frame(self._answers, deadline, self._process.sentinel))

    def _died(self, phase: str) -> Failure:
        """Return the failure of a process that closed its end of the pipe."""
        self.spent()
        code = self._code()
        if code is None:
            cause = f"the process closed the pipe for its answer in phase {phase} and went on"
            return Failure(outcome=Outcome.ERROR, cause=cause, phase=phase)
        return died(code, phase, None, self._memory, self._log)

    def _code(self) -> int | None:
        """Return the exit code of a process that ends soon."""
        wait([self._process.sentinel], ENDS_S)
        with FORK_SERVER.starting:
            self._process.join(0)
            code: int | None = self._process.exitcode
        # Bubblewrap exits with 128 more than the number of the signal that ended what is behind it.
        return 128 - code if self._wall is not None and code is not None and code > 128 else code


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
        # Of a strategy's own code; it ends the trial, not the program.
        if interrupts(error):
            raise
        outcome = Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.ERROR
        raise failed(
            outcome, f"cannot be pickled for a process of its own: {described(error, LONGEST_CAUSE)}", phase
        ) from error


def _work(
    pipes: tuple[Connection, Connection, Connection], log: Path, file_bytes: int | None, command: list[str] | None
) -> None:
    """Answer requests in this fresh process, or become the ``command`` that does so, until the leash is let go."""
    requests, answers, leash = pipes
    _print_to(log)
    be_first_to_go()
    os.setsid()
    if command is None:
        end_with(leash)
        _serve(requests, answers, file_bytes)
        return
    # Bubblewrap ends with the fork server, and that with this program.
    ends = [fcntl.fcntl(pipe.fileno(), fcntl.F_DUPFD, ANSWERS + 1) for pipe in (requests, answers)]
    for number, end in zip((REQUESTS, ANSWERS), ends):
        os.dup2(end, number)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), _FILE_BYTES: str(file_bytes)}
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.closerange(ANSWERS + 1, os.sysconf("SC_OPEN_MAX"))
    os.execvpe(command[0], command, environment)  # noqa: S606 - no shell is wanted


def serve_on() -> None:
    """Answer requests in a program of its own, started by ``_work``."""
    file_bytes = os.environ.pop(_FILE_BYTES)
    _serve(Connection(REQUESTS), Connection(ANSWERS), int(file_bytes) if file_bytes.isdecimal() else None)


def end_with(leash: Connection) -> None:
    """Have this process's group end when nobody holds the other end of the leash any more."""

    def wait_for_the_end() -> None:
        with contextlib.suppress(EOFError, OSError):
            leash.recv_bytes()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait_for_the_end, daemon=True).start()


def kill_group(process: Any) -> None:
    """Kill a process with its group; one that has no group yet, alone."""
    try:
        # What a process started is there after it, too.
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        if process.exitcode is None:
            process.kill()


def lowest(pid: int) -> int:
    """Return the lowest of a process's line of first children, which does its work."""
    below = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        first = below.read_text().split()[:1]
    except (FileNotFoundError, ProcessLookupError):
        first = []
    return lowest(int(first[0])) if first else pid


def _serve(requests: Connection, answers: Connection, file_bytes: int | None) -> None:
    """Answer one request after the other, in a worker's process."""
    write_frame(answers, message(BEGAN, ""))
    held: dict[str, object] = {}
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        phase = "start"
        try:
            phase, marks, text, memory_bytes, call = pickle.loads(request)  # noqa: S301 - made by Worker.call
            function, args = pickle.loads(call)  # noqa: S301
            limit_this_process(memory_bytes, file_bytes)
            given: dict[str, object] = {"held": held} if text else {}
            if marks:
                given["mark"] = partial(_mark, answers, frozenset(marks))
            answer = message(TEXT if text else OBJECT, function(*args, **given))
        except BaseException as error:
            # Whatever a call raises is its answer, which who asked raises again.
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


def _print_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # What other people's code says may not be text that can be written.
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def _rank(body: Callable[[Path], int], folder: Path, rank: int, world: int, leash: Connection) -> None:
    _print_to(folder / f"rank{rank}.log")
    os.setsid()
    end_with(leash)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    # A file rendezvous needs no free port; these would send it elsewhere.
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    sys.exit(body(folder))


def run_ranks(body: Callable[[Path], int], folder: Path, world_size: int, timeout_s: float) -> None:
    """Run ``body`` on a job folder in ``world_size`` local ranks; raises TrialFailed at the first that fails.

    ``body`` returns a rank's exit status and finds its number in the environment, as under torchrun.
    Returns when all have written their results. All ranks are killed at the deadline, or as
    soon as one of them ends badly.
    """
    limited = too_little_memory(LEAST_BYTES)
    if limited:
        raise failed(Outcome.OOM, limited, "start")
    context, memory = FORK_SERVER.context(), OutOfMemory.now()
    leash, held = context.Pipe(duplex=False)
    processes = [
        context.Process(target=_rank, args=(body, folder, rank, world_size, leash)) for rank in range(world_size)
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
        held.close()
        leash.close()
        started = [process for process in processes if process.pid is not None]
        until = time.monotonic() + ENDS_S
        for process in started:
            kill_group(process)
            process.join(max(until - time.monotonic(), 0.0))


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
            pids = {rank: process.pid for rank, process in running.items()}
            raise TrialFailed(stalled(folder, pids, timeout_s))
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
        # They are read once: whoever ends between two looks would be counted as ended, and not be asked.
        codes = {rank: process.exitcode for rank, process in enumerate(processes)}
        found, sure = fault(folder, codes, memory)
        if sure or time.monotonic() > until or None not in codes.values():
            return found
        time.sleep(0.1)
