"""Predicted against measured, on records whose errors are worked out by hand."""

import csv
import json
import math

import pytest
import records as make

from shardbench.cli.main import run_command
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.report.prediction import points, summaries
from shardbench.report.prediction_text import limit, text_lines


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
    # Repeats: 10 and 12, 20 and 22.
    assert step.repeat_mape_pct == pytest.approx(100 * (2 / 12 + 2 / 22) / 2)
    # Predicted order a, c, b; measured a, b, c: two pairs of three are right.
    assert step.tau == pytest.approx(1 / 3)
    # The noise of one plan repeated once: t of one degree of freedom makes it 12.7 standard errors.
    assert (step.resolved_pairs, step.pairs) == (0, 3)
    # The dense model is 0, +9 and -20 ms off.
    assert step.worst_part == "dense model"
    assert step.worst_part_ms == pytest.approx(-11 / 3)


def test_embedding_leaves_out_ranks_without_work():
    embedding = of(points(RECORDS), "embedding")
    # a: 2 and 4 ms, exact; b: 6 / 8, rank 1 idle; c: exact.
    assert embedding.n == 5
    assert embedding.mape_pct == pytest.approx(100 * 0.25 / 5)
    assert embedding.noise_pct == pytest.approx(0.0)


def test_pairs_within_noise_are_not_ranked():
    records = [
        trial("a", measured=10.0, predicted=10.0, plan="a" * 16, repeat=0),
        trial("a", measured=10.2, predicted=10.0, plan="a" * 16, repeat=1),
        trial("b", measured=11.5, predicted=9.0, plan="b" * 16),
        trial("c", measured=30.0, predicted=30.0, plan="c" * 16),
    ]
    step = of(points(records), "step")
    assert step.noise_pct == pytest.approx(100 * (1.02 ** math.tan(0.475 * math.pi) - 1))
    assert (step.resolved_pairs, step.pairs) == (2, 3)
    assert step.resolved_tau == 1.0
    assert step.tau == pytest.approx(1 / 3)
    assert "1 of 3 pairs differ by less than the noise floor" in limit(step)


def test_what_limits_is_said_in_words():
    step = of(points(RECORDS), "step")
    assert limit(step) == (
        "step time, dlrm20: MAPE 31.0 % misses the aim of 15 %, tau 0.33 misses that of 0.9; the model limits it, with "
        "errors of both signs; the part furthest off is the dense model (-3.67 ms); "
        "3 of 3 pairs differ by less than the noise floor and cannot be ranked"
    )
    near = [
        trial("a", measured=10.0, predicted=10.5, repeat=0), trial("a", measured=11.5, predicted=10.5, repeat=1),
    ]  # fmt: skip
    assert "the error is within the noise of the measurement" in limit(of(points(near), "step"))
    far = [trial("a", measured=10.0, predicted=20.0)]
    assert "nothing was repeated" in limit(of(points(far), "step"))


def test_only_measured_rows_that_are_ok_count():
    assert points([make.ok(backend=Backend.SIMULATED), make.failed(Outcome.OOM)]) == []


def test_workloads_are_summed_up_together():
    more = [*RECORDS, trial("a", measured=5.0, predicted=5.0, workload="other")]
    found = [(s.quantity, s.workload) for s in summaries(points(more))]
    assert found == [
        ("step", "dlrm20"), ("step", "other"), ("step", "all"),
        ("embedding", "dlrm20"), ("embedding", "other"), ("embedding", "all"),
    ]  # fmt: skip
    assert all(line.isascii() for line in text_lines(summaries(points(more))))


def test_the_command(tmp_path, capsys):
    for suite, records in (("quick", RECORDS), ("more", [trial("z", measured=5.0, predicted=5.0, workload="w")])):
        store = trial_store(tmp_path, suite)
        for record in records:
            store.append(record)
    command = ["report", "prediction", "--results", str(tmp_path)]
    assert run_command([*command, "--check"]) == 1
    assert "missing; run: shardbench report prediction" in capsys.readouterr().out
    assert run_command(command) == 0
    out = capsys.readouterr().out
    assert "MAPE" in out
    assert "tau" in out
    path = tmp_path / "tables" / "prediction" / "points.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0])[:5] == ["workload", "strategy", "rank", "predicted_ms", "measured_ms"]
    assert [(r["strategy"], r["rank"], r["predicted_ms"], r["measured_ms"], r["n"]) for r in rows[:3]] == [
        ("a", "step", "11.00000", "11.00000", "4"),
        ("a", "0", "2.00000", "2.00000", "4"),
        ("a", "1", "4.00000", "4.00000", "4"),
    ]
    assert {r["workload"] for r in rows} == {"dlrm20", "w"}
    assert run_command([*command, "--check"]) == 0
    capsys.readouterr()
    assert run_command([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["summaries"]) == 6
    path.write_text("edited")
    assert run_command([*command, "--check"]) == 1


def test_no_measured_records_is_one_line(tmp_path, capsys):
    assert run_command(["report", "prediction", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
