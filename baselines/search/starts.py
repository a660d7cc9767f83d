"""Starts of the search: greedy in an order, and tables of alike working sets cut into pieces of equal cost."""

from collections.abc import Iterator

import numpy as np

from shardbench.base.arrays import Floats, Ints

from .tables import SPILL, TablePlacement, Tables


def starts(tables: Tables) -> Iterator[TablePlacement]:
    """Make different placements that fit, the first of them greedy by time."""
    by_size = tables.sizes.astype(np.float64)
    rows, gradients = tables.numbers.working_sets(tables.values)
    orders = [tables.alone[0], by_size]
    if tables.uvm:
        orders.insert(1, (tables.alone[SPILL] - tables.alone[0]) / np.maximum(by_size, 1.0))
    placements = [greedy(tables, np.argsort(-order, kind="stable")) for order in orders]
    placements += [pieces(tables, keys) for keys in ((rows,), (rows * gradients,), (rows, gradients))]
    seen: set[bytes] = set()
    for state in placements:
        if state is not None and (key := state.rank.tobytes() + state.tier.tobytes()) not in seen:
            seen.add(key)
            yield state


class _Room:
    """Free bytes by tier and device, while tables are handed out."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.free: Ints = np.repeat(tables.capacity[:, None], tables.world, axis=1)
        self.rank: Ints = np.zeros(len(tables), dtype=np.int64)
        self.tier: Ints = np.zeros(len(tables), dtype=np.int64)

    def put(self, table: int, tier: int, cost: Floats) -> bool:
        """Give a table to the device with room of least ``cost`` [devices], in ``tier`` or the next; else False."""
        size = self.tables.sizes[table]
        for at in range(tier, self.tables.tiers):
            roomy = self.free[at] >= size
            if roomy.any():
                rank = int(np.where(roomy, cost, np.inf).argmin())
                self.free[at, rank] -= size
                self.rank[table], self.tier[table] = rank, at
                return True
        return False


def greedy(tables: Tables, order: Ints) -> TablePlacement | None:
    """Give tables in ``order`` to the device with the smallest sum of single-table times.

    HBM where any device has room, else host memory; None where a table fits nowhere.
    """
    room, total = _Room(tables), np.zeros(tables.world)
    for table in order.tolist():
        if not room.put(table, 0, total):
            return None
        total[room.rank[table]] += tables.alone[room.tier[table], table]
    return TablePlacement(tables, room.rank, room.tier)


def pieces(tables: Tables, keys: tuple[Floats, ...]) -> TablePlacement | None:
    """Sort tables by working set and cut them into pieces of equal cost, one a device; None where one fits nowhere.

    ``keys`` [tiers, tables] each; the last one sorts first. Tables whose repeats have alike working sets share a cache
    without loss: the hit share is convex in the mean. A table without room goes to the nearest piece that has some.
    Where HBM is too small, what saves least a byte there is in host memory, in pieces of its own.
    """
    room, devices = _Room(tables), np.arange(tables.world)
    total = np.zeros(tables.world)
    tiers = _tiers(tables)
    for tier in reversed(range(tables.tiers)):
        own = np.flatnonzero(tiers == tier)
        if not len(own):
            continue
        order = own[np.lexsort([key[tier, own] for key in keys])]
        cost = tables.alone[tier, order]
        # What each device may still take for all to be level.
        share = np.maximum((total.sum() + cost.sum()) / tables.world - total, 0.0)
        ends = np.cumsum(share) * (cost.sum() / max(float(share.sum()), np.finfo(np.float64).tiny))
        middles = np.cumsum(cost) - 0.5 * cost
        at = np.minimum(np.searchsorted(ends, middles), tables.world - 1)
        for table, piece in zip(order.tolist(), at.tolist()):
            if not room.put(table, tier, np.abs(devices - piece).astype(np.float64)):
                return None
        np.add.at(total, room.rank[order], tables.alone[room.tier[order], order])
    return TablePlacement(tables, room.rank, room.tier)


def _tiers(tables: Tables) -> Ints:
    """Choose the tier of each table: HBM for those that save most a byte in it until all devices' is full, [tables]."""
    tier = np.zeros(len(tables), dtype=np.int64)
    if tables.uvm:
        saved = (tables.alone[SPILL] - tables.alone[0]) / np.maximum(tables.sizes, 1)
        order = np.argsort(-saved, kind="stable")
        over = np.cumsum(tables.sizes[order]) > tables.world * int(tables.capacity[0])
        tier[order[over]] = SPILL
    return tier
