"""Lookups whose hot rows moved: the exchange of rows, and lookups of later days in the order of earlier ones."""

from dataclasses import replace

import numpy as np
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbench.model.profile import AccessProfile
from shardbench.workloads.drift import HOT_SHARE, DriftedBatches, exchange, hot_rows
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.trace import Ranking, Split


def skewed(hot: int = 20, rows: int = 1000) -> AccessProfile:
    """``hot`` rows with four fifths of the lookups, as many of one lookup each as take the rest."""
    return AccessProfile(rows=rows, samples=100, present=100, counts=(8, 1), row_counts=(hot, 2 * hot))


def test_hot_rows_take_four_fifths_of_the_lookups() -> None:
    profile = skewed()
    assert hot_rows(profile) == 20
    assert profile.cdf(20) == pytest.approx(HOT_SHARE)
    assert hot_rows(replace(profile, counts=(), row_counts=())) == 0


@given(st.integers(0, 60), st.integers(60, 5000), st.floats(0.0, 1.0), st.integers(0, 5), st.integers(0, 3))
def test_an_exchange_is_a_bijection_that_swaps_hot_rows_with_others(
    hot: int, rows: int, share: float, seed: int, table: int
) -> None:
    hot = min(hot, rows // 3)
    profile = skewed(hot, rows) if hot else AccessProfile(rows=rows, samples=1, present=0, counts=(), row_counts=())
    every = np.arange(rows)
    moved = exchange(profile, share, seed, table)(every)
    assert np.array_equal(np.sort(moved), every), "a bijection"
    assert np.array_equal(exchange(profile, share, seed, table)(moved), every), "its own inverse"
    left = np.flatnonzero(moved[:hot] >= hot)
    assert abs(len(left) - share * hot) < 1.0
    assert np.array_equal(moved[:hot][np.delete(np.arange(hot), left)], np.delete(every[:hot], left)), "others stay"


def test_a_share_of_few_rows_is_right_in_the_mean_over_seeds() -> None:
    moved = [len(exchange(skewed(hot=2, rows=50), 0.25, seed, 0).rows) // 2 for seed in range(400)]
    assert set(moved) == {0, 1}
    assert np.mean(moved) == pytest.approx(0.5, abs=0.1)


def test_a_larger_share_of_a_seed_moves_what_a_smaller_one_does() -> None:
    small, large = (exchange(skewed(), share, 3, 0) for share in (0.25, 0.5))
    assert np.isin(small.rows, large.rows).all()
    assert np.array_equal(large(small.rows), small(small.rows))


def test_seeds_and_tables_move_other_rows() -> None:
    assert not np.array_equal(exchange(skewed(), 0.5, 0, 0).rows, exchange(skewed(), 0.5, 1, 0).rows)
    assert not np.array_equal(exchange(skewed(), 0.5, 0, 0).rows, exchange(skewed(), 0.5, 0, 1).rows)


def test_only_the_rest_can_come_where_it_is_smaller() -> None:
    profile = AccessProfile(rows=5, samples=10, present=10, counts=(2,), row_counts=(5,))
    assert hot_rows(profile) == 4
    assert len(exchange(profile, 1.0, 0, 0).rows) == 2


def test_the_curve_stays_and_a_fresh_profile_gives_back_the_undrifted_lookups() -> None:
    """What re-planning would win is all of the loss: in the fresh order, drifted lookups are the undrifted ones."""
    workload = problems.RandomWorkload([(500, 8), (40, 8)], 64)
    for table, shape in enumerate(workload.tables):
        moved = exchange(workload.profiles[table], 0.5, 0, table)
        train = moved(workload.bags(Split.TRAIN, 0, table).values)
        fresh = Ranking(train, shape.rows)
        profile = workload.profiles[table]
        counts = AccessProfile.from_counts(fresh.counts, rows=shape.rows, samples=64, present=profile.present)
        assert counts == profile
        # Rows that were looked up equally often are in no order: they are compared by their counts.
        count_at = np.append(fresh.counts, np.zeros(shape.rows - len(fresh.counts), dtype=np.int64))
        test = workload.bags(Split.TEST, 0, table).values
        before = np.bincount(workload.bags(Split.TRAIN, 0, table).values, minlength=shape.rows)
        after = np.bincount(train, minlength=shape.rows)
        assert np.array_equal(count_at[fresh(moved(test))], after[moved(test)])
        assert np.array_equal(after[moved(test)], before[test])


def test_drifted_batches_keep_bags_and_change_rows_alone() -> None:
    workload = problems.RandomWorkload([(500, 8), (40, 8)], 64)
    source = DrawnBatches(workload, 2)
    drifted = DriftedBatches(source, workload.profiles, 0.5, 0)
    for table in range(2):
        for batch in range(2):
            was, now = source.bags(batch, table), drifted.bags(batch, table)
            assert np.array_equal(was.offsets, now.offsets)
            assert np.array_equal(now.values, exchange(workload.profiles[table], 0.5, 0, table)(was.values))
        both = drifted.joined(2, table)
        assert np.array_equal(both.values[: len(drifted.bags(0, table).values)], drifted.bags(0, table).values)
    none = DriftedBatches(source, workload.profiles, 0.0, 0)
    assert np.array_equal(none.bags(0, 0).values, source.bags(0, 0).values)
