"""Choices of tables that must fit together, where a byte has one price for all; first, which rows are in HBM."""

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.model.plan import Tier
from shardbench.model.strategy import Move

from .limits import Space
from .pieces import Cache, Counter, Holders, PieceCut

FULL = 0.97
"""Share of all HBM that the cuts plan to fill: packing leaves some of it unused."""
HOT_SHARES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
"""Shares of a table's accesses at which its rows may be cut between HBM and host memory."""
FIRST_PRICE, RAISE, LARGEST_PRICE = 1e-12, 16.0, 1e9
"""Milliseconds a byte: what is tried first, times what, and up to where a price that fits is looked for."""
BISECTIONS = 40
AGES = (0.01, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0)
"""Numbers of batches whose rows caches may hold. Tables that share a cache have one age, so that all have the same."""
Kept = int | Cache | None
"""How many hottest rows of a table are in HBM, None where all are, or the cache of all that are in host memory."""


def all_fit(space: Space, share: float) -> bool:
    """Tell whether all tables may be in HBM, and fill at most a ``share`` of what is planned to be filled."""
    problem = space.problem
    room = FULL * share * problem.world_size * problem.topology.hbm_bytes
    may = all(space.limits.may_be_in(table, Tier.HBM) for table in problem.tables)
    return may and sum(map(problem.weight_bytes, problem.tables)) <= room


def hot_rows(space: Space, share: float) -> list[Kept]:
    """Return how many hottest rows of each table are in HBM, None where all are, or its cache.

    They fill a ``share`` of what all HBM is planned to hold. A table whose rows may not be split is in one tier.
    """
    problem = space.problem
    room = FULL * share * problem.world_size * problem.topology.hbm_bytes
    if all_fit(space, share) or problem.topology.uvm_bytes == 0 or Move.UVM not in space.moves:
        return [None] * len(problem.tables)
    every_kept, every_table, age, every_cost, every_size = _cuts(space)
    best_key, best = (True, np.inf), list[Kept]()
    for one in np.unique(age[age > 0.0]) if age.any() else (0.0,):
        at = np.flatnonzero((age == 0.0) | (age == one))
        table, cost, size = every_table[at], every_cost[at], every_size[at]
        chosen = filled(cheapest(cost, size, by_table(table), room), cost, size, table, room)
        key = (bool(size[chosen].sum() > room), float(cost[chosen].sum()))
        if not best or key < best_key:
            best_key, best = key, [every_kept[number] for number in at[chosen]]
    return [None if kept == table.rows else kept for kept, table in zip(best, problem.tables)]


def _cuts(space: Space) -> tuple[list[Kept], Ints, Floats, Floats, Floats]:
    """Return for every cut what is kept, the table, the age of a cache on the menu, milliseconds and bytes of HBM.

    A device's kernels count, and what all devices spend on sending: rows in both tiers are two segments.
    """
    problem, limits, split = space.problem, space.limits, Move.ROWS in space.moves
    every_kept, tables, ages, cuts, counter = list[Kept](), [], [], [], Counter(problem, check=space.check)
    for index, (table, profile) in enumerate(zip(problem.tables, problem.profiles, strict=True)):
        space.check()
        may_cut = split and limits.may_cut(table)
        between = [*profile.inverse_cdf(HOT_SHARES).tolist(), profile.seen_rows] if may_cut else []
        whole = [kept for kept, tier in ((0, Tier.UVM), (table.rows, Tier.HBM)) if limits.may_be_in(table, tier)]
        caches = _caches(space, index, counter)
        choice = np.unique([*between, *(whole or ([] if caches else [0, table.rows]))]).astype(np.int64).tolist()
        ages += [0.0] * len(choice) + ([0.0] if table.name in limits.caches else list(AGES))[: len(caches)]
        tables += [index] * (len(choice) + len(caches))
        every_kept += [*choice, *caches]
        for kept, cache in [*((kept, None) for kept in choice), *((0, cache) for cache in caches)]:
            away = Tier.UVM if cache is None else Tier.CACHED
            cuts += [
                PieceCut(index, Holders.RANK, 0, kept, table.dim),
                PieceCut(index, Holders.RANK, kept, table.rows, table.dim, away, False, cache),
            ]
    counted = counter.count(cuts)
    nonempty = np.array([cut.start < cut.stop for cut in cuts])
    numbers, sources = counted.numbers * nonempty[:, None], counted.sources * nonempty * problem.world_size
    forward, backward = counter.kernels.work_ms(numbers[0::2] + numbers[1::2])
    cost, size = forward + backward + sources[0::2] + sources[1::2], counted.size * nonempty
    return every_kept, np.array(tables), np.array(ages), cost, size[0::2] + size[1::2]


def _caches(space: Space, index: int, counter: Counter) -> list[Cache]:
    """Return the caches that a table may have: one of each age on the menu, or the one that limits state."""
    limits, table = space.limits, space.problem.tables[index]
    if Move.CACHE not in space.moves or space.problem.machine.device == "cpu" or not limits.may_cache(table):
        return []
    if table.name in limits.caches:
        return [counter.cache(index, ratio=limits.caches[table.name])]
    return [counter.cache(index, age=age) for age in AGES]


def by_table(table: Ints) -> Ints:
    """Return each table's choices in a column, [most of a table, tables], from the table of every choice [choices].

    Shorter columns repeat their last choice.
    """
    first = np.flatnonzero(np.diff(table, prepend=-1) > 0)
    numbers = np.diff(first, append=len(table))
    return np.asarray(first + np.minimum(np.arange(numbers.max())[:, None], numbers - 1))


def cheapest(cost: Floats, size: Floats, columns: Ints, room: float) -> Ints:
    """Return each table's choice of least cost, [tables], at the least price of a byte at which the sizes fit the room.

    ``cost`` and ``size`` are of all choices [choices], ``columns`` are those of ``by_table``. Where no price makes them
    fit, the smallest are chosen.
    """
    chosen = least(cost, columns)
    if size[chosen].sum() <= room:
        return chosen
    smallest = least(cost + LARGEST_PRICE * size, columns)
    if size[smallest].sum() > room:
        return smallest
    low, high, at_low = 0.0, FIRST_PRICE, chosen
    while size[at_high := least(cost + high * size, columns)].sum() > room and high < LARGEST_PRICE:
        low, high, at_low = high, high * RAISE, at_high
    open_columns = columns
    for _ in range(BISECTIONS):
        # Between two prices at which a table has the same choice it has no other.
        is_open, middle = at_low != at_high, (low + high) / 2.0
        room -= size[at_low[~is_open]].sum()
        open_columns, at_low, at_high = open_columns[:, is_open], at_low[is_open], at_high[is_open]
        at_middle = _least(cost[open_columns] + middle * size[open_columns], open_columns)
        if size[at_middle].sum() <= room:
            high, at_high = middle, at_middle
        else:
            low, at_low = middle, at_middle
    return least(cost + high * size, columns)


def filled(chosen: Ints, cost: Floats, size: Floats, table: Ints, room: float) -> Ints:
    """Return the choices [tables] with better ones that fit what is left of the room, the largest gain first.

    No price of a byte brings a choice that lies above the line between two others.
    """
    chosen, free_bytes = chosen.copy(), room - size[chosen].sum()
    more_bytes, gains = size - size[chosen][table], cost[chosen][table] - cost
    while True:
        best = int(np.where(more_bytes <= free_bytes, gains, 0.0).argmax())
        if not (more_bytes[best] <= free_bytes and gains[best] > 0.0):
            return chosen
        own = slice(*np.searchsorted(table, [table[best], table[best] + 1]))
        free_bytes -= more_bytes[best]
        more_bytes[own], gains[own] = size[own] - size[best], cost[best] - cost[own]
        chosen[table[best]] = best


def least(cost: Floats, columns: Ints) -> Ints:
    """Return the first choice of least cost of each table, [tables]."""
    return _least(cost[columns], columns)


def _least(cost: Floats, columns: Ints) -> Ints:
    return np.asarray(columns[cost.argmin(axis=0), np.arange(columns.shape[1])])
