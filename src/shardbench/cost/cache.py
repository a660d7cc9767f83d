"""FBGEMM's set-associative caches of host rows in HBM, simulated batch by batch, by vectors over rows.

What a batch does to the cache is what FBGEMM's kernels do (``split_table_batched_embeddings_ops_training.py``: sizes,
linear indices, populate before lookup, time stamps, locked lines). Their CUDA sources are not part of its wheels: the
hash, the order of what is inserted and who leaves are our own understanding of them.
"""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Ids, Ints
from shardbench.model.caching import WAYS

EMPTY, ANY = -1, -2
"""What a slot holds before anything did, and a row that no batch asks for."""
NEVER = np.iinfo(np.int64).min
"""The time stamp of an empty slot."""
CHUNK = 1 << 15
"""Rows whose sets are compared at once: 8 MiB."""


def set_of(rows: Ids, sets: int) -> Ints:
    """Return the set of each linear row, int64 [rows]: the finaliser of MurmurHash3, modulo the number of sets."""
    mixed = np.asarray(rows).astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(33)
    return np.asarray(mixed % np.uint64(sets), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class CacheStep:
    """What one batch met: for each of its distinct rows whether the cache held it; the rest are conflict misses."""

    hit: Bools
    """Held before the batch and while it is looked up."""
    inserted: Bools
    """Missed, and put in a slot before the lookup."""
    evicted: Ids
    """Rows that left their slots, which training has changed: they are written back."""

    @property
    def conflict(self) -> Bools:
        """Say which rows found no slot, so that every lookup of theirs reads host memory."""
        return ~(self.hit | self.inserted)


class Cache:
    """A cache of ``sets`` sets, which evicts the row that was used longest ago (LRU, FBGEMM's default).

    ``used`` are the only sets that are ever asked for, ascending, all where None. Slots of the last ``locked`` batches,
    the one that comes included, are not evicted: 1 where a batch is fetched when it is looked up, 2 where FBGEMM
    prefetches it while the batch before is in work.
    """

    def __init__(self, sets: int, *, used: Ints | None = None, locked: int = 1) -> None:
        self.sets, self.locked = sets, locked
        self.used = np.arange(sets) if used is None else used
        self.rows = np.full((len(self.used), WAYS), EMPTY, dtype=np.int64)
        self.stamps = np.full((len(self.used), WAYS), NEVER, dtype=np.int64)
        self.now = 0

    def index(self, rows: Ids) -> Ints:
        """Return where in the arrays the set of each row is, int64 [rows]."""
        return np.searchsorted(self.used, set_of(rows, self.sets))

    def step(self, rows: Ids) -> CacheStep:
        """Let a batch ask for ``rows``, distinct and ascending; say what it met."""
        at = self.index(rows)
        ways = self._find(rows, at)
        hit = ways >= 0
        self.stamps[at[hit], ways[hit]] = self.now
        misses = np.flatnonzero(~hit)
        evicted = self._insert(rows, at, misses)
        inserted = np.zeros(len(rows), dtype=np.bool_)
        inserted[misses] = self._find(rows[misses], at[misses]) >= 0
        self.now += 1
        return CacheStep(hit=hit, inserted=inserted, evicted=evicted)

    def _find(self, rows: Ids, at: Ints) -> Ints:
        """Return the slot of each row within its set, int64 [rows]; -1 where the cache lacks it."""
        ways = np.full(len(rows), -1, dtype=np.int64)
        for start in range(0, len(rows), CHUNK):
            same = self.rows[at[start : start + CHUNK]] == rows[start : start + CHUNK, None]
            ways[start : start + CHUNK] = np.where(same.any(axis=1), same.argmax(axis=1), -1)
        return ways

    def _insert(self, rows: Ids, at: Ints, misses: Ints) -> Ids:
        """Put missed rows, as they come, in the slots of their sets that were used longest ago; return who left."""
        candidates = misses[np.argsort(at[misses], kind="stable")]
        if not len(candidates):
            return np.empty(0, dtype=np.int64)
        sets, first, inverse = np.unique(at[candidates], return_index=True, return_inverse=True)
        turn = np.arange(len(candidates)) - first[inverse]
        candidates, inverse, turn = (array[turn < WAYS] for array in (candidates, inverse, turn))
        stamps = self.stamps[sets]
        way = np.argsort(stamps, axis=1, kind="stable")[inverse, turn]
        fits = stamps[inverse, way] <= self.now - self.locked
        slots = sets[inverse[fits]], way[fits]
        evicted = self.rows[slots]
        self.rows[slots], self.stamps[slots] = rows[candidates[fits]], self.now
        return np.asarray(evicted[evicted != EMPTY])
