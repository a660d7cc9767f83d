"""Simulated trials side by side: the same records, whatever the number, the order and what others do."""

import time
from dataclasses import replace
from pathlib import Path

import misbehaving
import pytest
from kept_folders import Silent
from test_launch import held, hold, within
from toy_machine import MADE_UP, machine_file

from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome
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
