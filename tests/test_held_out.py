"""What profiles cannot tell: the share of rows that nobody counted, and samples of single train inputs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_json, to_json
from shardbench.datasets.criteo_like import CONFIG as CRITEO_LIKE
from shardbench.datasets.trace_file import CONFIG as TRACE
from shardbench.datasets.yambda_like import YambdaLikeConfig
from shardbench.model.expected import expected
from shardbench.model.profile import BLOCKS, AccessProfile, HeldOut, count_classes
from shardbench.workloads.held_out import measure_held_out
from shardbench.workloads.hotness import HotPrefix, hot_samples
from shardbench.workloads.trace import Bags, Ranking, Split, last_rows
from shardbench.workloads.workload import SAMPLED_INPUTS

HOT_AND_OWN = AccessProfile(
    rows=20,
    samples=32,
    present=32,
    counts=(8, 3),
    row_counts=(1, 8),
    held_out=HeldOut(shares=(0.75, 0.0, 0.0, 0.0, 0.25), block_rows=2.0),
)


def surveyed(ids: np.ndarray, rows: int) -> AccessProfile:
    ranking = Ranking(ids, rows)
    return AccessProfile.from_counts(
        ranking.counts, rows=rows, samples=len(ids), present=len(ids), held_out=measure_held_out(ids, ranking)
    )


def drawn(generator: np.random.Generator, size: int, rows: int, exponent: float) -> np.ndarray:
    # Rows of alike counts are ranked by number, which is to tell nothing of the law.
    law = np.random.default_rng(rows).permutation(np.arange(1, rows + 1) ** -exponent)
    return generator.choice(rows, size, p=law / law.sum())


def of_users(generator: np.random.Generator, users: int, repeats: int, rows: int) -> np.ndarray:
    """Each user in turn asks for fifty rows, several times all."""
    return np.tile(drawn(generator, 50 * users, rows, 0.7).reshape(users, 50), repeats).ravel()


def test_classes_of_counts() -> None:
    assert count_classes([0, 1, 2, 3, 4, 7, 8, 2**40]).tolist() == [0, 1, 2, 2, 3, 3, 4, 41]


def test_by_hand() -> None:
    # Each of eight blocks asks for a row of its own alone: whatever is new meets rows never seen.
    own = surveyed(np.repeat(np.arange(8), 2), 20)
    assert own.held_out == HeldOut(shares=(1.0, 0.0, 0.0), block_rows=1.0) and own.unseen_share == 1.0
    # In each block one lookup of four is of row 0.
    ids = np.concatenate([[0, block, block, block] for block in range(1, 9)])
    assert surveyed(ids, 20) == HOT_AND_OWN
    # The same lookups in an order in which all blocks ask for all rows.
    assert surveyed(np.concatenate([ids[0::4], np.tile(np.arange(1, 9), 3)]), 20).held_out is None
    assert measure_held_out(np.arange(7), Ranking(np.arange(7), 20)) is None
    # A table of which all rows were seen has no rows that were not: those of the least count take their lookups.
    all_seen = surveyed(ids, 9).held_out
    assert all_seen is not None and all_seen.shares == pytest.approx((0.0, 0.0, 0.75, 0.0, 0.25))


def test_the_measured_shares_are_expected() -> None:
    # The eight rows that one block each asked for are no hotter than the eleven never seen.
    found = expected(HOT_AND_OWN)
    assert found.cdf([1, 9, 20]) == pytest.approx([0.25, 0.25 + 0.75 * 8 / 19, 1.0], abs=3e-3)
    assert (found.row_counts, found.held_out) == ((1, 19), None)
    assert found.mean_pooling == pytest.approx(HOT_AND_OWN.mean_pooling, rel=1e-2)
    # Nothing new: rows never seen get nothing.
    known = replace(HOT_AND_OWN, held_out=HeldOut(shares=(0.0, 0.0, 0.25, 0.0, 0.75), block_rows=2.0))
    assert expected(known).cdf([1, 9]) == pytest.approx([0.75, 1.0], abs=3e-3)


def test_a_block_has_as_many_distinct_rows_as_measured() -> None:
    # A block of four lookups has two rows: 0 and its own. Four that are drawn one by one have more.
    found = expected(HOT_AND_OWN)
    assert found.expected_distinct(4) == pytest.approx(2.0)
    assert replace(found, drawn_share=1.0).expected_distinct(4) > 3.0
    assert found.distinct_below(4, [20]) == pytest.approx([2.0])
    chances = found.met_shares(4)
    assert float(np.array(found.row_counts) @ chances) == pytest.approx(2.0)
    # More rows than draws can have: all of them are draws.
    assert expected(replace(HOT_AND_OWN, held_out=HeldOut(shares=(0.75, 0.0, 0.0, 0.0, 0.25), block_rows=4.0))) == (
        replace(found, drawn_share=1.0)
    )


def test_a_profile_without_it_is_written_as_before_and_one_with_it_is_checked() -> None:
    plain = replace(HOT_AND_OWN, held_out=None)
    assert "held_out" not in json.loads(to_json(plain))
    for profile in (plain, HOT_AND_OWN):
        assert from_json(AccessProfile, to_json(profile)) == profile
    for shares, words in (((0.5, 0.0, 0.0, 0.0, 0.25), "add up to 0.75"), ((0.5, 0.5), "each class of counts")):
        with pytest.raises((ValueError, BadInput), match=words):
            replace(HOT_AND_OWN, held_out=HeldOut(shares=shares, block_rows=2.0))


@given(st.integers(0, 2**32), st.integers(10, 3000), st.integers(8, 4000), st.floats(0.0, 1.5))
def test_lookups_drawn_one_by_one_leave_it_to_good_and_turing(
    seed: int, rows: int, lookups: int, exponent: float
) -> None:
    assert surveyed(drawn(np.random.default_rng(seed), lookups, rows, exponent), rows).held_out is None


@pytest.mark.parametrize("repeats", [2, 5, 40])
@pytest.mark.parametrize("users", [200, 1000])
def test_rows_that_only_other_users_ask_for_are_expected(users: int, repeats: int) -> None:
    generator, rows = np.random.default_rng(users + repeats), 100_000
    ids = of_users(generator, users, repeats, rows)
    profile, ranking = surveyed(ids, rows), Ranking(ids, rows)
    new = ranking(of_users(generator, 400, repeats, rows))
    truth = float(np.mean(new >= profile.seen_rows))
    assert truth > 0.3
    assert profile.unseen_share == pytest.approx(truth, abs=0.03)
    assert replace(profile, held_out=None).unseen_share < 0.05
    # Users ask again and again: a new block has as many distinct rows as one of those counted.
    block = new[: len(ids) // BLOCKS]
    assert expected(profile).expected_distinct(len(block)) == pytest.approx(len(np.unique(block)), rel=0.2)
    # Rows seen often get what they do, too.
    ends = np.array([100, 1000, 5000, profile.seen_rows])
    assert expected(profile).cdf(ends) == pytest.approx([float(np.mean(new < end)) for end in ends], abs=0.03)


def test_histories_of_other_users_are_expected_in_a_workload() -> None:
    workload = YambdaLikeConfig(batch_size=64, pool=50, row_scale=0.01, profile_samples=1024).build(Path())
    for table in (0, 3):
        profile = workload.profiles[table]
        tested = np.concatenate([workload.bags(Split.TEST, batch, table).values for batch in range(4)])
        assert profile.unseen_share == pytest.approx(float(np.mean(tested >= profile.seen_rows)), abs=0.06)
        assert profile.unseen_share > 3.0 * replace(profile, held_out=None).unseen_share


def test_last_rows_of_samples():
    bags = Bags(values=np.array([4, 9, 2, 7]), offsets=np.array([0, 2, 2, 2, 3, 4, 4]), features=2)
    assert last_rows(bags).tolist() == [9, 2, 7]
    assert last_rows(Bags(values=np.array([], dtype=np.int64), offsets=np.array([0, 0, 0]))).tolist() == [-1, -1]


def test_a_sample_of_a_drawn_workload_counts_hot_inputs_as_the_test_split_has_them():
    workload = CRITEO_LIKE(batch_size=4096, profile_samples=16_384, test_batches=2).build(Path("nowhere"))
    hot = [min(profile.seen_rows, table.rows) for profile, table in zip(workload.profiles, workload.tables)]
    rows = [HotPrefix(hot=n, rows=table.rows) for n, table in zip(hot, workload.tables)]
    found = [hot_samples(lambda i, b=b: workload.bags(Split.TEST, b, i), rows, 4096).mean() for b in range(2)]
    sample = workload.input_sample
    assert sample is workload.input_sample
    assert (len(sample.coldest), len(sample.coldest[0]), sample.train_inputs) == (26, SAMPLED_INPUTS, None)
    # Two shares of 8,192 inputs: five standard errors of their difference.
    assert sample.hot_share(hot) == pytest.approx(float(np.mean(found)), abs=0.04)
    assert 0.3 < sample.hot_share(hot) < 0.5
    with pytest.raises(BadInput, match="hot rows of 1 tables for inputs of 26"):
        sample.hot_share(hot[:1])


def trace(tmp_path, **fields):
    (tmp_path / "ids.txt").write_text("\n".join(str(i) for i in range(40)) + "\n")
    return TRACE(files=("ids.txt",), rows=(100,), pooling=1, batch_size=4, test_batches=1, **fields).build(tmp_path)


def test_recorded_workloads_profile_some_samples_and_show_others(tmp_path):
    whole, some = trace(tmp_path), trace(tmp_path, profile_samples=5)
    assert [whole.profiles[0].samples, some.profiles[0].samples] == [20, 5]
    assert some.profiles[0].seen_rows == 5
    # Samples 0, 4, 8, 12 and 16 are profiled, 15 others are left.
    assert some.ranking(0)(np.array([0, 4, 8, 12, 16])).max() == 4
    assert len(some.input_sample.coldest[0]) == 15
    assert some.input_sample.hot_share([5]) == 0.0
    assert some.input_sample.train_inputs == whole.input_sample.train_inputs == 20
    assert whole.input_sample.hot_share([20]) == 1.0, "where all are profiled, they are the inputs"
    assert whole.recipe()["config"].keys() == some.recipe()["config"].keys() - {"profile_samples"}
    with pytest.raises(BadInput, match="20 train samples, not the 21 to be profiled"):
        trace(tmp_path, profile_samples=21)
