"""Suites resume, retry and force; trials keep their keys."""

import re
import socket
from dataclasses import replace

import pytest
import records as make
from faults.suites import suite
from kept_folders import Silent
from toy_machine import MADE_UP

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import from_json
from shardbench.engine.processes.job import RankJob
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.report.tables.suite_tables import throughput
from shardbench.trials.runner import RunOptions, SuiteWork, run_suite

pytestmark = pytest.mark.usefixtures("few_draws")

SUITE = (
    """
name = "tiny"
description = "a made-up trace on a made-up machine"
"""
    + MADE_UP
    + """
[[grids]]
machines = ["{machine}"]
backends = ["simulated"]
iterations = 2
strategies = ["shuffle", "greedy-size"]
[[grids]]
machines = ["{machine}"]
backends = ["measured"]
iterations = 3
warmup = 1
repeats = 2
strategies = ["greedy-size"]
"""
)


class Log(Silent):
    """Listener that remembers."""

    def __init__(self):
        self.calls = []

    def planned(self, work, unit, total, settled):
        self.calls.append(("planned", total, settled))

    def started(self, piece):
        self.calls.append(("started", piece.split()[3]))

    def finished(self, number, record):
        self.calls.append(("finished", number, record.outcome.value))


@pytest.fixture
def tiny(tmp_path):
    return suite(tmp_path, SUITE), RunOptions(results=tmp_path / "results", data=tmp_path)


def test_a_suite_runs_resumes_retries_and_forces(tiny):
    suite, options = tiny
    log = Log()
    records = run_suite(suite, options, log)
    assert [r.outcome for r in records] == [Outcome.OK] * 4
    assert log.calls[0] == ("planned", 4, 0)
    assert log.calls[1:3] == [("started", "shuffle"), ("finished", 1, "ok")]
    lines = trial_store(options.results, "tiny").path.read_text().splitlines()
    assert len(lines) == 4
    assert all(len(line) < 20_000 for line in lines)
    environments = list((options.results / "environments").glob("*.json"))
    assert [path.stem for path in environments] == [records[0].environment]

    again = Log()
    assert run_suite(suite, options, again) == records
    assert again.calls == [("planned", 4, 4)]
    forced = Log()
    run_suite(suite, replace(options, force=True, backend=Backend.SIMULATED), forced)
    assert forced.calls[0] == ("planned", 2, 0)
    assert len(trial_store(options.results, "tiny").read()) == 6

    spec = records[0].spec
    failed = records[0].model_dump(mode="json") | {
        "outcome": "oom",
        "failure": {"outcome": "oom", "cause": "made up", "phase": "time"},
    }
    trial_store(options.results, "tiny").append(Record.model_validate(failed))
    retried = Log()
    retry = replace(options, retry=frozenset({Outcome.OOM}))
    assert run_suite(suite, retry, retried)[0].outcome is Outcome.OK
    assert retried.calls == [("planned", 4, 3), ("started", spec.strategy), ("finished", 1, "ok")]


def test_a_measurement_counts_only_where_it_was_taken(tiny, monkeypatch):
    suite, options = tiny
    run_suite(suite, options, Log())
    elsewhere = Environment.here().model_copy(update={"cpu": "another one"})
    work = SuiteWork(suite, options)
    assert [trial.backend for trial in work.settled_pieces(work.store.latest(), elsewhere.hash)] == ["simulated"] * 2
    monkeypatch.setattr("shardbench.trials.session.Environment.here", lambda: elsewhere)
    again = Log()
    run_suite(suite, options, again)
    assert again.calls[0] == ("planned", 4, 2)


def test_who_is_clearly_slow_in_the_first_group_is_not_measured_again(tiny, monkeypatch):
    suite, options = tiny
    jobs = (suite.jobs[1].model_copy(update={"strategies": ("shuffle", "greedy-size")}),)
    suite, steps = suite.model_copy(update={"jobs": jobs}), {"shuffle": 20.0, "greedy-size": 10.0}
    asked = []

    def run_trial(spec, strategy, context, environment, provenance):
        asked.append((spec.strategy, spec.repeat))
        timed = make.timing((steps[spec.strategy],) * spec.iterations, (1.0, 1.0))
        update = {"timing": timed, "control": make.control(*(10.0,) * spec.iterations)}
        update |= {"key": spec.key, "spec": spec, "provenance": provenance, "environment": environment}
        return make.ok().model_copy(update=update)

    monkeypatch.setattr("shardbench.trials.runner.run_trial", run_trial)
    records = run_suite(suite, options, Log())
    assert asked == [("shuffle", 0), ("greedy-size", 0), ("greedy-size", 1)]
    (left_out,) = (record for record in records if record.left_out)
    assert (left_out.spec.strategy, left_out.spec.repeat, left_out.outcome) == ("shuffle", 1, Outcome.SKIPPED)
    assert "2.00 times the step of the best one" in left_out.failure.cause
    # What is on record decides as well, and is not asked again.
    monkeypatch.setattr("shardbench.trials.runner.SuiteWork.wants_rerun", lambda _, record: record.spec.repeat == 1)
    run_suite(suite, options, Log())
    assert asked[3:] == [("greedy-size", 1)]


def test_job_folders_may_be_kept(tiny, tmp_path):
    suite, options = tiny
    kept = replace(options, backend=Backend.MEASURED, work=tmp_path / "work")
    records = run_suite(suite, kept, Log())
    for record in records:
        (path,) = (tmp_path / "work").glob(f"*/{record.key}/job.json")
        assert from_json(RankJob, path.read_text()).device == "cpu"
    assert (path.parents[1] / "batches" / "0.values").is_file()
    assert path.parents[1].name == "made-up-toy-measured-fp32-sgd-32"


def test_an_impossible_pair_is_infeasible_rows_and_the_rest_runs(tiny):
    suite, options = tiny
    small = suite.jobs[0].model_copy(
        update={"override": dict.fromkeys(("hbm_capacity", "uvm_capacity", "host_capacity"), "1 B")}
    )
    jobs = (suite.jobs[0].model_copy(update={"batch_size": 31}), small, suite.jobs[0])
    impossible = suite.model_copy(update={"jobs": jobs})
    log = Log()
    records = run_suite(impossible, options, log)
    assert log.calls[0] == ("planned", 6, 0)
    assert [record.outcome.value for record in records] == ["infeasible"] * 4 + ["ok"] * 2
    causes = [record.failure.cause for record in records[:4]]
    assert all("batch size 31 is not a multiple of the 2 devices; set batch_size = 30" in one for one in causes[:2])
    assert all("the tables need " in one for one in causes[2:])
    assert {record.failure.phase for record in records[:4]} == {"start"}
    again = Log()
    assert run_suite(impossible, options, again) == records
    assert again.calls == [("planned", 6, 6)]
    outcomes = throughput(trial_store(options.results, "tiny").read())["outcome"]
    assert sorted(outcomes) == ["infeasible"] * 4 + ["ok"] * 2


@pytest.mark.parametrize(
    ("text", "rows", "says"),
    [
        ("no number\n", {}, "line 1: 'no number' is not a row index"),
        ("0\n9\n10\n3\n", {"rows": [10]}, "line 3: '10' is not a row index below 10: one index a line$"),
    ],
)
def test_a_file_that_cannot_be_read_ends_the_run_before_the_first_trial(tiny, tmp_path, text, rows, says):
    suite, options = tiny
    broken = tmp_path / "broken.txt"
    broken.write_text(text)
    (config,) = suite.workloads
    workloads = (config, {**config, **rows, "name": "broken", "files": [str(broken)]})
    jobs = (*suite.jobs, suite.jobs[0].model_copy(update={"workload": "broken"}))
    log = Log()
    with pytest.raises(BadInput, match=rf"broken\.txt {says}"):
        run_suite(suite.model_copy(update={"workloads": workloads, "jobs": jobs}), options, log)
    assert log.calls == []
    assert not options.results.exists()


def test_trials_are_interleaved_and_selected(tiny):
    suite, options = tiny
    listed = SuiteWork(suite, options).pieces
    assert [(t.backend.value, t.strategy, t.repeat) for t in listed] == [
        ("simulated", "shuffle", 0),
        ("simulated", "greedy-size", 0),
        ("measured", "greedy-size", 0),
        ("measured", "greedy-size", 1),
    ]
    assert len({t.key for t in listed}) == 4
    chosen = replace(options, strategies=("shuffle",), seeds=(3, 4))
    assert [(t.strategy, t.seed) for t in SuiteWork(suite, chosen).pieces] == [("shuffle", 3), ("shuffle", 4)]
    with pytest.raises(BadInput, match="unknown strategy 'nope'; "):
        SuiteWork(suite, replace(options, strategies=("nope",)))


def test_all_strategies_are_no_variants_and_none_that_the_job_leaves_out(tiny):
    suite, options = tiny
    job = suite.jobs[0].model_copy(update={"strategies": ("*",), "without": ("shuffle",)})
    every = suite.model_copy(update={"jobs": (job,)})
    named = {trial.strategy for trial in SuiteWork(every, options).pieces}
    assert "greedy-size" in named
    assert "shuffle" not in named
    assert "greedy-cost" not in named, "a variant"
    for one in ("shuffle", "greedy-cost"):
        assert [t.strategy for t in SuiteWork(every, replace(options, strategies=(one,))).pieces] == [one]
    misspelt = every.model_copy(update={"jobs": (job.model_copy(update={"without": ("shufle",)}),)})
    with pytest.raises(BadInput, match="unknown strategy 'shufle'"):
        SuiteWork(misspelt, options)


def test_a_quick_run_has_the_jobs_marked_so(tiny):
    suite, options = tiny
    quick = suite.jobs[1].model_copy(update={"quick": True})
    marked = suite.model_copy(update={"jobs": (suite.jobs[0], quick)})
    assert {t.backend.value for t in SuiteWork(marked, replace(options, quick=True)).pieces} == {"measured"}
    assert SuiteWork(suite, replace(options, quick=True)).pieces == []


def test_an_overridden_machine_is_another_trial_with_another_name(tiny):
    suite, options = tiny
    job = suite.jobs[0].model_copy(update={"override": {"uvm_bandwidth": "3 GB/s"}})
    both = suite.model_copy(update={"jobs": (suite.jobs[0], job)})
    names = {t.machine for t in SuiteWork(both, options).pieces}
    assert len({t.key for t in SuiteWork(both, options).pieces}) == 4
    assert any(name.endswith("+uvm_bandwidth-3GBps") for name in names)
    (record, *_) = run_suite(suite.model_copy(update={"jobs": (job,)}), options, Log())
    assert record.outcome is Outcome.OK


def test_same_simulated_trial_gives_the_same_numbers(tiny):
    suite, options = tiny
    simulated = replace(options, backend=Backend.SIMULATED)
    first = run_suite(suite, simulated, Log())
    second = run_suite(suite, replace(simulated, force=True), Log())
    for a, b in zip(first, second, strict=True):
        assert (a.timing, a.traffic, a.bound_ms, a.draws) == (b.timing, b.traffic, b.bound_ms, b.draws)
        assert a.planned.plan_hash == b.planned.plan_hash


def test_a_changed_workload_or_machine_is_another_trial(tiny, tmp_path):
    suite, options = tiny
    before = {t.key for t in SuiteWork(suite, options).pieces}
    path = tmp_path / "toy.toml"
    path.write_text(path.read_text().replace("value = 32", "value = 33"))
    assert before.isdisjoint(t.key for t in SuiteWork(suite, options).pieces)


def test_records_hold_no_path_and_no_host(tiny):
    suite, options = tiny
    run_suite(suite, replace(options, backend=Backend.SIMULATED), Log())
    text = trial_store(options.results, "tiny").path.read_text()
    text += "".join(path.read_text() for path in (options.results / "environments").iterdir())
    assert str(options.results.parent) not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
