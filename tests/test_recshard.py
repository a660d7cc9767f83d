"""RecShard's steps, plans and refusals against hand-computed cases."""

import importlib
import os
from dataclasses import replace

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recshard_problems import BATCH, ROW, cost_ms, cuts, problem, profile, random_problem

from shardbench.base import highs
from shardbench.base.errors import Infeasible
from shardbench.model.plan import Tier
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.model.table import Optimizer, Precision
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy
from shardbench.trials.runner import RunOptions, SuiteWork
from shardbench.trials.suite import Suite

assign = importlib.import_module("shardbench.baselines.recshard.assign")
milp = importlib.import_module("shardbench.baselines.recshard.milp")
relaxation = importlib.import_module("shardbench.baselines.recshard.relaxation")
search = importlib.import_module("shardbench.baselines.recshard.search")
steps_of = importlib.import_module("shardbench.baselines.recshard.steps")

recshard = get_strategy("recshard")
VARIANTS = ("recshard-cdf", "recshard-cdf-coverage", "recshard-cdf-pooling", "recshard-unseen")


def test_steps_of_a_table():
    # 60, 30 and 10 accesses to three rows of five: steps 1..60 need one row, 61..90 two, 91..100 three.
    asked = problem([profile([60, 30, 10], rows=5)], devices=1)
    steps = steps_of.make_steps(asked, steps_of.Statistics.ALL)
    assert steps.rows.tolist() == [0, 1, 2, 3, 5]
    assert steps.hbm_bytes.tolist() == [0, ROW, 2 * ROW, 3 * ROW, 5 * ROW]
    assert steps.uvm_bytes.tolist() == [5 * ROW, 4 * ROW, 3 * ROW, 2 * ROW, 0]
    assert steps.cost_ms.tolist() == pytest.approx([cost_ms(1.0, s) for s in (0.0, 0.6, 0.9, 1.0, 1.0)])


def test_bytes_of_steps_count_optimiser_state_and_precision():
    asked = problem([profile([60, 30, 10], rows=5)], devices=1)
    with_state = replace(asked, optimizer=Optimizer.ROWWISE_ADAGRAD, precision=Precision.FP16)
    steps = steps_of.make_steps(with_state, steps_of.Statistics.ALL)
    assert steps.hbm_bytes.tolist() == [0, 36, 72, 108, 180]
    # Time is that of the weights alone, half as wide.
    full = steps_of.make_steps(asked, steps_of.Statistics.ALL)
    assert steps.cost_ms == pytest.approx(full.cost_ms / 2)


def test_choices_that_fit_no_device_are_left_out():
    asked = problem([profile([60, 30, 10], rows=5)], devices=1, hbm=2 * ROW, uvm=4 * ROW)
    assert steps_of.make_steps(asked, steps_of.Statistics.ALL).rows.tolist() == [1, 2]
    with pytest.raises(Infeasible, match=r"table 't0' \(320 bytes\) does not fit a device's 128 bytes of HBM and 64"):
        steps_of.make_steps(problem([profile([1], rows=5)], hbm=2 * ROW, uvm=ROW), steps_of.Statistics.ALL)


def test_statistics_of_the_ablation():
    # 40 lookups in 20 of 100 samples: coverage 0.2, pooling 2 where present; the second table is never looked up.
    asked = problem([profile([40], rows=4, present=20), profile([], rows=4, present=0)])
    row_bytes = BATCH * ROW
    kinds = steps_of.Statistics
    expected = {kinds.CDF: 1.0, kinds.CDF_COVERAGE: 0.2, kinds.CDF_POOLING: 2.0, kinds.ALL: 0.4}
    assert set(expected) == set(kinds)
    for kind, lookups in expected.items():
        assert steps_of.traffic_bytes(asked, kind).tolist() == pytest.approx([row_bytes * lookups, 0.0])
    used = {get_strategy(name).statistics for name in ("recshard", *VARIANTS)}
    assert used == set(kinds)


def test_two_tables_on_two_devices_by_hand():
    # Each device has room for two rows; apart, each table gets its two hottest into HBM.
    hot, flat = profile([80, 15, 5], rows=3), profile([40, 30, 30], rows=3)
    plan = recshard.plan(problem([hot, flat], hbm=2 * ROW, uvm=3 * ROW), Budget(), 0)
    homes = cuts(plan)
    assert {homes["t0"], homes["t1"]} == {(0, 2), (1, 2)} or {homes["t0"], homes["t1"]} == {(1, 2), (0, 2)}
    assert homes["t0"][0] != homes["t1"][0]
    assert plan.notes["predicted_slowest_ms"] == pytest.approx(cost_ms(1.0, 0.7))
    assert plan.notes["expected_hbm_share"] == pytest.approx((0.95 + 0.7) / 2)
    assert plan.notes["status"] == "optimal within 1 %"


def test_a_heavy_table_is_alone():
    # 10 lookups a sample against 3 x 3: the heavy one's device must not get another.
    profiles = [profile([1000], rows=2), *[profile([300], rows=2)] * 3]
    plan = recshard.plan(problem(profiles), Budget(), 0)
    homes = cuts(plan)
    assert all(homes[f"t{i}"][0] != homes["t0"][0] for i in (1, 2, 3))
    assert plan.notes["predicted_slowest_ms"] == pytest.approx(cost_ms(10.0, 1.0))


SEEN, TAIL = profile([50, 50], rows=12), profile([2, 1, 1, 1], rows=14)
"""Of the second table three accesses in five were to rows seen once, of the first none."""
ON_ONE_DEVICE = {
    # HBM of two rows: 90 accesses of t1's first row and 60 of t0's, before 50 of t1's second.
    "the dearest rows": ([profile([60, 40], rows=2), profile([90, 50], rows=2)], 2, [1, 1]),
    # Room beside the five seen rows goes to the tail with most unseen accesses, as far as it reaches.
    "all of a tail": ([SEEN, TAIL], 16, [2, 14]),
    "a part of a tail": ([replace(SEEN, rows=20), TAIL], 13, [2, 11]),
    "a tail, then the other": ([replace(SEEN, rows=20), TAIL], 30, [16, 14]),
    # 300 rows seen alike, so that a step is of three rows.
    "a part of a step": ([profile([7] * 300, rows=300)], 10, [10]),
}


@pytest.mark.parametrize("case", ON_ONE_DEVICE)
def test_rows_in_hbm_by_hand(case):
    profiles, hbm, rows = ON_ONE_DEVICE[case]
    plan = recshard.plan(problem(profiles, devices=1, hbm=hbm * ROW), Budget(), 0)
    assert [held for _, held in cuts(plan).values()] == rows


def test_plenty_of_hbm_takes_everything():
    profiles = [profile([5, 4, 1], rows=50), profile([9, 1, 1], rows=70), profile([], rows=5, present=0)]
    plan = recshard.plan(problem(profiles), Budget(), 0)
    assert {name: rows for name, (_, rows) in cuts(plan).items()} == {"t0": 50, "t1": 70, "t2": 5}
    assert plan.notes["expected_hbm_share"] == 1.0


def test_a_solvers_choice_of_a_whole_table_gives_way_to_a_better_tail():
    profiles = [profile([50, 50], rows=12), profile([2, 1, 1, 1], rows=14)]
    asked = problem(profiles, devices=1, hbm=16 * ROW, uvm=40 * ROW)
    steps = steps_of.make_steps(asked, steps_of.Statistics.ALL)
    whole_first = np.array([int(steps.first[1]) - 1, int(np.flatnonzero((steps.table == 1) & (steps.rows == 4))[0])])
    choice = assign.lowered(steps, whole_first)
    assert steps.rows[choice].tolist() == [2, 4]
    found = assign.Assignment(device=np.zeros(2, dtype=np.int64), choice=choice)
    assert assign.topped_up(steps, asked, found).tolist() == [2, 14]


FILLED = {
    # Room for one row: 90 accesses of t1's first, before 60 of t0's.
    "most time saved a byte": ([profile([60, 40], rows=2), profile([90, 50], rows=2)], 1, [0, 0], [0, 1]),
    # All seen rows are held: room for the tail of one table goes to the one with unseen accesses.
    "most unseen accesses a byte": ([SEEN, TAIL], 16, [2, 4], [2, 14]),
}


@pytest.mark.parametrize("case", FILLED)
def test_a_device_is_filled_by_hand(case):
    profiles, hbm, held, rows = FILLED[case]
    asked = problem(profiles, devices=1, hbm=hbm * ROW)
    steps = steps_of.make_steps(asked, steps_of.Statistics.ALL)
    begin = np.array([np.flatnonzero((steps.table == j) & (steps.rows == n))[0] for j, n in enumerate(held)])
    filled = assign.fill(steps, asked, np.zeros(2, dtype=np.int64), begin, relaxation.hull(steps))
    assert steps.rows[filled.choice].tolist() == rows


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 12), devices=st.integers(1, 3))
def test_no_device_leaves_hbm_empty_while_rows_are_off_it(seed, tables, devices):
    asked = random_problem(seed, tables, devices, 60)
    for name in ("recshard", "recshard-unseen", "recshard-cdf"):
        strategy = get_strategy(name)
        try:
            plan = strategy.plan(asked, Budget(plan_s=8.0), seed)
        except (Infeasible, TimeoutError):
            continue
        validate(plan, asked, strategy.moves)
        hbm, off = np.zeros(devices, dtype=int), np.zeros(devices, dtype=int)
        for segment in plan.segments:
            held = hbm if segment.placement.tier is Tier.HBM else off
            held[segment.placement.rank] += segment.rows * ROW
        assert ((off == 0) | (asked.topology.hbm_bytes - hbm < ROW)).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 8), unseen=st.booleans())
def test_topping_up_fills_hbm_and_takes_no_row_back(seed, tables, unseen):
    # Hundreds of rows, most of them alike or never seen: many stretches of a table gain the same, but for rounding.
    rng = np.random.default_rng(seed)
    sizes = rng.integers(100, 600, tables)
    profiles = [profile([9, *rng.integers(0, rng.integers(2, 6), n).tolist()], rows=n + 1) for n in sizes]
    asked = problem(profiles, devices=2, hbm=int(rng.uniform(0.2, 0.6) * ROW * sizes.sum()), uvm=ROW * 10**4)
    steps = steps_of.make_steps(asked, steps_of.Statistics.ALL, expects_unseen=unseen)
    found = assign.Assignment(device=np.arange(tables) % 2, choice=steps.first[:-1].copy())
    rows = assign.topped_up(steps, asked, found)
    assert (rows >= steps.rows[found.choice]).all()
    held = np.bincount(found.device, weights=ROW * rows, minlength=2)
    whole = np.bincount(found.device, weights=ROW * (sizes + 1 - rows), minlength=2) == 0
    assert (whole | ((asked.topology.hbm_bytes - held >= 0) & (asked.topology.hbm_bytes - held < ROW))).all()


def test_without_uvm_tables_are_whole():
    profiles = [profile([10, 5], rows=4), profile([10, 5], rows=6), profile([1], rows=2)]
    plan = recshard.plan(problem(profiles, hbm=6 * ROW, uvm=0), Budget(), 0)
    assert {name: rows for name, (_, rows) in cuts(plan).items()} == {"t0": 4, "t1": 6, "t2": 2}


KNOWN, BLANK = profile([1], rows=4), AccessProfile(rows=5, samples=1, present=0, counts=(), row_counts=())


@pytest.mark.parametrize(
    ("profiles", "hbm", "says"),
    [
        ([KNOWN] * 3, 352, "the tables need at least 768 bytes of HBM, the 2 devices have 704 together"),
        # Two devices of six rows hold the twelve in sum, but no two tables on one device.
        ([KNOWN] * 3, 6 * ROW, "no plan fits 2 devices with 384 bytes of HBM and 0 of UVM each"),
        ([BLANK, BLANK], 9 * ROW, "no access profile: no table"),
        ([KNOWN, BLANK, KNOWN], 9 * ROW, r"no access profile of table 't1' \(1 of 3 tables have none\)"),
    ],
)
def test_where_there_is_no_plan_the_cause_is_named(profiles, hbm, says):
    with pytest.raises(Infeasible, match=says):
        recshard.plan(problem(profiles, hbm=hbm, uvm=0), Budget(), 0)


def test_profiles_of_different_numbers_of_samples_are_shares_and_means():
    # The same table counted over twice the samples costs the same.
    asked = problem([profile([60, 30, 10], rows=5), profile([120, 60, 20], rows=5, samples=200, present=200)])
    steps = steps_of.make_steps(asked, steps_of.Statistics.ALL)
    one, two = (steps.cost_ms[steps.table == j] for j in range(2))
    assert one == pytest.approx(two)
    assert recshard.plan(asked, Budget(), 0).notes["status"] == "optimal within 1 %"


def test_a_solver_that_prints_while_it_is_made_is_silent(monkeypatch, capfd):
    # HiGHS 1.16 does so once a process.
    monkeypatch.setattr(highspy, "Highs", lambda: os.write(1, b"Running HiGHS\n"))
    highs.use_up_banner()
    os.write(1, b"what follows\n")
    assert capfd.readouterr().out == "what follows\n"


class _Broken(highspy.Highs):
    def getModelStatus(self):  # noqa: N802 - the solver's name
        return highspy.HighsModelStatus.kSolveError


def test_a_solver_that_fails_before_there_is_a_plan_is_infeasible_with_its_status(monkeypatch):
    # Three tables of which two devices cannot make equal loads, so that the whole program is asked.
    asked = problem([profile([c], rows=1, samples=100) for c in (100, 90, 80)])
    monkeypatch.setattr(relaxation, "pigeonhole_ms", lambda *_: 0.0)
    for where, broken in ((milp, {"pack": lambda *_: None}), (relaxation, {})):
        with monkeypatch.context() as patch, pytest.raises(Infeasible, match=r"HiGHS failed.*Solve error"):
            patch.setattr(where, "new_solver", _Broken)
            for name, instead in broken.items():
                patch.setattr(search, name, instead)
            recshard.plan(asked, Budget(), 0)


@pytest.mark.parametrize("exact_binaries", [0, 6000])
def test_a_solver_that_fails_later_ends_with_the_plan_found_before(monkeypatch, exact_binaries):
    monkeypatch.setattr(search, "EXACT_BINARIES", exact_binaries)
    monkeypatch.setattr(relaxation, "pigeonhole_ms", lambda *_: 0.0)
    asked = problem([profile([c], rows=1, samples=100) for c in (100, 90, 80)])
    whole = recshard.plan(asked, Budget(), 0)
    monkeypatch.setattr(milp, "new_solver", _Broken)
    plan = recshard.plan(asked, Budget(), 0)
    validate(plan, asked, recshard.moves)
    assert plan.notes["status"] == "solver failed"
    assert plan.notes["gap_pct"] > 1.0
    assert plan.notes["predicted_slowest_ms"] >= whole.notes["predicted_slowest_ms"]


def test_no_plan_in_time_is_a_timeout(monkeypatch):
    nothing = milp.Solution(assignment=None, bound_ms=0.0, infeasible=False)
    monkeypatch.setattr(milp.Program, "solve", lambda *_, **__: nothing)
    monkeypatch.setattr(search, "pack", lambda *_: None)
    with pytest.raises(TimeoutError, match="found no plan within its budget"):
        recshard.plan(problem([profile([1], rows=4)] * 3), Budget(), 0)


def test_a_budget_that_is_over_gives_the_packed_plan_and_says_so():
    rng = np.random.default_rng(3)
    profiles = [profile(rng.integers(0, 50, 400).tolist(), rows=400, present=100) for _ in range(60)]
    asked = problem(profiles, devices=4, hbm=2000 * ROW, uvm=8000 * ROW)
    plan = recshard.plan(asked, Budget(plan_s=1e-3), 0)
    validate(plan, asked, recshard.moves)
    assert plan.notes["status"] == "time limit"
    assert plan.notes["gap_pct"] > 1.0


def test_variants_run_only_where_they_are_named(tmp_path):
    suite = Suite.model_validate(
        {
            "name": "s",
            "description": "d",
            "workloads": [{"name": "w", "dataset": "synthetic", "tables": 2, "batch_size": 4, "profile_samples": 64}],
            "jobs": [{"workload": "w", "machine": "cpu-1x2", "backend": "simulated", "iterations": 1}],
        }
    )
    options = RunOptions(results=tmp_path, data=tmp_path)
    listed = {trial.strategy for trial in SuiteWork(suite, options).pieces}
    assert "recshard" in listed
    assert listed.isdisjoint(VARIANTS)
    named = SuiteWork(suite, replace(options, strategies=VARIANTS)).pieces
    assert sorted(trial.strategy for trial in named) == sorted(VARIANTS)


def test_unseen_rows_count_where_they_are_expected():
    # 10 lookups: rows of 4, 3 and 2 accesses and one row seen once, so one access in ten is to the 6 unseen rows.
    asked = problem([profile([4, 3, 2, 1], rows=10)], hbm=20 * ROW, uvm=20 * ROW)
    plain = steps_of.make_steps(asked, steps_of.Statistics.ALL)
    known = steps_of.make_steps(asked, steps_of.Statistics.ALL, expects_unseen=True)
    assert plain.rows.tolist() == [0, 1, 2, 3, 4, 10]
    assert known.rows.tolist() == list(range(11))
    for steps, shares in (
        (known, [0, 0.36, 0.63, 0.81, *(0.9 + k / 60 for k in range(7))]),
        (plain, [0, 0.4, 0.7, 0.9, 1, 1]),
    ):
        assert steps.cost_ms.tolist() == pytest.approx([cost_ms(0.1, share) for share in shares])


def test_notes_say_whether_unseen_rows_are_left_out_and_what_the_remapping_takes():
    # One access in ten is expected in the 6 unseen rows of the first table, none in the second, which is all in HBM.
    profiles = [profile([4, 3, 2, 1], rows=10), profile([10, 10], rows=2)]
    asked = problem(profiles, devices=1, hbm=9 * ROW, uvm=20 * ROW)
    plain, known = (get_strategy(name).plan(asked, Budget(), 0) for name in ("recshard", "recshard-unseen"))
    for plan in (plain, known):
        assert cuts(plan) == {"t0": (0, 7), "t1": (0, 2)}
        assert plan.notes["unseen_rows_lookups_share"] == pytest.approx(0.1 * 10 / 30)
        assert plan.notes["remap_bytes"] == 4 * 10
    assert (plain.notes["unseen_rows"], known.notes["unseen_rows"]) == ("left out", "counted")
    assert plain.notes["expected_hbm_share"] == 1.0
    assert known.notes["expected_hbm_share"] == pytest.approx((10 * (0.9 + 0.05) + 20) / 30)
    assert plain.notes["predicted_slowest_ms"] == pytest.approx(cost_ms(0.3, 1.0))
    assert plain.notes["predicted_slowest_ms"] < known.notes["predicted_slowest_ms"]


def test_expected_unseen_rows_take_the_hbm_that_seen_ones_leave():
    # Of a's 3 + 7 and b's 2 + 6 rows, one device holds 13: b has unseen accesses, a has none.
    asked = problem([profile([4, 4, 4], rows=10), profile([4, 1], rows=8)], devices=1, hbm=13 * ROW)
    unseen = get_strategy("recshard-unseen")
    plan = unseen.plan(asked, Budget(), 0)
    validate(plan, asked, unseen.moves)
    assert cuts(plan)["t1"] == (0, 8)
    assert cuts(plan)["t0"][1] >= 3
    assert plan.notes["expected_hbm_share"] == pytest.approx(1.0)
