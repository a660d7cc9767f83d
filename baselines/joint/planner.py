"""Places chosen options, then moves, swaps and re-splits tables while the step falls."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.model.plan import Segment
from shardbench.model.problem import Problem

from .groups import PARCEL
from .kernels import NUMBERS
from .menu import WEIGHTS, Menu
from .pieces import Holders
from .ruler import DOUBLINGS, Ruler
from .state import PlanState

RATED = 32
"""How many exchanges are rated at a time."""
CALL_S, OPTION_S, PLACE_S, ROUGH_S = 1.5e-4, 6e-5, 3e-7, 5e-8
"""Nominal seconds of a call that rates, of an option, of a place of it, and of an exchange that is judged roughly."""
APART = 16
"""Devices for each one on which tables are placed together."""
TOGETHER, TOGETHER_ROUGHLY = 1 << 16, 1 << 14
"""Groups times devices, and exchanges, that are judged together: what is computed of them stays in a cache."""
Rates = dict[int, tuple[Floats, Floats]]
"""The rates [places] and powers [4, places] of groups."""
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
    reserve_s: float = 0.0
    """Nominal seconds that are kept for later."""

    @property
    def spent(self) -> bool:
        """True where the search must stop."""
        if self.ended_by == FINISHED and self.nominal_s <= self.reserve_s:
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
    """What lies on one device or node: tables, numbers of their parts, places, [things] each."""

    def __init__(self, found: Ints, menu: Menu, ruler: Ruler) -> None:
        """``found`` are tables, parts, places and groups, [things, 4]."""
        self.tables, self.parts, self.places = found[:, :3].T.copy()
        self.parcels: Floats = menu.groups.parcels[found[:, 3]]
        self.phases_ms = ruler.parcels_ms(self.parcels)
        """Milliseconds of the four phases of each thing alone, [4, things]."""


class Planner:
    """A state, and where every table is in it."""

    def __init__(self, problem: Problem, menu: Menu, effort: WorkLeft) -> None:
        self.problem, self.menu, self.effort = problem, menu, effort
        self.state = PlanState(problem)
        self.ruler = Ruler(self.state)
        self.placed: dict[int, TablePlaces] = {}
        self._listed: dict[Holders, Things] = {}

    def construct(self, options: Ints) -> bool:
        """Place all tables, dearest first, in these options or, without room, in others; False where none has room."""
        parts = self.menu.contributions
        largest = parts.largest[options]
        lumps = largest / np.maximum(largest.sum(axis=0), 1e-12)
        # What all devices have comes first, as it needs room on each; then nodes' tables and the largest parts.
        lump = lumps.max(axis=1)
        order = np.argsort(np.where(lump > 0.0, -lump, -np.inf), kind="stable").tolist()
        rest = parts.spread[options].sum(axis=0)
        while order:
            taken = self._next(order, options)
            rest = rest - parts.spread[options[taken]].sum(axis=0)
            self.ruler.ahead = np.maximum(rest, 0.0)
            self.ruler.refresh()
            if not self._put_together(taken, options):
                return False
            order = order[len(taken) :]
        self.ruler.ahead = np.zeros_like(rest)
        self.ruler.refresh()
        return True

    def _next(self, order: Sequence[int], options: Ints) -> list[int]:
        """Return the next tables whose parts are, together, on few of the devices: they do not meet."""
        taken, parts = list[int](), 0
        scope, local = self.menu.groups.scope, self.state.local
        for table in order:
            option = self.menu.options[options[table]]
            devices = {Holders.RANK: 1, Holders.NODE: local}
            own = [devices.get(Holders(int(scope[group])), 0) for group in option.groups]
            parts += sum(own) + (option.shards - 1) * own[-1]
            if taken and parts > self.state.world // APART:
                break
            taken.append(table)
        return taken

    def _put_together(self, tables: Sequence[int], options: Ints) -> bool:
        """Place tables where the norms grow least, each on devices that the others are not on; False without room."""
        rated, used = self._rates([int(options[table]) for table in tables]), np.zeros(self.state.world, dtype=np.bool_)
        for table in tables:
            option = int(options[table])
            found = self._picked(option, rated, used)
            if found is None:
                self.ruler.refresh()
                used[...] = True
                if not self._put_best(table, [option]) and not self._put_best(table, self.menu.of(table)):
                    return False
                self.ruler.refresh()
                continue
            self._put(table, found[0])
            for group, place in zip(self.menu.form(option), found[0].places):
                if group[0].scope <= Holders.NODE:
                    used[self.state.ranks(group[0], place)] = True
        return True

    def _put_best(self, table: int, options: Sequence[int]) -> bool:
        """Place a table in the option and the places where the norms grow least; False where none has room."""
        best, chosen = np.inf, None
        for rated, placed in self.rated(options):
            if rated < best:
                best, chosen = rated, placed
        if chosen is None:
            return False
        self._put(table, chosen)
        return True

    def rated(self, options: Sequence[int]) -> list[tuple[float, TablePlaces | None]]:
        """Return how many milliseconds the norms grow with each option, and its places.

        Without room they are infinity and None. Parts of a table that have a device each are on different ones.
        """
        groups, rates = self.menu.groups, self._rates(options)
        picked = [self._picked(option, rates) for option in options]
        self.effort.nominal_s -= OPTION_S * len(options)
        powers = np.array([one[1] for one in picked if one is not None]).reshape(-1, 4).T
        grown, found = iter(self.ruler.grown(powers).tolist()), list[tuple[float, TablePlaces | None]]()
        calls_ms: dict[frozenset[int], float] = {}
        alike_ms: dict[tuple[int, ...], float] = {}
        for option, one in zip(options, picked):
            if one is None:
                found.append((np.inf, None))
                continue
            chosen = self.menu.options[option].groups
            kinds = frozenset(groups.kind[list(chosen)].tolist())
            if kinds not in calls_ms:
                calls_ms[kinds] = self.ruler.calls_ms(frozenset(groups.kinds[kind] for kind in kinds))
            shared = tuple(group for group in chosen if groups.scope[group] >= Holders.WORLD)
            if shared not in alike_ms:
                alike_ms[shared] = self.ruler.alike_ms([piece for g in shared for piece in self.menu.pieces(g)])
            alike = alike_ms[shared] + float(self.menu.contributions.sources[option])
            found.append((calls_ms[kinds] + alike + next(grown), one[0]))
        return found

    def _rates(self, options: Sequence[int]) -> Rates:
        """Return what ``Ruler.rate`` tells of each group of the options, all rated together."""
        groups, found = self.menu.groups, Rates()
        every = np.array(list(dict.fromkeys(g for option in options for g in self.menu.options[option].groups)))
        self.effort.nominal_s -= CALL_S
        for scope in np.unique(groups.scope[every]).tolist():
            those = every[groups.scope[every] == scope]
            for some in np.array_split(those, -(-len(those) * self.state.world // TOGETHER)):
                rates, powers = self.ruler.rate(groups.parcels[some], Holders(scope))
                found.update({int(group): (rates[at], powers[:, at]) for at, group in enumerate(some)})
                self.effort.nominal_s -= CALL_S + PLACE_S * self.state.world * len(some)
        return found

    def _picked(self, option: int, rated: Rates, used: Bools | None = None) -> tuple[TablePlaces, Floats] | None:
        """Return the best places of an option, and the powers that it adds, [4]; None where there is no room.

        No part that one device or one node has is on a device that is ``used`` [devices].
        """
        groups, state, chosen = self.menu.groups, self.state, self.menu.options[option]
        held = groups.parcels[list(chosen.groups), NUMBERS + 3 :]
        roomy = self.ruler.roomy(held.sum(axis=0))
        taken = None if roomy else np.zeros_like(state.held)
        places, powers, own = list[int](), np.zeros(4), list[int]()
        for at, group in enumerate(chosen.groups):
            scope, times = Holders(int(groups.scope[group])), chosen.shards if at == len(chosen.groups) - 1 else 1
            rates, grown = rated[group]
            if taken is not None:
                full = (state.held + taken + held[at][:, None] > state.capacity).any(axis=0)
                rates = np.where(full.reshape(len(rates), -1).any(axis=1), np.inf, rates)
            if used is not None and scope <= Holders.NODE:
                rates = np.where(used.reshape(len(rates), -1).any(axis=1), np.inf, rates)
            if scope is Holders.RANK and own:
                # Devices that have a part of the table already get no other.
                rates = rates.copy()
                rates[own] = np.inf
            best = np.argsort(rates, kind="stable")[:times] if times > 1 else np.array([rates.argmin()])
            if not np.isfinite(rates[best]).all():
                return None
            new = best.tolist()
            places += new
            powers += grown[:, best].sum(axis=1)
            own += new if scope is Holders.RANK else []
            if taken is not None:
                for place in new:
                    taken[:, state.devices(scope, place)] += held[at][:, None]
        return TablePlaces(option, tuple(places)), powers

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
        into = np.concatenate([things.parcels[others], np.zeros((number - 1, PARCEL))])
        bytes_own, bytes_given = things.parcels[own, NUMBERS + 3 :], into[:, NUMBERS + 3 :]
        roomy = self.ruler.roomy(np.maximum(bytes_own.max(axis=0), bytes_given.max(axis=0)))
        rough = np.empty((len(own), len(places)))
        for some in np.array_split(np.arange(len(own)), -(-rough.size // TOGETHER_ROUGHLY)):
            rough[some] = self.ruler.roughly(place, places, things.phases_ms[:, own[some]], given, devices)
            if not roomy:
                # Where memory is short, those that look best may all be without room.
                fits = self.ruler.fits(place, places, bytes_own[some], bytes_given, devices)
                rough[some] = np.where(fits, rough[some], np.inf)
        self.effort.nominal_s -= CALL_S * (devices + 1) + ROUGH_S * rough.size * devices
        promising = np.argpartition(rough, min(RATED, rough.size - 1), axis=None)[:RATED]
        promising = np.sort(promising[rough.ravel()[promising] < 0.0])
        if not len(promising):
            return False
        which, at = np.unravel_index(promising, rough.shape)
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
            groups, options, found = self.menu.groups, self.menu.options, list[tuple[int, int, int, int]]()
            for table, placed in self.placed.items():
                option = options[placed.option]
                last = len(option.groups) - 1
                for part, place in enumerate(placed.places):
                    group = option.groups[min(part, last)]
                    if groups.scope[group] == scope:
                        found.append((table, part, place, group))
            self._listed[scope] = Things(np.array(found, dtype=np.int64).reshape(-1, 4), self.menu, self.ruler)
        return self._listed[scope]

    def _move(self, things: "Things", thing: int, place: int) -> None:
        table, group = int(things.tables[thing]), int(things.parts[thing])
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
