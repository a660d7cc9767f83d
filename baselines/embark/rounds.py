"""EMBark's greedy over shards, costliest first, and the rounds that split the costliest table in two."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.model.plan import OnRank, Placement, RowWise, Segment

from .splits import Split, Splits, Spread

ROUNDS = 20
"""Splits that are tried at most once every shard has room."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """All shards of a round on their devices."""

    segments: tuple[Segment, ...]
    worst: float
    """The dearest device's cost."""


def best_round(splits: Splits, tables: Iterable[int], free: Ints) -> Placed:
    """The cheapest of the rounds for these tables on devices with ``free`` bytes, int64 [world].

    Raises Infeasible where a table finds no room however it is split.
    """
    current = {i: splits.whole(i) for i in tables}
    if not current:
        return Placed(segments=(), worst=0.0)
    best: Placed | None = None
    rounds = 0
    while rounds <= ROUNDS:  # the first without a split
        placed = _placed(splits, current.values(), free)
        if isinstance(placed, Split):
            # What finds no room is split first, and counts as no round (deviation 6).
            half = splits.halved(placed)
            if half is None:
                break
            current[placed.table] = half
            continue
        rounds += 1
        if best is None or placed.worst < best.worst:
            best = placed
        finer = {i: two for i, split in current.items() if (two := splits.halved(split)) is not None}
        if not finer:
            break
        hottest = max(finer, key=lambda i: (splits.cost(current[i]), -i))
        current[hottest] = finer[hottest]
    if best is None:
        raise Infeasible("EMBark: a table finds no room in HBM, however it is split")
    return best


def _placed(splits: Splits, chosen: Iterable[Split], free: Ints) -> Placed | Split:
    """Costliest shard first, each to the cheapest bucket with room; or what has a shard that finds none."""
    free = free.copy()
    costs = np.zeros(len(free))
    segments: list[Segment] = []
    for split in sorted(chosen, key=lambda s: (-splits.cost(s), s.table)):
        cost, bytes_ = splits.cost(split), splits.bytes(split)
        for shard in range(split.columns):
            at = _cheapest(bytes_, free, costs)
            if at is None:
                return split
            costs[at] += cost
            free[at] -= bytes_
            segments.append(_segment(splits, split, shard, at))
    return Placed(segments=tuple(segments), worst=float(costs.max()))


def _cheapest(bytes_: Ints, free: Ints, costs: Floats) -> Ints | None:
    """Devices of the bucket whose dearest device is the cheapest, of those with room; the first of equals."""
    ways = len(bytes_)
    room = (free.reshape(-1, ways) >= bytes_).all(axis=1)
    if not room.any():
        return None
    dearest = np.where(room, costs.reshape(-1, ways).max(axis=1), np.inf)
    first = ways * int(dearest.argmin())
    return np.arange(first, first + ways)


def _segment(splits: Splits, split: Split, shard: int, at: Ints) -> Segment:
    table = splits.problem.tables[split.table]
    whole = split.spread is Spread.DEVICE
    place: Placement = OnRank(rank=int(at[0])) if whole else RowWise(ranks=tuple(at.tolist()))
    return Segment(
        table=table.name,
        row_stop=table.rows,
        column_start=shard * split.width,
        column_stop=(shard + 1) * split.width,
        placement=place,
    )
