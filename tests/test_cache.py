"""The simulated cache of host rows beside one that goes through a batch access by access."""

from collections import Counter

import numpy as np
import pytest
import torch
from fbgemm_gpu import split_table_batched_embeddings_ops_training as training

from shardbench.cost.cache import EMPTY, Cache, set_of
from shardbench.model.caching import WAYS, sets_of


def mixed(row: int) -> int:
    """Return the 64 bits that choose a row's set, with Python's own whole numbers."""
    word = (1 << 64) - 1
    row ^= row >> 33
    row = row * 0xFF51AFD7ED558CCD & word
    row ^= row >> 33
    row = row * 0xC4CEB9FE1A85EC53 & word
    return row ^ row >> 33


class SlowCache:
    """One slot after the other, one row after the other."""

    def __init__(self, sets: int, locked: int) -> None:
        self.sets, self.locked, self.now = sets, locked, 0
        self.slots: list[list[tuple[int, int] | None]] = [[None] * WAYS for _ in range(sets)]

    def held(self, row: int) -> bool:
        return any(slot is not None and slot[0] == row for slot in self.slots[mixed(row) % self.sets])

    def step(self, lookups: list[int]) -> tuple[set[int], set[int], list[int]]:
        rows = sorted(set(lookups))
        before = {row for row in rows if self.held(row)}
        for row in before:
            ways = self.slots[mixed(row) % self.sets]
            ways[next(w for w in range(WAYS) if ways[w] is not None and ways[w][0] == row)] = (row, self.now)  # type: ignore[index]
        evicted = [left for ways in range(self.sets) for left in self._fill(ways, rows, before)]
        self.now += 1
        held = {row for row in rows if self.held(row)}
        return held & before, held - before, evicted

    def _fill(self, number: int, rows: list[int], before: set[int]) -> list[int]:
        ways, left = self.slots[number], []
        missed = [row for row in rows if row not in before and mixed(row) % self.sets == number]

        def used(way: int) -> int:
            slot = ways[way]
            return -(1 << 40) if slot is None else slot[1]

        order = sorted(range(WAYS), key=used)
        for row, way, when in zip(missed, order, [used(way) for way in order]):
            if when > self.now - self.locked:
                break
            if (slot := ways[way]) is not None:
                left.append(slot[0])
            ways[way] = (row, self.now)
        return left


@pytest.mark.parametrize("locked", [1, 2])
def test_equals_a_cache_that_goes_access_by_access(locked: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(300):
        draw = np.random.default_rng(seed)
        sets, rows = int(draw.integers(1, 5)), int(draw.integers(40, 400))
        fast, slow = Cache(sets, locked=locked), SlowCache(sets, locked)
        for _ in range(5):
            lookups = (rows * draw.random(int(draw.integers(0, 250))) ** draw.integers(1, 4)).astype(np.int64)
            asked = np.unique(lookups)
            step = fast.step(asked)
            hit, inserted, evicted = slow.step(lookups.tolist())
            assert set(asked[step.hit].tolist()) == hit
            assert set(asked[step.inserted].tolist()) == inserted
            assert sorted(step.evicted.tolist()) == sorted(evicted)
            assert int(step.conflict.sum()) == len(asked) - len(hit) - len(inserted)
            met.update(hit=len(hit), inserted=len(inserted), evicted=len(evicted), conflict=int(step.conflict.sum()))
    assert min(met[name] for name in ("hit", "inserted", "evicted", "conflict")) > 1000


def test_only_the_sets_that_are_used_need_be_there() -> None:
    rows = np.array([3, 9, 77])
    used = np.unique(set_of(rows, 1 << 40))
    cache = Cache(1 << 40, used=used)
    assert cache.rows.shape == (3, WAYS)
    assert not cache.step(rows).hit.any()
    assert cache.step(rows).hit.all()
    assert (cache.rows == EMPTY).sum() == 3 * (WAYS - 1)


def test_sizes_and_sets_are_fbgemms() -> None:
    # ``_apply_cache_state``: (int(rows * load factor) + 31) // 32, and never none.
    assert WAYS == training.DEFAULT_ASSOC
    assert [sets_of(rows) for rows in (0.5, 1, 32, 33, 6400.9)] == [1, 1, 1, 2, 200]
    rows = np.array([0, 1, 5, 12_345_678_901, (1 << 62) + 3])
    assert set_of(rows, 1000).tolist() == [mixed(row) % 1000 for row in rows.tolist()]


def test_fbgemm_asks_for_the_distinct_rows_of_a_batch_in_ascending_order() -> None:
    # The only kernel of the cache that its CPU build runs: those of linear indices and of the lookup return memory that
    # nothing has written, and those that fill the cache are not there. The number behind the last row is of tables
    # that have no cache.
    lookups = torch.tensor([3, 1, 3, 30, 30, 29, 13])
    distinct, length, counts = torch.ops.fbgemm.get_unique_indices(lookups, 30, True)
    rows, often = np.unique(lookups.numpy(), return_counts=True)
    assert distinct[: int(length)].tolist() == rows.tolist()
    assert counts[: int(length)].tolist() == often.tolist()
