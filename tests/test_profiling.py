"""Counts of accesses against brute force."""

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
from shardbench.workloads.profiling import RowCounter, count_samples
from shardbench.workloads.trace import Split

NOWHERE = Path("nowhere")
WIDE = described.DescribedTable(name="wide", rows=1 << 33, pooling=4.0, alpha=1.1, coverage=0.6)
NARROW = described.DescribedTable(name="narrow", rows=40, pooling=2.5)


def workload(batch_size: int = 64) -> DrawnWorkload:
    return described.CONFIG(tables=(WIDE, NARROW), batch_size=batch_size, profile_samples=128).build(NOWHERE)


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
        full = count_samples(source, table, samples=samples)
        ids, counts = np.unique(values, return_counts=True)
        assert (full.rows, full.samples) == (shape.rows, samples)
        assert full.present == np.count_nonzero(lengths)
        np.testing.assert_array_equal(full.ids, ids)
        np.testing.assert_array_equal(full.counts, counts)


def test_the_profile_of_a_drawn_workload_is_that_of_all_its_profile_samples() -> None:
    source = workload()
    for table in range(2):
        assert count_samples(source, table, samples=128).profile == source.profiles[table]


def test_bad_samples_are_refused() -> None:
    source = workload()
    with pytest.raises(BadInput, match="need at least one sample, got 0"):
        count_samples(source, 0, samples=0)
    with pytest.raises(BadInput, match="no sample was counted"):
        RowCounter(3).counts()


def test_a_profile_of_lookups_in_no_sample_is_refused() -> None:
    with pytest.raises(BadInput, match="500 lookups but no sample that has one: present must be at least 1"):
        AccessProfile.from_counts(np.array([500]), rows=500, samples=100, present=0)
    assert AccessProfile.from_counts(np.array([0]), rows=500, samples=100, present=0).coverage == 0.0


def test_a_recorded_split_is_not_read_twice() -> None:
    recorded = trace_file.CONFIG(batch_size=256, test_batches=1).build(NOWHERE)
    whole = recorded.train_samples // 256 * 256
    full = count_samples(recorded, 0, samples=whole)
    assert full.samples == whole
    with pytest.raises(BadInput, match=f"{whole + 1} samples wanted, whole batches of the train split have {whole}"):
        count_samples(recorded, 0, samples=whole + 1)
