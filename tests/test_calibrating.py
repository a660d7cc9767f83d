"""A suite that calibrates its machines: with files before and after its trials, kept as long as records need them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from faults.suites import suite
from kept_folders import Silent
from toy_machine import MADE_UP

from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.model.machine_file import load_machine
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.trials import calibrating, runner
from shardbench.trials.calibrating import AFTER, BEFORE, Drift, as_calibrated, machine_path, read_drifts
from shardbench.trials.quiet import MachineBusy, Quiet
from shardbench.trials.runner import RunOptions, SuiteWork, run_suite

SUITE = (
    """
name = "tiny"
description = "a made-up trace on a made-up machine"
calibrate = true
"""
    + MADE_UP
    + """
[[grids]]
machines = ["{machine}"]
backends = ["measured"]
iterations = 3
warmup = 1
strategies = ["greedy-size", "shuffle"]
"""
)
pytestmark = pytest.mark.usefixtures("few_draws")
RATE = re.compile(r"(?<=^intra_bandwidth = \{ value = )\d+", re.MULTILINE)


class Log(Silent):
    """Listener that keeps what it is told."""

    def __init__(self):
        self.notes, self.ran = [], 0

    def started(self, piece):
        self.ran += 1

    def noted(self, line):
        self.notes.append(line)


class Calibrator:
    """A calibration that finds another rate each time; it knows what it was asked for."""

    def __init__(self, *rates):
        self.rates, self.asked = list(rates), []

    def __call__(self, machine, out, workloads):
        self.asked.append((machine.name, machine.topology.world_size, [workload.name for workload in workloads]))
        out.write_text(RATE.sub(str(self.rates.pop(0)), out.read_text()))


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrating, "cores", lambda: 8)
    return suite(tmp_path, SUITE), RunOptions(results=tmp_path / "results", data=tmp_path, busy_ok=True)


def test_a_run_is_predicted_with_the_file_from_before_and_says_how_far_the_machine_moved(asked):
    suite, options = asked
    found, log = Calibrator(3, 1), Log()
    records = run_suite(suite, replace(options, calibrate=found), log)
    written = load_machine(suite.jobs[0].machine)
    before, after = (machine_path(options.results, "tiny", when, written.name) for when in (BEFORE, AFTER))
    workload = suite.workloads[0]["name"]
    assert found.asked == [(written.name, written.topology.world_size, [workload])] * 2
    assert [record.outcome for record in records] == [Outcome.OK] * 2
    assert {record.spec.machine for record in records} == {written.name}
    assert {record.spec.machine_hash for record in records} == {content_hash(load_machine(str(before)))}
    rates = [load_machine(str(path)).constants.intra_bytes_per_s for path in (before, after)]
    assert rates[0] == 3 * rates[1]
    assert all(record.others_share is not None for record in records), "recorded, whatever it was"

    hashes = {record.spec.machine_hash for record in records}
    (drift,) = read_drifts(options.results, "tiny", hashes)
    assert drift.after_ms > drift.before_ms
    assert log.notes[-1] == drift.text
    assert read_drifts(options.results, "tiny", ["0" * 16]) == [], "of other records"


def test_an_interrupted_run_goes_on_with_its_machine(asked):
    suite, options = asked
    first = Calibrator(3, 3)
    run_suite(suite, replace(options, calibrate=first, strategies=("greedy-size",)), Log())
    again, log = Calibrator(2), Log()
    records = run_suite(suite, replace(options, calibrate=again), log)
    assert log.ran == 1
    assert len({record.spec.machine_hash for record in records}) == 1
    assert again.rates == [], "after its last trial alone"
    nothing = Calibrator()
    run_suite(suite, replace(options, calibrate=nothing), Log())
    assert nothing.asked == [], "all is settled"
    work = SuiteWork(as_calibrated(suite, options.results), options)
    assert {piece.key for piece in work.pieces} == {record.key for record in records}, "what status asks"


def test_without_records_a_machine_is_calibrated_anew(asked):
    suite, options = asked
    run_suite(suite, replace(options, calibrate=Calibrator(3, 3)), Log())
    path = machine_path(options.results, "tiny", BEFORE, load_machine(suite.jobs[0].machine).name)
    path.write_text("of a version that nobody reads any more")
    trial_store(options.results, "tiny").remove(lambda _: True)
    found, log = Calibrator(2, 2), Log()
    run_suite(suite, replace(options, calibrate=found), log)
    assert (len(found.asked), log.ran) == (2, 2)


def test_ranks_that_share_cores_are_not_calibrated(asked, monkeypatch):
    suite, options = asked
    monkeypatch.setattr(calibrating, "cores", lambda: 1)
    nothing = Calibrator()
    (record, _) = run_suite(suite, replace(options, calibrate=nothing), Log())
    assert nothing.asked == []
    assert record.spec.machine_hash == content_hash(load_machine(suite.jobs[0].machine))


def test_nobody_calibrates_where_nothing_is_measured_here(asked):
    suite, options = asked
    assert run_suite(suite, replace(options, backend=Backend.SIMULATED), Log()) == []
    left = replace(options, launch=False, work=options.results / "work", strategies=("greedy-size",))
    assert [record.outcome for record in run_suite(suite, left, Log())] == [Outcome.SKIPPED]
    with pytest.raises(BadInput, match="suite tiny calibrates its machines: run it by shardbench run tiny"):
        run_suite(suite, options, Log())


def test_nothing_is_recorded_on_a_busy_machine(asked, monkeypatch):
    suite, options = asked

    def busy(limit, noted):
        assert limit is not None
        return Refuses()

    class Refuses(Quiet):
        def take(self, work, what):
            if what.startswith("the calibration"):
                return super().take(work, what)
            raise MachineBusy("the machine is busy")

    monkeypatch.setattr(runner, "Quiet", busy)
    with pytest.raises(MachineBusy):
        run_suite(suite, replace(options, busy_ok=False, calibrate=Calibrator(3)), Log())
    assert trial_store(options.results, "tiny").read() == []


def test_a_drift_beyond_the_calibrations_own_errors_is_said():
    facts = {"workload": "mixed", "machine": "cpu-1x2", "machine_hash": "a" * 16, "before_ms": 50.0, "after_ms": 56.0}
    assert Drift(**facts, error_pct=20.0).text == (
        "mixed on cpu-1x2: calibrated before and after, the control plan's predicted step differs by +12.0 %, their "
        "own errors explain 20.0 %"
    )
    assert Drift(**facts, error_pct=10.0).text.endswith("the machine changed meanwhile, run it again with --fresh")
    assert not Drift(**facts, error_pct=None).beyond


def test_paths_are_under_the_results():
    assert machine_path(Path("runs"), "measured", BEFORE, "cpu-1x2") == Path(
        "runs/machines/measured/before/cpu-1x2.toml"
    )
