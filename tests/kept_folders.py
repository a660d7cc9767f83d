"""A suite of one measured trial on two emulated nodes, its kept folder, and results as its ranks would leave them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from toy_machine import MADE_UP, machine_file

from shardbench.cost.phases import MEASURED_PHASES
from shardbench.engine.processes.job import Ran, RankResult
from shardbench.engine.processes.trial_folder import read_job, result_text
from shardbench.records.record import Record
from shardbench.records.trial import Outcome
from shardbench.trials.measured_trial import collect, read_trial
from shardbench.trials.runner import RunOptions, run_suite
from shardbench.trials.suite import load_suite

SUITE = (
    """
name = "kept"
description = "a made-up trace on two made-up nodes"
"""
    + MADE_UP
    + """
[[grids]]
machines = ["{machine}"]
backends = ["measured"]
iterations = 3
warmup = 1
strategies = ["row-wise"]
"""
)


class Silent:
    """Listener that tells nobody."""

    def planned(self, work, unit, total, settled):
        pass

    def started(self, piece):
        pass

    def noted(self, line):
        """See Listener."""

    def finished(self, number, record):
        pass


def suite_file(folder: Path) -> Path:
    rows = np.random.default_rng(0).integers(0, 500, 2000)
    (folder / "trace.txt").write_text("\n".join(map(str, rows)) + "\n")
    machine = Path(machine_file(folder))
    machine.write_text(
        machine.read_text().replace("nodes = 1\ndevices_per_node = 2", "nodes = 2\ndevices_per_node = 1")
    )
    suite = folder / "kept.toml"
    suite.write_text(SUITE.format(trace=folder / "trace.txt", machine=machine))
    return suite


def results_of(folder: Path, ran: Ran | None = None) -> list[RankResult]:
    """Results of ranks that sent what was counted, rank 0 all of it; every step took a millisecond."""
    record, job = read_trial(folder)
    ms = {phase: [1.0] * job.iterations for phase in (*MEASURED_PHASES, "step")}
    sent = dict(record.traffic.collectives)
    return [
        RankResult(
            rank=rank, job=read_job(folder)[1], took_s=1.0, ran=ran, ms=ms, control_ms=[1.0] * job.iterations,
            sent=[sent if rank == 0 else {}] * 2, calls=[{}, {}], shares=[0.5, 0.5],
        )
        for rank in range(2)
    ]  # fmt: skip


def leave(folder: Path, results: list[RankResult]) -> None:
    for result in results:
        (folder / f"rank{result.rank}.phase").write_text("bytes")
        (folder / f"rank{result.rank}.json").write_text(result_text(result))


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_times(record: Record) -> dict[str, object]:
    """A record but for what differs from one run of a plan to the next, in numbers or place."""
    taken = {"timing", "control", "ranks_hash", "environment", "provenance", "planned"}
    return record.model_dump(exclude=taken) | {"plan": record.planned.plan_hash}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Suite, options and trial folder of a run that starts no ranks."""
    folder = tmp_path_factory.mktemp("prepared")
    suite = load_suite(str(suite_file(folder)))
    options = RunOptions(results=folder / "results", data=folder, work=folder / "work", launch=False)
    (record,) = run_suite(suite, options, Silent())
    assert record.outcome is Outcome.SKIPPED
    assert "shardbench collect" in record.failure.cause
    (trial,) = (folder / "work").glob(f"*/{record.key}")
    return suite, options, trial


@pytest.fixture
def kept(prepared, tmp_path):
    """A copy of the prepared folder, elsewhere, and a results folder: what moves together still fits."""
    _, options, trial = prepared
    shutil.copytree(options.work, tmp_path / "work")
    return tmp_path / "work" / trial.relative_to(options.work), tmp_path / "results"


def only(folder, results):
    (one,) = collect(folder, results)
    return one
