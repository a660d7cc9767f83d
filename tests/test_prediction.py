"""Predicted against measured, on records whose errors are worked out by hand."""

import csv
import json
from dataclasses import replace

import pytest
import records as make

from shardbench.model.calibrated import calibrated_on, measured_on
from shardbench.model.machine_file import load_machine
from shardbench.records.record import RankTiming
from shardbench.records.trial import Backend, Outcome
from shardbench.report.prediction.against_measured import ClockKind, points, read_measured
from shardbench.report.prediction.summary import summaries, text_lines


def trial(strategy, *, measured, predicted, embedding=(2.0, 4.0), foreseen=(2.0, 4.0), plan="0" * 16, **spec):
    """A measured record: step and embedding ms, measured and predicted."""
    changes = {
        "timing": make.timing((measured, measured), embedding, input=1.0, dense=measured - 1.0),
        "predicted": make.timing((predicted, predicted), foreseen, input=1.0, dense=predicted - 1.0),
        "planned": make.planned(plan_hash=plan),
    }
    return make.ok(strategy, changes=changes, **spec)


RECORDS = [
    trial("a", measured=10.0, predicted=11.0, plan="a" * 16, repeat=0),
    trial("a", measured=12.0, predicted=11.0, plan="a" * 16, repeat=1),
    trial("b", measured=20.0, predicted=30.0, embedding=(8.0, 0.05), foreseen=(6.0, 0.0), plan="b" * 16),
    trial("b2", measured=22.0, predicted=30.0, embedding=(8.0, 0.05), foreseen=(6.0, 0.0), plan="b" * 16),
    trial("c", measured=40.0, predicted=20.0, embedding=(5.0, 5.0), foreseen=(5.0, 5.0), plan="c" * 16),
]


def of(found, quantity):
    return next(summary for summary in summaries(found) if summary.quantity == quantity)


def test_step_numbers_worked_out_by_hand():
    step = of(points(RECORDS), "step")
    # a: 11 / 11; b and b2 share a plan: 30 / 21; c: 20 / 40.
    assert step.n == 3
    assert step.mape_pct == pytest.approx(100 * (0 + (30 / 21 - 1) + 0.5) / 3)
    assert step.bias_pct == pytest.approx(100 * (0 + (30 / 21 - 1) - 0.5) / 3)
    # The noise of one plan repeated once: t of one degree of freedom makes it 12.7 standard errors.
    assert (step.pairs_beyond_noise, step.kendall_tau) == (0, None)


def test_embedding_leaves_out_ranks_without_work():
    embedding = of(points(RECORDS), "embedding")
    # a: 2 and 4 ms, exact; b: 6 / 8, rank 1 idle; c: exact.
    assert embedding.n == 5
    assert embedding.mape_pct == pytest.approx(100 * 0.25 / 5)
    # Repeats are equal, so every pair but the two ranks of c is beyond their noise.
    assert embedding.pairs_beyond_noise == 9
    assert embedding.kendall_tau == 1.0
    idle = [p for p in points(RECORDS) if p.error is None]
    assert {(p.strategy, p.key.rank) for p in idle} == {("b", 1), ("b2", 1)}


def repeated(strategy, *measured, predicted, plan, **spec):
    return [
        trial(strategy, measured=ms, predicted=predicted, plan=plan * 16, repeat=i, **spec)
        for i, ms in enumerate(measured)
    ]


def test_pairs_within_noise_are_not_ranked():
    records = [
        *repeated("a", 10.0, 10.2, predicted=10.0, plan="a"), *repeated("b", 10.0, 10.2, predicted=9.0, plan="b"),
        *repeated("c", 30.0, 30.6, predicted=9.5, plan="c"), *repeated("d", 60.0, 61.2, predicted=60.0, plan="d"),
    ]  # fmt: skip
    step = of(points(records), "step")
    # a and b are equal; all else is beyond the noise, and of that only a before c is wrong.
    assert (step.pairs_beyond_noise, step.kendall_tau) == (5, pytest.approx((4 - 1) / 5))


def test_a_predicted_tie_is_neither_right_nor_wrong():
    records = [
        *repeated("a", 10.0, 10.1, predicted=5.0, plan="a"), *repeated("b", 20.0, 20.2, predicted=5.0, plan="b"),
        *repeated("c", 40.0, 40.4, predicted=9.0, plan="c"),
    ]  # fmt: skip
    step = of(points(records), "step")
    assert (step.pairs_beyond_noise, step.kendall_tau) == (3, pytest.approx(2 / 3))


def test_unknown_noise_resolves_no_pair():
    records = [trial("a", measured=10.0, predicted=10.0, plan="a" * 16), trial("b", measured=99.0, predicted=99.0)]
    step = of(points(records), "step")
    assert (step.pairs_beyond_noise, step.kendall_tau) == (None, None)


def test_workloads_machines_and_batches_are_no_pairs_of_each_other():
    records = [
        record
        for spec in ({}, {"workload": "other"}, {"batch_size": 2000}, {"machine": "cpu-1x4"}, {"optimizer": "adam"})
        for name, ms in (("a", 10.0), ("b", 20.0))
        for record in repeated(name, ms, ms * 1.001, predicted=ms, plan=name, **spec)
    ]
    found = summaries(points(records))
    assert [(s.workload, s.n, s.pairs_beyond_noise) for s in found if s.quantity == "step"] == [
        ("dlrm20", 8, 4), ("other", 2, 1), ("all", 10, 5),
    ]  # fmt: skip


def test_steps_are_put_in_order_at_one_speed_of_the_machine():
    # The machine was half as fast under both trials of a: its own steps say that b is faster.
    records = [
        one.model_copy(update={"predicted": trial(name, measured=own, predicted=predicted, plan=name * 16).predicted})
        for name, own, predicted, speeds, off in (
            ("a", 15.0, 15.0, (2.0, 4.0), 0.001),
            ("b", 24.0, 24.0, (1.0, 2.0), -0.001),
        )
        for one in make.drifting(name, own, speeds, off, planned=make.planned(plan_hash=name * 16))
    ]
    step = of(points(records), "step")
    assert (step.pairs_beyond_noise, step.kendall_tau) == (1, 1.0)
    alone = [record.model_copy(update={"control": None}) for record in records]
    assert of(points(alone), "step").pairs_beyond_noise == 0


def by_rank(*phases, cpu=None):
    return tuple(
        RankTiming(phases_ms=own, phases_cpu_ms=None if cpu is None else cpu[i]) for i, own in enumerate(phases)
    )


def rank_record(workload="dlrm20", **changes):
    """Two ranks; the second waits for the first in every exchange."""
    wall = {"input": 1.0, "lookup": 5.0, "output": 2.0, "dense": 9.0, "output_backward": 3.0, "lookup_backward": 4.0}
    waits = wall | {"input": 4.0, "output": 6.0, "lookup": 1.5, "lookup_backward": 1.0}
    cpu = {"lookup": 3.0, "dense": 8.0, "lookup_backward": 2.0}, {"lookup": 1.0, "dense": 7.0, "lookup_backward": 0.5}
    timing = make.timing((30.0, 30.0), (9.0, 2.5), **wall).model_copy(
        update={"embedding_cpu_ms": (5.0, 1.5), "ranks": by_rank(wall, waits, cpu=cpu)}
    )
    foreseen = make.timing(
        (20.0, 20.0), (6.0, 3.0), input=1.5, output=1.0, output_backward=1.0, all_reduce=1.0, dense=4.0
    )
    given = {"timing": timing, "predicted": foreseen, "calibrated_on": "A chip", **changes}
    return make.ok("a", changes=given, workload=workload)


def test_every_rank_and_phase_is_held_against_its_clock():
    found = {p.key: (p.predicted_ms, p.measured_ms) for p in points([rank_record()])}
    wall, cpu = ClockKind.WALL, ClockKind.CPU
    assert found == {
        ("step", None, wall): (20.0, 30.0),
        # Rank 0 came last everywhere, so its 1 + 2 + 3 ms hold no wait.
        ("exchange", None, wall): (4.5, 6.0),
        ("embedding", 0, cpu): (6.0, 5.0), ("embedding", 1, cpu): (3.0, 1.5),
        ("dense", 0, cpu): (4.0, 8.0), ("dense", 1, cpu): (4.0, 7.0),
        ("input", 0, wall): (1.5, 1.0), ("input", 1, wall): (1.5, 4.0),
        ("output", 0, wall): (1.0, 2.0), ("output", 1, wall): (1.0, 6.0),
        ("output_backward", 0, wall): (1.0, 3.0), ("output_backward", 1, wall): (1.0, 3.0),
    }  # fmt: skip
    ranks = by_rank({"lookup": 4.0, "input": 0.5}, {"lookup": 2.0})
    told = rank_record(predicted=rank_record().predicted.model_copy(update={"ranks": ranks}))
    found = {p.key: (p.predicted_ms, p.measured_ms) for p in points([told])}
    assert found["lookup", 0, cpu] == (4.0, 3.0)
    assert found["lookup", 1, cpu] == (2.0, 1.0)
    assert found["input", 0, wall] == (0.5, 1.0)
    assert ("input", 1, wall) not in found


def test_one_trial_without_cpu_time_makes_its_group_one_of_wall_time():
    bare = rank_record().timing.model_copy(update={"embedding_cpu_ms": None})
    records = [rank_record(), make.ok("b", changes={"timing": bare})]
    assert {(p.key.clock, p.measured_ms) for p in points(records) if p.key.quantity == "embedding"} == {
        (ClockKind.WALL, 9.0), (ClockKind.WALL, 2.5),
    }  # fmt: skip


def test_a_summary_says_whose_constants_predicted():
    assert {s.calibrated_on for s in summaries(points([rank_record()]))} == {"A chip"}
    other = rank_record("other", calibrated_on="Another")
    two = {s.workload: s.calibrated_on for s in summaries(points([rank_record(), other]))}
    assert two == {"dlrm20": "A chip", "other": "Another", "all": "A chip; Another"}
    assert of(points(RECORDS), "step").calibrated_on is None


def test_the_source_of_a_constant_names_the_chip():
    chip = "Some(R) CPU @ 2.5GHz, 2 cores"
    machine = load_machine("cpu-1x2")
    for how in (
        "",
        ", plain copy of 128 MiB, read and written",
        ", 20 points (kernels), median error 3 %",
        ": no more",
    ):
        assert calibrated_on(replace(machine, sources={"x": measured_on(chip) + how})) == chip
    taken = {"x": f"not measured, from cpu-1x2: {measured_on(chip)}", "y": "vendor's data sheet"}
    assert calibrated_on(replace(machine, sources=taken)) is None
    assert calibrated_on(machine) is not None
    assert calibrated_on(load_machine("a100-40gb-2x8")) is None


def test_only_measured_rows_that_are_ok_count():
    assert points([make.ok(backend=Backend.SIMULATED), make.failed(Outcome.OOM)]) == []


def test_workloads_are_summed_up_together():
    more = [*RECORDS, trial("a", measured=5.0, predicted=5.0, workload="other")]
    found = [(s.quantity, s.workload) for s in summaries(points(more))]
    assert found == [
        ("step", "dlrm20"), ("step", "other"), ("step", "all"),
        ("embedding", "dlrm20"), ("embedding", "other"), ("embedding", "all"),
    ]  # fmt: skip
    assert all(line.isascii() for line in text_lines(points(more)))


def test_the_command(tmp_path, command):
    make.kept(tmp_path, *RECORDS)
    make.kept(tmp_path, trial("z", measured=5.0, predicted=5.0, workload="w"), suite="more")
    line = ("report", "prediction", "--results", tmp_path)
    assert "missing; run: shardbench report prediction" in command(*line, "--check", code=1)
    out = command(*line)
    assert ["step", "dlrm20", "3", "31.0", "-2.4", "0"] in [line.split() for line in out.splitlines()]
    path, summary = (tmp_path / "tables" / "prediction" / name for name in ("points.csv", "summary.csv"))
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0])[:8] == [
        "workload", "strategy", "quantity", "rank", "clock", "predicted_ms", "measured_ms", "error_pct",
    ]  # fmt: skip
    assert [
        (r["quantity"], r["rank"], r["predicted_ms"], r["measured_ms"], r["n"], r["iterations"]) for r in rows[:3]
    ] == [
        ("step", "", "11.00000", "11.00000", "2", "4"),
        ("embedding", "0", "2.00000", "2.00000", "2", "4"),
        ("embedding", "1", "4.00000", "4.00000", "2", "4"),
    ]
    assert {r["workload"] for r in rows} == {"dlrm20", "w"}
    header, first, *_ = summary.read_text().splitlines()
    assert header == "quantity,workload,n,mape_pct,bias_pct,kendall_tau,pairs_beyond_noise,calibrated_on"
    assert first == "step,dlrm20,3,31.0,-2.4,,0,"
    command(*line, "--check")
    assert len(json.loads(command(*line, "--json"))["summaries"]) == 6
    for edited in (path, summary):
        kept = edited.read_text()
        edited.write_text("edited")
        command(*line, "--check", code=1)
        edited.write_text(kept)


def test_of_two_suites_under_one_condition_the_larger_counts(tmp_path):
    few = [trial("z", measured=5.0, predicted=6.0)]
    for suite, records in (("a-first", few), ("large", RECORDS), ("z-last", few)):
        make.kept(tmp_path, *records, suite=suite)
    assert {point.strategy for point in read_measured(tmp_path)} == {"a", "b", "b2", "c"}


def test_no_measured_records_is_one_line(tmp_path, command):
    command("report", "prediction", "--results", tmp_path, code=2)
