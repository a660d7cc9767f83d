"""Beam search over which tables' columns are halved; every column plan is rated by its best placement."""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Ints

from .placement import Placer
from .settings import SearchLimits
from .shards import NO_HALVES


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnPlan:
    """The best plan found: numbers of shards and their ranks int64 [shards]; predicted ms, infinite where none fits."""

    shards: Ints
    ranks: Ints
    ms: float
    splits: int
    """Halvings of this plan."""


def search(placer: Placer, limits: SearchLimits, affordable: float = float("inf")) -> ColumnPlan:
    """Halve one shard of each kept plan after the other; no randomness.

    No halving is begun with which more than ``affordable`` devices would have been rated (deviation 7).
    """
    beam = placer.shards.whole[None]
    placed = placer.place(beam)
    best = ColumnPlan(shards=beam[0], ranks=placed.ranks[0], ms=float(placed.ms[0]), splits=0)
    ratings = beam.size
    for split in range(1, limits.splits + 1):
        plans = halved(beam, placer, limits.candidates)
        ratings += plans.size
        if not len(plans) or ratings * len(limits.caps) * placer.devices > affordable:
            break
        placed = placer.place(plans)
        # Of equals, and where nothing fits yet, the plan that was proposed first: that of the largest shard.
        kept = np.argsort(placed.ms, kind="stable")[: limits.beams]
        beam, first = plans[kept], int(kept[0])
        if placed.ms[first] < best.ms:
            best = ColumnPlan(shards=plans[first], ranks=placed.ranks[first], ms=float(placed.ms[first]), splits=split)
    return best


def halved(beam: Ints, placer: Placer, candidates: int) -> Ints:
    """List every different plan with one candidate shard of a kept plan halved, int64 [plans, shards + 1], sorted.

    There is no plan where every shard is as narrow as it may be.
    """
    plans: dict[tuple[int, ...], None] = {}
    for plan in beam:
        for shard in candidates_of(plan, placer, candidates).tolist():
            half = int(placer.shards.half[shard])
            rest = np.delete(plan, int(np.flatnonzero(plan == shard)[0]))
            plans[tuple(np.sort(np.append(rest, (half, half))).tolist())] = None
    return np.array(list(plans), dtype=np.int64).reshape(len(plans), beam.shape[1] + 1)


def candidates_of(plan: Ints, placer: Placer, candidates: int) -> Ints:
    """List different shards of a plan that can be halved: the largest, then those with the longest kernels."""
    divisible = np.unique(plan[placer.shards.half[plan] != NO_HALVES])
    by_size = divisible[np.argsort(-placer.shards.bytes[divisible], kind="stable")][:candidates]
    by_cost = divisible[np.argsort(-placer.alone_ms[divisible], kind="stable")][:candidates]
    ordered = np.concatenate([by_size, by_cost])
    return ordered[np.sort(np.unique(ordered, return_index=True)[1])]
