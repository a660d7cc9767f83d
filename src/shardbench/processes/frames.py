"""Messages of two processes over a pipe, whole or not at all, and never waited for longer than told."""

import os
import select
import time
from contextlib import suppress
from multiprocessing.connection import Connection

_LENGTH_BYTES = 8
LONGEST = 1 << 28
"""Bytes of the longest message; a process that says it has more to tell is not believed."""
FOREVER = float("inf")


class TooLong(ValueError):
    """A message says that it has more bytes than any."""


def write_frame(pipe: Connection, data: bytes, deadline: float = FOREVER) -> None:
    """Write one message; raises BrokenPipeError where nobody reads, TimeoutError where not all is read at ``deadline``.

    Deadlines are seconds of the monotonic clock.
    """
    left = memoryview(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    os.set_blocking(pipe.fileno(), deadline == FOREVER)
    while left:
        _wait(pipe, select.POLLOUT, deadline)
        # Who has the other end may have filled the pipe itself, or taken back what it wrote.
        with suppress(BlockingIOError):
            left = left[os.write(pipe.fileno(), left) :]


def read_frame(pipe: Connection, deadline: float = FOREVER, sentinel: int | None = None) -> bytes:
    """Read one message; raises TimeoutError where it is not whole at ``deadline``, EOFError or TooLong.

    ``sentinel`` is that of the process that writes: whatever it started may hold the pipe open when it has ended.
    """
    size = int.from_bytes(_read(pipe, _LENGTH_BYTES, deadline, sentinel), "big")
    if size > LONGEST:
        raise TooLong(f"a message of {size} bytes; the longest has {LONGEST}")
    return _read(pipe, size, deadline, sentinel)


def _read(pipe: Connection, size: int, deadline: float, sentinel: int | None) -> bytes:
    data = bytearray()
    os.set_blocking(pipe.fileno(), deadline == FOREVER)
    while len(data) < size:
        _wait(pipe, select.POLLIN, deadline, sentinel)
        with suppress(BlockingIOError):
            some = os.read(pipe.fileno(), min(size - len(data), 1 << 20))
            if not some:
                raise EOFError
            data += some
    return bytes(data)


def _wait(pipe: Connection, event: int, deadline: float, sentinel: int | None = None) -> None:
    ready = select.poll()
    ready.register(pipe.fileno(), event)
    if sentinel is not None:
        ready.register(sentinel, select.POLLIN)
    left_s = deadline - time.monotonic()
    # Who never stops writing is always ready.
    if left_s <= 0.0 or not (events := ready.poll(None if deadline == FOREVER else 1e3 * left_s)):
        raise TimeoutError
    if pipe.fileno() not in dict(events):
        raise EOFError
