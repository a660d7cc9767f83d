"""Runs one function on many jobs, on the cores there are or on a cluster, and tells how far all of them are."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ProcessPoolExecutor, as_completed, wait
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

from shardbench.base.errors import BadInput, ShardBenchError, described
from shardbench.base.host import cores

J = TypeVar("J")
R = TypeVar("R")
Tell = Callable[[int, int], None]
"""Called with two more amounts of work done, such as bytes and rows."""
WORTH_BYTES = 1 << 26
"""Bytes of data for which one more process is worth starting."""
_TICK_S = 0.5
_STOP = 2
"""Place of the mark that nobody waits for the results any more, behind the two amounts."""
_shared: Any = None
"""Amounts and mark that a process which works for another one shares with it."""


class LostWorkers(ShardBenchError):
    """The workers of a cluster do not answer, whatever the jobs are."""


def side_by_side(
    work: Callable[[J, Tell], R], jobs: Sequence[J], data_bytes: int, tell: Tell, workers: Executor | None = None
) -> list[R]:
    """Return what ``work`` gives for each of ``jobs``, in their order; ``tell`` gets what all of them did meanwhile.

    ``workers`` do the jobs, wherever they are; None: as many processes as there are cores and as ``data_bytes`` are
    worth, and one process is this one. Raises what the first job that failed raised; others then stop soon, but those
    that workers have begun go on to their end. Raises LostWorkers where workers give no answer.
    """
    if workers is not None:
        return _at_workers(work, jobs, tell, workers)
    processes = min(cores(), 1 + data_bytes // WORTH_BYTES)
    if processes <= 1 or len(jobs) <= 1:
        return [work(job, tell) for job in jobs]
    # Spawned: the threads of Arrow do not survive a fork.
    context = get_context("spawn")
    shared = context.Array("q", 3)
    told = (0, 0)
    with ProcessPoolExecutor(min(processes, len(jobs)), context, _begin, (shared,)) as pool:
        futures = [pool.submit(work, job, _tell) for job in jobs]
        try:
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, _TICK_S, FIRST_EXCEPTION)
                now = (shared[0], shared[1])
                tell(now[0] - told[0], now[1] - told[1])
                told = now
                for future in futures:
                    if future in done:
                        future.result()
            return [future.result() for future in futures]
        finally:
            shared[_STOP] = 1
            pool.shutdown(cancel_futures=True)


def _begin(shared: Any) -> None:
    """Make this process one that works for another, with which it ends."""
    global _shared
    _shared = shared
    # Ctrl-C is for the process that waits for this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tell(first: int, second: int) -> None:
    if _shared[_STOP]:
        raise InterruptedError("nobody waits for this any more")
    with _shared.get_lock():
        _shared[0] += first
        _shared[1] += second


def _at_workers(work: Callable[[J, Tell], R], jobs: Sequence[J], tell: Tell, workers: Executor) -> list[R]:
    futures = [workers.submit(_answer, work, job) for job in jobs]
    try:
        for future in as_completed(futures):
            value, told = _heard(future)
            if isinstance(value, Exception):
                raise value
            tell(*told)
        return [_heard(future)[0] for future in futures]
    finally:
        for future in futures:
            future.cancel()


def _heard(future: Future[tuple[Any, list[int]]]) -> tuple[Any, list[int]]:
    try:
        return future.result()
    except Exception as error:
        # Jobs answer their own failures: workers died, cannot import what is to be run, or were shut down.
        says = f"the workers gave no answer: {described(error)}; the same command goes on with what was read"
        raise LostWorkers(says) from error


def _answer(work: Callable[[J, Tell], Any], job: J) -> tuple[Any, list[int]]:
    """Do a job at a worker: return its value or failure, and the two amounts of work done."""
    told = [0, 0]

    def add(first: int, second: int) -> None:
        told[:] = told[0] + first, told[1] + second

    try:
        return work(job, add), told
    except Exception as error:
        return error, told


@contextmanager
def dask_workers(scheduler: str) -> Iterator[Executor]:
    """Give the workers of the Dask cluster whose scheduler is at an address such as ``tcp://10.0.0.1:8786``.

    Dask and not Ray: its client is an executor like that of processes, and it is a thirtieth of Ray's size. Raises
    BadInput where Dask is not installed, or nobody answers.
    """
    try:
        from distributed import Client  # noqa: PLC0415 - an extra of the package
    except ModuleNotFoundError as error:
        raise BadInput("--engine dask needs Dask: install shardbench[dask]") from error
    try:
        client = Client(scheduler)
    except (OSError, ValueError) as error:
        raise BadInput(f"no scheduler of Dask at {scheduler}: {described(error)}") from error
    with client:
        # Jobs write files: no result of an earlier one does for a job that is like it.
        yield client.get_executor(pure=False)
