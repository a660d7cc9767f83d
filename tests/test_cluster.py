"""Simulated trials as jobs of submitit's local engine: the same records, and a job that dies is one trial's outcome."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_jobs import fails_at_two, hangs_or_ends
from kept_folders import Silent
from test_launch import runs, within
from test_parallel import Order, facts, tiny  # noqa: F401 - a fixture

from shardbench.base.errors import BadInput
from shardbench.records.store import trial_store
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.cluster import CallOutcome, Cluster, Engine, submit_all
from shardbench.trials.runner import run_suite


@pytest.fixture
def local(tmp_path, monkeypatch):
    # submitit ends its jobs by this signal, which they would ignore where the tests run in the background of a script.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Jobs are started by name: they import the tests' modules from here.
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    yield Cluster(engine=Engine.LOCAL, folder=tmp_path / "jobs", at_once=2)
    signal.signal(signal.SIGINT, before)


def test_a_job_that_dies_is_a_failure_and_the_next_runs(local, monkeypatch):
    # submitit waits so many seconds for the result of a job that ended, should the file system be slow.
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)
    done = {one.number: one.value for one in submit_all(fails_at_two, [(3,), (2,), (1,)], local)}
    assert done[2] != os.getpid()
    assert isinstance(done[1], Failure)
    assert done[1].cause.startswith("ZeroDivisionError: two is not to be had (cluster_jobs.py:")
    assert isinstance(done[0], Failure)
    assert "its job ended without a result" in done[0].cause
    assert {done[0].outcome, done[1].outcome} == {Outcome.ERROR}
    assert all("\n" not in done[number].cause for number in (0, 1))


def test_who_reads_no_further_cancels_what_runs(local, tmp_path):
    going = submit_all(hangs_or_ends, [("",), (str(tmp_path),)], local)
    next(going)
    assert within(60, lambda: list(tmp_path.glob("*.pid")))
    going.close()
    (pid,) = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert within(60, lambda: not runs(pid))


@pytest.mark.slow
def test_a_suite_on_two_local_workers_gives_the_same_records(tiny, local, tmp_path):  # noqa: F811
    suite, options = tiny
    two = suite.jobs[0].model_copy(update={"strategies": ("shuffle", "row-wise")})
    one = suite.model_copy(update={"jobs": (two,)})
    here = run_suite(one, options, Silent())
    log = Order()
    there = run_suite(one, replace(options, results=tmp_path / "there", work=None, cluster=local), log)
    assert facts(there) == facts(here)
    assert [number for number, _ in log.done] == [1, 2]
    environments = {path.stem for path in (tmp_path / "there" / "environments").iterdir()}
    assert {record.environment for record in there} <= environments
    assert all((tmp_path / "there" / "plans" / f"{record.planned.plan_hash}.json").is_file() for record in there)


def test_what_a_job_gives_is_the_record_the_fault_of_a_file_or_the_failure(tiny, local, tmp_path, monkeypatch):  # noqa: F811
    suite, options = tiny
    one = suite.model_copy(update={"jobs": (suite.jobs[0].model_copy(update={"strategies": ("row-wise", "shuffle")}),)})
    here = run_suite(one, options, Silent())
    dies = Failure(outcome=Outcome.OOM, cause="its job ended without a result", phase="harness")

    def in_this_process(call, arguments, cluster):
        yield CallOutcome(number=1, value=dies)
        if broken:
            (tmp_path / "trace.txt").write_text("no number\n")
        yield CallOutcome(number=0, value=call(*arguments[0]))

    monkeypatch.setattr("shardbench.trials.runner.submit_all", in_this_process)
    broken = False
    there = run_suite(one, replace(options, results=tmp_path / "there", work=None, cluster=local), Silent())
    assert facts(there[:1]) == facts(here[:1])
    assert (there[1].spec, there[1].failure) == (here[1].spec, dies)
    broken = True
    with pytest.raises(BadInput, match="is not a row index"):
        run_suite(one, replace(options, results=tmp_path / "broken", work=None, cluster=local), Silent())
    assert [record.failure for record in trial_store(tmp_path / "broken", "tiny").read()] == [dies]


def test_what_cannot_be_submitted_is_one_clear_line(tiny, local, tmp_path, monkeypatch, command):  # noqa: F811
    with pytest.raises(BadInput, match=r"--cluster local: .*nonsense"):
        list(submit_all(fails_at_two, [(1,)], replace(local, parameters={"nonsense": 1})))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(BadInput, match=r"needs submitit: install shardbench\[cluster\]"):
        list(submit_all(fails_at_two, [(1,)], local))
    said = command("run", "quick", "--cluster", "local", "--cluster-option", "mem_gb", code=2)
    assert "--cluster-option mem_gb: write NAME=VALUE" in said
    said = command("run", "quick", "--cluster-option", "mem_gb=4", code=2)
    assert "--cluster-option is for --cluster" in said
