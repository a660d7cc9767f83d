"""The rule's tiers at many link prices, and the best of them by expected communication time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.cost.collectives import ALL_REDUCES, collective_s
from shardbench.cost.traffic import expect
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling

from .rule import LinkPrices, RowTiers, Units, added_bytes, benefits, choose, is_split, link_shares, make_units
from .shape import Homes, Room, all_homes, cold_bytes, make_plan, runnable

PRICE_SHARES = tuple(i / 8 for i in range(9))
"""Shares of the link across nodes, for exchanges and for synchronisation: 81 price pairs (deviation 3)."""
FITTING_ROUNDS = 8
"""Attempts to make tiers of whole rows fit; each takes at least a byte off, most take a row a table."""


@dataclass(frozen=True, kw_only=True)
class TieredPlan:
    """Tiers, homes of the other tables, and the expected communication seconds of a step."""

    homes: Homes
    tiers: RowTiers
    seconds: float


def search(problem: Problem, limit_bytes: int, *, with_warm: bool) -> TieredPlan:
    """Return the best of the rule's plans within the limit a device, or the one that holds least where none is.

    A warm tier has latencies of its own, which no row's benefit shows: plans without one are
    searched as well, so that the result is never worse than without a warm tier.
    """
    plans = [_Search(problem, limit_bytes, warm).best() for warm in ((False, True) if with_warm else (False,))]
    return min(plans, key=lambda one: one.seconds)


class _Search:
    """The search within ``limit_bytes`` a device, with a warm tier or without."""

    def __init__(self, problem: Problem, limit_bytes: int, with_warm: bool) -> None:
        self.problem, self.limit_bytes, self.with_warm = problem, limit_bytes, with_warm
        self.rows = np.array([table.rows for table in problem.tables], dtype=np.int64)
        self.split = np.array([is_split(table, problem.world_size) for table in problem.tables])

    def best(self) -> TieredPlan:
        """Return the best plan of the rule with unneeded tiers closed."""
        problem, homes_of = self.problem, all_homes(self.problem)
        fitting = [homes for homes in homes_of if cold_bytes(problem, homes) <= self.limit_bytes]
        plans = (
            TieredPlan(homes=homes, tiers=tiers, seconds=communication_s(problem, homes, tiers))
            for homes in fitting or [min(homes_of, key=lambda homes: cold_bytes(problem, homes))]
            for tiers in dict.fromkeys(self._candidates(homes))
        )
        return self._close(min(plans, key=lambda one: one.seconds))

    def _candidates(self, homes: Homes) -> Iterator[RowTiers]:
        """Yield no copies, then the rule's tiers at every pair of prices."""
        problem = self.problem
        units, shares = make_units(problem, with_warm=self.with_warm), link_shares(problem)
        room = Room(problem, homes)
        yield RowTiers(hot=0 * self.rows, warm=0 * self.rows)
        for exchange, synchronise in product(PRICE_SHARES, PRICE_SHARES):
            saved = benefits(units, shares, LinkPrices.weighted(problem.machine, exchange, synchronise))
            tiers = self._within(room, units, saved)
            if tiers is not None:
                yield tiers

    def _within(self, room: Room, units: Units, saved: tuple[Floats, Floats]) -> RowTiers | None:
        """Return the rule's tiers that fit; None where rounding leaves no room for any copy.

        The rule counts fractions of rows; tiers are dealt in whole ones. What that takes is taken
        off the budget, a few times over if need be.
        """
        problem = self.problem
        added = added_bytes(units, problem)
        evenly = sum(problem.weight_bytes(t) for t, cut in zip(problem.tables, self.split) if cut) / problem.world_size
        free_bytes = self.limit_bytes - evenly - room.most_at_home_bytes
        for _ in range(FITTING_ROUNDS):
            if free_bytes <= 0:
                return None
            tiers = runnable(choose(units, saved, added, free_bytes, len(problem.tables)), problem)
            over = int(room.rank_bytes(tiers).max()) - self.limit_bytes
            if over <= 0:
                return tiers
            free_bytes -= over
        return None

    def _close(self, best: TieredPlan) -> TieredPlan:
        """Take tables, one by one and together, out of one or two tiers where that pays and fits (deviation 4).

        A cold tier costs every rank a message of lengths to every other; a tier that no table of a
        width has saves the calls' latencies. No single row shows either.
        """
        problem = self.problem
        cold = self.rows - best.tiers.hot - best.tiers.warm
        alone = [np.arange(len(cold)) == i for i in np.argsort(cold, kind="stable") if self.split[i]]
        together, room = self._modules(), Room(problem, best.homes)
        for at in (*together, *alone, *together):
            for tiers in _empty(best.tiers, self.rows, at, with_warm=self.with_warm and bool(self.split[at].all())):
                if runnable(tiers, problem) != tiers or room.rank_bytes(tiers).max() > self.limit_bytes:
                    continue
                seconds = communication_s(problem, best.homes, tiers)
                if seconds < best.seconds:
                    best = replace(best, tiers=tiers, seconds=seconds)
        return best

    def _modules(self) -> list[Bools]:
        """Return tables whose lookups are exchanged in the same calls, [tables] each; indivisible ones stay apart."""
        tables = self.problem.tables
        columns = np.array([table.dim if table.pooling is Pooling.NONE else 0 for table in tables])
        keys = sorted(set(zip(self.split.tolist(), columns.tolist())))
        return [(self.split == is_cut) & (columns == width) for is_cut, width in keys]


def communication_s(problem: Problem, homes: Homes, tiers: RowTiers) -> float:
    """Return expected seconds of all collectives of a step but the dense model's, counted and timed as trials are."""
    traffic = expect(make_plan(problem, homes, tiers), problem)
    return sum(
        collective_s(collective, problem.machine, all_reduce=name in ALL_REDUCES)
        for name, collective in traffic.collectives.items()
    )


def _empty(tiers: RowTiers, rows: Ints, at: Bools, *, with_warm: bool) -> Iterator[RowTiers]:
    """Yield the tiers with one or two of them emptied into another, for the tables ``at``."""
    hot, warm = tiers.hot, tiers.warm
    moved = [(rows, 0 * rows), (0 * rows, 0 * rows)]
    if with_warm:
        moved += [(hot, rows - hot), (hot, 0 * rows), (hot + warm, 0 * rows), (0 * rows, hot + warm), (0 * rows, rows)]
    for to_hot, to_warm in moved:
        changed = RowTiers(hot=np.where(at, to_hot, hot), warm=np.where(at, to_warm, warm))
        if changed != tiers:
            yield changed
