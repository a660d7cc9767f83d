"""Drawn tables: ids in the order of the profile's train samples, and what is kept of it."""

import gc
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from shardbench.datasets import criteo_like, described, rm, synthetic
from shardbench.model.profile import AccessProfile
from shardbench.workloads.drawn import DrawnWorkload
from shardbench.workloads.hotness import join
from shardbench.workloads.ranking_cache import CompactRanking, RankingMemory, RecentRankings
from shardbench.workloads.trace import Bags, Ranking, Split, access_runs
from shardbench.workloads.workload import WorkloadConfig

NOWHERE = Path("nowhere")
BIG = described.DescribedTable(name="big", rows=1 << 25, pooling=20.0, alpha=0.9)
SMALL = described.DescribedTable(name="small", rows=3000, pooling=3.0, coverage=0.5, seen_rows=2000)
SIZES = {"batch_size": 1000, "profile_samples": 2500}

KINDS: dict[str, Callable[..., WorkloadConfig]] = {
    "synthetic": partial(synthetic.CONFIG, tables=12, subset_seed=1),
    "criteo_like": criteo_like.CONFIG,
    "rm": partial(rm.CONFIG, tables=12),
    "described": partial(described.CONFIG, tables=(BIG, SMALL)),
}


def made(kind: str, **changes: object) -> DrawnWorkload:
    workload = KINDS[kind](**(SIZES | changes)).build(NOWHERE)
    assert isinstance(workload, DrawnWorkload)
    return workload


def train_bags(workload: DrawnWorkload, table: int) -> list[Bags]:
    """Bags of the samples that the profile counts."""
    parts = [workload.bags(Split.TRAIN, i, table) for i in range(3)]
    return [*parts[:2], parts[2].samples(0, 500)]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_seeded_and_splits_and_batches_differ(kind: str) -> None:
    one, again, other = made(kind), made(kind), made(kind, seed=1)
    for table in range(len(one.tables)):
        # Test batches begin anew after the last one.
        np.testing.assert_array_equal(
            one.bags(Split.TEST, 0, table).values, again.bags(Split.TEST, one.test_batches, table).values
        )
    busy = int(np.argmax([profile.lookups for profile in one.profiles]))
    first = one.bags(Split.TEST, 0, busy).values
    for bags in (one.bags(Split.TRAIN, 0, busy), one.bags(Split.TEST, 1, busy), other.bags(Split.TEST, 0, busy)):
        assert not np.array_equal(first, bags.values)
    assert one.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_in_the_order_of_the_profile(kind: str) -> None:
    workload = made(kind)
    for number, (table, profile) in enumerate(zip(workload.tables, workload.profiles)):
        parts = train_bags(workload, number)
        train = np.concatenate([part.values for part in parts])
        present = sum(int((part.lengths > 0).sum()) for part in parts)
        assert (profile.samples, profile.present, profile.lookups) == (2500, present, len(train))
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


@pytest.mark.parametrize("samples", [1, 63, 64, 150])
def test_a_profile_is_that_of_the_first_train_samples(samples: int) -> None:
    """The lookups of a table of so many rows, and of one of so few, are counted one by one."""
    wide = {"name": "wide", "rows": 1 << 33, "pooling": 4.0, "alpha": 1.1, "coverage": 0.6}
    fields = {"tables": [wide, {"name": "narrow", "rows": 40, "pooling": 2.5}], "profile_samples": samples}
    workload = described.CONFIG.model_validate({"batch_size": 64, **fields}).build(Path())
    for table, shape in enumerate(workload.tables):
        train = join([workload.bags(Split.TRAIN, batch, table) for batch in range(3)]).samples(0, samples)
        counts, present = np.unique(train.values, return_counts=True)[1], int(np.count_nonzero(train.lengths))
        profile = AccessProfile.from_counts(counts, rows=shape.rows, samples=samples, present=present)
        assert workload.profiles[table] == profile


@pytest.mark.parametrize(("rows", "lookups"), [(7, 0), (1, 5), (1000, 31), (1000, 32), (50, 9000), (1 << 31, 400)])
def test_runs_are_counted_without_a_ranking_as_with_one(rows: int, lookups: int) -> None:
    ids = (rows * np.random.default_rng(0).random(lookups) ** 3).astype(np.int32)
    for runs, ranked in zip(access_runs(ids, rows), Ranking(ids, rows).runs):
        np.testing.assert_array_equal(runs, ranked)


@pytest.mark.parametrize("samples", [64, 700])
@pytest.mark.parametrize("kind", [criteo_like, described, rm, synthetic])
def test_quicker_profiles_are_those_of_a_ranking(kind, samples: int) -> None:
    tables = {"tables": [{"name": "a", "rows": 5000, "pooling": 3.0, "coverage": 0.5}]} if kind is described else {}
    quick = kind.CONFIG.model_validate({"name": "w", "batch_size": 512, **tables}).build(Path()).quicker(samples)
    assert quick.profile(0) == quick._survey(0)[1]
    assert (quick.profile(0).samples, quick.batch_size) == (samples, samples if samples < 512 else samples // 2)


def test_compact_ranking_is_the_same_bijection_in_less_memory() -> None:
    train = np.random.default_rng(0).integers(0, 50_000, 5000)
    plain, compact = Ranking(train, 50_000), CompactRanking(train, 50_000)
    everyone = np.arange(50_000)
    np.testing.assert_array_equal(plain(everyone), compact(everyone))
    assert compact.nbytes < plain.nbytes / 4


class Maker:
    """Makes rankings of 100 rows, and remembers which."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, table: int) -> tuple[Ranking, AccessProfile]:
        self.made.append(table)
        counts = np.ones(100, dtype=np.int64)
        profile = AccessProfile.from_counts(counts, rows=100, samples=table + 1, present=1)
        return Ranking(np.arange(100), 100), profile


ONE = Maker()(0)[0].nbytes


def test_rankings_kept_are_bounded_and_a_walk_finds_most_of_the_last_one() -> None:
    make = Maker()
    kept = RecentRankings(make, RankingMemory(3 * ONE))
    for _ in range(4):
        for table in range(5):
            assert kept[table][1].samples == table + 1
            assert kept.nbytes <= 3 * ONE
    # Dropping the one not used for longest would have made all 20.
    assert make.made == [0, 1, 2, 3, 4, 2, 3, 1, 2, 0, 1, 4]


def test_profiles_stay_when_rankings_go() -> None:
    make = Maker()
    kept = RecentRankings(make, RankingMemory(0))
    profiles = [kept.profile(table) for table in range(3)]
    assert kept.nbytes == ONE
    assert [kept.profile(table) for table in range(3)] == profiles
    assert make.made == [0, 1, 2]
    assert kept[0][0].rows == 100
    assert make.made == [0, 1, 2, 0]


def test_workloads_share_memory_and_those_used_earlier_give_way() -> None:
    memory = RankingMemory(3 * ONE)
    first, second, third = (RecentRankings(Maker(), memory) for _ in range(3))
    for user in (first, second, third, first):
        assert user[0][0].rows == 100
    assert third[1][0].rows == 100
    assert [user.nbytes // ONE for user in (first, second, third)] == [1, 0, 2]
    memory.max_bytes = ONE
    assert first[0][0].rows == 100
    assert [user.nbytes // ONE for user in (first, second, third)] == [1, 0, 0]
    del first, user
    gc.collect()
    assert memory.nbytes == 0


def test_a_workload_crosses_to_another_process_without_its_rankings() -> None:
    workload = made("described")
    assert len(workload.profiles) == 2
    there = pickle.loads(pickle.dumps(workload))
    assert there.profiles == workload.profiles
    np.testing.assert_array_equal(there.bags(Split.TEST, 0, 1).values, workload.bags(Split.TEST, 0, 1).values)
