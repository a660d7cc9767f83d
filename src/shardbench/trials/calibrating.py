"""Machines of a measured suite, calibrated in the run that measures it, before its first trial and after its last.

A machine file is of one machine at one time. All plans and predictions of a run are made with the file from before; the
one from after says how far the machine moved meanwhile.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardbench.base.atomic import write_atomically
from shardbench.base.host import cores
from shardbench.base.reading import file_bytes, file_text
from shardbench.base.serialise import StrictModel, content_hash, from_json, to_json
from shardbench.base.temporary import temporary_folder
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine, overridden
from shardbench.records.trial import Backend
from shardbench.trials.control import control_plan
from shardbench.trials.jobcheck import lacking_devices
from shardbench.trials.quiet import Quiet
from shardbench.trials.simulate import simulate
from shardbench.trials.suite import Job, Suite
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

BEFORE, AFTER = "before", "after"
_SIGNIFICANT = 1.96

Calibrate = Callable[[Machine, Path, Sequence[Workload]], None]
"""Measures this machine, as one of that shape, and writes its file; the workloads are those that it will run."""


class Drift(StrictModel):
    """How far a machine moved in a run: the predicted step of a workload's control plan, after over before."""

    workload: str
    machine: str
    machine_hash: str
    """Hash of the machine as it was before, which the records name too."""
    before_ms: float
    after_ms: float
    error_pct: float | None
    """How far the two would differ in 95 % of cases by what the calibrations say of their own errors; None: nothing."""

    @property
    def drift_pct(self) -> float:
        """Return the difference in per cent."""
        return 100.0 * (self.after_ms / self.before_ms - 1.0)

    @property
    def beyond(self) -> bool:
        """Tell whether it is more than the calibrations' own errors explain."""
        return self.error_pct is not None and abs(self.drift_pct) > self.error_pct

    @property
    def text(self) -> str:
        """Say it in one line."""
        error = "" if self.error_pct is None else f", their own errors explain {self.error_pct:.1f} %"
        warning = ": the machine changed meanwhile, run it again with --fresh" if self.beyond else ""
        change = f"calibrated before and after, the control plan's predicted step differs by {self.drift_pct:+.1f} %"
        return f"{self.workload} on {self.machine}: {change}{error}{warning}"


class Drifts(StrictModel):
    """The file of a run's drifts."""

    drifts: tuple[Drift, ...]


def machine_path(results: Path, suite: str, when: str, machine: str) -> Path:
    """Return the file of a calibration of a suite's run; it has the machine's name, so that cells keep theirs."""
    return results / "machines" / suite / when / f"{machine}.toml"


def _drift_path(results: Path, suite: str) -> Path:
    return results / "machines" / suite / "drift.json"


def as_calibrated(suite: Suite, results: Path) -> Suite:
    """Return the suite with its measured jobs on the machines that its run calibrated, as far as it did."""
    if not suite.calibrate:
        return suite

    def on_calibrated(job: Job) -> Job:
        path = machine_path(results, suite.name, BEFORE, load_machine(job.machine).name)
        is_calibrated = job.backend is Backend.MEASURED and path.is_file()
        return job.model_copy(update={"machine": str(path)}) if is_calibrated else job

    return suite.model_copy(update={"jobs": tuple(map(on_calibrated, suite.jobs))})


def read_drifts(results: Path, suite: str, machine_hashes: Iterable[str]) -> list[Drift]:
    """Return the drifts of the machines of these hashes in a suite's run; raises BadInput where the file is damaged."""
    path, hashes = _drift_path(results, suite), set(machine_hashes)
    if not path.is_file():
        return []
    return [one for one in from_json(Drifts, file_bytes(path), str(path)).drifts if one.machine_hash in hashes]


@dataclass(frozen=True, kw_only=True)
class Calibrations:
    """The calibrations of a run of a suite."""

    suite: str
    jobs: tuple[tuple[Job, Workload], ...]
    """The jobs that are measured here, as they are written."""
    results: Path
    calibrate: Calibrate
    quiet: Quiet
    note: Callable[[str], None]

    def before(self, hashes: frozenset[str]) -> None:
        """Calibrate each machine, but for one whose file is there and whose hash is among those ``hashes`` of records.

        So trials of an interrupted run and those that follow have one machine. Raises MachineBusy and TrialFailed.
        """
        for name, source in self._machines.items():
            path = self._path(BEFORE, name)
            # A file that no record needs is not read either: it may be of another version.
            reuse = (
                hashes and path.is_file() and hashes & {content_hash(one) for one in self._on(load_machine(str(path)))}
            )
            if not reuse:
                self._measure(source, path, BEFORE)
                self._path(AFTER, name).unlink(missing_ok=True)

    def after(self, *, again: bool) -> list[Drift]:
        """Calibrate each machine once more, where it was not or ``again``; write and return how far they moved.

        Raises MachineBusy and TrialFailed; gives nothing where there was nothing to do.
        """
        todo = {name: path for name, path in self._machines.items() if again or not self._path(AFTER, name).is_file()}
        for name, source in todo.items():
            self._measure(source, self._path(AFTER, name), AFTER)
        if not todo:
            return []
        drifts = [self._drift(job, workload) for job, workload in self.jobs if _calibrates(job)]
        write_atomically(_drift_path(self.results, self.suite), to_json(Drifts(drifts=tuple(drifts))) + "\n")
        return drifts

    @property
    def _machines(self) -> dict[str, str]:
        """The name of each machine, and the name or path by which its jobs call it."""
        return {load_machine(job.machine).name: job.machine for job, _ in self.jobs if _calibrates(job)}

    def _on(self, machine: Machine) -> list[Machine]:
        """Return the machine under the overrides of the jobs that run on it."""
        jobs = (job for job, _ in self.jobs if load_machine(job.machine).name == machine.name)
        return [overridden(machine, job.override) for job in jobs]

    def _path(self, when: str, name: str) -> Path:
        return machine_path(self.results, self.suite, when, name)

    def _measure(self, source: str, path: Path, when: str) -> None:
        machine = load_machine(source)
        workloads = [workload for job, workload in self.jobs if job.machine == source]
        self.note(f"calibrating {machine.name} {when} the trials: some four minutes")

        def measure() -> None:
            # In a folder of its own: the file of an earlier run lends it nothing, and it is there whole or not at all.
            with temporary_folder() as folder:
                new_file = folder / path.name
                if source.endswith(".toml"):
                    new_file.write_bytes(file_bytes(Path(source)))
                self.calibrate(machine, new_file, workloads)
                write_atomically(path, file_text(new_file), encoding="utf-8")

        self.quiet.take(measure, f"the calibration of {machine.name}")

    def _drift(self, job: Job, workload: Workload) -> Drift:
        name = load_machine(job.machine).name
        paths = (self._path(when, name) for when in (BEFORE, AFTER))
        machines = [overridden(load_machine(str(path)), job.override) for path in paths]
        # What whole steps are off is off before and after alike, and explains no difference.
        plain = [replace(machine, trust=None) for machine in machines]
        (before, before_error), (after, after_error) = (_predict_control(job, workload, machine) for machine in plain)
        is_known = before_error is not None and after_error is not None
        error = _SIGNIFICANT * math.hypot(before_error or 0.0, after_error or 0.0)
        return Drift(
            workload=workload.name,
            machine=machines[0].name,
            machine_hash=content_hash(machines[0]),
            before_ms=before,
            after_ms=after,
            error_pct=100.0 * math.expm1(error) if is_known else None,
        )


def _calibrates(job: Job) -> bool:
    """Tell whether the job's machine can be calibrated here, and is to be: not where ranks on CPUs share cores."""
    machine = load_machine(job.machine)
    fits = machine.topology.world_size <= cores() if machine.device == "cpu" else machine.topology.nodes == 1
    return fits and not lacking_devices(machine, job.backend)


def _predict_control(job: Job, workload: Workload, machine: Machine) -> tuple[float, float | None]:
    """Return the predicted ms of the control plan's step, and the standard deviation of its logarithm."""
    problem = workload.problem(machine, **job.training)
    batches = DrawnBatches(workload, min(job.iterations, workload.test_batches))
    simulation = simulate(control_plan(problem), problem, batches, workload.dense, job.iterations)
    draws = simulation.draws(problem, workload.dense)
    return simulation.step_ms, None if draws is None else float(np.std(np.log(draws.step_ms)))
