"""Listeners like those of DLRMv4: the published statistics, and that all tables of a batch are of the same events."""

import csv
import pickle
from pathlib import Path

import dlrm_v4
import numpy as np
import pandas as pd
import pytest

from shardbench.datasets.cards.card import load_card
from shardbench.datasets.yambda_like import CONFIG, CROSSED, HISTORIES, POOLS, ROWS, YambdaLike, _repeats
from shardbench.model.table import DenseShape, Pooling
from shardbench.trials.suite import load_suite
from shardbench.workloads.trace import Bags, Split

NOWHERE, ROOT = Path("no-such-folder"), Path(__file__).resolve().parents[1]
TABLE = ROOT / "results" / "tables" / "dlrm_v4" / "statistics.csv"


def made(**changes: object) -> YambdaLike:
    fields = {"batch_size": 96, "dim": 16, "row_scale": 0.01, "profile_samples": 96, **changes}
    return CONFIG(**fields).build(NOWHERE)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def drawn() -> YambdaLike:
    """A batch whose pools keep all events."""
    return made(pool=1 << 20)


def bags(workload: YambdaLike, name: str) -> Bags:
    return workload._draw(Split.TRAIN, 0, list(ROWS).index(name))


def test_the_cards_numbers() -> None:
    numbers, tables = load_card("yambda_like").numbers, CONFIG().build(NOWHERE).tables
    assert len(tables) == numbers["tables"]
    assert sum(table.rows for table in tables) == numbers["rows"]
    assert {table.dim for table in tables} == {numbers["width"]}
    assert CONFIG().pool == numbers["pool"]
    assert all(table.pooling is Pooling.NONE for table in tables)
    assert [table.name for table in tables if table.features == 2] == list(HISTORIES)


def test_every_committed_statistic_is_within_a_tenth_of_the_published_one() -> None:
    with TABLE.open() as file:
        committed = {row["statistic"]: row for row in csv.DictReader(file)}
    assert {name: float(row["published"]) for name, row in committed.items()} == dlrm_v4.PUBLISHED
    for name, row in committed.items():
        assert float(row["drawn"]) == pytest.approx(float(row["published"]), rel=0.1), name


def test_the_committed_statistics_are_those_that_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two blocks in place of 32: what depends on no drawn run is as committed."""
    with TABLE.open() as file:
        committed = {row["statistic"]: float(row["drawn"]) for row in csv.DictReader(file)}
    monkeypatch.setattr(dlrm_v4, "BATCH", 2)
    here = dlrm_v4.statistics(CONFIG().build(NOWHERE), 1)
    for name, value in committed.items():
        bound = 1e-3 if name.startswith(("events of a user", "share")) else 0.35
        assert here[name] == pytest.approx(value, rel=bound), name


def test_a_history_grows_by_the_sample_before_it(drawn: YambdaLike) -> None:
    events, users = drawn.events(Split.TRAIN, 0), bags(drawn, "uid").values
    lengths = events.lengths.reshape(-1, POOLS)
    kept = 0
    for name in HISTORIES:
        history, own = bags(drawn, name).feature(0), bags(drawn, name).feature(1).values
        for sample in np.flatnonzero(users[1:] == users[:-1]):
            now, then = (history.samples(at, at + 1).values for at in (sample, sample + 1))
            grown = lengths[sample + 1] - lengths[sample]
            assert sorted(grown.tolist()) in ([0, 0, 0], [0, 0, 1]), "a sample is one event, which is of one kind"
            assert sorted([*now.tolist(), *([own[sample]] if grown.any() else [])]) == sorted(then.tolist())
            kept += int(grown.any())
    assert kept > 0


def test_pools_keep_the_latest_events_of_each_kind(drawn: YambdaLike) -> None:
    few = made(pool=5)
    whole, cut = drawn.events(Split.TRAIN, 0), few.events(Split.TRAIN, 0)
    np.testing.assert_array_equal(cut.lengths, np.minimum(whole.lengths, 5))
    np.testing.assert_array_equal(cut.begins + cut.lengths, whole.begins + whole.lengths)
    assert bags(few, "item_id").feature(0).lengths.max() <= 5 * POOLS


def test_tables_of_a_batch_are_of_the_same_events(drawn: YambdaLike) -> None:
    items, albums = (bags(drawn, name).values for name in ("item_id", "album_id"))
    pairs = np.unique(np.stack([items, albums], axis=1), axis=0)
    assert len(pairs) < 1.02 * len(np.unique(items)), "an item has one album"
    hour, crossed = drawn.events(Split.TRAIN, 0).keys["hour"], bags(drawn, "user_x_hour").values
    keys = np.stack([bags(drawn, "uid").values, hour], axis=1)
    assert len(np.unique(crossed)) == len(np.unique(keys, axis=0))
    assert all(bags(drawn, name).lengths.max() == 1 for name in CROSSED)


def test_splits_and_batches_differ_and_a_copy_draws_the_same(drawn: YambdaLike) -> None:
    copy = pickle.loads(pickle.dumps(drawn))
    first = drawn._draw(Split.TEST, 0, 0).values
    np.testing.assert_array_equal(copy._draw(Split.TEST, 0, 0).values, first)
    assert not np.array_equal(drawn._draw(Split.TRAIN, 0, 0).values[:50], first[:50])
    assert not np.array_equal(drawn._draw(Split.TEST, 1, 0).values[:50], first[:50])
    assert drawn.quicker(20)._draw(Split.TEST, 0, 0).batch_size == 20


def test_train_samples_are_the_same_whatever_the_batch() -> None:
    small, large = (made(batch_size=size, profile_samples=1024, pool=5) for size in (1024, 2048))
    assert small.profiles == large.profiles
    first, second = (small._draw(Split.TRAIN, number, 0) for number in (0, 1))
    both = large._draw(Split.TRAIN, 0, 0)
    np.testing.assert_array_equal(both.values, np.concatenate([first.values, second.values]))
    assert made(batch_size=1500, pool=5)._draw(Split.TEST, 0, 0).batch_size == 1500


def test_repeats_are_of_earlier_ones_of_the_same_run() -> None:
    counts, generator = np.array([1, 4, 7, 3]), np.random.default_rng(0)
    run = np.repeat(np.arange(4), counts)
    everything, nothing = _repeats(counts, 1.0, generator), _repeats(counts, 0.0, generator)
    assert [part.tolist() for part in everything] == [list(range(15)), counts.tolist()]
    assert [part.tolist() for part in nothing] == [run.tolist(), [1, 1, 1, 1]]
    origin, new = _repeats(counts, 0.5, generator)
    first = [int(np.argmax(origin == number)) for number in range(int(new.sum()))]
    assert first == sorted(first), "new ones are numbered as they come"
    assert [run[at] for at in first] == np.repeat(np.arange(4), new).tolist()
    assert (run[np.array(first)[origin]] == run).all()


def test_the_published_plans_are_predicted_with_and_without_distinct_ids() -> None:
    steps = pd.read_csv(TABLE.with_name("steps.csv"))
    assert list(steps["point"]) == 2 * list(dlrm_v4.RUNS)
    runs = steps[steps["distinct_ids"]]
    assert dict(zip(runs["point"], zip(runs["machine"], runs["published_ms"]))) == dlrm_v4.RUNS
    errors = 100.0 * (runs["step_ms"] / runs["published_ms"] - 1.0)
    np.testing.assert_allclose(runs["error_pct"], errors, atol=0.06)
    others = steps[~steps["distinct_ids"]]
    assert others["published_ms"].isna().all(), "the published runs make them distinct"
    assert (others["output_ms"].to_numpy() > 5.0 * runs["output_ms"].to_numpy()).all()


def test_no_phase_is_judged_by_the_run_that_fixed_its_rate() -> None:
    steps, committed = (pd.read_csv(TABLE.with_name(f"{name}.csv")) for name in ("steps", "phases"))
    assert (committed["machine"] != committed["fixed_by"]).all()
    made = pd.DataFrame(dlrm_v4.phases(steps))
    pd.testing.assert_frame_equal(made, committed)
    # By hand: the phase of the run that fixed the rate, by the machines' rates of products.
    products = made[made["phase"] == "products"].set_index("machine")["predicted_ms"]
    assert products["b200-1x8"] == pytest.approx(138.4 * 1504 / 1467, abs=0.1)
    assert products["mi350x-1x8"] == pytest.approx(77.1 * 1467 / 1504, abs=0.1)
    suite = next(dict(one) for one in load_suite("dlrm_v4").workloads)
    assert DenseShape(**suite["dense"]) == dlrm_v4.DENSE


def test_a_share_of_the_artists_is_others_on_a_later_day() -> None:
    """Where 30 % go a day, 51 % have gone after two days, with their albums and items."""
    first, same, later = (
        made(batch_size=1024, row_scale=1.0, **more) for more in ({}, {"day": 9}, {"day": 2, "renewed": 0.3})
    )
    for table, name in enumerate(HISTORIES):
        was, still, now = (one._draw(Split.TEST, 0, table).values for one in (first, same, later))
        np.testing.assert_array_equal(was, still)
        heard = was > 0  # row 0 is nobody's
        assert (was != now)[heard].mean() == pytest.approx(0.51, abs=0.1), name
    assert [len(one.bags(Split.TEST, 0, 10).values) for one in (first, later)] == [1024, 1024]
    assert "renewed" not in first.recipe()
