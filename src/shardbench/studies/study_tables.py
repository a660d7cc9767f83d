"""Tables of studies, out of their records."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from shardbench.records.cell import Cell, CellRecord, SeriesRow, cell_key
from shardbench.records.store import cell_store
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.study import Study


def rows_frame(study: Study, cells: Iterable[Cell], known: Mapping[str, CellRecord]) -> pd.DataFrame:
    """Give the rows of all cells, in the cells' order; the cells' columns come first, then the study's."""
    cells = list(cells)
    rows: list[SeriesRow] = []
    for cell in cells:
        record = known.get(cell_key(study.name, study.version, cell))
        rows += [{**cell, **row} for row in record.rows] if record else []
    frame = pd.DataFrame(rows)
    leading = dict.fromkeys([*(name for cell in cells for name in cell), *study.columns])
    ordered = [name for name in leading if name in frame.columns]
    return frame[[*ordered, *sorted(set(frame.columns) - set(ordered))]]


def study_tables(reproduction: Reproduction, results: Path) -> dict[str, pd.DataFrame]:
    """Make the tables of all studies that have records, by name; of a full run's cells, those on record."""
    return {name: frame for _, tables in tables_by_study(reproduction, results) for name, frame in tables.items()}


def tables_by_study(reproduction: Reproduction, results: Path) -> list[tuple[Study, Mapping[str, pd.DataFrame]]]:
    """Make the tables of each study that has any row on record."""
    found = []
    for study in reproduction.studies:
        known = cell_store(results, reproduction.owner, study.name).latest()
        rows = rows_frame(study, study.cells(False), known)
        if len(rows):
            found.append((study, study.tables_beside(rows, results)))
    return found


def recorded_cells(reproduction: Reproduction, results: Path) -> list[tuple[Study, CellRecord]]:
    """List the last records of all studies."""
    return [
        (study, record)
        for study in reproduction.studies
        for record in cell_store(results, reproduction.owner, study.name).latest().values()
    ]
