"""Estimates how long the rest of a session takes, from what finished so far."""

import math
import statistics
from collections.abc import Callable
from time import monotonic

LEAST = 3
"""The number of pieces that must have finished before anything is said."""
_SPREAD = 2.0
"""A range has so many standard deviations either way: about 95 % where pieces are alike."""


class TimeLeft:
    """Takes the seconds between one finish and the next, whatever runs side by side, for those to come.

    Pieces differ (a strategy that learns, a larger workload later), so that the answer is a range: the sum of what is
    left varies, and its mean is known only so well.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.begin(0)

    def begin(self, pieces: int) -> None:
        """Begin a list of so many open pieces."""
        self.open = pieces
        self._last = self._clock()
        self._gaps: list[float] = []

    def finished(self) -> None:
        """Count one more piece as done."""
        now = self._clock()
        self._gaps.append(now - self._last)
        self._last = now
        self.open -= 1

    def left_s(self) -> tuple[float, float] | None:
        """Estimate the least and the most seconds left; None before enough is known, and where nothing is left."""
        done, left = len(self._gaps), self.open
        if done < LEAST or left <= 0:
            return None
        middle = left * statistics.fmean(self._gaps)
        off = _SPREAD * statistics.stdev(self._gaps) * math.sqrt(left + left**2 / done)
        return max(0.0, middle - off), middle + off

    def text(self) -> str:
        """Say how long the rest takes, such as ``2 to 6 min left``; empty where nothing is left."""
        if self.open <= 0:
            return ""
        range_s = self.left_s()
        if range_s is None:
            return "time left not known yet"
        size, unit = next((size, unit) for size, unit in _UNITS if range_s[1] >= 3 * size or size == 1)
        low, high = math.floor(range_s[0] / size), math.ceil(range_s[1] / size)
        if low == 0:
            return f"at most {high} {unit} left"
        return f"about {high} {unit} left" if high - low <= 1 else f"{low} to {high} {unit} left"


_UNITS = ((3600, "h"), (60, "min"), (1, "s"))
