"""Standings that a study's table states, with the record behind each row and the trials of the measured rows."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardbench.records.record import Record
from shardbench.records.store import cell_store, trial_store
from shardbench.records.trial import unusual
from shardbench.report.page.write import StudyStandings
from shardbench.report.rows import current
from shardbench.report.standing import AS_RUN, PROBLEM, Standing, is_measured, states_standings, table_standings
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.study_tables import recorded_cells, tables_by_study

_ROW = (*PROBLEM, "strategy", "budget")


def study_standings(reproduction: Reproduction, results: Path) -> StudyStandings | None:
    """Return the standings of the first table that states some; None where none is on record."""
    for study, tables in tables_by_study(reproduction, results):
        for name, table in tables.items():
            if states_standings(table):
                standings = table_standings(table)
                trials = _trials(standings, results)
                keys = _cell_keys(reproduction, results) | _trial_keys(trials)
                return StudyStandings(
                    standings=tuple(
                        replace(one, record=keys.get((*one.problem, one.strategy, one.budget), "")) for one in standings
                    ),
                    trials=trials,
                    csv=f"tables/{reproduction.owner}/{name}.csv",
                    records=str(cell_store(results, reproduction.owner, study.name).path.relative_to(results)),
                    command=f"shardbench reproduce {reproduction.owner} --strategy NAME --force",
                )
    return None


def _cell_keys(reproduction: Reproduction, results: Path) -> dict[tuple[str, ...], str]:
    cells = [record for _, record in recorded_cells(reproduction, results)]
    merged = [({**record.cell, **row}, record.key) for record in cells for row in record.rows]
    return {tuple(str(row.get(name)) for name in _ROW): key for row, key in merged}


def _trial_keys(trials: Sequence[Record]) -> dict[tuple[str, ...], str]:
    """Return the key of the first trial of each row."""
    specs = {record.key: record.spec for record in reversed(trials)}
    return {(s.workload, s.machine, s.backend.value, s.strategy, AS_RUN): key for key, s in specs.items()}


def _trials(standings: Sequence[Standing], results: Path) -> list[Record]:
    """Return the current measured records of the suite that has all measured problems; none where no suite has."""
    problems = {one.problem for one in standings if is_measured(one.backend)}
    for path in sorted((results / "records").glob("*.jsonl")) if problems else []:
        current_records = current(trial_store(results, path.stem).read())
        ordinary = [record for record in current_records if not unusual(record.spec.exchange, record.spec.schedule)]
        records = [record for record in ordinary if is_measured(record.spec.backend)]
        if problems <= {(record.spec.workload, record.spec.machine, record.spec.backend.value) for record in records}:
            return records
    return []
