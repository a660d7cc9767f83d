"""Axes: places of values, the ticks between, and a cap where a few values would squash the rest."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.errors import BadInput

CAP = 3.0
"""An axis ends at so many medians, where a value lies beyond."""
_NEAR = 1.15
"""A largest value that passes the cap by less than this factor is no outlier: the axis ends at it."""
_TICKS = 6
_LEAST_TICKS = 4


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis from ``low`` to ``high``, drawn from ``start`` to ``stop``; values outside are drawn at its ends."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    names: tuple[str, ...] = ()
    """Categories at 0, 1, 2 ...; an axis that has some has no other ticks."""

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise BadInput(f"an axis from {self.low} to {self.high}{' (log)' if self.log else ''} has no length")

    def at(self, value: float) -> float:
        """Return the place at which a value is drawn."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def beyond(self, value: float) -> bool:
        """Return True for a value that is more than the axis shows."""
        return value > self.high * (1.0 + 1e-9)

    def ticks(self) -> list[tuple[float, str]]:
        """Return a handful of round numbers on the axis with their labels."""
        if self.names:
            return [(float(place), name) for place, name in enumerate(self.names)]
        values = _log_ticks(self.low, self.high) if self.log else _linear_ticks(self.low, self.high)
        return [(value, label(value)) for value in values]


def categories(names: Sequence[str], start: float, stop: float) -> Scale:
    """Return an axis of names, each in the middle of its share."""
    return Scale(low=-0.5, high=len(names) - 0.5, start=start, stop=stop, names=tuple(names))


def label(value: float) -> str:
    """Return a round number as an axis names it: no zeros behind the point, thousands apart."""
    if abs(value) >= 1e6:
        for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
            if abs(value) >= size:
                return f"{value / size:.6g}{unit}"
    return f"{value:,.10f}".rstrip("0").rstrip(".") if value else "0"


def cap(values: Iterable[float]) -> float:
    """Return the end of a linear axis from 0: the largest value, or ``CAP`` medians where some are far beyond, or 1.

    Values must not be negative.
    """
    positives = [value for value in values if value > 0]
    if not positives:
        return 1.0
    limit = CAP * float(np.median(positives))
    largest = max(positives)
    return largest if largest <= _NEAR * limit else limit


def span(values: Iterable[float], start: float, stop: float, *, log: bool, zero: bool = False) -> Scale:
    """Return an axis that holds all values, with a little room; with ``zero`` a linear one begins at 0.

    Only positive values count where the axis is logarithmic.
    """
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(finite), max(finite)) if finite else (1.0, 1.0)
    if log:
        room = max(1.08, (high / low) ** 0.04)
        return Scale(low=low / room, high=high * room, start=start, stop=stop, log=True)
    room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    bottom = 0.0 if zero and low >= 0 else low - room
    return Scale(low=bottom, high=high + room, start=start, stop=stop)


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (size, 2 * size, 5 * size, 10 * size) if step >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for within in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        values = (float(f"{part * 10.0**decade:.6g}") for decade in decades for part in within)
        ticks = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(ticks) <= _TICKS + 2:
            break
    every = -(-len(ticks) // (_TICKS + 2))
    # Within less than a decade round numbers of a linear axis are as good.
    return ticks[::every] if len(ticks) >= _LEAST_TICKS else _linear_ticks(low, high)
