"""A second judge beside the cost model: what records keep of it, ranks by either, and which orders plans better."""

import json
from pathlib import Path

import pandas as pd
import pytest
import records as make
from problems import RandomWorkload
from toy_machine import machine_file

from shardbench.model.plan import Plan, RowWise
from shardbench.model.problem import Problem
from shardbench.model.strategy import Role
from shardbench.records.record import Record
from shardbench.records.trial import Backend, Outcome, TrialSpec
from shardbench.report.page.write import page
from shardbench.report.prediction.against_measured import points
from shardbench.report.prediction.judges import COLUMNS, judges_csv
from shardbench.report.standing import ranks_by_judge
from shardbench.report.tables.answer import answers, lines
from shardbench.report.tables.leaderboard import measured_steps
from shardbench.report.tables.suite_tables import throughput
from shardbench.report.tables.text import sections
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import StepJudge, second_judge
from shardbench.trials.run_trial import JobContext, run_trial
from shardbench.trials.suite import Job


def simulated(strategy, ms, torchrec_ms, **more):
    changes = {"torchrec_estimate_ms": torchrec_ms, "draws": make.draws(ms)}
    return make.ok(strategy, (ms, ms), backend=Backend.SIMULATED, changes=changes, **more)


def measured(strategy, times, predicted, torchrec_ms, **spec):
    """A plan's repeats: measured ms, what the cost model predicted, what TorchRec estimated."""
    return [
        make.ok(
            strategy,
            (ms, ms),
            repeat=i,
            changes={
                "predicted": make.timing((predicted, predicted), (1.0, 1.0)),
                "planned": make.planned(plan_hash=strategy[0] * 16),
                "torchrec_estimate_ms": torchrec_ms,
            },
            **spec,
        )
        for i, ms in enumerate(times)
    ]


DISAGREE = [
    simulated("a", 10.0, 5.0),
    simulated("b", 12.0, 3.0),
    simulated("c", 14.0, 4.0),
    simulated("host", 9.0, None),
    simulated("searched", 8.0, 1.0, role=Role.SEARCH),
]
SENTENCE = (
    "the judges disagree about the best: of the 3 plans that both rate, the cost model has a first, TorchRec's own "
    "estimator b"
)


def test_places_are_among_the_rows_that_both_rate_and_equal_steps_share_theirs():
    rated = [(3.0, 1.0), (1.0, None), (2.0, 2.0), (None, 0.5), (2.0 * (1 + 1e-9), 2.0), (9.0, 9.0)]
    assert ranks_by_judge(rated) == [(3, 1), None, (1, 2), None, (1, 2), (4, 4)]
    assert ranks_by_judge([]) == []


def test_a_table_has_the_ranks_by_either_judge():
    frame = throughput(DISAGREE).set_index("strategy")
    places = {name: (row.model_rank, row.torchrec_rank) for name, row in frame.iterrows()}
    assert {name: places[name] for name in "abc"} == {"a": (2, 4), "b": (3, 2), "c": (4, 3)}
    assert places["searched"] == (1, 1)
    assert all(map(pd.isna, places["host"]))
    assert frame.torchrec_estimate_ms.dropna().to_dict() == {"a": 5.0, "b": 3.0, "c": 4.0, "searched": 1.0}
    assert frame.predicted_step_ms.isna().all(), "where simulated it is the step itself"
    (section,) = sections("throughput", throughput(DISAGREE))
    row = next(row for row in section.rows if row[0] == "host")
    assert row[section.headers.index("TorchRec's estimate (ms)")] == "-", "a plan that TorchRec cannot express"
    assert SENTENCE in section.note


def test_measured_rows_are_ranked_by_what_was_predicted():
    records = [*measured("a", (10.0, 10.1), 9.0, 5.0), *measured("b", (20.0, 20.2), 8.0, 6.0)]
    frame = throughput(records).set_index("strategy")
    assert frame.predicted_step_ms.to_dict() == {"a": 9.0, "b": 8.0}
    assert frame.model_rank.to_dict() == {"a": 2, "b": 1}
    assert frame.torchrec_rank.to_dict() == {"a": 1, "b": 2}
    some = [records[0].model_copy(update={"torchrec_estimate_ms": None}), *records[1:]]
    assert throughput(some).set_index("strategy").torchrec_rank.isna().to_dict() == {"a": True, "b": False}, "a's first"


def test_tables_without_any_estimate_have_no_such_column():
    (section,) = sections("throughput", throughput([simulated("a", 10.0, None)]))
    assert not {"TorchRec's estimate (ms)", "rank by model, TorchRec"} & set(section.headers)


def test_answer_and_page_say_where_the_judges_disagree():
    (found,) = answers(DISAGREE, Path())
    assert SENTENCE in " ".join(" ".join(lines(found)).split())
    assert found.data()["judges"] == SENTENCE
    assert SENTENCE.replace("'", "&#39;") in page("quick", DISAGREE, Path("nowhere"))


@pytest.mark.parametrize(
    "records",
    [
        [simulated("a", 10.0, 3.0), simulated("b", 12.0, 3.0), simulated("c", 14.0, 5.0)],
        [simulated("a", 10.0, None), simulated("b", 12.0, None)],
        [simulated("a", 10.0, 3.0), simulated("b", 12.0, 1.0, role=Role.SEARCH)],
    ],
    ids=["shared place", "nothing rated", "a reference"],
)
def test_nothing_is_said_where_the_judges_agree(records):
    (found,) = answers(records, Path())
    assert "judges" not in " ".join(lines(found))
    assert found.data()["judges"] == ""


def test_which_judge_orders_better_by_hand():
    # Plans far beyond the noise, measured in the order a, b, c, d. The cost model has ab wrong, TorchRec ab, ac and bc;
    # e it does not rate.
    group = [
        *measured("a", (10.0, 10.01), 21.0, 30.0), *measured("b", (20.0, 20.01), 20.0, 20.0),
        *measured("c", (40.0, 40.02), 30.0, 10.0), *measured("d", (80.0, 80.05), 40.0, 40.0),
        *measured("e", (5.0, 5.01), 99.0, None),
    ]  # fmt: skip
    # Here TorchRec is right and the cost model has both equal.
    other = [
        *measured("a", (10.0, 10.01), 5.0, 1.0, machine="cpu-2x2"),
        *measured("b", (20.0, 20.01), 5.0, 2.0, machine="cpu-2x2"),
    ]
    rows = [line.split(",") for line in judges_csv(points([*group, *other])).splitlines()]
    assert tuple(rows[0]) == COLUMNS
    assert rows[1:] == [
        ["dlrm20", "cpu-1x2", "4", "6", "6", "0.667", "0.000", "2", "0", "model"],
        ["dlrm20", "cpu-2x2", "2", "1", "1", "0.000", "1.000", "0", "1", "torchrec"],
        ["dlrm20", "all", "6", "7", "7", "0.571", "0.143", "2", "1", "model"],
        ["all", "all", "6", "7", "7", "0.571", "0.143", "2", "1", "model"],
    ]


def test_a_plan_that_two_strategies_reach_counts_once_and_noise_is_no_order():
    records = [
        *measured("a", (10.0, 12.0), 5.0, 6.0), *measured("ab", (10.5, 11.5), 5.0, 6.0),
        *measured("b", (10.2, 12.1), 6.0, 5.0),
    ]  # fmt: skip
    assert judges_csv(points(records)).splitlines()[1:] == ["dlrm20,cpu-1x2,2,1,0,,,0,0,"]


def test_without_repeats_or_estimates_nothing_is_compared():
    once = points([*measured("a", (10.0,), 5.0, 6.0), *measured("b", (20.0,), 6.0, 5.0)])
    assert judges_csv(once).splitlines()[1:] == ["dlrm20,cpu-1x2,2,1,0,,,0,0,"]
    assert judges_csv(points(measured("a", (10.0, 10.1), 5.0, None))).splitlines() == [",".join(COLUMNS)]


def test_measured_rows_of_the_leaderboard_have_places_too():
    records = [*measured("a", (10.0, 10.1), 9.0, 5.0), *measured("b", (20.0, 20.2), 8.0, 6.0)]
    table = measured_steps(records, 1, {"cpu-1x2": 2}, {}).set_index("strategy")
    assert table.model_rank.to_dict() == {"a": 2, "b": 1}
    assert table.torchrec_rank.to_dict() == {"a": 1, "b": 2}


def test_a_record_without_an_estimate_is_read_as_before():
    record = make.ok()
    data = record.model_dump(mode="json")
    del data["torchrec_estimate_ms"]
    assert Record.model_validate(data) == record
    with pytest.raises(ValueError, match="torchrec_estimate_ms"):
        Record.model_validate({**data, "torchrec_estimate_ms": -1.0})


def of_dealt_rows(plan: Plan, problem: Problem) -> float | None:
    """A judge that needs nothing: as many ms as the tables have rows, None where a table is whole on a device."""
    dealt = all(isinstance(segment.placement, RowWise) for segment in plan.segments)
    return float(sum(profile.rows for profile in problem.profiles)) if dealt else None


def fails(plan: Plan, problem: Problem) -> float | None:
    raise RuntimeError("no such table")


def asked(tmp_path: Path, name: str, judge: StepJudge | None) -> Record:
    """Run one simulated trial with a second judge."""
    workload = RandomWorkload([(100, 8), (40, 8)], 16)
    job = Job(workload="random", machine=machine_file(tmp_path), backend=Backend.SIMULATED, iterations=2, plan_s=1)
    spec = TrialSpec(
        suite="s", workload="random", workload_fingerprint="f", machine="toy", machine_hash="m",
        backend=Backend.SIMULATED, strategy=name, seed=0, batch_size=16, iterations=2, plan_s=5, fit_s=5, timeout_s=60,
    )  # fmt: skip
    with second_judge(judge) as second:
        context = JobContext(job, workload, tmp_path / "job", second=second)
        return run_trial(spec, get_strategy(name), context, "e")


def test_a_record_keeps_what_the_second_judge_said(tmp_path):
    record = asked(tmp_path, "row-wise", of_dealt_rows)
    assert record.outcome is Outcome.OK
    assert record.torchrec_estimate_ms == 140.0
    again = Record.model_validate_json(record.model_dump_json())
    assert again == record
    assert json.loads(record.model_dump_json())["torchrec_estimate_ms"] == 140.0


@pytest.mark.parametrize(("name", "judge"), [("greedy-size", of_dealt_rows), ("row-wise", None)])
def test_a_plan_that_it_cannot_judge_and_no_judge_leave_it_empty(tmp_path, name, judge):
    record = asked(tmp_path, name, judge)
    assert record.outcome is Outcome.OK
    assert record.torchrec_estimate_ms is None


def test_a_judge_that_fails_is_the_trials_failure(tmp_path):
    record = asked(tmp_path, "greedy-size", fails)
    assert record.outcome is Outcome.ERROR
    assert "no such table" in record.cause
