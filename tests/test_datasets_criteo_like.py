"""Criteo-like tables: published shapes, measured distinct counts, seeds."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.datasets.card import load_card
from shardbench.datasets.criteo_like import CONFIG, CriteoLike, cardinalities, field_law, measured_fields
from shardbench.datasets.fit_criteo_like import SOURCE, feature
from shardbench.workloads.trace import Split

NOWHERE = Path("nowhere")
MEASURED_ROWS = 80_000


def build(**fields: object) -> CriteoLike:
    return CONFIG(**fields).build(NOWHERE)  # type: ignore[arg-type]


def test_card_restates_shapes() -> None:
    numbers, shapes = load_card("criteo_like").numbers, cardinalities()
    for form in ("kaggle", "terabyte_dcnv2"):
        workload = build(form=form)
        assert [t.rows for t in workload.tables] == list(numbers[f"{form}_rows"]) == shapes[form]["rows"]
        assert len(workload.tables) == numbers["tables"]
        assert [law.rows for law in workload.laws] == [t.rows for t in workload.tables]
    assert workload.hotness == list(numbers["terabyte_dcnv2_multi_hot"])
    assert {t.dim for t in workload.tables} == {128}
    assert sum(numbers["kaggle_rows"]) == numbers["kaggle_total_rows"]
    assert measured_fields()["rows"] == numbers["measured_rows"]


def test_as_many_draws_meet_as_many_distinct_values_as_were_measured() -> None:
    numbers = load_card("criteo_like").numbers
    workload = build(batch_size=MEASURED_ROWS, profile_samples=MEASURED_ROWS)
    for table, profile, field in zip(workload.tables, workload.profiles, measured_fields()["fields"].values()):
        allowed = numbers["distinct_relative_tolerance"] * field["distinct"] + numbers["distinct_absolute_tolerance"]
        assert abs(profile.seen_rows - field["distinct"]) <= allowed, table.name
        assert profile.coverage == pytest.approx(1 - field["missing"] / MEASURED_ROWS, abs=0.01)
        hottest, present = field["head_counts"][0], MEASURED_ROWS - field["missing"]
        assert profile.counts[0] == pytest.approx(hottest, abs=6 * np.sqrt(hottest) + 0.01 * present)


def test_committed_tails_are_what_the_fit_script_finds() -> None:
    source = json.loads(gzip.decompress(SOURCE.read_bytes()))["fields"]
    for name in ("C1", "C3", "C9", "C14", "C26"):
        found, kept = feature(source[name]), measured_fields()["fields"][name]
        assert found.keys() == kept.keys()
        for key, value in kept.items():
            assert found[key] == pytest.approx(value, rel=1e-3), f"{name} {key}"


@settings(deadline=None, max_examples=30)
@given(name=st.sampled_from([f"C{i}" for i in range(1, 27)]), rows=st.integers(1, 40_000_000))
def test_any_size_of_table_can_take_any_skew(name: str, rows: int) -> None:
    law = field_law(measured_fields()["fields"][name], rows)
    assert law.rows == rows
    ranks = law.sample(np.random.default_rng(0), 2000)
    assert ranks.min() >= 0
    assert ranks.max() < rows
    if law.tail is not None:
        first = law.tail_weight * float(law.tail.cdf(np.array([1.0]))[0])
        assert first <= law.head[-1] * (1 + 1e-4)


def test_bags_are_one_hot_or_multi_hot() -> None:
    kaggle, terabyte = (build(form=form, batch_size=256, profile_samples=256) for form in ("kaggle", "terabyte_dcnv2"))
    for table in range(26):
        assert set(kaggle.bags(Split.TEST, 0, table).lengths) <= {0, 1}
        assert set(terabyte.bags(Split.TEST, 0, table).lengths) == {terabyte.hotness[table]}
    one_hot = build(form="terabyte_one_hot", batch_size=256, profile_samples=256)
    assert one_hot.tables == terabyte.tables
    assert all(set(one_hot.bags(Split.TEST, 0, table).lengths) == {1} for table in range(26))


def test_features_missing_equally_often_are_missing_together() -> None:
    workload = build(batch_size=2000)
    absent = [workload.bags(Split.TEST, 0, table).lengths == 0 for table in range(26)]
    np.testing.assert_array_equal(absent[18], absent[24])
    assert absent[18].mean() == pytest.approx(33_084 / 80_000, abs=0.06)
    assert not np.array_equal(absent[18], absent[5])
    assert not absent[0].any()


def test_draws_are_seeded_and_splits_differ() -> None:
    one, again, other = build(), build(), build(seed=1)
    first = one.bags(Split.TEST, 0, 2).values
    np.testing.assert_array_equal(first, again.bags(Split.TEST, 4, 2).values)
    for values in (
        one.bags(Split.TRAIN, 0, 2).values,
        one.bags(Split.TEST, 1, 2).values,
        other.bags(Split.TEST, 0, 2).values,
    ):
        assert not np.array_equal(first, values)


def test_fields_without_source_counts_are_not_invented() -> None:
    source = json.loads(gzip.decompress(SOURCE.read_bytes()))
    assert source["rows"] == MEASURED_ROWS
    for name, field in source["fields"].items():
        assert sum(field["counts_desc"]) + field["missing"] == MEASURED_ROWS, name
        kept = measured_fields()["fields"][name]
        assert kept["distinct"] == len(field["counts_desc"])
        assert kept["cardinality"] == field["kaggle_cardinality"]
