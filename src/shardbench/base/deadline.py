"""Calls of other people's code in this process, which must not be waited for without end."""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

_AGAIN_S = 1.0
"""Seconds after which an interruption is repeated, in case the code took it for its own."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what ``call`` gives; raises TimeoutError where it takes longer, and whatever it raises.

    A call in the main thread is interrupted. Nobody can interrupt another thread: there it goes on, but nobody waits.
    """
    if threading.current_thread() is threading.main_thread():
        return _interrupted(seconds, call)
    return _left_alone(seconds, call)


def _too_long(seconds: float) -> TimeoutError:
    return TimeoutError(f"took more than {seconds:g} s")


def _interrupted(seconds: float, call: Callable[[], T]) -> T:
    def ring(*_: object) -> None:
        raise _too_long(seconds)

    others, began = signal.signal(signal.SIGALRM, ring), time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, others)
        if left:
            # Somebody else's alarm, such as that of a test.
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3), interval)


def _left_alone(seconds: float, call: Callable[[], T]) -> T:
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except (Exception, SystemExit) as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    wait([done], timeout=seconds)
    if not done.done():
        raise _too_long(seconds)
    return done.result()
