"""Which option each table should have if work could be spread evenly: the start of the search.

Phases wait for their slowest device, so that a step is at least the sum of the phases' means, to which every option
adds a number of its own. What cannot be spread is a lump: a phase is also at least as long as the largest part that
one device gets. And every way to shard that is used at all costs its calls. So for a set of kinds (scope and module)
and a limit on lumps, every table takes the option of least sum that the kinds and the limit leave; the kinds and the
limits are searched.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints

from .menu import WEIGHTS, Menu
from .pieces import Scope

Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
LUMPS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, np.inf)
"""Largest part of a table that a device may get, over the phase's mean."""
ROUNDS = 3
"""Times that the means, which the limits are relative to, are computed afresh."""
PRICES = 40
"""Bisections of the price of a byte of HBM."""


@dataclass(frozen=True, eq=False)
class Choice:
    """An option for every table, and what the step would be."""

    ms: float
    options: Ints
    """[tables]"""


class Relaxation:
    """Chooses options for the tables of a menu."""

    def __init__(self, menu: Menu, latency_ms: Callable[[list[tuple[Scope, int]]], float], room: float) -> None:
        self.menu, self.parts = menu, menu.contributions
        self.room = room
        """Bytes of HBM on all devices."""
        self._latency_ms = latency_ms
        self._cost = self.parts.means @ WEIGHTS
        self._first = menu.first[:-1]
        self._latencies: dict[bytes, float] = {}

    def choices(self) -> list[Choice]:
        """Options for all tables under each limit on lumps, most promising first; none where no kinds serve all."""
        found = [choice for lump in LUMPS if (choice := self._best_kinds(lump)) is not None]
        found.sort(key=lambda choice: choice.ms)
        different: list[Choice] = []
        for choice in found:
            if not any((choice.options == other.options).all() for other in different):
                different.append(choice)
        return different

    def _best_kinds(self, lump: float) -> Choice | None:
        """The best set of kinds: one scope for all tables, then kinds put in or left out while the step shrinks."""
        kinds = self.parts.kinds
        starts = [np.array([kind[0] is scope for kind in kinds]) for scope in Scope]
        starts.append(np.ones(len(kinds), dtype=np.bool_))
        rated = [(choice, allowed) for allowed in starts if (choice := self.choose(allowed, lump)) is not None]
        if not rated:
            return None
        best, allowed = min(rated, key=lambda pair: pair[0].ms)
        better = True
        while better:
            better = False
            for other in self._neighbours(allowed):
                choice = self.choose(other, lump)
                if choice is not None and choice.ms < best.ms * (1.0 - 1e-9):
                    best, allowed, better = choice, other, True
                    break
        return best

    def _neighbours(self, allowed: Bools) -> Iterator[Bools]:
        for at in range(len(allowed)):
            other = allowed.copy()
            other[at] = not other[at]
            yield other
        for out in np.flatnonzero(allowed):
            for into in np.flatnonzero(~allowed):
                other = allowed.copy()
                other[out], other[into] = False, True
                yield other

    def choose(self, allowed: Bools, lump: float) -> Choice | None:
        """The options of least sum among those that need only ``allowed`` kinds; None where a table has none."""
        usable: Bools = np.asarray(~(self.parts.needs & ~allowed).any(axis=1))
        if not np.logical_or.reduceat(usable, self._first).all():
            return None
        options = self._cheapest(usable)
        for _ in range(ROUNDS if np.isfinite(lump) else 0):
            limit = lump * self.parts.means[options].sum(axis=0)
            limit[-1] = np.inf
            small = usable & (self.parts.largest <= limit + 1e-12).all(axis=1)
            # A table with no option small enough has the one whose largest part is smallest.
            none = ~np.logical_or.reduceat(small, self._first)
            if none.any():
                small |= usable & none[self.parts.table] & self._smallest(usable)
            before, options = options, self._cheapest(small)
            if (before == options).all():
                break
        return Choice(self._step_ms(options), options)

    def _smallest(self, usable: Bools) -> Bools:
        """The options of each table whose largest parts are smallest."""
        size = np.where(usable, self.parts.largest @ WEIGHTS, np.inf)
        least = np.minimum.reduceat(size, self._first)
        return np.asarray(size <= least[self.parts.table] * (1.0 + 1e-9))

    def _cheapest(self, usable: Bools) -> Ints:
        """Of each table the usable option of least sum, HBM at the least price at which all fit."""
        cost = np.where(usable, self._cost, np.inf)
        options = self._least(cost)
        if self.parts.size[options].sum() <= self.room:
            return options
        low, high = 0.0, 1e-12
        while self.parts.size[self._least(cost + high * self.parts.size)].sum() > self.room and high < 1e3:
            low, high = high, high * 16.0
        for _ in range(PRICES):
            middle = (low + high) / 2.0
            fits = self.parts.size[self._least(cost + middle * self.parts.size)].sum() <= self.room
            low, high = (low, middle) if fits else (middle, high)
        return self._least(cost + high * self.parts.size)

    def _least(self, cost: Floats) -> Ints:
        least = np.minimum.reduceat(cost, self._first)
        at = np.flatnonzero(cost <= least[self.parts.table])
        _, first = np.unique(self.parts.table[at], return_index=True)
        return np.asarray(at[first])

    def _step_ms(self, options: Ints) -> float:
        means = self.parts.means[options].sum(axis=0)
        largest = self.parts.largest[options].max(axis=0)
        used: Bools = np.asarray(self.parts.needs[options].any(axis=0))
        key = used.tobytes()
        if key not in self._latencies:
            self._latencies[key] = self._latency_ms([kind for kind, yes in zip(self.parts.kinds, used) if yes])
        return float(np.maximum(means, largest) @ WEIGHTS) + self._latencies[key]
