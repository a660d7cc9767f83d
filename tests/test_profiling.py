"""Sampled profiles against brute force, and what their errors mean."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbench.base.errors import BadInput
from shardbench.datasets import described, trace_file
from shardbench.model.profile import AccessProfile
from shardbench.workloads import profiling
from shardbench.workloads.drawn import DrawnWorkload
from shardbench.workloads.profiling import CDF_STEPS, AccessCounts, RowCounter, count_samples, profile_error
from shardbench.workloads.trace import Split

NOWHERE = Path("nowhere")
WIDE = described.DescribedTable(name="wide", rows=1 << 33, pooling=4.0, alpha=1.1, coverage=0.6)
NARROW = described.DescribedTable(name="narrow", rows=40, pooling=2.5)


def workload(batch_size: int = 64) -> DrawnWorkload:
    return described.CONFIG(tables=(WIDE, NARROW), batch_size=batch_size, profile_samples=128).build(NOWHERE)


def counted(counts: list[int], rows: int | None = None, samples: int = 100, present: int = 50) -> AccessCounts:
    """Counts of rows 0, 1, 2, ..., zeros allowed."""
    everything = np.array(counts, dtype=np.int64)
    ids = np.flatnonzero(everything)
    return AccessCounts(
        rows=len(counts) if rows is None else rows, samples=samples, present=present, ids=ids, counts=everything[ids]
    )


BAGS = st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=12)


@given(BAGS, st.integers(1, 5), st.integers(0, 6), st.booleans())
def test_counter_is_brute_force_however_often_it_merges(
    bags: list[list[int]], at_once: int, pending: int, by_row: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiling, "_PENDING", 31 if by_row else pending)
        counter = RowCounter(31)
        patch.setattr(profiling, "_PENDING", pending)
        for start in range(0, len(bags), at_once):
            part = bags[start : start + at_once]
            values = np.array([row for bag in part for row in bag], dtype=np.int64)
            counter.add(values, np.array([len(bag) for bag in part]))
    result = counter.counts()
    flat = [row for bag in bags for row in bag]
    assert result.ids.tolist() == sorted(set(flat))
    assert result.counts.tolist() == [flat.count(row) for row in sorted(set(flat))]
    assert result.of(np.arange(31)).tolist() == [flat.count(row) for row in range(31)]
    profile = result.profile
    assert (profile.rows, profile.samples, profile.lookups) == (31, len(bags), len(flat))
    assert profile.present == sum(bool(bag) for bag in bags)
    assert np.repeat(profile.counts, profile.row_counts).tolist() == sorted(map(flat.count, set(flat)), reverse=True)


def test_counts_given_once_do_not_change() -> None:
    counter = RowCounter(10)
    counter.add(np.array([1, 1, 2]), np.array([3]))
    first = counter.counts()
    counter.add(np.array([1, 3]), np.array([2]))
    assert counter.counts().counts.tolist() == [3, 1, 1]
    assert first.counts.tolist() == [2, 1]


def test_memory_follows_the_distinct_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_PENDING", 100)
    counter = RowCounter(1000)
    values = np.arange(50)
    for _ in range(1000):
        counter.add(values, np.array([50]))
        assert counter._waiting <= 100
    assert counter.counts().counts.tolist() == [1000] * 50


@pytest.mark.parametrize("samples", [1, 63, 64, 150])
def test_every_sample_of_the_train_split_is_the_full_profile(samples: int) -> None:
    source = workload()
    for table, shape in enumerate(source.tables):
        bags = [source.bags(Split.TRAIN, batch, table) for batch in range(3)]
        lengths = np.concatenate([b.lengths for b in bags])[:samples]
        values = np.concatenate([b.values for b in bags])[: lengths.sum()]
        (full,) = count_samples(source, table, samples=samples)
        ids, counts = np.unique(values, return_counts=True)
        assert (full.rows, full.samples) == (shape.rows, samples)
        assert full.present == np.count_nonzero(lengths)
        np.testing.assert_array_equal(full.ids, ids)
        np.testing.assert_array_equal(full.counts, counts)


def test_the_profile_of_a_drawn_workload_is_that_of_all_its_profile_samples() -> None:
    source = workload()
    for table in range(2):
        assert count_samples(source, table, samples=128)[0].profile == source.profiles[table]


def test_samples_are_the_same_for_all_tables_and_nested_in_rates() -> None:
    source = workload()
    rates = (1.0, 0.5, 0.1)
    wide, narrow = (count_samples(source, table, samples=600, rates=rates, seed=7) for table in range(2))
    assert [c.samples for c in wide] == [c.samples for c in narrow]
    assert wide[1].samples == pytest.approx(300, abs=60)
    assert wide[2].samples == pytest.approx(60, abs=35)
    for more, less in zip(wide, wide[1:]):
        assert (more.of(less.ids) >= less.counts).all()
    (again,) = count_samples(source, 0, samples=600, rates=(0.5,), seed=7)
    (other,) = count_samples(source, 0, samples=600, rates=(0.5,), seed=8)
    assert again.profile == wide[1].profile != other.profile


def test_kept_samples_are_whole_and_those_of_their_draws() -> None:
    source = workload()
    (kept,) = count_samples(source, 1, samples=100, rates=(0.3,), seed=5)
    total = np.zeros(40, dtype=np.int64)
    samples = 0
    for batch, size in ((0, 64), (1, 36)):
        draws = np.random.default_rng(np.random.SeedSequence(entropy=5, spawn_key=(batch,))).random(size)
        bags = source.bags(Split.TRAIN, batch, 1)
        for sample in np.flatnonzero(draws < 0.3).tolist():
            total += np.bincount(bags.samples(sample, sample + 1).values, minlength=40)
            samples += 1
    assert kept.samples == samples
    np.testing.assert_array_equal(kept.of(np.arange(40)), total)


def test_bad_samples_are_refused() -> None:
    source = workload()
    for wrong in (
        {"samples": 0},
        {"samples": 5, "rates": (0.0,)},
        {"samples": 5, "rates": (1.5,)},
        {"samples": 5, "rates": ()},
    ):
        with pytest.raises(BadInput, match="need at least one sample and rates in"):
            count_samples(source, 0, **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="rate 1e-09 keeps none of 50 samples: raise samples or rate"):
        count_samples(source, 0, samples=50, rates=(1e-9,))
    with pytest.raises(BadInput, match="no sample was counted"):
        RowCounter(3).counts()


def test_a_profile_of_lookups_in_no_sample_is_refused() -> None:
    with pytest.raises(BadInput, match="500 lookups but no sample that has one: present must be at least 1"):
        AccessProfile.from_counts(np.array([500]), rows=500, samples=100, present=0)
    assert AccessProfile.from_counts(np.array([0]), rows=500, samples=100, present=0).coverage == 0.0


def test_a_recorded_split_is_not_read_twice() -> None:
    recorded = trace_file.CONFIG(batch_size=256, test_batches=1).build(NOWHERE)
    whole = recorded.train_samples // 256 * 256
    (full,) = count_samples(recorded, 0, samples=whole)
    assert full.samples == whole
    with pytest.raises(BadInput, match=f"{whole + 1} samples wanted, whole batches of the train split have {whole}"):
        count_samples(recorded, 0, samples=whole + 1)


def test_errors_of_means_by_hand() -> None:
    full = counted([6, 3, 1, 0, 0], samples=10, present=8)
    error = profile_error(counted([0, 1, 1, 0, 0], samples=4, present=2), full)
    assert error.steps == CDF_STEPS
    assert error.pooling_error == pytest.approx((2 / 4 - 1.0) / 1.0)
    assert error.coverage_error == pytest.approx((0.5 - 0.8) / 0.8)


CASES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=6)


@given(CASES)
def test_errors_are_brute_force_over_all_orders_of_ties(case: list[tuple[int, int]]) -> None:
    in_sample = [least for least, _ in case]
    in_full = [least + more for least, more in case]
    sampled, full = counted(in_sample), counted(in_full)
    error = profile_error(sampled, full)
    lookups = sum(in_full)
    if lookups == 0:
        assert (error.claim_error, error.order_error, error.cdf_error) == (0.0, 0.0, 0.0)
        assert (error.unseen_rows, error.unseen_accesses) == (0.0, 0.0)
        return
    orders = [o for o in permutations(range(len(case))) if all(in_sample[a] >= in_sample[b] for a, b in zip(o, o[1:]))]
    best = sorted(in_full, reverse=True)
    claims = sorted(in_sample, reverse=True)
    gaps = []
    for step in range(1, CDF_STEPS + 1):
        k = next(k for k in range(len(case) + 1) if sum(best[:k]) * CDF_STEPS >= step * lookups)
        ideal = sum(best[:k]) / lookups
        claimed = sum(claims[:k]) / sum(claims) if sum(claims) else k / len(case)
        true = float(np.mean([sum(in_full[row] for row in order[:k]) for order in orders])) / lookups
        gaps.append((abs(claimed - true), ideal - true, abs(claimed - ideal)))
    assert (error.claim_error, error.order_error, error.cdf_error) == pytest.approx(
        tuple(np.max(gaps, axis=0)), abs=1e-9
    )
    missed = [f for s, f in zip(in_sample, in_full) if f and not s]
    assert error.unseen_rows == pytest.approx(len(missed) / sum(f > 0 for f in in_full))
    assert error.unseen_accesses == pytest.approx(sum(missed) / lookups)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_the_whole_is_no_error(counts: list[int]) -> None:
    error = profile_error(counted(counts), counted(counts))
    assert (error.pooling_error, error.coverage_error, error.unseen_rows, error.unseen_accesses) == (0, 0, 0, 0)
    assert max(error.claim_error, error.order_error, error.cdf_error) < 1e-12


def test_the_numbering_of_rows_tells_nothing() -> None:
    # Ids of workloads are in the order of the full profile: a tie broken by id would be an oracle.
    full = counted(list(range(100, 0, -1)))
    backwards = counted(list(range(1, 101)))
    some = [1] * 100
    assert profile_error(counted(some), full).order_error == profile_error(counted(some), backwards).order_error > 0.2


def test_larger_samples_are_nearer() -> None:
    source = described.CONFIG(tables=(WIDE, NARROW), batch_size=4096, profile_samples=4096).build(NOWHERE)
    for table in range(2):
        full, *samples = count_samples(source, table, samples=40_000, rates=(1.0, 0.1, 0.01, 0.001), seed=1)
        errors = [profile_error(sample, full) for sample in samples]
        for near, far in zip(errors, errors[1:]):
            assert near.order_error < far.order_error
            assert near.unseen_accesses <= far.unseen_accesses
        assert abs(errors[0].pooling_error) < 0.05


def test_counts_of_other_samples_are_refused() -> None:
    with pytest.raises(BadInput, match="a table of 3 rows, the full counts of one of 4"):
        profile_error(counted([1, 0, 0]), counted([1, 0, 0, 0]))
    with pytest.raises(BadInput, match="saw lookups that the full counts lack"):
        profile_error(counted([1, 2]), counted([1, 1]))
    with pytest.raises(BadInput, match="saw lookups that the full counts lack"):
        profile_error(counted([1, 1], present=3), counted([1, 1], present=2))
