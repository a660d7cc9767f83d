"""The rule's tiers at many link prices, and the best of them by expected communication time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from shardbench.costmodel import collective_s
from shardbench.problem import Problem
from shardbench.traffic import expect
from shardbench.validate import memory_bytes

from .rule import Prices, Tiers, added_bytes, benefits, choose
from .shape import Homes, cold_bytes, find_homes, make_plan, runnable
from .units import Floats, Units, is_split, link_shares, make_units

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
    """The best of the rule's plans within the limit, or where nothing is, the one that holds least."""
    problem = asked.problem
    kept = [homes for homes in _all_homes(problem) if cold_bytes(problem, homes) <= asked.limit_bytes]
    best: Found | None = None
    for homes in kept or [min(_all_homes(problem), key=lambda homes: cold_bytes(problem, homes))]:
        for tiers in dict.fromkeys(_tried(asked, homes)):
            seconds = communication_s(problem, homes, tiers)
            if best is None or seconds < best.seconds:
                best = Found(homes=homes, tiers=tiers, seconds=seconds)
    if best is None:
        raise AssertionError("no copies at all is always tried")
    return _closed(asked, best)


def _all_homes(problem: Problem) -> list[Homes]:
    return [find_homes(problem, over_all=over_all) for over_all in (False, True)]


def _tried(asked: Search, homes: Homes) -> Iterator[Tiers]:
    """No copies, and the rule's tiers at every pair of prices."""
    problem = asked.problem
    units, shares = make_units(problem, with_warm=asked.with_warm), link_shares(problem)
    none = np.zeros(len(problem.tables), dtype=np.int64)
    yield Tiers(hot=none, warm=none)
    for exchange, synchronise in product(PRICE_SHARES, PRICE_SHARES):
        saved = benefits(units, shares, Prices.weighted(problem.machine, exchange, synchronise))
        tiers = _within(asked, homes, units, saved)
        if tiers is not None:
            yield tiers


def _within(asked: Search, homes: Homes, units: Units, saved: tuple[Floats, Floats]) -> Tiers | None:
    """The rule's tiers that fit; None where rounding leaves no room for any copy.

    The rule counts fractions of rows; tiers are dealt in whole ones. What that takes is taken
    off the budget, a few times over if need be.
    """
    problem = asked.problem
    added = added_bytes(units, problem)
    split = [table for table in problem.tables if is_split(table, problem.world_size)]
    evenly = sum(problem.weight_bytes(table) for table in split) / problem.world_size
    left = asked.limit_bytes - evenly - float(homes.used.max())
    for _ in range(FITTING_ROUNDS):
        if left <= 0:
            return None
        tiers = runnable(choose(units, saved, added, left, len(problem.tables)), problem)
        over = int(memory_bytes(make_plan(problem, homes, tiers), problem).hbm.max()) - asked.limit_bytes
        if over <= 0:
            return tiers
        left -= over
    return None


def communication_s(problem: Problem, homes: Homes, tiers: Tiers) -> float:
    """Expected seconds of all collectives of a step but the dense model's, as the harness counts and times them."""
    traffic = expect(make_plan(problem, homes, tiers), problem)
    return sum(collective_s(collective, problem.machine) for collective in traffic.collectives.values())


def _closed(asked: Search, best: Found) -> Found:
    """Tables without a cold tier where that pays and fits, smallest rest first (deviation 4).

    A cold tier costs every rank a message of lengths to every other, which no single row shows.
    """
    problem = asked.problem
    rows = np.array([table.rows for table in problem.tables], dtype=np.int64)
    cold = rows - best.tiers.hot - best.tiers.warm
    split = [i for i, table in enumerate(problem.tables) if is_split(table, problem.world_size)]
    for i in sorted(split, key=lambda i: int(cold[i])):
        for hot in sorted({int(best.tiers.hot[i]), int(rows[i])} if asked.with_warm else {int(rows[i])}):
            tiers = Tiers(hot=best.tiers.hot.copy(), warm=best.tiers.warm.copy())
            tiers.hot[i], tiers.warm[i] = hot, rows[i] - hot
            if 0 < tiers.warm[i] < problem.topology.devices_per_node:
                continue
            if memory_bytes(make_plan(problem, best.homes, tiers), problem).hbm.max() > asked.limit_bytes:
                continue
            seconds = communication_s(problem, best.homes, tiers)
            if seconds < best.seconds:
                best = replace(best, tiers=tiers, seconds=seconds)
    return best
