"""Local search over placements of whole tables: moves and swaps of the slowest devices' tables, rated exactly."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints

from .starts import starts
from .tables import TablePlacement, Tables

CHUNK = 4096
"""Changes that are rated at once; the best of the first chunk with an improvement is taken."""
POWERS = (4, 16, 64)
"""The sum of the devices' times to these powers falls, one after the other: the first makes tables share caches and HBM
well, whichever device that helps, the last one is nearly the slowest device's time."""
GIVERS = 8
"""Slowest devices whose tables are tried, slowest first."""
GAIN = 1e-9
"""Improvement of that sum, in units of the slowest device's part, below which two placements count as equal."""
START_SHARE = 0.12
"""Share of the work that each start's first descent may take; the best goes on with what is left."""
KICK_SHARE = 0.02
"""Share of the tables that change places before a new descent from the best placement."""
IDLE_KICKS = 24
"""Kicks in a row without a better placement after which the search ends."""

Change = list[tuple[int, int, int]]
"""Tables with their new rank and tier."""


class WorkLimit:
    """The work that may be done, in rated changes, and a deadline as the safety net alone."""

    def __init__(self, candidates: int, deadline: float) -> None:
        self.candidates, self.deadline = candidates, deadline
        self.rated = 0
        self.timed_out = False
        """True once the clock ended the search."""

    @property
    def spent(self) -> bool:
        """Tell whether the search must stop."""
        self.timed_out = self.timed_out or time.monotonic() > self.deadline
        return self.timed_out or self.rated >= self.candidates


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Where tables of a device's tier ``from_tier`` may go: [targets] each.

    A place in tier ``to_tier`` of device ``rank``, instead of the table ``back`` that comes here for it, or -1. All are
    on other devices, or, ``inside``, all on the same one, in its other tier.
    """

    from_tier: int
    to_tier: int
    rank: Ints
    back: Ints
    inside: bool


def descend(
    state: TablePlacement, effort: WorkLimit, *, limit: int, enough_ms: float = 0.0, powers: Sequence[int] = POWERS
) -> TablePlacement:
    """Go from ``state`` on by moves and swaps to a placement whose slowest device is faster; it is never slower.

    At most ``limit`` changes are rated, an equal part for each power; what one leaves over is for the next. Below the
    limit the last one ends where no move and no swap of the slowest devices' tables lowers the sum.
    """
    best_ms, best = state.slowest_ms, (state.rank, state.tier)
    state, rated_before = state.copy(), effort.rated
    for number, power in enumerate(powers):
        rest = limit - (effort.rated - rated_before)
        stop = effort.rated + rest // (len(powers) - number)
        while effort.rated < stop and best_ms > enough_ms and not effort.spent and _step(state, power, effort):
            if state.slowest_ms < best_ms:
                best_ms, best = state.slowest_ms, (state.rank.copy(), state.tier.copy())
    return TablePlacement(state.tables, *best)


def _step(state: TablePlacement, power: int, effort: WorkLimit) -> bool:
    """Make one change, in place; tells whether there was one."""
    for giver in np.argsort(-state.ms, kind="stable")[:GIVERS].tolist():
        for targets in _neighbours(state, giver):
            change = _first_better(state, giver, targets, power, effort)
            if change:
                state.put(change)
                return True
            if effort.spent:
                return False
    return False


def _neighbours(state: TablePlacement, giver: int) -> Iterator[Targets]:
    """List moves of a device's tables, which are few, then swaps, by the tiers that they leave and reach."""
    tiers, devices = range(state.tables.tiers), np.arange(state.tables.world)
    kinds = [(from_tier, to_tier, inside) for from_tier in tiers for to_tier in tiers for inside in (False, True)]
    kinds = [(from_tier, to_tier, inside) for from_tier, to_tier, inside in kinds if not inside or from_tier != to_tier]
    for from_tier, to_tier, inside in kinds:
        free = devices[(devices == giver) == inside]
        no_table = np.full(len(free), -1)
        yield Targets(from_tier=from_tier, to_tier=to_tier, rank=free, back=no_table, inside=inside)
    for from_tier, to_tier, inside in kinds:
        back = np.flatnonzero((state.tier == to_tier) & ((state.rank == giver) == inside))
        yield Targets(from_tier=from_tier, to_tier=to_tier, rank=state.rank[back], back=back, inside=inside)


def _first_better(state: TablePlacement, giver: int, targets: Targets, power: int, effort: WorkLimit) -> Change:
    """Find the best change of the first chunk that has any which helps; empty where none does."""
    own, count = np.flatnonzero((state.rank == giver) & (state.tier == targets.from_tier)), len(targets.rank)
    if not count or not len(own):
        return []
    around = Surroundings(state, giver, targets)
    step = max(1, CHUNK // count)
    for first in range(0, len(own), step):
        out = own[first : first + step]
        effort.rated += len(out) * count
        best = _best(state, giver, around, out, power)
        if best is not None:
            table, at = int(out[best // count]), best % count
            change = [(table, int(targets.rank[at]), targets.to_tier)]
            if targets.back[at] >= 0:
                change.append((int(targets.back[at]), giver, targets.from_tier))
            return change
        if effort.spent:
            break
    return []


def _best(state: TablePlacement, giver: int, around: "Surroundings", out: Ints, power: int) -> int | None:
    """Find the change, as a number in [out, targets], that lowers the sum of powers most; None where none does."""
    giver_ms, target_ms = around.after(out)
    top = state.slowest_ms
    # Twice the slowest is bad enough: its power is a number still.
    grown = np.minimum(giver_ms / top, 2.0) ** power + np.minimum(target_ms / top, 2.0) ** power
    grown -= (around.ms / top) ** power + (state.ms[giver] / top) ** power
    changes = np.where(around.fits(out), grown, 0.0).ravel()
    best = int(changes.argmin())
    return best if changes[best] < -GAIN else None


class Surroundings:
    """Sums and room of a device and of each target's device but for the tables of the former that go there."""

    def __init__(self, state: TablePlacement, giver: int, targets: Targets) -> None:
        tables = state.tables
        self.numbers, self.targets, self.sizes = tables.numbers, targets, tables.sizes
        self.values, is_swap = tables.values, targets.back >= 0
        # Nothing comes back for a move.
        back_to_giver = np.where(is_swap, self.values[:, targets.from_tier, targets.back], 0.0)
        back_from_target = np.where(is_swap, self.values[:, targets.to_tier, targets.back], 0.0)
        size = np.where(is_swap, tables.sizes[targets.back], 0)
        self.giver_sums: Floats = state.sums[:, giver, None] + back_to_giver
        self.target_sums: Floats = state.sums[:, targets.rank] - back_from_target
        self.ms: Floats = state.ms[targets.rank]
        """Time of the targets' devices before; zero for the same device, which counts once."""
        if targets.inside:
            self.giver_sums -= back_from_target
            self.ms = np.zeros_like(self.ms)
        self.free: Ints = tables.capacity[targets.to_tier] - state.used[targets.to_tier, targets.rank] + size
        self.least: Ints = state.used[targets.from_tier, giver] + size - tables.capacity[targets.from_tier]

    def fits(self, out: Ints) -> Bools:
        """Tell whether both tiers have room once the tables ``out`` went, [out, targets]."""
        size = self.sizes[out][:, None]
        return np.asarray((size <= self.free) & (size >= self.least))

    def after(self, out: Ints) -> tuple[Floats, Floats]:
        """Give milliseconds of the device and of the target's (zero where it is the same), [out, targets] each."""
        leaving = self.values[:, self.targets.from_tier, out][:, :, None]
        arriving = self.values[:, self.targets.to_tier, out][:, :, None]
        giver_sums = self.giver_sums[:, None, :] - leaving
        if self.targets.inside:
            giver_ms = self.numbers.ms(giver_sums + arriving)
            return giver_ms, np.zeros_like(giver_ms)
        return self.numbers.ms(giver_sums), self.numbers.ms(self.target_sums[:, None, :] + arriving)


def kicked(state: TablePlacement, rng: np.random.Generator) -> TablePlacement:
    """Make another placement: a few random pairs of tables of different devices change places, as far as they fit."""
    tables, other = state.tables, state.copy()
    count = max(2, round(KICK_SHARE * len(tables)))
    for one, two in rng.integers(0, len(tables), (count, 2)).tolist():
        a, b = ((int(other.rank[t]), int(other.tier[t])) for t in (one, two))
        grown = tables.sizes[one] - tables.sizes[two]
        fits = other.used[b[1], b[0]] + grown <= tables.capacity[b[1]]
        if a[0] != b[0] and fits and other.used[a[1], a[0]] - grown <= tables.capacity[a[1]]:
            other.put([(one, *b), (two, *a)])
    return other


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchResult:
    """The best placement of a search, the first start's slowest device, and what ended it."""

    best: TablePlacement
    start_ms: float
    reason: str


def search(tables: Tables, effort: WorkLimit, seed: int, enough_ms: float) -> SearchResult | None:
    """Find the best placement of descents from all starts and from kicks of the best; None where no start fits.

    Stops at ``enough_ms``, which no plan can beat.
    """
    placements = list(starts(tables))
    if not placements:
        return None
    best, limit = min(placements, key=lambda state: state.slowest_ms), int(START_SHARE * effort.candidates)
    # Devices are soon level; how well tables share caches is what their mean tells.
    for state in sorted(placements, key=lambda state: float(state.ms.mean())):
        best = _better(descend(state, effort, limit=limit, enough_ms=enough_ms), best)
    rng, idle, start = np.random.default_rng(seed), 0, best
    while not effort.spent and best.slowest_ms > enough_ms and idle < IDLE_KICKS:
        state = descend(start, effort, limit=effort.candidates - effort.rated, enough_ms=enough_ms, powers=POWERS[-1:])
        idle = 0 if _better(state, best) is state else idle + 1
        best = _better(state, best)
        start = kicked(best, rng)
    reason = "clock" if effort.timed_out else "bound" if best.slowest_ms <= enough_ms else "work"
    return SearchResult(best=best, start_ms=placements[0].slowest_ms, reason=reason)


def _better(one: TablePlacement, other: TablePlacement) -> TablePlacement:
    return one if one.slowest_ms < other.slowest_ms else other
