"""RecShard-shaped models: totals, hashing, under-used rows, features that stay themselves in every subset."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbench.datasets.cards.card import load_card
from shardbench.datasets.laws.power_law import CHUNK, hashed_rows
from shardbench.datasets.rm import CONFIG, FEATURES, KNOBS, TOTAL_ROWS, WIDTH, Rm, rm_features
from shardbench.model.machine_file import load_machine
from shardbench.workloads.trace import Split
from shardbench.workloads.value_hash import mixed

NOWHERE = Path("nowhere")
FORMS = ("rm1", "rm2", "rm3")
CARD = load_card("rm").numbers
WORD = (1 << 64) - 1


def build(**fields: object) -> Rm:
    sizes = {"batch_size": 512, "profile_samples": 1024}
    return CONFIG(**(sizes | fields)).build(NOWHERE)  # type: ignore[arg-type]


def splitmix(counter: int, start: int) -> int:
    """One word of splitmix64, by whole numbers."""
    word = (start + counter * 0x9E3779B97F4A7C15) & WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20), st.integers(1, 1 << 32), st.integers(0, 2**40))
def test_rows_are_what_whole_numbers_give(values: list[int], rows: int, key: int) -> None:
    start = splitmix(key + 1, 0)
    words = [splitmix(value, start) for value in values]
    assert mixed(np.array(values), key).tolist() == words
    assert hashed_rows(np.array(values), rows, key).tolist() == [(word >> 32) * rows >> 32 for word in words]


def test_the_published_first_words_of_splitmix64() -> None:
    # Seed 0, first three outputs; key 0 starts where seed 0's first output is.
    assert [splitmix(i, 0) for i in (1, 2, 3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_hash_is_the_same_in_pieces_and_too_many_rows_are_refused() -> None:
    values = np.arange(2 * CHUNK + 17)
    found = hashed_rows(values, 50_000, key=5)
    for start in range(0, len(values), 1000):
        np.testing.assert_array_equal(found[start : start + 7], hashed_rows(values[start : start + 7], 50_000, key=5))
    with pytest.raises(ValueError, match="rows <= 4294967296"):
        hashed_rows(values, (1 << 32) + 1, 0)


@pytest.mark.parametrize("form", FORMS)
def test_totals_are_those_of_the_card(form: str) -> None:
    workload = CONFIG(form=form).build(NOWHERE)
    rows = sum(table.rows for table in workload.tables)
    assert rows == TOTAL_ROWS[form] == CARD[f"{form}_rows"]
    assert len(workload.tables) == FEATURES == CARD["tables"]
    assert {table.dim for table in workload.tables} == {WIDTH} == {CARD["dim"]}
    assert workload.dense.interacts_by_dot(workload.tables)
    assert workload.batch_size == CARD["batch_size"]
    assert rows * WIDTH * 4 / 2**30 == pytest.approx(CARD[f"{form}_gib"], rel=0.002)


def test_rm1_fits_the_hbm_of_its_machine_and_the_others_only_with_host_memory() -> None:
    shape = load_machine("a100-24gb-2x8").topology
    hbm, both = (16 * size for size in (shape.hbm_bytes, shape.hbm_bytes + shape.uvm_bytes))
    size = {form: TOTAL_ROWS[form] * WIDTH * 4 for form in FORMS}
    assert size["rm1"] < hbm < size["rm2"] < size["rm3"] < both
    largest = {form: max(f.rows for f in rm_features(form)) * WIDTH * 4 for form in FORMS}
    assert largest["rm1"] < shape.hbm_bytes
    assert largest["rm3"] < shape.uvm_bytes


def test_models_differ_in_rows_alone() -> None:
    one, two, three = (rm_features(form) for form in FORMS)
    for a, b, c in zip(one, two, three):
        assert (a.values, a.exponent, a.shift, a.pooling, a.coverage) == (
            c.values,
            c.exponent,
            c.shift,
            c.pooling,
            c.coverage,
        )
        assert abs(b.rows - a.rows * TOTAL_ROWS["rm2"] / TOTAL_ROWS["rm1"]) <= 3
        assert abs(c.rows - a.rows * TOTAL_ROWS["rm3"] / TOTAL_ROWS["rm1"]) <= 5


def test_features_are_diverse_as_the_card_says() -> None:
    features = rm_features("rm1")
    pooling, coverage, exponent = (
        np.array([getattr(f, name) for f in features]) for name in ("pooling", "coverage", "exponent")
    )
    ratio = np.array([f.values / f.rows for f in features])
    assert np.mean(pooling == 1.0) == pytest.approx(0.55, abs=0.003)
    assert 90 < pooling.max() <= 100
    assert np.mean(coverage == 1.0) == pytest.approx(0.3, abs=0.003)
    assert 0.01 <= coverage.min() < 0.011
    assert exponent.min() == pytest.approx(0.6, abs=0.002)
    assert exponent.max() == pytest.approx(1.4, abs=0.002)
    assert ratio.min() == pytest.approx(0.05, rel=0.05)
    assert ratio.max() == pytest.approx(20, rel=0.05)
    columns = np.stack([np.log([f.rows for f in features]), np.log(ratio), exponent, np.log(pooling), np.log(coverage)])
    apart = np.abs(np.corrcoef(columns) - np.eye(len(columns)))
    assert apart.max() < 0.15
    lookups = 16_384 * float(pooling @ coverage)
    assert lookups == pytest.approx(CARD["expected_lookups_per_batch"], rel=1e-3)
    for form in FORMS:
        touched = sum(f.rows * (1.0 - math.exp(-f.values / f.rows)) for f in rm_features(form))
        assert touched / TOTAL_ROWS[form] == pytest.approx(CARD[f"{form}_share_of_rows_with_values"], abs=5e-4)


def test_another_pairing_has_the_same_quantities_on_other_features() -> None:
    first, other = rm_features("rm2"), rm_features("rm2", 3)
    for name in ("rows", "exponent", "shift", "pooling", "coverage"):
        ours, theirs = ([getattr(f, name) for f in features] for features in (first, other))
        assert sorted(ours) == sorted(theirs)
        assert ours != theirs
        # No order is kept: the columns of one pairing are none of another's.
        assert abs(np.corrcoef(np.argsort(np.argsort(ours)), np.argsort(np.argsort(theirs)))[0, 1]) < 0.2
    assert rm_features("rm2", 0) == first
    assert (
        build(tables=3, pairing=0).fingerprint == build(tables=3).fingerprint != build(tables=3, pairing=1).fingerprint
    )


def test_no_row_without_a_value_is_looked_up() -> None:
    workload = build(tables=40, batch_size=4096)
    small = min(range(40), key=lambda i: workload.features[i].values)
    feature = workload.features[small]
    possible = np.unique(hashed_rows(np.arange(feature.values), feature.rows, feature.number))
    drawn = np.concatenate([workload._draw(Split.TRAIN, batch, small).values for batch in range(4)])
    assert np.isin(drawn, possible).all()
    assert workload.profiles[small].seen_rows <= len(possible) < feature.rows


def test_a_feature_has_the_same_lookups_in_every_subset() -> None:
    some, drawn = build(tables=5), build(tables=30, subset_seed=2)
    assert [t.name for t in some.tables] == ["f000", "f079", "f158", "f238", "f317"]
    assert len({t.name for t in drawn.tables}) == 30
    assert build(tables=30, subset_seed=3).tables != drawn.tables
    everything = build()
    for subset in (some, drawn):
        at = len(subset.tables) - 1
        number = int(subset.tables[at].name[1:])
        assert subset.tables[at] == everything.tables[number]
        a, b = subset.bags(Split.TEST, 1, at), everything.bags(Split.TEST, 1, number)
        np.testing.assert_array_equal(a.values, b.values)
        np.testing.assert_array_equal(a.offsets, b.offsets)
    with pytest.raises(ValueError, match="less than or equal to 397"):
        CONFIG(tables=398)


def test_a_larger_exponent_scale_is_more_skew() -> None:
    tops = []
    for scale in (0.0, 1.0, 1.5):
        workload = build(tables=12, exponent_scale=scale, batch_size=4096, profile_samples=4096)
        tops.append(np.mean([p.cdf(100) for p in workload.profiles if p.lookups > 1000]))
        assert workload.tables == build(tables=12).tables
    assert tops[0] < tops[1] < tops[2]


def test_a_scaled_model_sees_the_same_shares_of_its_rows_and_of_its_accesses() -> None:
    share, samples, batch = 1 / 64, 1 << 18, 16_384
    sizes = {"tables": 12, "batch_size": batch, "profile_samples": samples}
    scaled = {"tables": 12, "batch_size": round(batch * share), "profile_samples": round(samples * share)}
    full, small = build(**sizes), build(**scaled, row_scale=share, test_batches=16)
    large = [i for i, table in enumerate(small.tables) if table.rows > 3000]
    assert len(large) >= 8
    for i in large:
        assert small.tables[i].rows == pytest.approx(full.tables[i].rows * share, abs=1)
        whole, part = full.profiles[i], small.profiles[i]
        spread = 6 / math.sqrt(part.present)
        assert part.seen_rows / part.rows == pytest.approx(whole.seen_rows / whole.rows, rel=0.05 + spread)
        unseen = [np.mean(w.bags(Split.TEST, 0, i).values >= w.profiles[i].seen_rows) for w in (full, small)]
        tests = [small.bags(Split.TEST, number, i).values for number in range(16)]
        unseen[1] = np.mean(np.concatenate(tests) >= part.seen_rows)
        assert unseen[1] == pytest.approx(unseen[0], rel=0.1, abs=0.02)
        for of_rows in (0.001, 0.01, 0.05):
            shares = [float(profile.cdf(of_rows * profile.rows)) for profile in (whole, part)]
            # The head below 64 ranks is one row: what lies around it is moved by less than one row's share.
            row = 1 / part.rows
            slack = float(part.cdf((of_rows + row) * part.rows) - part.cdf((of_rows - row) * part.rows))
            assert shares[1] == pytest.approx(shares[0], abs=0.02 + slack + spread / 6)
        distinct = len(np.unique(full.bags(Split.TEST, 0, i).values)) * share
        assert np.mean([len(np.unique(ids)) for ids in tests]) == pytest.approx(distinct, rel=0.1 + spread, abs=2)


def test_small_batches_of_train_samples_are_cut_from_larger_draws() -> None:
    few, many = (build(tables=3, batch_size=size, profile_samples=5_000, row_scale=0.01) for size in (64, 4_096))
    for table in range(3):
        assert few.profiles[table] == many.profiles[table]
        parts = [few.bags(Split.TRAIN, number, table) for number in range(64)]
        whole = many.bags(Split.TRAIN, 0, table)
        np.testing.assert_array_equal(np.concatenate([part.values for part in parts]), whole.values)
        np.testing.assert_array_equal(np.concatenate([part.lengths for part in parts]), whole.lengths)


def test_features_are_as_unlike_as_told() -> None:
    plain, told = build(), build(rows_log_std=1.0, pooling_top=20.0, coverage_low=0.5)
    assert sum(t.rows for t in told.tables) == sum(t.rows for t in plain.tables)
    assert np.std(np.log([t.rows for t in told.tables])) == pytest.approx(1.0, abs=0.05)
    assert np.std(np.log([t.rows for t in plain.tables])) == pytest.approx(2.0, abs=0.05)
    assert 19 < max(f.pooling for f in told.features) <= 20
    assert 0.5 <= min(f.coverage for f in told.features) < 0.51
    for knob in ({"row_scale": 0.5}, {"rows_log_std": 1.0}, {"pooling_top": 20.0}, {"coverage_low": 0.5}):
        assert build(tables=3, **knob).fingerprint != build(tables=3).fingerprint
    assert build(tables=3, form="rm2").fingerprint != build(tables=3).fingerprint
    for name, value in KNOBS.items():
        assert build(tables=3, **{name: value}).fingerprint == build(tables=3).fingerprint


def test_profiles_agree_with_the_law_in_expectation() -> None:
    workload = build(tables=8, batch_size=20_000, profile_samples=20_000)
    for feature, profile in zip(workload.features, workload.profiles):
        assert profile.coverage == pytest.approx(feature.coverage, abs=5 * math.sqrt(0.25 / 20_000))
        assert profile.mean_pooling == pytest.approx(feature.pooling * feature.coverage, rel=0.15)


def test_the_card_says_that_the_totals_are_unverified() -> None:
    card = load_card("rm")
    assert "unverified" in card.source
    assert any("UNVERIFIED" in line for line in card.assumptions)
