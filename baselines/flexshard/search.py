"""The rule's tiers at many link prices, and the best of them by expected communication time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.cost.collectives import collective_s
from shardbench.cost.traffic import expect
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling

from .rule import Prices, Tiers, added_bytes, benefits, choose
from .shape import Homes, all_homes, cold_bytes, make_plan, runnable
from .tier_memory import Room
from .units import Units, is_split, link_shares, make_units

PRICE_SHARES = tuple(i / 8 for i in range(9))
"""Of the link across nodes, for exchanges and for synchronisation: 81 price pairs (deviation 3)."""
FITTING_ROUNDS = 8
"""Attempts to make tiers of whole rows fit; each takes at least a byte off, most take a row a table."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What to plan: within ``limit_bytes`` a device."""

    problem: Problem
    limit_bytes: int
    with_warm: bool


@dataclass(frozen=True, kw_only=True)
class Found:
    """Tiers, homes of the other tables, and the expected communication seconds of a step."""

    homes: Homes
    tiers: Tiers
    seconds: float


def search(asked: Search) -> Found:
    """The best of the rule's plans within the limit, or where nothing is, the one that holds least.

    A warm tier has latencies of its own, which no row's benefit shows: plans without one are
    searched as well, so that the result is never worse than without a warm tier.
    """
    found = [_searched(replace(asked, with_warm=warm)) for warm in ((False, True) if asked.with_warm else (False,))]
    return min(found, key=lambda one: one.seconds)


def _searched(asked: Search) -> Found:
    problem = asked.problem
    homes_of = all_homes(problem)
    kept = [homes for homes in homes_of if cold_bytes(problem, homes) <= asked.limit_bytes]
    found = (
        Found(homes=homes, tiers=tiers, seconds=communication_s(problem, homes, tiers))
        for homes in kept or [min(homes_of, key=lambda homes: cold_bytes(problem, homes))]
        for tiers in dict.fromkeys(_tried(asked, homes))
    )
    return _closed(asked, min(found, key=lambda one: one.seconds))


def _tried(asked: Search, homes: Homes) -> Iterator[Tiers]:
    """No copies, and the rule's tiers at every pair of prices."""
    problem = asked.problem
    units, shares = make_units(problem, with_warm=asked.with_warm), link_shares(problem)
    room = Room(problem, homes)
    none = np.zeros(len(problem.tables), dtype=np.int64)
    yield Tiers(hot=none, warm=none)
    for exchange, synchronise in product(PRICE_SHARES, PRICE_SHARES):
        saved = benefits(units, shares, Prices.weighted(problem.machine, exchange, synchronise))
        tiers = _within(asked, room, units, saved)
        if tiers is not None:
            yield tiers


def _within(asked: Search, room: Room, units: Units, saved: tuple[Floats, Floats]) -> Tiers | None:
    """The rule's tiers that fit; None where rounding leaves no room for any copy.

    The rule counts fractions of rows; tiers are dealt in whole ones. What that takes is taken
    off the budget, a few times over if need be.
    """
    problem = asked.problem
    added = added_bytes(units, problem)
    split = [table for table in problem.tables if is_split(table, problem.world_size)]
    evenly = sum(problem.weight_bytes(table) for table in split) / problem.world_size
    left = asked.limit_bytes - evenly - room.most_at_home_bytes
    for _ in range(FITTING_ROUNDS):
        if left <= 0:
            return None
        tiers = runnable(choose(units, saved, added, left, len(problem.tables)), problem)
        over = room.fullest_bytes(tiers) - asked.limit_bytes
        if over <= 0:
            return tiers
        left -= over
    return None


def communication_s(problem: Problem, homes: Homes, tiers: Tiers) -> float:
    """Expected seconds of all collectives of a step but the dense model's, as the harness counts and times them."""
    traffic = expect(make_plan(problem, homes, tiers), problem)
    return sum(collective_s(collective, problem.machine) for collective in traffic.collectives.values())


def _closed(asked: Search, best: Found) -> Found:
    """Tables, one by one and together, without one of their tiers, where that pays and fits (deviation 4).

    A cold tier costs every rank a message of lengths to every other; a tier that no table of a
    width has saves the calls' latencies. No single row shows either.
    """
    problem = asked.problem
    rows = np.array([table.rows for table in problem.tables], dtype=np.int64)
    cold = rows - best.tiers.hot - best.tiers.warm
    split = np.array([is_split(table, problem.world_size) for table in problem.tables])
    alone = [np.arange(len(rows)) == i for i in np.argsort(cold, kind="stable") if split[i]]
    together, room = _modules(problem, split), Room(problem, best.homes)
    for at in (*together, *alone, *together):
        for tiers in _emptied(best.tiers, rows, at, with_warm=asked.with_warm and bool(split[at].all())):
            if runnable(tiers, problem) != tiers:
                continue
            if room.fullest_bytes(tiers) > asked.limit_bytes:
                continue
            seconds = communication_s(problem, best.homes, tiers)
            if seconds < best.seconds:
                best = replace(best, tiers=tiers, seconds=seconds)
    return best


def _modules(problem: Problem, split: Bools) -> list[Bools]:
    """Tables whose lookups are exchanged in the same calls, split ones and indivisible ones apart, [tables] each."""
    columns = np.array([table.dim if table.pooling is Pooling.NONE else 0 for table in problem.tables])
    keys = sorted(set(zip(split.tolist(), columns.tolist())))
    return [(split == is_cut) & (columns == wide) for is_cut, wide in keys]


def _emptied(tiers: Tiers, rows: Ints, at: Bools, *, with_warm: bool) -> Iterator[Tiers]:
    """The tiers with one of them or two emptied into another, for the tables ``at``."""
    hot, warm = tiers.hot, tiers.warm
    moved = [(rows, 0 * rows), (0 * rows, 0 * rows)]
    if with_warm:
        moved += [(hot, rows - hot), (hot, 0 * rows), (hot + warm, 0 * rows), (0 * rows, hot + warm), (0 * rows, rows)]
    for to_hot, to_warm in moved:
        changed = Tiers(hot=np.where(at, to_hot, hot), warm=np.where(at, to_warm, warm))
        if changed != tiers:
            yield changed
