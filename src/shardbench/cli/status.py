"""The command ``status``: how much of a suite or of a baseline's studies is done."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardbench.base.host import Environment
from shardbench.cli import options as shared
from shardbench.cli.names import find_named
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.records.record import Record
    from shardbench.studies.reproduction import Reproduction
    from shardbench.trials.runner import SuiteWork
    from shardbench.trials.session import Work


def status_command(
    name: shared.NameArgument,
    *,
    backend: shared.BackendOption = None,
    strategy: shared.StrategiesOption = None,
    seed: shared.SeedsOption = None,
    data: shared.DataOption = shared.DEFAULT_DATA,
    results: shared.ResultsOption = shared.DEFAULT_RESULTS,
    as_json: shared.JsonOption = False,
) -> None:
    """Say what is done of a suite or a paper.

    It counts the trials and cells that are settled or open, how they ended, and the records of other versions.
    """
    from shardbench.trials.calibrating import as_calibrated  # noqa: PLC0415
    from shardbench.trials.runner import RunOptions, SuiteWork  # noqa: PLC0415

    suite, reproduction = find_named(name)
    state: dict[str, Any] = {}
    lines: list[str] = []
    if suite is not None:
        options = RunOptions(
            results=results,
            data=data,
            backend=backend,
            strategies=tuple(strategy or ()),
            seeds=tuple(seed or ()),
        )
        _add_suite(suite.name, SuiteWork(as_calibrated(suite, results), options), state, lines)
    if reproduction is not None:
        _add_studies(reproduction, results, state, lines)
    shared.tell(state, lines, as_json=as_json)


def outcome_counts(records: "Iterable[Record]") -> dict[str, int]:
    """Count the records by outcome; outcomes that do not occur are left out."""
    outcomes = [record.outcome for record in records]
    return {outcome.value: outcomes.count(outcome) for outcome in Outcome if outcome in outcomes}


def _add_suite(name: str, work: "SuiteWork", state: dict[str, Any], lines: list[str]) -> None:
    from shardbench.report.compare.versions import other_versions  # noqa: PLC0415

    latest, settled_trials = work.store.latest(), _settled_pieces(work)
    counts = outcome_counts(latest[trial.key] for trial in settled_trials)
    others = len(latest.keys() - {trial.key for trial in work.pieces})
    code = other_versions(latest[trial.key] for trial in work.pieces if trial.key in latest)
    state |= {"suite": name, "trials": len(work.pieces), "settled": len(settled_trials)}
    state |= {"open": len(work.pieces) - len(settled_trials), "outcomes": counts, "other_records": others}
    state["other_versions"] = asdict(code)
    lines += [_count_line(name, work, len(settled_trials)), *(f"  {outcome:<10} {n}" for outcome, n in counts.items())]
    if others:
        lines.append(f"  {others} more records are of other selections or of earlier versions of the suite")
    lines += [f"  {line}" for line in code.lines()]


def _add_studies(reproduction: "Reproduction", results: Path, state: dict[str, Any], lines: list[str]) -> None:
    from shardbench.studies.session import SessionOptions, StudyWork  # noqa: PLC0415
    from shardbench.studies.study_tables import study_versions  # noqa: PLC0415

    code = study_versions(reproduction, results)
    state["studies"], state["studies_other_versions"] = {}, asdict(code)
    for study in reproduction.studies:
        work = StudyWork(reproduction.owner, study, SessionOptions(results=results))
        settled = len(_settled_pieces(work))
        state["studies"][study.name] = {"cells": len(work.pieces), "settled": settled}
        lines.append(_count_line(work.title, work, settled))
    lines += [f"  {line}" for line in code.lines()]


def _settled_pieces(work: "Work[Any, Any]") -> list[Any]:
    from shardbench.engine.processes.server import set_rank_variables  # noqa: PLC0415

    # They are part of the environment in which a run would be.
    set_rank_variables()
    return work.settled_pieces(work.store.latest(), Environment.here().hash)


def _count_line(title: str, work: "Work[Any, Any]", settled: int) -> str:
    total = len(work.pieces)
    return f"{title}: {total} {work.unit}s, {settled} settled, {total - settled} open"
