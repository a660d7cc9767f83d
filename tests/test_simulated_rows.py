"""Simulated rows of the tables: bounds, equal times, and how sure the model is."""

import pandas as pd
import pytest
import records as make
from test_tables import row

from shardbench.model.strategy import Move
from shardbench.records.trial import Backend
from shardbench.report.tables.suite_tables import balance, throughput
from shardbench.report.tables.text import sections

STEP_BOUNDS = {"mean_step_ms": 9.0, "step_bound_ms": 6.0, "own_step_bound_ms": 7.5}


def test_steps_and_their_bounds():
    frame = throughput([make.ok("a", (8.0, 10.0), backend=Backend.SIMULATED, changes=STEP_BOUNDS)])
    found = row(frame, "a", "simulated")
    assert (found.step_bound_ms, found.own_step_bound_ms) == (6.0, 7.5)
    assert (found.over_step_bound_pct, found.over_own_bound_pct) == (pytest.approx(50.0), pytest.approx(20.0))
    assert found.bound_cause is None


@pytest.mark.parametrize(
    ("changes", "backend", "cause"),
    [
        (STEP_BOUNDS, Backend.MEASURED, "measured"),
        (STEP_BOUNDS | {"planned": make.planned(moves=(Move.HOST,))}, Backend.SIMULATED, "hosts or a batch schedule"),
        ({}, Backend.SIMULATED, "recorded before steps had a bound"),
    ],
)
def test_steps_without_a_bound_say_why(changes, backend, cause):
    frame = throughput([make.ok(step_ms=(8.0, 10.0), backend=backend, changes=changes)])
    assert frame[["step_bound_ms", "over_step_bound_pct", "own_step_bound_ms"]].isna().all(axis=None)
    assert list(frame.bound_cause) == [cause]


@pytest.mark.parametrize("move", [Move.HOST, Move.SCHEDULE])
def test_plans_that_nothing_is_proven_about_have_no_bound_even_where_the_record_has(move):
    planned = make.planned(moves=(Move.TABLE, move))
    frame = balance([make.ok(backend=Backend.SIMULATED, changes=BOUNDS | {"planned": planned})])
    columns = ["bound_ms", "whole_table_bound_ms", "over_bound_pct", "over_whole_table_bound_pct", "bound_fixed_pct"]
    assert frame[columns].isna().all(axis=None)
    assert frame.emb_ms_max[0] == frame.best_found_ms[0]


BOUNDS = {"bound_ms": 1.0, "bound_fixed_ms": 0.9, "whole_table_bound_ms": 2.0}


@pytest.mark.parametrize(("fixed_ms", "said"), [(0.9, " (90 % of it launches and dispatch)"), (0.4, ""), (None, "")])
def test_the_table_says_where_the_bound_is_mostly_launches_and_dispatch(fixed_ms, said):
    record = make.ok(backend=Backend.SIMULATED, changes=BOUNDS | {"bound_fixed_ms": fixed_ms})
    frame = balance([record])
    assert frame.bound_fixed_pct[0] == pytest.approx(float("nan") if fixed_ms is None else 100 * fixed_ms, nan_ok=True)
    (section,) = sections("balance", frame)
    assert f"lower bound, any device move 1.00 ms{said};" in section.note


def test_no_row_is_below_the_best_found():
    # Medians over seeds are 3 and 3.5, but one seed of the first found a plan of 2.
    records = [
        make.ok(name, seed=seed, backend=Backend.SIMULATED, changes={"timing": make.timing((1.0,), (time, 1.0))})
        for name, times in (("first", (2.0, 4.0)), ("second", (3.5, 3.5)))
        for seed, time in enumerate(times)
    ]
    frame = balance(records)
    assert frame.best_found_ms.tolist() == [2.0, 2.0]
    assert (frame.over_best_found_pct >= 0).all()


def test_simulated_times_that_differ_by_rounding_are_equal():
    made = {"a": 5e-3, "b": 5e-3 * (1 + 1e-10), "c": 5e-3 * (1 + 1e-5)}
    frame = throughput([make.ok(name, (t, t), backend=Backend.SIMULATED) for name, t in made.items()])
    assert [bool(row(frame, name, "simulated").same_as_best) for name in "abc"] == [True, True, False]


def simulated(name: str, step_ms: float, draws=None, **spec):
    return make.ok(name, (step_ms,), backend=Backend.SIMULATED, changes={"draws": draws}, **spec)


def test_a_simulated_row_has_the_band_of_its_draws_and_the_share_in_which_it_is_slower():
    frame = throughput([
        simulated("best", 10.0, make.draws(10.0)),
        simulated("surely", 10.1, make.draws(10.1)),
        simulated("perhaps", 10.3, make.draws(10.3, errors=(0.7, 1.0, 1.2, 1.3))),
        simulated("same", 10.0, make.draws(10.0)),
    ])  # fmt: skip
    best = row(frame, "best", "simulated")
    assert (best.step_ms_low, best.step_ms_high) == (pytest.approx(8.075), pytest.approx(11.925))
    assert pd.isna(best.p_slower_than_best)
    # Bands that overlap almost wholly: under one draw both err alike.
    assert [row(frame, name, "simulated").p_slower_than_best for name in ("surely", "perhaps", "same")] == [
        1.0, 0.75, 0.5,
    ]  # fmt: skip
    (section,) = sections("throughput", frame)
    place = section.headers.index("vs best")
    assert {r[0]: r[place] for r in section.rows} == {
        "best": "best", "same": "best", "surely": "+1.0 %", "perhaps": "+3.0 % ~",
    }  # fmt: skip
    assert "leaves the order to the best open for 1 of 2 rows (~)" in section.note


def test_balance_has_the_band_of_the_slowest_rank_and_how_surely_it_is_slower_than_the_best_found():
    def drawn(name: str, slowest_ms: float, **draws):
        changes = {"draws": make.draws(10.0, embedding_ms=slowest_ms, **draws)}
        return make.ok(name, (10.0,), (1.0, slowest_ms), backend=Backend.SIMULATED, changes=changes)

    frame = balance([
        drawn("best", 2.0), drawn("surely", 2.1), drawn("perhaps", 2.2, errors=(0.7, 1.0, 1.2, 1.3)),
        make.ok("unsaid", (10.0,), (1.0, 3.0), backend=Backend.SIMULATED),
    ])  # fmt: skip
    best = row(frame, "best", "simulated")
    assert (best.emb_ms_max_low, best.emb_ms_max_high) == (pytest.approx(1.615), pytest.approx(2.385))
    shares = [row(frame, name, "simulated").p_slower_than_best_found for name in ("surely", "perhaps")]
    assert shares == [1.0, 0.75]
    (section,) = sections("balance", frame)
    place = section.headers.index("over best found")
    assert {r[0]: r[place] for r in section.rows} == {
        "best": "+0.0 %", "surely": "+5.0 %", "perhaps": "+10.0 % ~", "unsaid": "+50.0 % ?",
    }  # fmt: skip


def test_all_pairs_of_seeds_count_and_the_band_is_of_all_seeds():
    frame = throughput([
        simulated("best", 10.0, make.draws(10.0)),
        simulated("drawn", 11.0, make.draws(11.0)),
        simulated("drawn", 11.5, make.draws(9.0), seed=1),
    ])  # fmt: skip
    found = row(frame, "drawn", "simulated")
    assert found.p_slower_than_best == 0.5
    assert found.step_ms_low < 8.0
    assert found.step_ms_high > 12.9


def test_a_simulated_row_without_draws_claims_no_certainty():
    frame = throughput([simulated("a", 10.0, make.draws(10.0)), simulated("b", 12.0)])
    b = row(frame, "b", "simulated")
    assert pd.isna([b.step_ms_low, b.step_ms_high, b.p_slower_than_best]).all()
    (section,) = sections("throughput", frame)
    shown = dict(zip(section.headers, section.rows[1]))
    assert (shown["vs best"], shown["95 % interval (ms)"]) == ("+20.0 % ?", "unknown")
    assert "error of the model unknown (records without draws)" in section.note
