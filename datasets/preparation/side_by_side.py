"""Runs one function on many jobs, on the cores there are, and tells how far all of them are."""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

J = TypeVar("J")
R = TypeVar("R")
Tell = Callable[[int, int], None]
"""Called with two more amounts of work done, such as bytes and rows."""
_TICK_S = 0.5
_STOP = 2
"""Place of the mark that nobody waits for the results any more, behind the two amounts."""
_shared: Any = None
"""Amounts and mark that a process which works for another one shares with it."""


def cores() -> int:
    """Return on how many cores this process may run."""
    return len(os.sched_getaffinity(0))


def side_by_side(work: Callable[[J, Tell], R], jobs: Sequence[J], processes: int, tell: Tell) -> list[R]:
    """Return what ``work`` gives for each of ``jobs``, in their order; ``tell`` gets what all of them did meanwhile.

    One process is this one. Raises what the first job that failed raised; others then stop soon.
    """
    if processes <= 1 or len(jobs) <= 1:
        return [work(job, tell) for job in jobs]
    # Spawned: the threads of Arrow do not survive a fork.
    context = get_context("spawn")
    shared = context.Array("q", 3)
    told = (0, 0)
    with ProcessPoolExecutor(min(processes, len(jobs)), context, _begin, (shared,)) as pool:
        futures = [pool.submit(_work, work, job) for job in jobs]
        try:
            done, waiting = wait(futures, _TICK_S, FIRST_EXCEPTION)
            while waiting and not any(future.exception() for future in done):
                now = (shared[0], shared[1])
                tell(now[0] - told[0], now[1] - told[1])
                told = now
                done, waiting = wait(futures, _TICK_S, FIRST_EXCEPTION)
            tell(shared[0] - told[0], shared[1] - told[1])
            failure = next((error for future in futures if future.done() and (error := future.exception())), None)
            if failure is not None:
                raise failure
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


def _work(work: Callable[[J, Tell], R], job: J) -> R:
    return work(job, _tell)


def _tell(first: int, second: int) -> None:
    if _shared[_STOP]:
        raise InterruptedError("nobody waits for this any more")
    with _shared.get_lock():
        _shared[0] += first
        _shared[1] += second
