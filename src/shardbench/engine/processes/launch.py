"""Fresh processes with a hard deadline: planners, counters and process groups of ranks.

Each comes from the fork server, leads a process group of its own, and ends with it when this process is done with it,
or gone, however it ended. What runs other people's code is a new Python behind a wall (``base.wall``), whose answers
are read as text.
"""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar

from shardbench.base.deadline import interrupts, within
from shardbench.base.errors import described
from shardbench.base.memory import free_memory_bytes
from shardbench.base.wall import Wall
from shardbench.engine.processes.blame import died, fault, oom_kills, removed, stalled, without_result
from shardbench.engine.processes.failures import (
    FILE_BYTES,
    LEAST_BYTES,
    LONGEST_CAUSE,
    MEMORY_SHARE,
    TrialFailed,
    be_first_to_go,
    failed,
    failure_of,
    lift_memory_limit,
    limit_this_process,
    not_started,
    too_little_memory,
)
from shardbench.engine.processes.server import ANSWERS_S, FORK_SERVER, kill_group
from shardbench.records.trial import Failure, Outcome

T = TypeVar("T")

SAYS_MORE_S = 2.0
"""How long a lost connection waits for a report of why it was lost."""
PICKLING_S = 60.0
"""How long a call's function and arguments may take to be pickled: they may be somebody else's objects."""
GOOD, BAD = b"+", b"-"
"""What an answer begins with: the result follows, as text or a pickle, or the Failure as JSON."""
LONGEST, LONGEST_FAILURE = 1 << 28, 1 << 16
"""Bytes of the longest answer that is read, and of the longest failure."""


class Worker:
    """A process of its own that answers calls one after the other, in which what it loaded stays between them.

    Whoever could not answer in time, or died, is ended, with its process group; behind a wall, with all it started.
    """

    def __init__(self, log: Path, file_bytes: int | None = FILE_BYTES, wall: Wall | None = None) -> None:
        """``log`` gets what the process prints; no file that it writes is larger than ``file_bytes``.

        Behind a ``wall`` it runs somebody else's code.
        """
        self.log, self._file_bytes, self._wall = log, file_bytes, wall
        self._process: Any = None
        self._pid, self._cpu_s = 0, 0.0
        self.took_s, self.took_cpu_s = 0.0, 0.0
        """Wall and CPU seconds of the last call, from sending it to the last byte of its answer or to its failure."""

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def call(
        self, function: Callable[..., T], args: tuple[Any, ...], *, timeout_s: float, phase: str, text: bool = False
    ) -> T:
        """Return ``function(*args)`` of the process; raises TrialFailed where it fails, dies or overruns.

        ``text`` says that the function returns a string and may run somebody's code, so that its answer is not
        unpickled; it gets a dictionary ``held``, which such calls of a process have in common.
        """
        self.took_s, self.took_cpu_s = 0.0, 0.0
        memory_bytes = int(MEMORY_SHARE * free_memory_bytes())
        request = pickled((phase, text, memory_bytes, function, args), phase)
        if self._process is None:
            self._begin(phase)
        try:
            answer = self._timed(request, timeout_s)
        except TimeoutError as error:
            self.end()
            raise failed(Outcome.TIMEOUT, f"no result from {phase} after {timeout_s:g} s", phase) from error
        except (EOFError, OSError) as error:
            # Another thread may have told the process to end.
            failure = self._died(phase)
            self.end()
            raise TrialFailed(failure) from error
        result: T = _read(answer, text=text)
        return result

    def end(self) -> None:
        """End the process and its group; the next call begins another."""
        if self._process is not None:
            FORK_SERVER.end(self._process)
        self._process, self._pid = None, 0

    def let_go(self) -> None:
        """Tell the process to end; from any thread."""
        with FORK_SERVER.starting:
            if self._process is not None:
                kill_group(self._process)

    def _begin(self, phase: str) -> None:
        context, self._oom_kills = FORK_SERVER.context(), oom_kills()
        requests, self._requests = context.Pipe(duplex=False)
        self._answers, answers = context.Pipe(duplex=False)
        # The files that a wall shows are to be there when it is built.
        command = None if self._wall is None else self._wall.around([sys.executable, "-P", "-c"])
        arguments = (requests, answers, self.log, self._file_bytes, command)
        # No daemon: a strategy may start processes of its own.
        process = context.Process(target=_work, args=arguments)
        try:
            with FORK_SERVER.starting:
                FORK_SERVER.start(process)
                self._process = process
            requests.close()
            answers.close()
            # Before anybody else's code runs there.
            within(ANSWERS_S, self._next_answer)
            self._pid = lowest(process.pid)
        except (OSError, EOFError) as error:
            self.end()
            raise not_started(error, phase) from error

    def _timed(self, request: bytes, timeout_s: float) -> bytes:
        """Return the answer to a request; raises TimeoutError, and EOFError or OSError where nobody answers."""
        began_s, spent_s = time.perf_counter(), self._spent_s()

        def answer() -> bytes:
            self._requests.send_bytes(request)
            return self._next_answer()

        try:
            return within(timeout_s, answer)
        finally:
            self.took_s, self.took_cpu_s = time.perf_counter() - began_s, self._spent_s() - spent_s

    def _next_answer(self) -> bytes:
        answers: Connection = self._answers
        # Whatever the process started may hold the pipe open when it has ended.
        if answers not in wait([answers, self._process.sentinel]):
            raise EOFError
        return answers.recv_bytes(LONGEST)

    def _spent_s(self) -> float:
        """Return the CPU seconds of the process, as the kernel counts them; of one that is gone, those seen last."""
        if self._pid:
            with suppress(OSError):
                # The kernel's number of the clock of another process; an ended one has it until it is reaped.
                self._cpu_s = time.clock_gettime((~self._pid << 3) | 2)
        return self._cpu_s

    def _died(self, phase: str) -> Failure:
        """Return the failure of a process that gives no answer any more."""
        if self._answers.closed:
            cause = f"an answer that cannot be read: it has more than {LONGEST} bytes"
            return Failure(outcome=Outcome.ERROR, cause=cause, phase=phase)
        code = FORK_SERVER.exit_code(self._process)
        if code is None:
            cause = f"the process closed the pipe for its answer in phase {phase} and went on"
            return Failure(outcome=Outcome.ERROR, cause=cause, phase=phase)
        if self._wall is not None and 128 < code < 128 + signal.NSIG:
            # Bubblewrap exits with 128 more than the number of the signal that ended what is behind it.
            code = 128 - code
        return died(code, phase, None, self._oom_kills, self.log)


def call_in_child(function: Callable[..., T], args: tuple[Any, ...], *, timeout_s: float, phase: str, log: Path) -> T:
    """Return ``function(*args)`` of a fresh process that prints to ``log``, by the rules of ``Worker.call``."""
    with Worker(log) as worker:
        return worker.call(function, args, timeout_s=timeout_s, phase=phase)


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


def _read(answer: bytes, *, text: bool) -> Any:
    """Return what an answer says, a string where ``text`` is wanted; raises TrialFailed where that is a failure."""
    kind, content = answer[:1], answer[1:]
    try:
        if kind == GOOD:
            return content.decode() if text else pickle.loads(content)  # noqa: S301 - of this program's own code
        failure = Failure.model_validate_json(content[:LONGEST_FAILURE])
    except Exception as error:
        cause = f"an answer that cannot be read: {described(error, LONGEST_CAUSE)}"
        raise failed(Outcome.ERROR, cause, "answer") from error
    raise TrialFailed(failure)


def _work(
    requests: Connection, answers: Connection, log: Path, file_bytes: int | None, command: list[str] | None
) -> None:
    """Answer requests in this fresh process, or have a program of the ``command`` do so, which is behind a wall."""
    _print_to(log)
    be_first_to_go()
    _lead_a_group()
    if command is None:
        _serve(requests, answers, file_bytes)
        return
    pipes = (requests.fileno(), answers.fileno())
    program = f"from {__name__} import serve_on; serve_on({pipes[0]}, {pipes[1]}, {file_bytes})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    behind = subprocess.Popen([*command, program], stdin=subprocess.DEVNULL, env=environment, pass_fds=pipes)
    # Who waits for an answer is to see that nobody can give one any more.
    requests.close()
    answers.close()
    code = behind.wait()
    os._exit(code if code >= 0 else 128 - code)


def serve_on(requests: int, answers: int, file_bytes: int | None) -> None:
    """Answer requests in a program of its own, started by ``_work``, to which these files were left open."""
    _serve(Connection(requests), Connection(answers), file_bytes)


def _serve(requests: Connection, answers: Connection, file_bytes: int | None) -> None:
    answers.send_bytes(GOOD)
    held: dict[str, object] = {}
    while True:
        try:
            request = requests.recv_bytes()
        except EOFError:
            return
        phase = "start"
        try:
            phase, text, memory_bytes, function, args = pickle.loads(request)  # noqa: S301 - made by Worker.call
            limit_this_process(memory_bytes, file_bytes)
            answer = GOOD + (function(*args, held=held).encode() if text else ForkingPickler.dumps(function(*args)))
        except BaseException as error:
            # Whatever a call raises is its answer, which who asked raises again.
            lift_memory_limit()
            traceback.print_exc()
            answer = BAD + failure_of(error, phase).model_dump_json().encode()
        # The next call's is taken of what is free then.
        lift_memory_limit()
        sys.stdout.flush()
        answers.send_bytes(answer)


def _print_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # What other people's code says may not be text that can be written.
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def _lead_a_group() -> None:
    """Give this process a group of its own, which ends with the program that started it."""
    os.setsid()
    # What it has of the fork server, a million objects with the engine's, is never garbage: each search among them
    # takes a quarter of a second.
    gc.freeze()

    def end_with_the_program() -> None:
        program = parent_process()
        if program is not None:
            program.join()
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_the_program, daemon=True).start()


def lowest(pid: int) -> int:
    """Return the lowest of a process's line of first children, which does its work."""
    below = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        first = below.read_text().split()[:1]
    except (FileNotFoundError, ProcessLookupError):
        first = []
    return lowest(int(first[0])) if first else pid


def _rank(body: Callable[[Path], int], folder: Path, rank: int, world: int) -> None:
    _print_to(folder / f"rank{rank}.log")
    _lead_a_group()
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
    context, kills = FORK_SERVER.context(), oom_kills()
    processes = [context.Process(target=_rank, args=(body, folder, rank, world_size)) for rank in range(world_size)]
    # The open folder is the same one as long as it is not removed, or made again.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for process in processes:
            try:
                FORK_SERVER.start(process)
            except (OSError, EOFError) as error:
                raise not_started(error, "start") from error
        # The first one waits for the fork server's imports, which are no rank's.
        _watch(folder, descriptor, processes, timeout_s, kills)
    except TrialFailed as error:
        if _is_there(folder, descriptor):
            raise
        raise TrialFailed(removed(folder)) from error
    finally:
        os.close(descriptor)
        started = [process for process in processes if process.pid is not None]
        for process in started:
            kill_group(process)
        for process in started:
            FORK_SERVER.end(process)


def _is_there(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


def _watch(folder: Path, descriptor: int, processes: list[Any], timeout_s: float, kills: int | None) -> None:
    running, deadline = dict(enumerate(processes)), time.monotonic() + timeout_s
    while running:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            pids = {rank: process.pid for rank, process in running.items()}
            raise TrialFailed(stalled(folder, pids, timeout_s))
        wait([process.sentinel for process in running.values()], timeout=min(remaining_s, 1.0))
        if not _is_there(folder, descriptor):
            raise TrialFailed(removed(folder))
        for rank, process in list(running.items()):
            if process.exitcode is None:
                continue
            del running[rank]
            if process.exitcode != 0:
                raise TrialFailed(_fault(folder, processes, kills))
            failure = without_result(folder, rank)
            if failure is not None:
                raise TrialFailed(failure)


def _fault(folder: Path, processes: list[Any], kills: int | None) -> Failure:
    """Return who is at fault, as soon as that is sure or nobody says more for a while."""
    until = time.monotonic() + SAYS_MORE_S
    time.sleep(0.2)
    while True:
        # They are read once: whoever ends between two looks would be counted as ended, and not be asked.
        codes = {rank: process.exitcode for rank, process in enumerate(processes)}
        failure, sure = fault(folder, codes, kills)
        if sure or time.monotonic() > until or None not in codes.values():
            return failure
        time.sleep(0.1)
