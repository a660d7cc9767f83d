"""Synthetic tables: the published statistics, selection of tasks, splits, profiles."""

import json
from pathlib import Path

import numpy as np
import pytest
from fits.reuse import Reuse, measured
from fits.synthetic import COLUMNS, draw_tables, expected_reuse, loss, published, summary, write

from shardbench.base.errors import BadInput
from shardbench.datasets.cards.card import load_card
from shardbench.datasets.synthetic import CONFIG, PARAMETERS, Synthetic, synthetic_tables
from shardbench.workloads.trace import Split

NOWHERE = Path("nowhere")


def build(**fields: object) -> Synthetic:
    return CONFIG(**fields).build(NOWHERE)  # type: ignore[arg-type]


def committed() -> dict[str, np.ndarray]:
    laws = [t.law for t in synthetic_tables()]
    columns = {name: [getattr(law, name) for law in laws] for name in COLUMNS[:5]}
    columns |= {name: [getattr(t, name) for t in synthetic_tables()] for name in COLUMNS[5:]}
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def reuse_of(workload: Synthetic, split: Split) -> Reuse:
    total = Reuse(rows=np.zeros(17), lookups=np.zeros(17))
    for number, table in enumerate(workload.tables):
        total += measured(np.bincount(workload.bags(split, 0, number).values, minlength=table.rows))
    return total


def assert_published(reuse: Reuse, mean_pooling: float) -> None:
    facts, numbers = published(), load_card("synthetic").numbers
    rows, lookups = reuse.distances(np.array(facts["row_shares"]), np.array(facts["lookup_shares"]))
    tolerance = numbers["relative_tolerance_of_means"]
    assert rows <= numbers["row_distance_at_most"]
    assert lookups <= numbers["lookup_distance_at_most"]
    assert reuse.mean == pytest.approx(numbers["published_mean_reuse"], rel=tolerance)
    assert mean_pooling == pytest.approx(numbers["published_mean_pooling"], rel=tolerance)


def test_card_restates_the_published_numbers() -> None:
    numbers, facts = load_card("synthetic").numbers, published()
    assert list(numbers["published_row_shares"]) == facts["row_shares"]
    for name in ("tables", "batch_size"):
        assert numbers[name] == facts[name]
    assert numbers["published_lookups"] == facts["lookups"]
    assert numbers["published_distinct_rows"] == facts["distinct_rows"]
    assert facts["lookups"] / facts["distinct_rows"] == pytest.approx(numbers["published_mean_reuse"], abs=0.05)
    mean = facts["lookups"] / facts["tables"] / facts["batch_size"]
    assert mean == pytest.approx(numbers["published_mean_pooling"], abs=0.005)
    single = synthetic_tables()[numbers["single_table"]]
    assert single.law.rows == numbers["single_table_rows"]
    assert single.pooling == numbers["single_table_pooling"]


def test_all_856_tables_match_the_published_statistics_in_expectation() -> None:
    tables = committed()
    assert len(tables["rows"]) == 856
    mean_pooling = float((tables["pooling"] * tables["coverage"]).mean())
    assert_published(expected_reuse(tables, 65_536), mean_pooling)


def test_sampled_subset_has_its_expected_statistics() -> None:
    workload = build(tables=12, subset_seed=5)
    ids = [int(t.name[1:]) for t in workload.tables]
    some = {name: column[ids] for name, column in committed().items()}
    wanted, got = expected_reuse(some, 65_536), reuse_of(workload, Split.TEST)
    rows, lookups = got.distances(wanted.rows, wanted.lookups)
    assert rows < 0.005
    assert lookups < 0.01
    assert got.lookups.sum() == pytest.approx(wanted.lookups.sum(), rel=0.01)
    assert got.rows.sum() == pytest.approx(wanted.rows.sum(), rel=0.01)


@pytest.mark.slow
def test_one_batch_of_all_856_tables_matches_the_published_statistics() -> None:
    reuse = reuse_of(build(), Split.TEST)
    assert_published(reuse, float(reuse.lookups.sum()) / 856 / 65_536)


def test_tables_are_diverse_and_tasks_fit_four_small_devices() -> None:
    tables = committed()
    assert tables["rows"].min() < 1000
    assert tables["rows"].max() >= 2e7
    assert 0.2 < np.mean(tables["pooling"] == 1.0) < 0.5
    assert tables["pooling"].max() > 180
    assert np.percentile(tables["exponent"], 90) - np.percentile(tables["exponent"], 10) > 0.5
    generator = np.random.default_rng(0)
    bytes_of = [tables["rows"][generator.choice(856, 100, replace=False)].sum() * 16 * 2 for _ in range(300)]
    assert np.mean(np.array(bytes_of) < 0.9 * 4 * 5e9) > 0.95


def test_committed_tables_are_what_the_fit_script_draws(tmp_path: Path) -> None:
    facts, kept = published(), json.loads(PARAMETERS.read_text())
    drawn = draw_tables(kept["hyper"], facts["tables"], facts["single_published_table"])
    for name, column in committed().items():
        np.testing.assert_allclose(column, drawn[name], rtol=1e-4, atol=2.0 if name in ("rows", "knee") else 1e-4)
    assert loss(np.array(list(kept["hyper"].values())), facts) < 0.005
    reached = write(kept["hyper"], facts, tmp_path / "p.json")
    assert reached == pytest.approx(kept["expected"], abs=1e-3, rel=1e-3)
    assert json.loads((tmp_path / "p.json").read_text())["columns"] == list(COLUMNS)
    assert summary(drawn, facts)["row_distance"] < 0.02


def test_pools_are_halves_and_a_table_is_the_same_in_every_task() -> None:
    small = {"batch_size": 64, "profile_samples": 64}
    train, test = (build(tables=428, pool=pool, **small) for pool in ("train", "test"))
    names = [{t.name for t in w.tables} for w in (train, test)]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 856
    everything = build(**small)
    name = train.tables[7].name
    other = next(i for i, t in enumerate(everything.tables) if t.name == name)
    np.testing.assert_array_equal(train.bags(Split.TEST, 1, 7).values, everything.bags(Split.TEST, 1, other).values)


def test_subset_seed_draws_without_replacement_and_too_many_are_refused() -> None:
    one, two = (build(tables=50, pool="train", subset_seed=s) for s in (0, 1))
    assert len({t.name for t in one.tables}) == 50
    assert one.tables != two.tables
    with pytest.raises(BadInput, match="lower tables"):
        build(tables=429, pool="test")


def test_dims() -> None:
    assert {t.dim for t in build(tables=5).tables} == {16}
    mixed = build(tables=60, dims=(4, 8, 64), dims_seed=3)
    assert {t.dim for t in mixed.tables} == {4, 8, 64}
    assert build(tables=3, dims=(4, 8, 64), dims_seed=3).tables == mixed.tables[:3]


def test_a_batch_may_be_one_sample() -> None:
    workload = build(tables=10, batch_size=1, profile_samples=1)
    assert [workload.bags(Split.TEST, 0, table).batch_size for table in range(10)] == [1] * 10
