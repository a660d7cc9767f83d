"""The study of drift, the exchange of rows under it, and later days of a small log that has two."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import RandomWorkload
from two_days import write_days

from shardbench.base.errors import Undeclared
from shardbench.drift import studies
from shardbench.drift.studies import HOT_ROWS, PROBLEMS, SEEDS, SHARES_PCT, TOO_LONG, days_question, days_study, periods
from shardbench.model.machine_file import load_machine
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move, Role
from shardbench.records.cell import CellRecord
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.session import run_cell
from shardbench.trials.discovery import get_strategy, strategies
from shardbench.trials.planning import learns
from shardbench.workloads.drift import HOT_SHARE, DriftedBatches, LaterBatches, exchange, hot_rows
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.trace import Ranking, Split, closed_test_split


def test_all_competitors_are_asked_but_those_whose_plans_know_no_rows() -> None:
    asked = {(cell["problem"], cell["strategy"]) for cell in HOT_ROWS.cells(False)}
    competing = {name for name, one in strategies().items() if one.role is Role.COMPETITOR}
    learning = {name for name in competing if learns(get_strategy(name))}
    for name in learning:
        assert get_strategy(name).moves <= {Move.TABLE, Move.COLUMNS}, "its plans could lose something: ask it"
    assert asked | TOO_LONG == {(problem, name) for problem in PROBLEMS for name in competing - learning}
    assert {load_machine(machine).device for machine, _ in PROBLEMS.values()} == {"cuda"}
    assert SEEDS >= 5


def test_the_table_has_ratios_over_seeds_and_why_there_is_no_plan() -> None:
    ok = {"problem": "p", "backend": "simulated", "outcome": "ok", "drift_pct": 5}
    rows = pd.DataFrame(
        [
            {**ok, "strategy": "a", "undrifted_ms": 2.0, "step_ms": (2.0, 8.0)},
            {**ok, "strategy": "b", "undrifted_ms": 1.0, "step_ms": (1.0, 1.0)},
            {"problem": "p", "strategy": "c", "backend": "simulated", "outcome": "infeasible", "cause": "no room"},
        ]
    )
    (table,) = HOT_ROWS.tables(rows).values()
    assert table.over_undrifted[:2].tolist() == pytest.approx([2.0, 1.0])
    assert table.over_best_fresh[:2].tolist() == pytest.approx([4.0, 1.0])
    assert table.drifted_ms[0] == pytest.approx(4.0)
    assert table.low[0] < 2.0 < table.high[0]
    assert (table.low[1], table.high[1]) == (1.0, 1.0)
    assert table.n[:2].tolist() == [2, 2]
    assert (table.outcome[2], table.cause[2]) == ("infeasible", "no room")


SMALL = {"dataset": "described", "batch_size": 512, "profile_samples": 4096}
TABLES = [{"name": "a", "rows": 20_000, "dim": 64, "pooling": 10, "alpha": 1.1}, {"name": "b", "rows": 500, "dim": 64}]


def test_a_cell_judges_one_plan_on_all_shares_and_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(studies.PROBLEMS, "small", ("a100-40gb-1x8", {**SMALL, "tables": TABLES}))
    monkeypatch.setattr(studies, "SEEDS", 3)
    for strategy in ("greedy-size", "fae"):
        rows = HOT_ROWS.run({"problem": "small", "strategy": strategy}, tmp_path)
        assert [row["drift_pct"] for row in rows] == list(SHARES_PCT)
        assert all(len(row["step_ms"]) == 3 for row in rows)
        if strategy == "greedy-size":
            assert all(step == pytest.approx(row["undrifted_ms"]) for row in rows for step in row["step_ms"])
        else:
            losses = [np.mean(row["step_ms"]) / row["undrifted_ms"] for row in rows]
            assert losses == sorted(losses)
            assert losses[-1] > 1.02, "samples become cold that were hot"


@pytest.fixture
def avazu(tmp_path: Path) -> Path:
    """A log of two days, the later of which tests, prepared as one of the public ones."""
    write_days(tmp_path, folder="data/avazu", days=(0, 1))
    return tmp_path / "data"


def test_days_are_those_that_are_prepared(tmp_path: Path, avazu: Path) -> None:
    assert days_study(tmp_path / "none").cells(False) == []
    study = days_study(avazu)
    cells = study.cells(False)
    assert {cell["log"] for cell in cells} == {"avazu"}
    assert all(study.optional(cell) for cell in cells)
    assert [study.name for study in find_reproduction("drift").studies] == ["hot_rows", "days"]


def test_periods_share_no_sample_and_keep_the_days_apart(avazu: Path) -> None:
    older, newer = periods("avazu", avazu, 64)
    log = older._source
    for period, (start, stop) in ((older, (0, log.train_samples)), (newer, (log.train_samples, log.samples))):
        assert period.samples == stop - start
        assert sorted(period._order.tolist()) == list(range(period.samples)), "every sample once"
        whole = log._raw(1, start, stop)
        for batch in range(studies.BATCHES):
            first = period.train_samples + 64 * batch
            lookups = period.recorded(Split.TEST, batch, 1)
            taken = [whole.samples(sample, sample + 1).values for sample in period._order[first : first + 64]]
            assert np.array_equal(lookups.values, np.concatenate(taken))
    assert older.profiles[1].samples == older.train_samples
    with closed_test_split(), pytest.raises(Undeclared):
        LaterBatches(newer, older).bags(0, 0)


def test_later_days_slow_a_plan_that_a_fresh_one_of_their_own_would_not_be(avazu: Path) -> None:
    study = days_study(avazu, batch_size=256)
    cell = {"log": "avazu", "strategy": "fae"}
    record: CellRecord = run_cell(lambda: study, cell, avazu, "e" * 16)
    assert record.failure is None, record.failure
    assert len(record.rows) == studies.BATCHES
    (table,) = study.tables(pd.DataFrame([{**cell, **row} for row in record.rows])).values()
    assert table.n[0] == studies.BATCHES
    assert table.low[0] > 1.02, "its hot rows are no longer hot"
    assert table.fresh_low[0] > 1.02
    older, newer = periods("avazu", avazu, 256)
    same = days_question(older, older, 0).batches.bags(0, 1)
    assert np.array_equal(same.values, older.bags(Split.TEST, 0, 1).values)
    later = days_question(older, newer, 0).batches.bags(0, 1)
    assert np.array_equal(later.values, older.ranking(1)(newer.recorded(Split.TEST, 0, 1).values))


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
    workload = RandomWorkload([(500, 8), (40, 8)], 64)
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
    workload = RandomWorkload([(500, 8), (40, 8)], 64)
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
