"""Places chosen options, then moves, swaps and re-splits tables while the step falls."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.model.plan import Segment
from shardbench.model.problem import Problem

from .kernels import NUMBERS
from .menu import WEIGHTS, Menu
from .pieces import Form, Holders
from .ruler import DOUBLINGS, PARCEL, Ruler, Sums
from .state import PlanState

RATED = 32
"""How many exchanges are rated at a time."""
CALL_S, PLACE_S, ROUGH_S = 2e-4, 5e-7, 5e-8
"""Nominal seconds of a call that rates, of a place that it rates, and of an exchange that is judged roughly."""
FINISHED = "finished"
"""The reason of a search that ended because nothing helped any more."""
GAIN = 1e-9
"""Share of the step that a change must gain to count."""


@dataclass
class WorkLeft:
    """What is left of the budget: nominal seconds of counted work, and a deadline as the safety net."""

    nominal_s: float
    deadline: float
    ended_by: str = FINISHED
    """The reason that the search stopped: nothing helped any more, its work or the clock."""

    @property
    def spent(self) -> bool:
        """True where the search must stop."""
        if self.ended_by == FINISHED and self.nominal_s <= 0.0:
            self.ended_by = "work"
        elif self.ended_by == FINISHED and time.monotonic() > self.deadline:
            self.ended_by = "clock"
        return self.ended_by != FINISHED


@dataclass(frozen=True, eq=False)
class TablePlaces:
    """An option of a table, and the place of each of its groups."""

    option: int
    places: tuple[int, ...]


class Things:
    """What lies on one device or node: tables, numbers of their groups, places, [things] each."""

    def __init__(self, found: list[tuple[int, int, int, Floats]], ruler: Ruler) -> None:
        self.tables, self.groups, self.places = np.array([row[:3] for row in found], dtype=np.int64).reshape(-1, 3).T
        self.parcels: Floats = np.array([row[3] for row in found]).reshape(-1, PARCEL)
        self.phases_ms = ruler.parcels_ms(self.parcels)
        """Milliseconds of the four phases of each thing alone, [4, things]."""


class Planner:
    """A state, and where every table is in it."""

    def __init__(self, problem: Problem, menu: Menu, effort: WorkLeft) -> None:
        self.problem, self.menu, self.effort = problem, menu, effort
        self.state = PlanState(problem)
        self.ruler = Ruler(self.state)
        self.placed: dict[int, TablePlaces] = {}
        self._sums: dict[int, tuple[Sums, ...]] = {}
        self._listed: dict[Holders, Things] = {}
        self._made: dict[tuple[int, int], Floats] = {}

    def sums(self, option: int) -> tuple[Sums, ...]:
        """Return what the groups of an option add, one sum a group."""
        if option not in self._sums:
            self._sums[option] = tuple(Sums(group) for group in self.menu.form(option))
        return self._sums[option]

    def construct(self, options: Ints) -> bool:
        """Place all tables, dearest first, in these options or, without room, in others; False where none has room."""
        parts = self.menu.contributions
        largest = parts.largest[options]
        lumps = largest / np.maximum(largest.sum(axis=0), 1e-12)
        # What all devices share comes first, then nodes' tables, then the largest parts.
        order = np.argsort(-lumps.max(axis=1), kind="stable")
        ahead = np.array([self._spread(option) for option in options.tolist()])
        rest = ahead.sum(axis=0)
        for table in order.tolist():
            rest = rest - ahead[table]
            self.ruler.ahead = np.maximum(rest, 0.0)
            self.ruler.refresh()
            if not self._put_best(table, [int(options[table])]) and not self._put_best(table, self.menu.of(table)):
                return False
        self.ruler.ahead = np.zeros_like(rest)
        self.ruler.refresh()
        return True

    def _spread(self, option: int) -> Floats:
        """Return numbers, lookups and vectors of the groups of an option, spread evenly over all devices."""
        world, found = self.state.world, np.zeros(NUMBERS + 2)
        for sums in self.sums(option):
            share = self.menu.counter.holders[sums.scope] / world
            found[:NUMBERS] += sums.numbers * share
            if sums.scope <= Holders.WORLD:
                found[NUMBERS] += sums.received * share
                pooled = sums.pooled * self.state.sample_bytes * (sums.scope is Holders.RANK)
                found[NUMBERS + 1] += (sums.returned + pooled) * share
        return found

    def _put_best(self, table: int, options: Sequence[int]) -> bool:
        """Place a table in the option and the places where the norms grow least; False where none has room."""
        best, chosen = np.inf, None
        for option in options:
            rated, placed = self._rated(option)
            if rated < best:
                best, chosen = rated, placed
        if chosen is None:
            return False
        self._put(table, chosen)
        return True

    def _rated(self, option: int) -> tuple[float, TablePlaces | None]:
        """Return how many milliseconds the norms grow with an option, and its places; infinity and None without room.

        Parts of a table that have a device each are on different ones.
        """
        form, groups = self.menu.form(option), self.sums(option)
        self.effort.nominal_s -= CALL_S * len(groups) + PLACE_S * self.state.world
        kinds = frozenset((piece.scope, piece.module) for group in form for piece in group)
        places, powers, shards = list[int](), np.zeros(4), self.menu.options[option].shards
        for sums, times in [(sums, 1) for sums in groups[: len(groups) - shards]] + [(groups[-1], shards)]:
            rates, grown = self.ruler.rate(sums, self._taken(form, groups, places))
            if sums.scope is Holders.RANK:
                # Devices that have a part of the table already get no other.
                rates[[place for place, other in zip(places, groups) if other.scope is Holders.RANK]] = np.inf
            best = np.argsort(rates, kind="stable")[:times] if times > 1 else np.array([rates.argmin()])
            if not np.isfinite(rates[best]).all():
                return np.inf, None
            places += best.tolist()
            powers += grown[:, best].sum(axis=1)
        total = self.ruler.calls_ms(kinds) + self.ruler.alike_ms(form) + float(self.ruler.grown(powers))
        return total, TablePlaces(option, tuple(places))

    def _taken(self, form: Form, groups: tuple[Sums, ...], places: list[int]) -> Floats | None:
        """Return most bytes that a form's first groups have at their places, [tiers, devices]; None without places."""
        if not places:
            return None
        taken = np.zeros_like(self.state.held)
        for (piece, *_), sums, place in zip(form, groups, places):
            taken[:, self.state.ranks(piece, place)] += sums.held[:, None]
        return taken

    def _put(self, table: int, placed: TablePlaces, sign: int = 1) -> None:
        for group, place in zip(self.menu.form(placed.option), placed.places, strict=True):
            for piece in group:
                self.state.add(piece, place, sign)
        self._listed.clear()
        if sign > 0:
            self.placed[table] = placed

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments of all tables that are placed."""
        world = range(self.state.world)
        return tuple(
            piece.segment(self.problem.tables[table], world[self.state.ranks(piece, place)])
            for table in sorted(self.placed)
            for group, place in zip(self.menu.form(self.placed[table].option), self.placed[table].places)
            for piece in group
        )

    @property
    def step_ms(self) -> float:
        """Milliseconds of the step of all that is placed, without the dense model."""
        return self.state.times().step_ms

    def improve(self) -> None:
        """Exchange, move and re-split what the slowest devices have while the norms fall; keep the best step seen."""
        best, kept = self.step_ms, dict(self.placed)
        for doublings in DOUBLINGS:
            self.ruler.doublings = doublings
            self.ruler.refresh()
            while not self.effort.spent and self._improved():
                if self.step_ms < best:
                    best, kept = self.step_ms, dict(self.placed)
        self._restore(kept)

    def _restore(self, kept: dict[int, TablePlaces]) -> None:
        for table, placed in kept.items():
            if self.placed[table] is not placed:
                self._put(table, self.placed[table], -1)
                self._put(table, placed)
        self.ruler.refresh()

    def _improved(self) -> bool:
        """Make one change on the slowest device of some phase; False where none helps."""
        phases = self.ruler.phases
        excess = (phases.max(axis=1) - phases.mean(axis=1)) * WEIGHTS[:4]
        slowest = dict.fromkeys(int(phases[phase].argmax()) for phase in np.argsort(-excess, kind="stable"))
        return any(self._exchange(rank) for rank in slowest) or any(self._resplit(rank) for rank in slowest)

    def _exchange(self, rank: int) -> bool:
        """Make the best exchange of one thing of a device, or of its node, with a thing, or nothing, of any other.

        Only exchanges that look best when phases add up are rated. False where none helps.
        """
        return any(self._exchange_of(scope, rank) for scope in (Holders.RANK, Holders.NODE))

    def _exchange_of(self, scope: Holders, rank: int) -> bool:
        devices = 1 if scope is Holders.RANK else self.state.local
        place, number = rank // devices, self.state.world // devices
        things = self._things(scope)
        own = np.flatnonzero(things.places == place)
        if not len(own) or number == 1:
            return False
        others = np.flatnonzero(things.places != place)
        places = np.concatenate([things.places[others], np.delete(np.arange(number), place)])
        given = np.concatenate([things.phases_ms[:, others], np.zeros((4, number - 1))], axis=1)
        rough = self.ruler.roughly(place, places, things.phases_ms[:, own], given, devices)
        self.effort.nominal_s -= CALL_S * (devices + 1) + ROUGH_S * rough.size * devices
        promising = np.argpartition(rough, min(RATED, rough.size - 1), axis=None)[:RATED]
        promising = np.sort(promising[rough.ravel()[promising] < 0.0])
        if not len(promising):
            return False
        which, at = np.unravel_index(promising, rough.shape)
        into = np.concatenate([things.parcels[others], np.zeros((number - 1, PARCEL))])
        rates = self.ruler.exchanged(place, places[at], into[at] - things.parcels[own[which]], devices)
        self.effort.nominal_s -= CALL_S * (devices + 1)
        best = int(rates.argmin())
        if not rates[best] < -GAIN * abs(self.ruler.base):
            return False
        self._move(things, int(own[which[best]]), int(places[at[best]]))
        if at[best] < len(others):
            self._move(things, int(others[at[best]]), place)
        self.ruler.refresh()
        return True

    def _things(self, scope: Holders) -> "Things":
        """Return all things that have a device each, or a node each."""
        if scope not in self._listed:
            found = [
                (table, group, place, self._parcel(placed.option, group))
                for table, placed in self.placed.items()
                for group, (place, sums) in enumerate(zip(placed.places, self.sums(placed.option)))
                if sums.scope is scope
            ]
            self._listed[scope] = Things(found, self.ruler)
        return self._listed[scope]

    def _parcel(self, option: int, group: int) -> Floats:
        key = (option, group)
        if key not in self._made:
            self._made[key] = self.ruler.parcel(self.sums(option)[group])
        return self._made[key]

    def _move(self, things: "Things", thing: int, place: int) -> None:
        table, group = int(things.tables[thing]), int(things.groups[thing])
        old = self.placed[table]
        for piece in self.menu.form(old.option)[group]:
            self.state.add(piece, old.places[group], -1)
            self.state.add(piece, place)
        self.placed[table] = TablePlaces(old.option, (*old.places[:group], place, *old.places[group + 1 :]))
        things.places[thing] = place

    def _resplit(self, rank: int) -> bool:
        """Give one table of a device another option, or another node, dearest table first; False where none helps."""
        state, cost = self.state, self.menu.contributions.largest
        there = [
            table
            for table, placed in self.placed.items()
            if any(
                (at := state.ranks(group[0], place)).start <= rank < at.stop
                for group, place in zip(self.menu.form(placed.option), placed.places)
            )
        ]
        for table in sorted(there, key=lambda table: -float(cost[self.placed[table].option].sum())):
            old, before = self.placed[table], self._score()
            self._put(table, old, -1)
            self.ruler.refresh()
            if self._put_best(table, self.menu.of(table)):
                self.ruler.refresh()
                if self._score() < before - GAIN * abs(before):
                    return True
                self._put(table, self.placed[table], -1)
            self._put(table, old)
            self.ruler.refresh()
            if self.effort.spent:
                return False
        return False

    def _score(self) -> float:
        """Return the milliseconds of the norms, of what all devices pay alike, and of all calls."""
        return self.ruler.base + self.ruler.shared_ms() + self.state.latencies_ms()
