"""Simulated trials side by side and as submitit's jobs: the same records, and a job that dies is one outcome."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import misbehaving
import pytest
from cluster_jobs import fails_at_two, hangs_or_ends
from kept_folders import Silent
from test_launch import held, hold, runs, within
from toy_machine import MADE_UP, machine_file

from shardbench.base.errors import BadInput
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Failure, Outcome
from shardbench.trials.cluster import CallOutcome, Cluster, Engine, submit_all
from shardbench.trials.discovery import get_strategy
from shardbench.trials.runner import RunOptions, run_suite
from shardbench.trials.suite import load_suite

SUITE = (
    """
name = "tiny"
description = "a made-up trace on a made-up machine, twice"
"""
    + MADE_UP
    + """
[[grids]]
machines = ["{machine}"]
overrides = [{{}}, {{ uvm_bandwidth = "3 GB/s" }}]
backends = ["simulated"]
iterations = 2
strategies = ["shuffle", "greedy-size", "row-wise"]
"""
)


pytestmark = pytest.mark.usefixtures("few_draws", "unconfined")


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "trace.txt").write_text("\n".join(str(7 * i % 500) for i in range(2000)) + "\n")
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE.format(trace=tmp_path / "trace.txt", machine=machine_file(tmp_path)))
    return load_suite(str(suite)), RunOptions(results=tmp_path / "results", data=tmp_path, work=tmp_path / "work")


def facts(records):
    """Records by key without what the clock says."""
    found = {}
    for record in records:
        data = record.model_dump(mode="json", exclude={"provenance"})
        for name in ("plan_s", "fit_s", "plan_cpu_s", "fit_cpu_s") if data["planned"] else ():
            del data["planned"][name]
        found[record.key] = data
    return found


class Order(Silent):
    """Listener that remembers which trials were done, and which were begun alone."""

    def __init__(self):
        self.done, self.begun = [], []

    def started(self, piece):
        self.begun.append(piece)

    def noted(self, line):
        """See Listener."""

    def finished(self, number, record):
        self.done.append((number, record.key))


def test_records_are_the_same_however_many_run_at_once(tiny, tmp_path):
    suite, options = tiny
    alone = run_suite(suite, options, Silent())
    assert [record.outcome for record in alone] == [Outcome.OK] * 6
    log = Order()
    beside = run_suite(suite, replace(options, results=tmp_path / "parallel", parallel=3, work=None), log)
    assert [record.key for record in beside] == [record.key for record in alone]
    assert facts(beside) == facts(alone)
    assert log.begun == []
    assert [number for number, _ in log.done] == [1, 2, 3, 4, 5, 6]
    assert {key for _, key in log.done} == facts(alone).keys()
    assert facts(trial_store(tmp_path / "parallel", "tiny").read()) == facts(alone)


def test_measured_trials_stay_alone_and_in_order(tiny):
    suite, options = tiny
    measured = suite.jobs[0].model_copy(update={"backend": Backend.MEASURED, "strategies": ("row-wise",)})
    log = Order()
    jobs = (measured, suite.jobs[1])
    records = run_suite(suite.model_copy(update={"jobs": jobs}), replace(options, parallel=2), log)
    assert [record.outcome for record in records] == [Outcome.OK] * 4
    (begun,) = log.begun
    assert begun.startswith("measured ")
    assert log.done[-1] == (4, records[0].key)


class Does(misbehaving.Does):
    name = "shuffle"


class Hangs(misbehaving.Honest):
    name = "shuffle"

    def __init__(self, work: Path) -> None:
        self.work = work

    def plan(self, problem, budget, seed):
        hold(self.work / f"{time.monotonic_ns()}.lock")
        time.sleep(1e6)


def instead_of_shuffle(monkeypatch, strategy):
    def found(name):
        return strategy if name == "shuffle" else get_strategy(name)

    monkeypatch.setattr("shardbench.trials.discovery.get_strategy", found)


def test_a_killed_worker_is_an_outcome_and_the_others_run(tiny, monkeypatch):
    suite, options = tiny
    instead_of_shuffle(monkeypatch, Does("SIGKILL"))
    records = run_suite(suite, replace(options, parallel=2), Silent())
    assert [record.outcome.value for record in records] == ["error", "ok", "ok"] * 2
    assert "killed by signal 9 (not by the kernel for want of memory) in phase plan" in records[0].failure.cause


@pytest.mark.timeout(150)
def test_an_interrupt_ends_what_runs_and_keeps_what_is_done(tiny, monkeypatch):
    suite, options = tiny
    long = tuple(job.model_copy(update={"plan_s": 100_000}) for job in suite.jobs)
    instead_of_shuffle(monkeypatch, Hangs(options.work))
    options.work.mkdir()

    class Interrupts(Silent):
        def noted(self, line):
            """See Listener."""

        def finished(self, number, record):
            assert within(60, lambda: list(options.work.glob("*.lock")))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(suite.model_copy(update={"jobs": long}), replace(options, parallel=2), Interrupts())
    assert len(trial_store(options.results, "tiny").read()) == 1
    locks = list(options.work.glob("*.lock"))
    assert within(60, lambda: not any(map(held, locks)))


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
def test_a_suite_on_two_local_workers_gives_the_same_records(tiny, local, tmp_path):
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


def test_what_a_job_gives_is_the_record_the_fault_of_a_file_or_the_failure(tiny, local, tmp_path, monkeypatch):
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


def test_what_cannot_be_submitted_is_one_clear_line(tiny, local, tmp_path, monkeypatch, command):
    with pytest.raises(BadInput, match=r"--cluster local: .*nonsense"):
        list(submit_all(fails_at_two, [(1,)], replace(local, parameters={"nonsense": 1})))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(BadInput, match=r"needs submitit: install shardbench\[cluster\]"):
        list(submit_all(fails_at_two, [(1,)], local))
    said = command("run", "quick", "--cluster", "local", "--cluster-option", "mem_gb", code=2)
    assert "--cluster-option mem_gb: write NAME=VALUE" in said
    said = command("run", "quick", "--cluster-option", "mem_gb=4", code=2)
    assert "--cluster-option is for --cluster" in said
