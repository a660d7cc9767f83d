"""CPU seconds of trainings, and the one thread that makes them repeatable."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class TrainingClock:
    """CPU seconds of a training that may go on over several processes."""

    def __init__(self) -> None:
        self._start_cpu_s = time.process_time()
        self.earlier_s = 0.0
        """CPU seconds of the processes that the training was taken up from."""

    @property
    def seconds(self) -> float:
        """Give the CPU seconds so far, earlier ones included."""
        return self.earlier_s + time.process_time() - self._start_cpu_s


class Limit:
    """CPU seconds that updates may take after the first one; None is no limit.

    The first update is not counted: it imports what torch needs for its optimisers, which takes
    seconds on a slow machine, and would make other networks there.
    """

    def __init__(self, cpu_s: float | None) -> None:
        self._cpu_s = cpu_s
        self._start_cpu_s: float | None = None

    def begin(self) -> None:
        """Start the clock, once the first update is done; later calls change nothing."""
        if self._start_cpu_s is None:
            self._start_cpu_s = time.process_time()

    @property
    def over(self) -> bool:
        """Tell whether the time is up."""
        if self._cpu_s is None or self._start_cpu_s is None:
            return False
        return time.process_time() - self._start_cpu_s >= self._cpu_s


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread: these arrays are too small to share, and one thread adds up in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
