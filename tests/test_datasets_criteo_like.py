"""Criteo-like tables: published shapes, measured distinct counts, seeds."""

import copy
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from fits.criteo_dependence import (
    INPUTS,
    ceilings,
    clusters,
    factorised,
    hot_shares,
    normal_scores,
    published,
    score_correlations,
)
from fits.criteo_like import SOURCE, feature
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_data
from shardbench.datasets.cards.card import load_card
from shardbench.datasets.criteo_like import (
    CONFIG,
    CriteoLike,
    CriteoLikeConfig,
    cardinalities,
    field_law,
    measured_fields,
)
from shardbench.datasets.laws.criteo_dependence import (
    ABSENCE,
    ABSENT_TOGETHER,
    Dependence,
    fitted_dependence,
)
from shardbench.workloads.trace import Split
from shardbench.workloads.workload import MISSING, one_hot_values

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
    # That dependence changes no law is a test of its own.
    workload = build(batch_size=MEASURED_ROWS, profile_samples=MEASURED_ROWS, column_dependence=0)
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


def test_fields_without_source_counts_are_not_invented() -> None:
    source = json.loads(gzip.decompress(SOURCE.read_bytes()))
    assert source["rows"] == MEASURED_ROWS
    for name, field in source["fields"].items():
        assert sum(field["counts_desc"]) + field["missing"] == MEASURED_ROWS, name
        kept = measured_fields()["fields"][name]
        assert kept["distinct"] == len(field["counts_desc"])
        assert kept["cardinality"] == field["kaggle_cardinality"]


def published_curve() -> tuple[list[int], np.ndarray]:
    points = published()["hot_inputs"]["curve"]
    return [p["log_inputs"] for p in points], np.array([p["hot_input_share"] for p in points])


def test_columns_depend_as_published() -> None:
    numbers, rng = load_card("criteo_like").numbers, np.random.default_rng(0)
    workload = build(batch_size=INPUTS, profile_samples=1)
    drawn = [one_hot_values(workload, Split.TEST, batch) for batch in range(2)]
    logs, wanted = published_curve()
    shares = np.mean([hot_shares(values, logs, rng, 3) for values in drawn], axis=0)
    allowed = numbers["hot_share_absolute_tolerance"] + numbers["hot_share_relative_tolerance"] * wanted
    assert (np.abs(shares - wanted) <= allowed).all(), (shares, wanted)
    matrix = np.array(published()["normal_score_correlation"]["matrix"])
    found = np.mean([score_correlations(values, rng, 2) for values in drawn], axis=0)
    error = (found - matrix)[np.triu_indices(26, 1)]
    assert np.sqrt((error**2).mean()) <= numbers["correlation_rms_tolerance"]
    assert np.abs(error).max() <= numbers["correlation_tolerance"]


def test_independent_columns_are_neither() -> None:
    rng = np.random.default_rng(0)
    values = one_hot_values(build(batch_size=INPUTS, profile_samples=1, column_dependence=0), Split.TEST, 0)
    assert hot_shares(values, [8000], rng, 3)[0] < 0.03
    error = score_correlations(values, rng, 1) - np.eye(26)
    apart = [c for c in range(26) if c not in (2, 3, 11, 15, 20, 23, 18, 19, 24, 25)]
    assert np.abs(error[np.ix_(apart, apart)]).max() < 0.05, "all but columns that are missing together"


def test_no_law_of_a_column_changes() -> None:
    """Places are uniform over inputs of all kinds, whatever the columns depend on."""
    dependence, rng = fitted_dependence(), np.random.default_rng(0)
    inputs = 200_000
    factors = rng.standard_normal((inputs, dependence.factors), dtype=np.float32)
    kinds = dependence.kinds(rng.random(inputs))
    np.testing.assert_allclose(np.bincount(kinds)[1:] / inputs, dependence.shares, atol=0.004)
    for score in range(27):
        places = dependence.places(score, factors, kinds, rng.standard_normal(inputs))
        counts = np.histogram(places, bins=50, range=(0.0, 1.0))[0]
        assert counts.sum() == inputs
        # Chi-squared of 49 degrees: mean 49, standard deviation 9.9.
        assert ((counts - inputs / 50) ** 2 / (inputs / 50)).sum() < 49 + 6 * 9.9, score
    absence = dependence.places(ABSENCE, factors, kinds, rng.standard_normal(inputs))
    for column in ABSENT_TOGETHER:
        places = dependence.places(column, factors, kinds, rng.standard_normal(inputs))[absence >= 0.41]
        uniform = np.interp(places, *dependence.places_where_present(column, 0.41))
        counts, wanted = np.histogram(uniform, bins=50, range=(0.0, 1.0))[0], len(places) / 50
        assert ((counts - wanted) ** 2 / wanted).sum() < 49 + 6 * 9.9, column
    whole, half = dependence.loadings, dependence.scaled(0.25)
    np.testing.assert_allclose(half.loadings @ half.loadings.T, 0.25 * whole @ whole.T)
    with pytest.raises(ValueError, match="more of a column's first places than it has"):
        Dependence(
            loadings=np.zeros((1, 1)), shares=np.array([0.5]), ceilings=np.array([[0.4]])
        ).places(0, np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64), np.zeros(1))  # fmt: skip


def test_what_the_fit_rests_on() -> None:
    assert [c for c in clusters() if len(c) > 1] == [[14, 17], [6, 10, 12], [2, 3, 11, 15, 20, 23]]
    np.testing.assert_allclose(ceilings(), fitted_dependence().ceilings, atol=1e-6)
    wanted = np.full((4, 4), 0.5)
    found = factorised(wanted, 1.0 - np.eye(4), np.full((4, 2), 0.1) + 0.01 * np.eye(4, 2))
    np.testing.assert_allclose((found @ found.T)[np.triu_indices(4, 1)], 0.5, atol=0.01)


def test_scores_by_hand() -> None:
    values = np.array([[7, MISSING], [7, 1], [7, 2], [3, 3]])
    scores = normal_scores(np.repeat(values, 50, axis=0), np.random.default_rng(0))
    assert (scores[:150, 0] < scores[150:, 0].min()).all(), "the most frequent value comes first"
    assert np.corrcoef(scores[:, 0], scores[:, 1])[0, 1] < 0.95
    shares = hot_shares(np.array([[1, MISSING]] * 9 + [[2, 5]]), [5], np.random.default_rng(0), 200)
    # The odd input is cold wherever it is not in the log: half of the splits, one of five inputs.
    assert shares[0] == pytest.approx(0.9, abs=0.03)


def test_what_inputs_share_is_kept_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = build(batch_size=64)
    one = sum(part.nbytes for part in workload._common(Split.TRAIN, 0))
    monkeypatch.setattr("shardbench.datasets.criteo_like.KEPT_BYTES", 4 * one)
    drawn = [workload._common(Split.TRAIN, batch) for batch in range(6)]
    assert list(workload._kept) == [(Split.TRAIN, batch) for batch in (0, 1, 2, 5)], "the newest goes"
    assert workload._common(Split.TRAIN, 2) is drawn[2]
    again = copy.copy(workload)
    assert not again._kept
    assert np.array_equal(again._common(Split.TRAIN, 3)[0], drawn[3][0])


def test_multi_hot_bags_are_independent() -> None:
    assert CONFIG(form="terabyte_dcnv2").dependence == 0.0
    with pytest.raises(BadInput, match="nothing is known of how multi-hot bags depend"):
        from_data(CriteoLikeConfig, {"form": "terabyte_dcnv2", "column_dependence": 1.0}, "suite")
