"""Which option each table should have if work could be spread evenly: the start of the search.

Phases wait for their slowest device, so that a step is at least the sum of the phases' means, to which every option
adds a number of its own. What cannot be spread is a lump: a phase is also at least as long as the largest part that
one device gets. And every way to shard that is used at all costs its calls. So for a set of kinds (scope and module)
and a limit on lumps, every table takes the option of least sum that the kinds and the limit leave; the kinds and the
limits are searched.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints

from .contributions import EXCHANGES, WEIGHTS
from .memory import by_table, cheapest, least
from .menu import Menu
from .pieces import Holders
from .state import PlanState

ROUNDS = 3
"""How often the means, to which the limits are relative, are computed afresh."""


class Totals(NamedTuple):
    """What chosen options add up to."""

    kernels: Floats
    """Milliseconds forward and backward, in the mean over the devices, [2]."""
    links: Floats
    """Milliseconds of exchanges by link, [5, 2]."""
    largest: Floats
    """Milliseconds of each phase on the device with the largest part, [4]."""


@dataclass(frozen=True, eq=False)
class Choice:
    """An option for every table, and what the step would be."""

    ms: float
    options: Ints
    """The number of each table's option, [tables]."""

    def same(self, other: "Choice") -> bool:
        """Tell whether the other choice has the same options."""
        return bool((self.options == other.options).all())


class OptionRelaxation:
    """Chooses options for the tables of a menu."""

    def __init__(self, menu: Menu, room: float) -> None:
        self.menu, self.parts = menu, menu.contributions
        self.room = room
        """Bytes of HBM of all devices together."""
        self._state = PlanState(menu.problem)
        self._launch_ms = 1e3 * menu.problem.machine.constants.backward_launch_s
        self._columns = by_table(self.parts.unit)
        # One array a phase or kind: contiguous.
        self._largest, self._needs = self.parts.largest.T.copy(), self.parts.needs.T.copy()
        self._links: Floats = np.ascontiguousarray(self.parts.links)
        self._alone_ms = self.parts.kernels.sum(axis=1) + self.parts.alike
        self._latencies: dict[bytes, tuple[float, float]] = {}
        self._last: tuple[Ints, Totals] | None = None
        self._chosen: dict[tuple[bytes, float], Choice | None] = {}

    def choices(self) -> list[Choice]:
        """Return options for all tables under each limit on lumps, most promising first; none if no kinds serve all."""
        best = (self._best_kinds(lump) for lump in self.menu.extent.lumps)
        choices = sorted((choice for choice in best if choice is not None), key=lambda choice: choice.ms)
        different: list[Choice] = []
        for choice in choices:
            if not any(map(choice.same, different)):
                different.append(choice)
        return different

    def _best_kinds(self, lump: float) -> Choice | None:
        """Search the best set of kinds: one of the starts, then kinds put in or left out while the step shrinks."""
        choices = [
            (choice, allowed) for allowed in self.starts(lump) if (choice := self.choose(allowed, lump)) is not None
        ]
        if not choices:
            return None
        # Milliseconds may be negative: what hides the dense model's all-reduce is taken off.
        best, allowed = min(choices, key=lambda pair: pair[0].ms)
        better = True
        while better:
            better = False
            for other in self._neighbours(allowed):
                choice = self.choose(other, lump)
                if choice is not None and choice.ms < best.ms - 1e-9 * abs(best.ms):
                    best, allowed, better = choice, other, True
                    break
        return best

    def starts(self, lump: float) -> list[Bools]:
        """Return the sets of kinds that the search begins with: one scope for all tables, or two, or all kinds."""
        kinds = self.parts.kinds
        starts = [np.array([kind[0] is scope for kind in kinds]) for scope in Holders]
        # A scope that some table cannot have, as one of fewer rows than a node has devices cannot, begins with another.
        alone = [start for start in starts if self.choose(start, lump) is None]
        starts += [one | other for one in alone for other in starts if other is not one]
        return [*starts, np.ones(len(kinds), dtype=np.bool_)]

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
        """Return the options of least sum that need only ``allowed`` kinds; None where a table has no such option."""
        self.menu.check()
        key = allowed.tobytes(), lump
        if key not in self._chosen:
            self._chosen[key] = self._choose(allowed, lump)
        return self._chosen[key]

    def _choose(self, allowed: Bools, lump: float) -> Choice | None:
        usable: Bools = ~np.logical_or.reduce(self._needs[~allowed], axis=0)
        if not usable[self._columns].any(axis=0).all():
            return None
        best: Choice | None = None
        # What travels inside nodes and across travels at once: the link that is waited for has the price.
        across = np.full(5, float(self.menu.links.nodes > 1))
        exposed = np.ones(5)
        for _ in range(ROUNDS):
            price = np.stack([1.0 - across, across], axis=1) * (EXCHANGES * exposed)[:, None]
            cost = self._alone_ms + np.tensordot(self._links, price, axes=2)
            options = self._cheapest_within(usable, cost, lump)
            choice = Choice(self._step_ms(options), options)
            if best is None or choice.ms < best.ms:
                best = choice
            links = self._totals(options).links.copy()
            # All copies are reduced together.
            links[3:] = links[3:].sum(axis=0)
            waited, now_exposed = (links[:, 1] >= links[:, 0]).astype(np.float64), self._exposure(options)
            if (waited == across).all() and (now_exposed == exposed).all():
                break
            across, exposed = (across + waited) / 2.0, (exposed + now_exposed) / 2.0
        return best

    def _exposure(self, options: Ints) -> Floats:
        """Return 0 for lookups and for replicas' gradients where these options have them hidden, else 1, [5]."""
        hidden, exchanged, replicas = self._hidden_ms(options), *self._exchanges_ms(options)
        exposed = np.ones(5)
        exposed[0] = float(not self._state.overlap.input_waits or hidden[1] < exchanged[0])
        exposed[3] = float(not self._state.overlap.hides or hidden[0] < replicas + self._state.overlap.reduced_ms)
        return exposed

    def _exchanges_ms(self, options: Ints) -> tuple[Floats, float]:
        """Return what all lookups, vectors, sums and copies' gradients take, [4], and those of replicas alone."""
        links = self._totals(options).links
        together = np.concatenate([links[:3], links[3:].sum(axis=0, keepdims=True)])
        return EXCHANGES[:4] * together.max(axis=1), float(links[3].max())

    def _hidden_ms(self, options: Ints) -> tuple[float, float]:
        """Return what of the gradients' all-reduce and what of the lookups goes on beside the phases of options."""
        overlap, largest = self._state.overlap, self._totals(options).largest
        forward, backward, received, output = np.maximum(self.phases_ms(options), largest)
        backward, output = backward + self._launch_ms, output + self._calls_ms(options)[1]
        exchanged, replicas = self._exchanges_ms(options)
        reduced = float(overlap.hidden_reduced_ms(replicas, backward + output))
        if not overlap.input_waits:
            return reduced, 0.0
        linked = 2.0 * output + float(exchanged[2:].sum())
        kernels = forward + backward
        hidden = overlap.hidden_input_ms(received, 0.0, kernels=kernels, linked=linked, hidden_reduced=reduced)
        return reduced, float(hidden)

    def _cheapest_within(self, usable: Bools, cost: Floats, lump: float) -> Ints:
        """Return each table's option of least cost among those whose largest parts are within the limit, [tables]."""
        options = self._cheapest(usable, cost)
        for _ in range(ROUNDS if np.isfinite(lump) else 0):
            limits = lump * self.phases_ms(options) + 1e-12
            small = usable.copy()
            for largest, limit in zip(self._largest, limits):
                small &= largest <= limit
            # A table with no option small enough has the one whose largest part is smallest.
            none: Bools = np.asarray(~small[self._columns].any(axis=0))
            if none.any():
                small |= usable & none[self.parts.unit] & self._smallest(usable)
            before, options = options, self._cheapest(small, cost)
            if (before == options).all():
                break
        return options

    def phases_ms(self, options: Ints) -> Floats:
        """Return mean milliseconds over the devices of forward, backward, lookups and vectors, [4]."""
        totals = self._totals(options)
        return np.concatenate([totals.kernels, totals.links.max(axis=1)[:2]])

    def _totals(self, options: Ints) -> Totals:
        """Return what options add up to, which is asked several times of the same ones."""
        if self._last is None or self._last[0] is not options:
            kernels, links = self.parts.kernels[options].sum(axis=0), self.parts.links[options].sum(axis=0)
            self._last = options, Totals(kernels, links, self.parts.largest[options].max(axis=0))
        return self._last[1]

    def _smallest(self, usable: Bools) -> Bools:
        """Return True for each table's options whose largest parts are smallest, [options]."""
        size = np.where(usable, self.parts.largest @ WEIGHTS, np.inf)
        smallest = size[least(size, self._columns)]
        return np.asarray(size <= smallest[self.parts.unit] * (1.0 + 1e-9))

    def _cheapest(self, usable: Bools, cost: Floats) -> Ints:
        """Return each table's usable option of least cost such that all of them fit the room, [tables]."""
        return cheapest(np.where(usable, cost, np.inf), self.parts.size, self._columns, self.room)

    def _step_ms(self, options: Ints) -> float:
        exchanged, _ = self._exchanges_ms(options)
        waited = float(np.maximum(self.phases_ms(options), self._totals(options).largest) @ WEIGHTS)
        waited += float(exchanged[2:].sum() + self.parts.alike[options].sum()) - sum(self._hidden_ms(options))
        return waited + self._calls_ms(options)[0]

    def _calls_ms(self, options: Ints) -> tuple[float, float]:
        """Return what all calls of options take whatever they send, and those that return vectors, once."""
        used: Bools = np.asarray(self.parts.needs[options].any(axis=0))
        key = used.tobytes()
        if key not in self._latencies:
            self._state.kinds = Counter(kind for kind, is_used in zip(self.parts.kinds, used) if is_used)
            self._latencies[key] = self._state.latencies_ms(), self._state.returning_ms()
        return self._latencies[key]
