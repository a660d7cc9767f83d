"""Places chosen options, then moves, swaps and re-splits tables while the step falls."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.model.problem import Problem

from .contributions import PARCEL, WEIGHTS
from .menu import Menu
from .pieces import NUMBERS, Holders
from .ruler import DOUBLINGS, PROMISING, Ruler
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
FINISHED, CLOCK = "finished", "clock"
"""The reasons of a search that ended because nothing helped any more, and because the clock ended it."""
GAIN = 1e-9
"""Share of the step that a change must gain to count."""
ANEW = 8
"""Units, at most, that are placed anew together."""
FUTILE, WORTHWHILE = 20, 1e-3
"""Attempts in a row for each unit that shorten the step by less than this share of it, after which none is made."""
EXCHANGED = 20
"""Exchanges, at most, for each unit that was placed anew."""


class TimeIsOver(Exception):
    """The clock ended the search."""


@dataclass
class WorkLeft:
    """What is left of the budget: nominal seconds of counted work, and a deadline as the safety net."""

    nominal_s: float
    deadline: float
    ended_by: str = FINISHED
    """The reason that the search stopped: nothing helped any more, its work or the clock."""
    reserve_s: float = 0.0
    """Nominal seconds that are kept for later."""
    may_stop: bool = False
    """Whether there is a plan, so that the clock may end whatever goes on."""

    @property
    def spent(self) -> bool:
        """True where the search must stop."""
        if self.ended_by == FINISHED and self.nominal_s <= self.reserve_s:
            self.ended_by = "work"
        elif self.ended_by == FINISHED and time.monotonic() > self.deadline:
            self.ended_by = CLOCK
        return self.ended_by != FINISHED

    def check_clock(self) -> None:
        """Raise TimeIsOver after the deadline, if there is a plan."""
        if self.may_stop and time.monotonic() > self.deadline:
            self.ended_by = CLOCK
            raise TimeIsOver


@dataclass(frozen=True, eq=False)
class TablePlaces:
    """An option of a table, and the place of each of its groups."""

    option: int
    places: tuple[int, ...]


class PlacedParts:
    """Parts of tables that are each on one device, or on one node: tables, numbers in them, places, [parts] each."""

    def __init__(self, parts: Ints, menu: Menu, ruler: Ruler) -> None:
        """``parts`` are tables, numbers in them, places and groups, [parts, 4]."""
        self.tables, self.numbers, self.places = parts[:, :3].T.copy()
        self.parcels: Floats = menu.groups.parcels[parts[:, 3]]
        self.phases_ms = ruler.parcels_ms(self.parcels)
        """Milliseconds of the four phases of each part alone, [4, parts]."""


class Planner:
    """A state, and where every table is in it."""

    def __init__(self, problem: Problem, menu: Menu, effort: WorkLeft) -> None:
        self.problem, self.menu, self.effort = problem, menu, effort
        self.state = PlanState(problem)
        self.ruler = Ruler(self.state)
        self.placed: dict[int, TablePlaces] = {}
        """By unit of the menu."""
        self._node_of: dict[int, int] = {}
        """The node of each unit whose rows are all on the one of its group."""
        self._listed: dict[Holders, PlacedParts] = {}

    @classmethod
    def of(cls, problem: Problem, menu: Menu, placed: Mapping[int, TablePlaces], effort: WorkLeft) -> "Planner":
        """Return a planner that has units of a menu in these places."""
        planner = cls(problem, menu, effort)
        for unit, places in placed.items():
            planner._put(unit, places)
        planner.ruler.refresh()
        for unit in (unit for group in menu.in_nodes for unit in group):
            first = menu.form(placed[unit].option)[0][0]
            planner._node_of[unit] = planner.state.ranks(first, placed[unit].places[0]).start // planner.state.local
        return planner

    def construct(self, options: Ints) -> bool:
        """Place all tables, dearest first, in these options or, without room, in others; False where none has room."""
        parts = self.menu.contributions
        largest = parts.largest[options]
        lumps = largest / np.maximum(largest.sum(axis=0), 1e-12)
        # What all devices have comes first, as it needs room on each; then nodes' tables and the largest parts.
        lump = lumps.max(axis=1)
        self._share_nodes(options)
        lump[list(self._node_of)] += 1.0
        order = np.argsort(np.where(lump > 0.0, -lump, -np.inf), kind="stable").tolist()
        rest = parts.spread[options].sum(axis=0)
        while order:
            self.effort.check_clock()
            tables = self._next(order, options)
            rest = rest - parts.spread[options[tables]].sum(axis=0)
            self.ruler.ahead = np.maximum(rest, 0.0)
            self.ruler.refresh()
            if not self._put_together(tables, options):
                return False
            order = order[len(tables) :]
        self.ruler.ahead = np.zeros_like(rest)
        self.ruler.refresh()
        return True

    def _share_nodes(self, options: Ints) -> None:
        """Give each group of units that are on one node a node: the one that has least work or memory so far."""
        parts = self.menu.contributions
        loads = np.stack([parts.kernels.sum(axis=1), parts.size], axis=1)[options]
        loads, taken = loads / np.maximum(loads.sum(axis=0), 1e-12), np.zeros((self.state.nodes, 2))
        groups = [(loads[group].sum(axis=0), group) for group in self.menu.in_nodes]
        for load, group in sorted(groups, key=lambda pair: -float(pair[0].max())):
            node = int((taken + load).max(axis=1).argmin())
            taken[node] += load
            self._node_of.update(dict.fromkeys(group, node))

    def _next(self, order: Sequence[int], options: Ints) -> list[int]:
        """Return the next tables whose parts are, together, on few of the devices: they do not meet."""
        tables, parts = list[int](), 0
        scope, local = self.menu.groups.scope, self.state.local
        for table in order:
            option = self.menu.options[options[table]]
            devices = {Holders.RANK: 1, Holders.NODE: local}
            own = [devices.get(Holders(int(scope[group])), 0) for group in option.groups]
            parts += sum(own) + (option.shards - 1) * own[-1]
            if tables and parts > self.state.world // APART:
                break
            tables.append(table)
        return tables

    def _put_together(self, tables: Sequence[int], options: Ints) -> bool:
        """Place tables where the norms grow least, each on devices that the others are not on; False without room."""
        rates, used = self._rates([int(options[table]) for table in tables]), np.zeros(self.state.world, dtype=np.bool_)
        for at, table in enumerate(tables):
            option = int(options[table])
            pick = self._pick(option, rates, used)
            if pick is None:
                self.ruler.refresh()
                # All promising places may be used by now. With more tables than devices one by one would take long.
                if at and len(options) > self.state.world > APART * PROMISING:
                    return self._put_together(tables[at:], options)
                used[...] = True
                if not self._put_best(table, [option]) and not self._put_best(table, self.menu.of(table)):
                    return False
                self.ruler.refresh()
                continue
            self._put(table, pick[0])
            for group, place in zip(self.menu.form(option), pick[0].places):
                if group[0].scope <= Holders.NODE:
                    used[self.state.ranks(group[0], place)] = True
        return True

    def _put_best(self, table: int, options: Sequence[int]) -> bool:
        """Place a table in the option and the places where the norms grow least; False where none has room."""
        best, best_places = np.inf, None
        for growth_ms, places in self.rate(options):
            if growth_ms < best:
                best, best_places = growth_ms, places
        if best_places is None:
            return False
        self._put(table, best_places)
        return True

    def rate(self, options: Sequence[int]) -> list[tuple[float, TablePlaces | None]]:
        """Return how many milliseconds the norms grow with each option, and its places.

        Without room they are infinity and None. Parts of a table that have a device each are on different ones.
        """
        groups, rates = self.menu.groups, self._rates(options)
        picks = [self._pick(option, rates) for option in options]
        self.effort.nominal_s -= OPTION_S * len(options)
        powers = np.array([one[1] for one in picks if one is not None]).reshape(-1, 4).T
        grown, ratings = iter(self.ruler.grown(powers).tolist()), list[tuple[float, TablePlaces | None]]()
        calls_ms: dict[frozenset[int], float] = {}
        alike_ms: dict[tuple[int, ...], float] = {}
        for option, one in zip(options, picks):
            if one is None:
                ratings.append((np.inf, None))
                continue
            chosen = self.menu.options[option].groups
            kinds = frozenset(groups.kind[list(chosen)].tolist())
            if kinds not in calls_ms:
                calls_ms[kinds] = self.ruler.calls_ms(frozenset(groups.kinds[kind] for kind in kinds))
            shared = tuple(group for group in chosen if groups.scope[group] >= Holders.WORLD)
            if shared not in alike_ms:
                alike_ms[shared] = self.ruler.alike_ms([piece for g in shared for piece in self.menu.pieces(g)])
            alike = alike_ms[shared] + float(self.menu.contributions.sources[option])
            ratings.append((calls_ms[kinds] + alike + next(grown), one[0]))
        return ratings

    def _rates(self, options: Sequence[int]) -> Rates:
        """Return what ``Ruler.rate`` tells of each group of the options, all rated together."""
        groups, by_group = self.menu.groups, Rates()
        every = np.array(list(dict.fromkeys(g for option in options for g in self.menu.options[option].groups)))
        self.effort.nominal_s -= CALL_S
        for scope in np.unique(groups.scope[every]).tolist():
            in_scope = every[groups.scope[every] == scope]
            for some in np.array_split(in_scope, -(-len(in_scope) * self.state.world // TOGETHER)):
                # The promising places may all be in other nodes than a unit's.
                everywhere = bool(self._node_of)
                rates, powers = self.ruler.rate(groups.parcels[some], Holders(scope), everywhere=everywhere)
                by_group.update({int(group): (rates[at], powers[:, at]) for at, group in enumerate(some)})
                self.effort.nominal_s -= CALL_S + PLACE_S * self.state.world * len(some)
        return by_group

    def _pick(self, option: int, rates_of: Rates, used: Bools | None = None) -> tuple[TablePlaces, Floats] | None:
        """Return the best places of an option, and the powers that it adds, [4]; None where there is no room.

        No part that one device or one node has is on a device that is ``used`` [devices], or in another node than its
        unit's.
        """
        groups, state, chosen = self.menu.groups, self.state, self.menu.options[option]
        node = self._node_of.get(chosen.unit)
        if node is not None:
            elsewhere = np.arange(state.world) // state.local != node
            used = elsewhere if used is None else used | elsewhere
        held_bytes = groups.parcels[list(chosen.groups), NUMBERS + 3 :]
        roomy = self.ruler.roomy(held_bytes.sum(axis=0))
        taken_bytes = None if roomy else np.zeros_like(state.held_bytes)
        places, powers, own = list[int](), np.zeros(4), list[int]()
        for at, group in enumerate(chosen.groups):
            scope, times = Holders(int(groups.scope[group])), chosen.shards if at == len(chosen.groups) - 1 else 1
            rates, grown = rates_of[group]
            if taken_bytes is not None:
                full = (state.held_bytes + taken_bytes + held_bytes[at][:, None] > state.capacity).any(axis=0)
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
            if taken_bytes is not None:
                for place in new:
                    taken_bytes[:, state.devices(scope, place)] += held_bytes[at][:, None]
        return TablePlaces(option, tuple(places)), powers

    def _put(self, table: int, places: TablePlaces, sign: int = 1) -> None:
        for group, place in zip(self.menu.form(places.option), places.places, strict=True):
            for piece in group:
                self.state.add(piece, place, sign)
        self._listed.clear()
        if sign > 0:
            self.placed[table] = places

    @property
    def step_ms(self) -> float:
        """Milliseconds of the step of all that is placed, without the dense model."""
        return self.state.times().step_ms

    def improve(self) -> Iterator[None]:
        """Exchange, move and re-split what the slowest devices have while the norms fall, and go back to the best step.

        Yields whenever the step is shorter than ever before.
        """
        best, best_places = self.step_ms, dict(self.placed)
        for doublings in DOUBLINGS:
            self.ruler.doublings = doublings
            self.ruler.refresh()
            while not self.effort.spent and self._improve_once():
                if self.step_ms < best:
                    best, best_places = self.step_ms, dict(self.placed)
                    yield
        self._restore(best_places)

    def shake(self) -> Iterator[None]:
        """Place a few units anew and exchange parts, time after time, and keep what shortens the step.

        What improving cannot leave is thus left: units of one slow device, or any, are taken away together, and come
        back one by one in the options and places where the norms grow least. Yields whenever the step is shorter.
        """
        rng, units = np.random.default_rng(0), np.array(sorted(self.placed))
        best, best_places, futile, goal_ms = self.step_ms, dict(self.placed), 0, self.step_ms
        while futile < FUTILE * len(units) and len(units) > 1 and not self.effort.spent:
            self._place_anew(rng, units)
            if self.step_ms < best * (1.0 - GAIN):
                best, best_places = self.step_ms, dict(self.placed)
                yield
            else:
                self._restore(best_places)
            futile += 1
            if best < goal_ms * (1.0 - WORTHWHILE):
                futile, goal_ms = 0, best
        self._restore(best_places)

    def _place_anew(self, rng: np.random.Generator, units: Ints) -> None:
        """Take some units away, put them back one by one, and exchange parts."""
        number = int(rng.integers(2, min(ANEW, len(units)) + 1))
        phase, rank = rng.integers(4), int(rng.integers(self.state.world))
        if rng.random() < 0.5:
            rank = int(self.ruler.phases[phase].argmax())
        parts = self._placed_parts(Holders.RANK)
        near = rng.permutation(np.unique(parts.tables[parts.places == rank]))[: number // 2]
        some = np.concatenate([near, np.setdiff1d(rng.choice(units, number, replace=False), near)])[:number].tolist()
        old = {unit: self.placed[unit] for unit in some}
        for unit in some:
            self._put(unit, old[unit], -1)
        if rng.random() < 0.5:
            cost = self.menu.contributions.largest
            some.sort(key=lambda unit: -float(cost[old[unit].option].sum()))
        options = {unit: self.menu.of(unit) if rng.random() < 0.5 else [old[unit].option] for unit in some}
        if rng.random() < 0.5:
            # What looks worse at first may end better.
            options[some[0]] = [int(rng.choice(self.menu.of(some[0])))]
        self.ruler.doublings = int(rng.choice(DOUBLINGS))
        for at, unit in enumerate(some):
            self.ruler.refresh()
            if not self._put_best(unit, options[unit]):
                for other in some[:at]:
                    self._put(other, self.placed[other], -1)
                for other in some:
                    self._put(other, old[other])
                self.ruler.refresh()
                return
        for doublings in DOUBLINGS[1:]:
            self.ruler.doublings = doublings
            self.ruler.refresh()
            for _ in range(EXCHANGED * number):
                if self.effort.spent or not self._improve_once(forms=False):
                    break

    def _restore(self, places_of: dict[int, TablePlaces]) -> None:
        for table, places in places_of.items():
            if self.placed[table] is not places:
                self._put(table, self.placed[table], -1)
                self._put(table, places)
        self.ruler.refresh()

    def _improve_once(self, *, forms: bool = True) -> bool:
        """Make one change on the slowest device of some phase, of ``forms`` too; False where none helps."""
        phases = self.ruler.phases
        excess = (phases.max(axis=1) - phases.mean(axis=1)) * WEIGHTS[:4]
        slowest = dict.fromkeys(int(phases[phase].argmax()) for phase in np.argsort(-excess, kind="stable"))
        return any(self._exchange(rank) for rank in slowest) or (forms and any(self._resplit(rank) for rank in slowest))

    def _exchange(self, rank: int) -> bool:
        """Make the best exchange of one part of a device, or of its node, with a part, or nothing, of any other.

        Only exchanges that look best when phases add up are rated. False where none helps.
        """
        return any(self._exchange_of(scope, rank) for scope in (Holders.RANK, Holders.NODE))

    def _exchange_of(self, scope: Holders, rank: int) -> bool:
        devices = 1 if scope is Holders.RANK else self.state.local
        place, number = rank // devices, self.state.world // devices
        parts = self._placed_parts(scope)
        own = np.flatnonzero(parts.places == place)
        if not len(own) or number == 1:
            return False
        others = np.flatnonzero(parts.places != place)
        places = np.concatenate([parts.places[others], np.delete(np.arange(number), place)])
        others_ms = np.concatenate([parts.phases_ms[:, others], np.zeros((4, number - 1))], axis=1)
        into = np.concatenate([parts.parcels[others], np.zeros((number - 1, PARCEL))])
        own_bytes, others_bytes = parts.parcels[own, NUMBERS + 3 :], into[:, NUMBERS + 3 :]
        roomy = self.ruler.roomy(np.maximum(own_bytes.max(axis=0), others_bytes.max(axis=0)))
        rough = np.empty((len(own), len(places)))
        for some in np.array_split(np.arange(len(own)), -(-rough.size // TOGETHER_ROUGHLY)):
            rough[some] = self.ruler.roughly(place, places, parts.phases_ms[:, own[some]], others_ms, devices)
            if not roomy:
                # Where memory is short, those that look best may all be without room.
                fits = self.ruler.fits(place, places, own_bytes[some], others_bytes, devices)
                rough[some] = np.where(fits, rough[some], np.inf)
            if self._node_of:
                leaves = places * devices // self.state.local != rank // self.state.local
                stays = np.isin(parts.tables, list(self._node_of))
                others_stay = np.concatenate([stays[others], np.zeros(number - 1, dtype=np.bool_)])
                rough[some] = np.where(leaves & (others_stay | stays[own[some], None]), np.inf, rough[some])
        self.effort.nominal_s -= CALL_S * (devices + 1) + ROUGH_S * rough.size * devices
        candidates = np.argpartition(rough, min(RATED, rough.size - 1), axis=None)[:RATED]
        candidates = np.sort(candidates[rough.ravel()[candidates] < 0.0])
        if not len(candidates):
            return False
        own_at, at = np.unravel_index(candidates, rough.shape)
        rates = self.ruler.exchange_growth(place, places[at], into[at] - parts.parcels[own[own_at]], devices)
        self.effort.nominal_s -= CALL_S * (devices + 1)
        best = int(rates.argmin())
        if not rates[best] < -GAIN * abs(self.ruler.base):
            return False
        self._move(parts, int(own[own_at[best]]), int(places[at[best]]))
        if at[best] < len(others):
            self._move(parts, int(others[at[best]]), place)
        self.ruler.refresh()
        return True

    def _placed_parts(self, scope: Holders) -> PlacedParts:
        """Return all parts that have a device each, or a node each."""
        if scope not in self._listed:
            groups, options, parts = self.menu.groups, self.menu.options, list[tuple[int, int, int, int]]()
            for table, places in self.placed.items():
                option = options[places.option]
                last = len(option.groups) - 1
                for part, place in enumerate(places.places):
                    group = option.groups[min(part, last)]
                    if groups.scope[group] == scope:
                        parts.append((table, part, place, group))
            self._listed[scope] = PlacedParts(np.array(parts, dtype=np.int64).reshape(-1, 4), self.menu, self.ruler)
        return self._listed[scope]

    def _move(self, parts: PlacedParts, part: int, place: int) -> None:
        table, group = int(parts.tables[part]), int(parts.numbers[part])
        old = self.placed[table]
        for piece in self.menu.form(old.option)[group]:
            self.state.add(piece, old.places[group], -1)
            self.state.add(piece, place)
        self.placed[table] = TablePlaces(old.option, (*old.places[:group], place, *old.places[group + 1 :]))
        parts.places[part] = place

    def _resplit(self, rank: int) -> bool:
        """Give one table of a device another option, or another node, dearest table first; False where none helps."""
        state, cost = self.state, self.menu.contributions.largest
        tables = [
            table
            for table, places in self.placed.items()
            if any(
                (at := state.ranks(group[0], place)).start <= rank < at.stop
                for group, place in zip(self.menu.form(places.option), places.places)
            )
        ]
        for table in sorted(tables, key=lambda table: -float(cost[self.placed[table].option].sum())):
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
