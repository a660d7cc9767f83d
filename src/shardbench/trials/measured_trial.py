"""A measured trial: its folder, made before ranks run, and its record, judged after, wherever the ranks ran.

What ranks left in the folders of ``run --work`` is judged as if they had run here.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import StrictModel, content_hash, from_json, to_json
from shardbench.engine.measure import gather
from shardbench.engine.processes.failures import TrialFailed, failed
from shardbench.engine.processes.job import JOB, TO_DEVICE, TO_HOST, Ran, RankError, RankJob, RankResult
from shardbench.engine.processes.trial_folder import (
    attempt_number,
    holds_results,
    left_hash,
    phase_of,
    ranks_began,
    read_job,
    read_result,
    write_job,
)
from shardbench.model.calibrated import chip_of, is_calibrated
from shardbench.model.machine import Machine
from shardbench.records.provenance import Provenance
from shardbench.records.record import Control, Record, Timing, TrafficTotals
from shardbench.records.store import keep_log, keep_plan, trial_store
from shardbench.records.trial import TRAINING, Failure, Outcome, TrialSpec

TRIAL = "trial.json"
SETTLES_S = 60.0
"""So long after the last file of a rank others may still be on their way through a shared file system."""


class KeptTrial(StrictModel):
    """The file beside the job of ranks: what is known of a measured trial before they run."""

    record: Record
    """The record of a trial whose ranks never run."""
    job: str
    """The hash of the job's file."""


def write_trial(record: Record, job: RankJob, folder: Path) -> None:
    """Make ``folder`` a folder that ranks can run anywhere; raises BadInput where some began there.

    ``record`` is as of a trial whose ranks never run.
    """
    write_job(job, folder)
    write_atomically(folder / TRIAL, to_json(KeptTrial(record=record, job=read_job(folder)[1])))


def read_trial(folder: Path) -> tuple[Record, RankJob]:
    """Read the trial of a folder and its job; raises BadInput where they are not of each other or of the folder."""
    path = folder / TRIAL
    if not path.is_file():
        raise BadInput(f"no {TRIAL}: not made by this version's run --work")
    trial = from_json(KeptTrial, path.read_bytes(), TRIAL)
    job, digest = read_job(folder)
    spec, planned = trial.record.spec, trial.record.planned
    if folder.name.partition(".")[0] != spec.key:
        raise BadInput(f"{TRIAL} is of the trial {spec.key}, the folder's name is of another")
    if trial.job != digest:
        raise BadInput(f"the job (hash {digest}) is not the one of {TRIAL} ({trial.job})")
    if planned is None or planned.plan_hash != content_hash(job.plan):
        raise BadInput(f"the job's plan is not the one of {TRIAL}")
    for name in ("iterations", "warmup", "seed", "batch_size", *TRAINING, "timeout_s"):
        if getattr(job, name) != getattr(spec, name):
            raise BadInput(f"the job's {name} is {getattr(job, name)}, that of {TRIAL} {getattr(spec, name)}")
    return trial.record, job


def judge(trial: Record, folder: Path) -> Record:
    """Return the record with what the ranks in a folder measured, as far as it holds, and a failure where it does not.

    ``trial`` is the record as of a trial whose ranks never ran.
    """
    measured: dict[str, object] = {"ranks_hash": left_hash(folder)}
    try:
        measurement = gather(folder)
        hosts = _hosts(measurement.ranks, trial.provenance)
        job, _ = read_job(folder)
        sent_bytes = {name: sum(links) for name, links in measurement.sent.items()} | measurement.copied
        run = measurement.ranks[0].ran
        environment = run.environment if run is not None else Environment.here()
        measured |= {"hosts": hosts, "cores": environment.cores * hosts, "timing": measurement.timing}
        measured["measured_bytes"] = sent_bytes
        if job.control is not None:
            measured["control"] = Control(plan_hash=content_hash(job.control), step_ms=measurement.control_ms)
        _compare_bytes(sent_bytes, trial.traffic)
        if trial.calibrated_on == chip_of(environment, job.device):
            refuse_too_fast(measurement.timing, trial.least_step_ms)
    except TrialFailed as error:
        return trial.ended(error.failure, **measured)
    return trial.ended(None, **measured)


def _hosts(ranks: Sequence[RankResult], preparation: Provenance | None) -> int:
    """Count the machines that the ranks ran on; raises TrialFailed where they ran other code or unlike each other."""
    runs = [result.ran for result in ranks if result.ran is not None]
    if not runs:
        return 1
    if len(runs) < len(ranks):
        raise failed(Outcome.ERROR, "some ranks were started by a session's launcher and some were not", "start")
    for rank, run in enumerate(runs):
        version = run.provenance.judge_version
        if preparation is not None and version != preparation.judge_version:
            cause = f"rank {rank} ran judge version {version}, and {preparation.judge_version} made the folder"
            raise failed(Outcome.ERROR, f"{cause}: install one version everywhere and run it again", "start")
        # Memory and free cores of like machines may differ.
        facts = sorted(Environment.model_fields.keys() - {"memory_gib", "cores"})
        different = [fact for fact in facts if getattr(runs[0].environment, fact) != getattr(run.environment, fact)]
        if different:
            raise failed(Outcome.ERROR, f"ranks 0 and {rank} ran with different {', '.join(different)}", "start")
    return len({run.host for run in runs})


def _compare_bytes(sent_bytes: dict[str, float], traffic: TrafficTotals | None) -> None:
    """Raise TrialFailed where ranks sent or copied other bytes than counted, under any name of either."""
    if traffic is None:
        raise BadInput(f"{TRIAL} states no traffic: it was not made by this program")
    copies = {TO_DEVICE: traffic.copied_to_device_bytes, TO_HOST: traffic.copied_to_host_bytes}
    counted_bytes = {name: sum(links) for name, links in traffic.collectives.items()}
    counted_bytes |= {name: size or 0.0 for name, size in copies.items()}
    for name in sorted({*sent_bytes, *counted_bytes}):
        actual, expected = sent_bytes.get(name, 0.0), counted_bytes.get(name, 0.0)
        if abs(actual - expected) > 1e-6 * max(1.0, expected):
            cause = f"{name}: ranks sent {actual:.0f} bytes, the counter says {expected:.0f}"
            raise failed(Outcome.ERROR, cause, "bytes")


def least_step_ms(traffic: TrafficTotals, machine: Machine) -> float | None:
    """Return the milliseconds that a step takes at least; None where ``doctor --calibrate`` measured no link.

    The busiest rank sends at least its share, and no faster than the link by its own error; what goes over both links
    may go at once. What is not here: rows are read at no rate that could be stated as a limit, for those that are asked
    for twice come from a cache of unknown depth; and the proven bounds are of the cost model's times, which real ranks
    may beat.
    """
    constants, world = machine.constants, machine.topology.world_size
    link_bytes = zip(*traffic.collectives.values()) if traffic.collectives else ((), ())
    inside, across = (sum(numbers) for numbers in link_bytes)
    rates = {"intra_bytes_per_s": constants.intra_bytes_per_s, "inter_bytes_per_s": constants.inter_bytes_per_s}
    times_ms = [
        1e3 * size / world / (rate * machine.errors.get(name, 1.0))
        for size, (name, rate) in zip((inside, across), rates.items())
        if is_calibrated(machine, name)
    ]
    return max(times_ms, default=None)


def refuse_too_fast(timing: Timing, least_ms: float | None) -> None:
    """Raise TrialFailed (``invalid``) where the median step is below ``least_ms``, if that is known."""
    step_ms = statistics.median(timing.step_ms)
    if least_ms is not None and step_ms < least_ms:
        cause = (
            f"the step, {step_ms:.6g} ms, is shorter than its bytes take at the link rates calibrated on these "
            f"processors, {least_ms:.6g} ms: too good to be true, or calibrate again"
        )
        raise failed(Outcome.INVALID, cause, "bytes", "bandwidth")


class FolderState(StrEnum):
    """The fate of a trial's folder."""

    RECORDED = "recorded"
    KNOWN = "recorded before"
    OPEN = "not run yet"
    """No rank was started there."""
    UNFINISHED = "unfinished"
    """Ranks were started; they run, or were stopped from outside."""
    LEFT = "left behind"
    """Ranks were started there, and a later attempt of the trial is there."""
    BAD = "not a trial"
    """It says of no trial whose ranks they were."""


@dataclass(frozen=True, kw_only=True)
class FolderReport:
    """A trial's folder and what became of it."""

    folder: Path
    state: FolderState
    text: str
    """One line about it, without the folder."""
    record: Record | None = None
    """The record, where the folder is RECORDED or KNOWN."""


def collect(work: Path, results: Path) -> Iterator[FolderReport]:
    """Go through the trial folders under ``work`` and append to the records of ``results`` what is not there yet.

    Raises BadInput where there is no such folder.
    """
    by_suite: dict[str, dict[str, Record]] = {}
    folders = trial_folders(work)
    attempts: dict[Path, list[Path]] = {}
    for folder in folders:
        attempts.setdefault(folder.with_suffix(""), []).append(folder)
    for folder in folders:
        try:
            trial, job = read_trial(folder)
        except BadInput as error:
            yield FolderReport(folder=folder, state=FolderState.BAD, text=str(error))
            continue
        suite = trial.spec.suite
        if suite not in by_suite:
            by_suite[suite] = {r.ranks_hash: r for r in trial_store(results, suite).read() if r.ranks_hash is not None}
        earlier = by_suite[suite].get(left_hash(folder))
        if earlier is not None:
            yield FolderReport(folder=folder, state=FolderState.KNOWN, text=earlier.summary, record=earlier)
            continue
        of_trial = attempts[folder.with_suffix("")]
        fate = _fate(folder, job, of_trial[of_trial.index(folder) + 1 :], by_suite[suite])
        if fate is not None:
            yield FolderReport(folder=folder, state=fate[0], text=f"{trial.spec.text}: {fate[1]}")
            continue
        record = _record(trial, job, folder, results)
        by_suite[suite][left_hash(folder)] = record
        yield FolderReport(folder=folder, state=FolderState.RECORDED, text=record.summary, record=record)


def open_folders(work: Path) -> list[Path]:
    """List trial folders whose ranks have still to run, in the order in which strategies take turns within a repeat.

    They are the last attempts of their trials, those in which ranks were stopped before one ended among them.
    Raises BadInput where a folder is no trial's.
    """
    last_attempts: dict[str, tuple[TrialSpec, Path]] = {}
    for folder in trial_folders(work):
        try:
            last_attempts[str(folder.with_suffix(""))] = read_trial(folder)[0].spec, folder
        except BadInput as error:
            raise BadInput(f"{folder}: {error}") from error
    todo = [(spec, folder) for spec, folder in last_attempts.values() if not holds_results(folder)]
    return [folder for spec, folder in sorted(todo, key=lambda one: _turn(*one))]


def trial_folders(work: Path) -> list[Path]:
    """List ``work``, its folders and theirs, as far as they are trials'; attempts in their order. Raises BadInput."""
    if not work.is_dir():
        raise BadInput(f"{work} is no folder: name that of shardbench run --work")
    work = work if work.name else work.resolve()
    marks = {JOB, TRIAL}
    folders = {path.parent for depth in ("*", "*/*", "*/*/*") for path in work.glob(depth) if path.name in marks}
    if not folders:
        raise BadInput(f"{work} holds no trial folders: make them with shardbench run SUITE --work {work}")
    return sorted(folders, key=lambda folder: (folder.with_suffix(""), attempt_number(folder)))


def _turn(spec: TrialSpec, folder: Path) -> tuple[str, int, int, str]:
    return folder.parent.name, spec.repeat, spec.seed, spec.strategy


def _fate(folder: Path, job: RankJob, later: list[Path], records: dict[str, Record]) -> tuple[FolderState, str] | None:
    """Say why a folder is left as it is, in one line, or None; ``later`` are the trial's attempts after it."""
    if any(left_hash(attempt) in records for attempt in later):
        return FolderState.LEFT, "a later attempt is on record"
    if not ranks_began(folder):
        return FolderState.OPEN, "not run yet"
    silent = _silent(folder, job)
    idle_s = time.time() - max(path.stat().st_mtime for path in folder.glob("rank*.*"))
    if not silent or (holds_results(folder) and idle_s > SETTLES_S):
        return None
    places = ", ".join(f"rank {rank} in {phase_of(folder, rank)}" for rank in silent)
    text = f"no result of {places}, nor a sign of life for {max(idle_s, 0):.0f} s"
    return (FolderState.LEFT, f"{text}; a later attempt is there") if later else (FolderState.UNFINISHED, text)


def _silent(folder: Path, job: RankJob) -> list[int]:
    """List the ranks that left neither a result nor a reason."""
    suffixes = (".json", ".error.json")
    world = range(job.topology.world_size)
    return [rank for rank in world if not any((folder / f"rank{rank}{end}").exists() for end in suffixes)]


def _record(trial: Record, job: RankJob, folder: Path, results: Path) -> Record:
    """Judge a finished folder and append its record."""
    failure = _first_report(folder, job)
    record = judge(trial, folder) if failure is None else trial.ended(failure, ranks_hash=left_hash(folder))
    run = next((run for rank in range(job.topology.world_size) if (run := _run_of(folder, rank)) is not None), None)
    if run is not None:
        run.environment.save(results)
        made_by = trial.provenance.made_by if trial.provenance is not None else None
        provenance = run.provenance.model_copy(update={"made_by": made_by})
        record = record.model_copy(update={"environment": run.environment.hash, "provenance": provenance})
    for plan in (job.plan, job.control):
        if plan is not None:
            keep_plan(results, plan)
    keep_log(results, record.key, sorted(folder.glob("*.log")) if record.failure is not None else ())
    trial_store(results, trial.spec.suite).append(record)
    return record


def _first_report(folder: Path, job: RankJob) -> Failure | None:
    """Return what the first rank that ended badly says, and which ranks left nothing; None where none ended so."""
    reports = sorted(folder.glob("rank*.error.json"), key=lambda path: (path.stat().st_mtime, path.name))
    if not reports:
        return None
    try:
        failure = from_json(RankError, reports[0].read_bytes(), reports[0].name).failure
    except BadInput as error:
        return Failure(outcome=Outcome.ERROR, cause=str(error), phase="time")
    silent = ", ".join(f"rank {rank} (in {phase_of(folder, rank)})" for rank in _silent(folder, job))
    return failure.model_copy(update={"cause": f"{failure.cause}; no word of {silent}"}) if silent else failure


def _run_of(folder: Path, rank: int) -> Ran | None:
    """Return where a rank ran, by what it left; None where that is not whole."""
    result, error = folder / f"rank{rank}.json", folder / f"rank{rank}.error.json"
    try:
        if result.is_file():
            return read_result(result).ran
        return from_json(RankError, error.read_bytes(), error.name).ran if error.is_file() else None
    except BadInput:
        # Judged already: the failure says so.
        return None
