"""CPU seconds of trainings, and the one thread that makes them repeatable."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class CpuClock:
    """CPU seconds of a training that may go on over several processes."""

    def __init__(self) -> None:
        self._begun = time.process_time()
        self.earlier_s = 0.0
        """Seconds of the processes that it was taken up from."""

    @property
    def seconds(self) -> float:
        """CPU seconds so far, earlier ones included."""
        return self.earlier_s + time.process_time() - self._begun


class Limit:
    """CPU seconds that updates may take after the first one; None: as many as they do.

    Not counted before: the first update imports what torch needs for its optimisers, which takes
    seconds on a slow machine, and would make other networks there.
    """

    def __init__(self, cpu_s: float | None) -> None:
        self._cpu_s = cpu_s
        self._begun: float | None = None

    def begin(self) -> None:
        """An update is done; the first call starts the clock."""
        if self._begun is None:
            self._begun = time.process_time()

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        if self._cpu_s is None or self._begun is None:
            return False
        return time.process_time() - self._begun >= self._cpu_s


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: these arrays are too small to share, and one thread adds up in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
