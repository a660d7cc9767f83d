"""A study whose table says who stands where on many problems, as its page needs it: with the records of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from shardbench.records.cell import SeriesRow
from shardbench.records.record import Record
from shardbench.records.store import cell_store, trial_store
from shardbench.records.trial import Backend
from shardbench.report.groups import current
from shardbench.report.page.write import Standings
from shardbench.report.standings import AS_RUN, PROBLEM, RECORD, is_standings
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.study_tables import recorded_cells, tables_by_study

_ROW = (*PROBLEM, "strategy", "budget")


@dataclass(frozen=True, kw_only=True)
class Board:
    """The table, and the trials that its measured rows are of."""

    standings: Standings
    trials: list[Record]


def board(reproduction: Reproduction, results: Path) -> Board | None:
    """Of the first study with such a table; None where there is none on record."""
    for study, tables in tables_by_study(reproduction, results):
        for name, table in tables.items():
            if is_standings(table):
                trials = _trials(table, results)
                keys = _cell_keys(reproduction, results) | _trial_keys(trials)
                rows = [tuple(map(str, row)) for row in table[list(_ROW)].itertuples(index=False)]
                store = cell_store(results, reproduction.owner, study.name).path.relative_to(results)
                standings = Standings(
                    table=table.assign(**{RECORD: [keys.get(row, "") for row in rows]}),
                    csv=f"tables/{reproduction.owner}/{name}.csv",
                    records=str(store),
                    command=f"shardbench reproduce {reproduction.owner} --strategy NAME --force",
                )
                return Board(standings=standings, trials=trials)
    return None


def _cell_keys(reproduction: Reproduction, results: Path) -> dict[tuple[str, ...], str]:
    merged: list[tuple[SeriesRow, str]] = [
        ({**record.cell, **row}, record.key)
        for _, record in recorded_cells(reproduction, results)
        for row in record.rows
    ]
    return {tuple(str(row.get(name)) for name in _ROW): key for row, key in merged}


def _trial_keys(trials: Sequence[Record]) -> dict[tuple[str, ...], str]:
    """Of the first trial of each row."""
    found: dict[tuple[str, ...], str] = {}
    for record in trials:
        spec = record.spec
        found.setdefault((spec.workload, spec.machine, spec.backend.value, spec.strategy, AS_RUN), record.key)
    return found


def _trials(table: pd.DataFrame, results: Path) -> list[Record]:
    """Current measured records of the suite that has all measured problems of the table; none where it has no such."""
    measured = table[table["backend"] == Backend.MEASURED.value]
    problems = set(zip(measured["workload"], measured["machine"]))
    for path in sorted((results / "records").glob("*.jsonl")) if problems else []:
        records = [record for record in current(trial_store(results, path.stem).read()) if _is_measured(record)]
        if problems <= {(record.spec.workload, record.spec.machine) for record in records}:
            return records
    return []


def _is_measured(record: Record) -> bool:
    return record.spec.backend is Backend.MEASURED
