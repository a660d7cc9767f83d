"""Tables of studies, out of their records."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from shardbench.records.cell import Cell, CellRecord, SeriesRow, cell_key
from shardbench.records.store import cell_store
from shardbench.report.compare.versions import OtherVersions, compare_versions
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.session import cell_version
from shardbench.studies.study import Study


def rows_frame(study: Study, cells: Iterable[Cell], records: Mapping[str, CellRecord]) -> pd.DataFrame:
    """Give the rows of all cells, in the cells' order; the cells' columns come first, then the study's."""
    cells = list(cells)
    rows: list[SeriesRow] = []
    for cell in cells:
        record = records.get(cell_key(study.name, study.version, cell))
        rows += [{**cell, **row} for row in record.rows] if record else []
    frame = pd.DataFrame(rows)
    leading = dict.fromkeys([*(name for cell in cells for name in cell), *study.columns])
    ordered = [name for name in leading if name in frame.columns]
    return frame[[*ordered, *sorted(set(frame.columns) - set(ordered))]]


def study_tables(reproduction: Reproduction, results: Path) -> dict[str, pd.DataFrame]:
    """Make the tables of all studies that have records, by name; of a full run's cells, those on record."""
    return {name: frame for _, tables in tables_by_study(reproduction, results) for name, frame in tables.items()}


def tables_by_study(reproduction: Reproduction, results: Path) -> list[tuple[Study, Mapping[str, pd.DataFrame]]]:
    """Make the tables of each study that has any row on record.

    Strategies that entered a study are in a table of rows, NAME_alone: a study's own tables, and the claims that are
    judged by them, are of the strategies that it names. So are these where not even those of a quick run have rows.
    """
    by_study: list[tuple[Study, Mapping[str, pd.DataFrame]]] = []
    for study in reproduction.studies:
        records = cell_store(results, reproduction.owner, study.name).latest()
        listed = study.cells(False)
        rows, alone = rows_frame(study, listed, records), _entering_cells(study, listed, records)
        compared = {cell["strategy"] for cell in study.cells(True)} if study.strategies else set()
        tables: dict[str, pd.DataFrame] = {}
        if len(rows) and compared <= set(rows.get("strategy", ())):
            tables = dict(study.tables(rows, results))
        elif len(rows):
            alone = [*listed, *alone]
        more = rows_frame(study, alone, records)
        if len(more):
            plain = [name for name in more if not more[name].map(lambda value: isinstance(value, tuple)).any()]
            tables[f"{study.name}_alone"] = more[plain]
        if tables:
            by_study.append((study, tables))
    return by_study


def _entering_cells(study: Study, listed: Sequence[Cell], records: Mapping[str, CellRecord]) -> list[Cell]:
    """List the cells on record of strategies that the study does not name."""
    own_names = {cell.get("strategy") for cell in listed}
    others = {str(name) for record in records.values() if (name := record.cell.get("strategy")) not in own_names}
    return [cell for name in sorted(others) for cell in study.entering(name, False)]


def recorded_cells(reproduction: Reproduction, results: Path) -> list[tuple[Study, CellRecord]]:
    """List the last records of all studies."""
    return [
        (study, record)
        for study in reproduction.studies
        for record in cell_store(results, reproduction.owner, study.name).latest().values()
    ]


def study_versions(reproduction: Reproduction, results: Path) -> OtherVersions:
    """Hold the versions of all studies' cells on record against those that are here."""
    cells = recorded_cells(reproduction, results)
    return compare_versions((record, cell_version(study, record.cell)) for study, record in cells)
