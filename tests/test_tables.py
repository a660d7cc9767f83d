import itertools
import math
import random

import pandas as pd
import pytest
import records as make

from shardbench.base.errors import BadInput
from shardbench.cost.collectives import CollectiveName
from shardbench.cost.phases import WAITS
from shardbench.model.table import Optimizer
from shardbench.records.record import Tiers
from shardbench.records.trial import LEFT_OUT, Backend, Outcome
from shardbench.report.rows import current
from shardbench.report.tables.files import table_csv
from shardbench.report.tables.suite_tables import balance, tables, throughput, traffic
from shardbench.report.tables.text import sections


def row(frame: pd.DataFrame, strategy: str, backend: str = "measured") -> pd.Series:
    found = frame[(frame.strategy == strategy) & (frame.backend == backend)]
    assert len(found) == 1
    return found.iloc[0]


def test_strategies_are_compared_at_one_speed_of_the_machine():
    # The second trial of each finds the machine half as fast, both of b another half: b has the longer steps. Beside
    # that steps are off by 0.1 %, which the slope cannot explain.
    trials = make.drifting("a", 11.0, (1.0, 2.0), 0.001) + make.drifting("b", 9.0, (2.0, 4.0), -0.001)
    frame = throughput(trials)
    a, b = row(frame, "a"), row(frame, "b")
    assert (a.compared_by, b.vs_best_pct) == ("control", 0.0)
    # The mean speed of the four is a half to the power of (0 + 1 + 1 + 2) / 4.
    assert (a.step_ms, b.step_ms) == (pytest.approx(2 * 11.0), pytest.approx(2 * 9.0))
    assert a.vs_best_pct == pytest.approx(100 * (11 / 9 - 1))
    # 2 x 2 trials, less two means and the slope. Speeds of strategies differ as those of their trials do, which makes
    # a difference twice as uncertain in its square.
    assert a.noise_freedom == 1
    deviation = math.sqrt(4 * 0.001**2 * 2)
    assert a.noise_pct == pytest.approx(100 * (math.exp(math.tan(0.475 * math.pi) * deviation) - 1))
    assert "control" in sections("throughput", frame)[0].note


def test_what_the_machine_alone_can_explain_is_no_difference():
    # Nearly all that is known of the slope is between strategies.
    trials = make.drifting("a", 11.0, (1.0, 1.02), 0.001) + make.drifting("b", 9.0, (2.0, 2.04), -0.001)
    assert set(throughput(trials).same_as_best) == {True}


@pytest.mark.parametrize("other", [{}, {"control": make.control(10.0, 10.0, plan_hash="8" * 16)}])
def test_without_one_common_control_steps_are_compared(other):
    trials = [*make.drifting("a", 9.0, (1.0, 2.0), 0.001), make.ok("b", (8.0, 8.0), changes=other)]
    frame = throughput(trials)
    assert set(frame.compared_by) == {"step"}
    assert row(frame, "b").vs_best_pct == 0.0
    assert "as they are" in sections("throughput", frame)[0].note


def test_repeats_that_were_left_out_are_no_trials():
    left_out = make.failed(Outcome.SKIPPED, "b", repeat=1)
    failure = left_out.failure.model_copy(update={"phase": LEFT_OUT})
    trials = [make.ok("a", (5.0,)), make.ok("a", (5.1,), repeat=1), make.ok("b", (9.0,))]
    frame = throughput([*trials, left_out.model_copy(update={"failure": failure})])
    b = row(frame, "b")
    assert (b.outcome, b.n, b.trials, bool(b.same_as_best), b.places) == ("ok", 1, 1, False, "2 to 2")


def test_pairs_are_counted_that_differ_by_more_than_their_trials_noise():
    # ln 1.01 apart in each of three pairs of repeats: floor of two trials each is t(3) s = 3.1824 * 0.00704 = 2.2 %.
    steps = {"a": (100.0, 101.0), "b": (101.0, 102.01), "c": (110.0, 111.1)}
    records = [make.ok(name, (step,) * 4, repeat=i) for name, two in steps.items() for i, step in enumerate(two)]
    found = row(throughput(records), "a")
    assert found.noise_pct == pytest.approx(100 * (math.exp(3.18245 * math.log(1.01) / math.sqrt(2)) - 1), rel=1e-4)
    assert (found.pairs, found.pairs_beyond_noise) == (3, 2)
    # A fourth of one trial is known less well: its own floor with a is sqrt(1 + 1/2) times the deviation.
    alone = throughput([*records, make.ok("d", (103.1,) * 4)])
    assert (row(alone, "d").pairs, row(alone, "d").pairs_beyond_noise) == (6, 3)
    assert bool(row(alone, "d").same_as_best)


def test_measured_rows_have_no_bound_even_where_the_record_has():
    frame = balance([make.ok(changes={"bound_ms": 1.0, "whole_table_bound_ms": 2.0})])
    assert frame[["bound_ms", "whole_table_bound_ms", "over_bound_pct"]].isna().all(axis=None)


COPIES = ["host_vectors_bytes", "copied_to_device_bytes", "copied_to_host_bytes"]


def test_copies_have_columns_that_old_records_leave_empty():
    kept = dict(zip(COPIES, (64.0, 800.0, 400.0)))
    frame = traffic([make.ok("new", changes={"traffic": make.totals(**kept)}), make.ok("old")])
    assert frame.loc[frame.strategy == "new", COPIES].to_numpy().tolist() == [[64, 800, 400]]
    assert frame.loc[frame.strategy == "old", COPIES].isna().all(axis=None)
    headers = ("vectors from hosts", "copied to devices", "copied to host")
    (section,) = sections("traffic", frame)
    assert [section.rows[0][section.headers.index(header)] for header in headers] == ["64 B", "800 B", "400 B"]
    (plain,) = sections(
        "traffic", traffic([make.ok("none", changes={"traffic": make.totals(**dict.fromkeys(COPIES, 0))})])
    )
    assert not set(headers) & set(plain.headers)


def test_a_peak_has_a_column_that_old_records_leave_empty():
    old, new = make.ok("old"), make.ok("new", changes={"peak_bytes": 3e9})
    frame = traffic([old, new]).set_index("strategy")
    assert frame.loc["new", "peak_bytes_max"] == 3e9
    assert frame["peak_bytes_max"].isna().to_dict() == {"old": True, "new": False}
    # Those that have none are written as they were.
    assert "peak_bytes" not in old.model_dump_json()


def test_every_collective_is_waited_for_in_one_phase():
    assert sorted(name for names in WAITS.values() for name in names) == sorted(CollectiveName)


def test_unknown_collective_is_refused():
    record = make.ok(changes={"traffic": make.totals(collectives={"gossip": (1.0, 1.0)})})
    with pytest.raises(BadInput, match="gossip"):
        traffic([record])


WORSE_AND_WORSE = ("ok", "skipped", "infeasible", "oom", "timeout", "invalid", "error")


@pytest.mark.parametrize(("mild", "severe"), list(itertools.combinations(WORSE_AND_WORSE, 2)))
def test_a_row_shows_the_more_severe_of_two_outcomes(mild, severe):
    for ended in ((mild, severe), (severe, mild)):
        records = [
            make.ok("a", repeat=i) if one == Outcome.OK else make.failed(Outcome(one), "a", repeat=i)
            for i, one in enumerate(ended)
        ]
        assert row(throughput(records), "a").outcome == severe


def test_every_outcome_has_a_severity():
    assert sorted(WORSE_AND_WORSE) == sorted(Outcome)


def test_a_failed_row_says_how_many_were_ok_and_which_rank_failed():
    some = [make.ok("a", repeat=0), make.ok("a", repeat=1), make.failed(Outcome.OOM, "a", repeat=2)]
    none = [make.failed(Outcome.INFEASIBLE, "b", rank=None)]
    first, second = row(throughput(some), "a"), row(throughput(none), "b")
    assert (first.trials_ok, first.trials) == (2, 3)
    assert first.cause == "build of rank 1: rank 1 was killed by signal 9 (2 of 3 trials ok)"
    assert (second.trials_ok, second.cause) == (0, "build: rank 1 was killed by signal 9")


def test_a_failed_row_is_never_the_best():
    records = [make.ok("fast", (1.0,)), make.failed(Outcome.TIMEOUT, "fast", repeat=1), make.ok("slow", (9.0,))]
    frame = throughput(records)
    assert row(frame, "slow").vs_best_pct == 0.0


def test_seconds_of_planning_and_fitting_are_medians_over_trials():
    spent = ((1.0, 0.0), (2.0, 30.0), (9.0, 60.0))
    records = [
        make.ok("a", repeat=i, changes={"planned": make.planned(plan_s=plan, fit_s=fit)})
        for i, (plan, fit) in enumerate(spent)
    ]
    found = row(throughput(records), "a")
    assert (found.plan_s, found.fit_s) == (2.0, 30.0)


def test_what_a_record_does_not_hold_is_an_empty_cell():
    idle = make.ok("idle", (0.0,), backend=Backend.SIMULATED)
    bare = make.ok("bare", (1.0,), (), changes={"predicted": None})
    empty = make.ok("empty", (1.0,), (0.0, 0.0), changes={"traffic": make.totals(lookups=0.0, collectives={})})
    # The other trial of the same row says it.
    half = [make.ok("half"), make.ok("half", repeat=1, changes={"traffic": make.totals(collectives={})})]
    time, even, sent = (build([idle, bare, empty, *half]) for build in (throughput, balance, traffic))
    assert pd.isna(row(time, "idle", "simulated").samples_per_s)
    assert row(even, "bare")[["emb_ms_max", "emb_ms_mean", "max_over_mean", "predicted_emb_ms_max"]].isna().all()
    assert pd.isna(row(even, "empty").max_over_mean)
    assert row(sent, "empty")[["off_hbm_lookups_pct", "input_splits_bytes"]].isna().all()
    assert row(sent, "empty").allreduce_bytes == 0
    assert row(sent, "half").input_splits_bytes == 3


def test_unknown_noise_claims_no_order():
    frame = throughput([make.ok("a", (100.0,)), make.ok("b", (130.0,)), make.ok("c", (500.0,))])
    assert (
        frame[["noise_pct", "same_as_best", "step_ms_low", "step_ms_high", "pairs_beyond_noise"]].isna().all(axis=None)
    )
    assert set(frame.pairs) == {3}
    (section,) = sections("throughput", frame)
    assert [r[section.headers.index("vs best")] for r in section.rows] == ["?", "?", "?"]
    assert {r[section.headers.index("95 % interval (ms)")] for r in section.rows} == {"unknown"}
    assert "noise floor unknown (nothing was repeated): no order is claimed" in section.note


def test_balance_in_cpu_time_has_columns_of_its_own():
    times = make.timing((9.0,), (2.0, 8.0)).model_copy(update={"embedding_cpu_ms": (1.0, 3.0)})
    frame = balance([make.ok("a", changes={"timing": times}), make.ok("b", machine="gpus")])
    a, b = row(frame, "a"), row(frame, "b")
    assert (a.emb_ms_max, a.max_over_mean) == (8.0, 1.6)
    assert (a.emb_cpu_ms_min, a.emb_cpu_ms_mean, a.emb_cpu_ms_max, a.emb_cpu_ms_std) == (1.0, 2.0, 3.0, 1.0)
    assert a.cpu_max_over_mean == 1.5
    assert b[[c for c in frame.columns if "cpu" in c]].isna().all()
    with_cpu, without = (section.headers for section in sections("balance", frame))
    assert "CPU max (ms)" in with_cpu
    assert "max (ms)" not in with_cpu
    assert "CPU max (ms)" not in without
    assert "max (ms)" in without


def test_tiers_are_those_of_the_records():
    frame = traffic([make.ok("a", changes={"tiers": Tiers.COUNTED}), make.ok("b")])
    assert row(frame, "a").tiers == "counted only"
    assert row(frame, "b").tiers is None


def test_repeats_with_another_plan_are_not_noise():
    other = {"planned": make.planned(plan_hash="1" * 16)}
    frame = throughput([make.ok("a", (10.0,)), make.ok("a", (20.0,), repeat=1, changes=other)])
    assert frame.noise_pct.isna().all()


def test_seeds_are_pooled_but_are_no_repeats():
    frame = throughput([make.ok("a", (10.0, 10.0)), make.ok("a", (30.0, 30.0), seed=1)])
    assert len(frame) == 1
    assert (frame.n[0], frame.iterations[0], frame.step_ms[0]) == (2, 4, pytest.approx(math.sqrt(300)))
    assert frame.noise_pct.isna().all()


def test_conditions_are_not_mixed():
    frame = throughput([make.ok(), make.ok(batch_size=2000), make.ok(optimizer=Optimizer.ADAM)])
    assert len(frame) == 3
    assert list(frame.iterations) == [4, 4, 4]


def test_superseded_records_do_not_count():
    old = make.ok("a", (1.0,), workload_fingerprint="0" * 16)
    gone = make.ok("b", (1.0,), machine_hash="0" * 16)
    new, again = make.ok("a", (5.0,), iterations=1), make.ok("a", (6.0,), iterations=2)
    assert current([old, gone, new, again]) == [again]


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_records_does_not_count(seed):
    shuffled = make.sample()
    random.Random(seed).shuffle(shuffled)
    for name, frame in tables(make.sample()).items():
        assert table_csv(tables(shuffled)[name]) == table_csv(frame)
