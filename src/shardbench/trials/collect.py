"""Records of what ranks left in the folders of ``run --work``, judged as if they had run here."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_json
from shardbench.engine.processes.job import JOB, Ran, RankError, RankJob
from shardbench.engine.processes.trial_folder import (
    attempt_number,
    holds_results,
    left_hash,
    phase_of,
    ranks_began,
    read_result,
)
from shardbench.records.plan_files import keep_plan
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Failure, Outcome, TrialSpec
from shardbench.trials.measured_trial import TRIAL, judge, read_trial
from shardbench.trials.run_trial import keep_log

SETTLES_S = 60.0
"""So long after the last file of a rank others may still be on their way through a shared file system."""


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
