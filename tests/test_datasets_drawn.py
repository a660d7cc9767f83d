"""Drawn tables: ids in the order of the profile's train samples, and what is kept of it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardbench.datasets import criteo_like, described, synthetic
from shardbench.datasets.drawn import DrawnWorkload
from shardbench.datasets.recent import RecentRankings
from shardbench.profile import AccessProfile
from shardbench.trace import Ranking, Split

NOWHERE = Path("nowhere")
BIG = described.DescribedTable(name="big", rows=1 << 25, pooling=20.0, alpha=0.9)
SMALL = described.DescribedTable(name="small", rows=3000, pooling=3.0, coverage=0.5, seen_rows=2000)
SIZES = {"batch_size": 1000, "profile_samples": 2500}

MAKERS: dict[str, Callable[[], DrawnWorkload]] = {
    "synthetic": lambda: synthetic.CONFIG(tables=12, subset_seed=1, **SIZES).build(NOWHERE),
    "criteo_like": lambda: criteo_like.CONFIG(**SIZES).build(NOWHERE),
    "described": lambda: described.CONFIG(tables=(BIG, SMALL), **SIZES).build(NOWHERE),
}


def train_ids(workload: DrawnWorkload, table: int) -> np.ndarray:
    """Lookups of the samples that the profile counts."""
    parts = [workload.bags(Split.TRAIN, i, table) for i in range(3)]
    return np.concatenate([parts[0].values, parts[1].values, parts[2].samples(0, 500).values])


@pytest.mark.parametrize("kind", MAKERS)
def test_ids_are_in_the_order_of_the_profile(kind: str) -> None:
    workload = MAKERS[kind]()
    for number, (table, profile) in enumerate(zip(workload.tables, workload.profiles)):
        train = train_ids(workload, number)
        assert len(train) == profile.lookups
        if len(train) == 0:
            continue
        counts = np.bincount(train)
        assert (np.diff(counts) <= 0).all(), table.name
        np.testing.assert_array_equal(counts, np.repeat(profile.counts, profile.row_counts))
        test = np.concatenate([workload.bags(Split.TEST, i, number).values for i in range(2)])
        hottest = np.unique(np.geomspace(1, table.rows, 20).astype(np.int64))
        for k in hottest.tolist():
            assert np.mean(train < k) == pytest.approx(float(profile.cdf(k)), abs=1e-12), (table.name, k)
            if len(test):
                # What was counted to be hottest is, in new samples, at most as hot; bags of a table vary.
                assert np.mean(test < k) <= float(profile.cdf(k)) + 5 * np.sqrt(0.25 / len(test)), (table.name, k)


def test_share_of_new_lookups_is_close_where_the_sample_is_large() -> None:
    workload = described.CONFIG(tables=(SMALL,), batch_size=50_000, profile_samples=200_000).build(NOWHERE)
    (profile,), test = workload.profiles, workload.bags(Split.TEST, 0, 0).values
    for k in (1, 10, 100, 1000, 2000):
        assert np.mean(test < k) == pytest.approx(float(profile.cdf(k)), abs=0.01)


def test_ranking_of_few_and_many_rows_agree() -> None:
    train = np.random.default_rng(0).zipf(1.3, 4000) % 5000
    everyone = np.arange(5000)
    dense, sparse = Ranking(train, 5000), Ranking(train, 1 << 30)
    assert dense.nbytes < 5000 * 4 + 20_000
    np.testing.assert_array_equal(dense(everyone), sparse(everyone))
    np.testing.assert_array_equal(dense.counts, sparse.counts)
    assert sparse(np.array([(1 << 30) - 1])).tolist() == [(1 << 30) - 1]


def test_rankings_kept_are_bounded_and_the_one_not_used_for_longest_goes() -> None:
    made: list[int] = []

    def make(table: int) -> tuple[Ranking, AccessProfile]:
        made.append(table)
        counts = np.ones(100, dtype=np.int64)
        return Ranking(np.arange(100), 100), AccessProfile.from_counts(counts, rows=100, samples=1, present=1)

    one = make(0)[0].nbytes
    kept = RecentRankings(make, max_bytes=2 * one)
    made.clear()
    for table in (1, 2, 1, 3, 1, 2):
        assert kept[table][0].rows == 100
        assert kept.nbytes <= 2 * one
    assert made == [1, 2, 3, 2]
    assert RecentRankings(make, max_bytes=0)[5][0].rows == 100
