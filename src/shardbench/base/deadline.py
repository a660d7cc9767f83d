"""Calls of other people's code in this process, which must neither be waited for without end nor end the program."""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """Somebody wants the program to end: raised by ``interrupt``, so that it is told from what other code raises."""


def interrupt(*_: object) -> None:
    """Handle a signal that ends the program."""
    raise Interrupted


def interrupts(error: BaseException) -> bool:
    """Tell whether an exception came from ctrl-C or another ending signal, so that it must not be kept."""
    if signal.getsignal(signal.SIGTERM) is interrupt:
        return isinstance(error, Interrupted)
    # A caller of the library has Python's own handler.
    return isinstance(error, KeyboardInterrupt)


_AGAIN_S = 1.0
"""Seconds after which an interruption is repeated, in case the code took it for its own."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what ``call`` gives; raises TimeoutError where it takes longer, and whatever it raises.

    A call in the main thread is interrupted. Nobody can interrupt another thread: there it goes on, but nobody waits.
    """
    if threading.current_thread() is threading.main_thread():
        return _interrupt_after(seconds, call)
    return _abandon_after(seconds, call)


def call_or(call: Callable[[], T], otherwise: T) -> T:
    """Return what ``call`` gives, or ``otherwise`` where it raises anything but what ends the program."""
    try:
        return call()
    except BaseException as error:
        # It is for text and properties of other people's objects, which may raise whatever they like.
        if interrupts(error):
            raise
        return otherwise


def _too_long(seconds: float) -> TimeoutError:
    return TimeoutError(f"took more than {seconds:g} s")


def _interrupt_after(seconds: float, call: Callable[[], T]) -> T:
    def ring(*_: object) -> None:
        raise _too_long(seconds)

    others, start_s = signal.signal(signal.SIGALRM, ring), time.monotonic()
    other_left_s, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, others)
        if other_left_s:
            # Somebody else's alarm, such as that of a test.
            signal.setitimer(signal.ITIMER_REAL, max(other_left_s - (time.monotonic() - start_s), 1e-3), interval)


def _abandon_after(seconds: float, call: Callable[[], T]) -> T:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            # Raised where the result is waited for.
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    wait([future], timeout=seconds)
    if not future.done():
        raise _too_long(seconds)
    return future.result()
