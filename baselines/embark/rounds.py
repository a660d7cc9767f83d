"""EMBark's greedy over shards, costliest first, and the rounds that split the costliest table in two."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.model.plan import OnRank, Placement, RowWise, Segment, whole_table

from .splits import RowSpread, TableSplit, TableSplits

ROUNDS = 20
"""How many splits are tried at most once every shard has room."""


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """All shards of a round on their devices."""

    segments: tuple[Segment, ...]
    worst: float
    """Cost of the dearest device."""


def best_round(splits: TableSplits, tables: Iterable[int], free: Ints) -> RoundPlan:
    """Return the cheapest of the rounds for these tables on devices with ``free`` bytes, int64 [world].

    Raises Infeasible where a table finds no room however it is split.
    """
    current = {i: splits.whole(i) for i in tables}
    if not current:
        return RoundPlan(segments=(), worst=0.0)
    best: RoundPlan | None = None
    rounds = 0
    while rounds <= ROUNDS:  # the first without a split
        attempt = _place(splits, current.values(), free)
        if isinstance(attempt, TableSplit):
            # What finds no room is split first, and counts as no round (deviation 6).
            half = splits.halved(attempt)
            if half is None:
                break
            current[attempt.table] = half
            continue
        rounds += 1
        if best is None or attempt.worst < best.worst:
            best = attempt
        finer = {i: two for i, split in current.items() if (two := splits.halved(split)) is not None}
        if not finer:
            break
        hottest = max(finer, key=lambda i: (splits.cost(current[i]), -i))
        current[hottest] = finer[hottest]
    if best is None:
        raise Infeasible("EMBark: a table finds no room in HBM, however it is split")
    return best


def _place(splits: TableSplits, splits_in_round: Iterable[TableSplit], free: Ints) -> RoundPlan | TableSplit:
    """Place shards, costliest first, each in the cheapest bucket with room; return the split that finds none, if so."""
    free = free.copy()
    costs = np.zeros(len(free))
    segments: list[Segment] = []
    for split in sorted(splits_in_round, key=lambda s: (-splits.cost(s), s.table)):
        cost, bytes_ = splits.cost(split), splits.bytes(split)
        for shard in range(split.columns):
            at = _cheapest(bytes_, free, costs)
            if at is None:
                return split
            costs[at] += cost
            free[at] -= bytes_
            segments.append(_segment(splits, split, shard, at))
    return RoundPlan(segments=tuple(segments), worst=float(costs.max()))


def _cheapest(bytes_: Ints, free: Ints, costs: Floats) -> Ints | None:
    """Return the devices of the bucket with room whose dearest device is the cheapest; the first of equals."""
    ways = len(bytes_)
    room = (free.reshape(-1, ways) >= bytes_).all(axis=1)
    if not room.any():
        return None
    dearest = np.where(room, costs.reshape(-1, ways).max(axis=1), np.inf)
    first = ways * int(dearest.argmin())
    return np.arange(first, first + ways)


def _segment(splits: TableSplits, split: TableSplit, shard: int, at: Ints) -> Segment:
    table = splits.problem.tables[split.table]
    whole = split.spread is RowSpread.DEVICE
    place: Placement = OnRank(rank=int(at[0])) if whole else RowWise(ranks=tuple(at.tolist()))
    return whole_table(table, place, (shard * split.width, (shard + 1) * split.width))
