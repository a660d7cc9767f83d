"""What studies and claims give: tables as files, and sections of the page; from records only."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from shardbench.base.generated import check_files, write_files
from shardbench.records.cell import Cell, CellRecord, Row, cell_key
from shardbench.records.store import cell_store, trial_store
from shardbench.report.code_differences import OtherCode, compared
from shardbench.report.figures import plot_figure
from shardbench.report.files import cell_text, frame_csv, suite_paths
from shardbench.report.groups import current
from shardbench.report.page import Extra, drawn, write_page
from shardbench.studies.claim import Evidence, claims_frame
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.session import cell_code
from shardbench.studies.study import Study

SHOWN_ROWS = 60
"""Rows of a study's table on the page; the file has all."""
_CLAIM_COLUMNS = (
    "claim", "paper", "ours", "low", "high", "unit", "n", "verdict", "statement", "definition", "conditions",
)  # fmt: skip


def rows_frame(study: Study, cells: Iterable[Cell], known: Mapping[str, CellRecord]) -> pd.DataFrame:
    """Rows of all cells that have some, in the cells' order; the cells' columns come first, then the study's."""
    cells = list(cells)
    rows: list[Row] = []
    for cell in cells:
        record = known.get(cell_key(study.name, study.version, cell))
        rows += [{**cell, **row} for row in record.rows] if record else []
    frame = pd.DataFrame(rows)
    leading = dict.fromkeys([*(name for cell in cells for name in cell), *study.columns])
    ordered = [name for name in leading if name in frame.columns]
    return frame[[*ordered, *sorted(set(frame.columns) - set(ordered))]]


def study_tables(reproduction: Reproduction, results: Path) -> dict[str, pd.DataFrame]:
    """Tables of all studies that have records, by name; of a full run's cells, those on record."""
    return {name: frame for _, tables in tables_by_study(reproduction, results) for name, frame in tables.items()}


def tables_by_study(reproduction: Reproduction, results: Path) -> list[tuple[Study, Mapping[str, pd.DataFrame]]]:
    """Tables of each study that has any row on record."""
    found = []
    for study in reproduction.studies:
        known = cell_store(results, reproduction.owner, study.name).latest()
        rows = rows_frame(study, study.cells(False), known)
        if len(rows):
            found.append((study, study.tables(rows)))
    return found


def claims_table(reproduction: Reproduction, results: Path) -> pd.DataFrame | None:
    """The claims and our numbers; None for a baseline without claims."""
    if not reproduction.claims or reproduction.observe is None:
        return None
    records = tuple(current(trial_store(results, reproduction.owner).read()))
    evidence = Evidence(records=records, tables=study_tables(reproduction, results))
    return claims_frame(reproduction.claims, reproduction.observe(evidence), reproduction.owner)


def frames(reproduction: Reproduction, results: Path) -> dict[str, pd.DataFrame]:
    """Tables of studies, and the claims, by name."""
    claims = claims_table(reproduction, results)
    return study_tables(reproduction, results) | ({} if claims is None else {"claims": claims})


def expected_files(reproduction: Reproduction, results: Path) -> dict[Path, str]:
    """Text of every table file under ``<results>/tables/<owner>/``."""
    folder = results / "tables" / reproduction.owner
    return {folder / f"{name}.csv": frame_csv(frame) for name, frame in frames(reproduction, results).items()}


def write_study_files(reproduction: Reproduction, results: Path) -> list[Path]:
    """Write them; gives their paths."""
    return write_files(expected_files(reproduction, results))


def check_study_files(reproduction: Reproduction, results: Path) -> list[str]:
    """Files that differ from what the records give, one line each; none is good."""
    owner = reproduction.owner
    recorded = bool(trial_store(results, owner).read() or _cells(reproduction, results))
    nothing = [] if recorded else [f"{owner}: nothing to check: neither a suite nor a study of it has records"]
    # Claims without a record would be a table of claims that are not tested.
    expected = expected_files(reproduction, results) if recorded else {}
    held = sorted({*(results / "tables" / owner).glob("*.csv")} - {*suite_paths(results, owner)})
    return nothing + check_files(expected, f"shardbench report {owner}", held)


def study_code(reproduction: Reproduction, results: Path) -> OtherCode:
    """Holds the code of all studies' cells on record against that of this process."""
    return compared((record, cell_code(study, record.cell)) for study, record in _cells(reproduction, results))


def write_reproduction_page(reproduction: Reproduction, results: Path) -> Path:
    """Write ``<results>/pages/<owner>.html``, claims and studies before the suite's groups, and give its path."""
    return write_page(
        results,
        reproduction.owner,
        trial_store(results, reproduction.owner).read(),
        extras=extras(reproduction, results),
        environments={record.environment for _, record in _cells(reproduction, results)},
        code=study_code(reproduction, results).lines(),
    )


def extras(reproduction: Reproduction, results: Path) -> list[Extra]:
    """Sections of the page: claims first, then every study that has rows."""
    made = []
    claims = claims_table(reproduction, results)
    if claims is not None:
        note = (
            "The paper's number, ours as the average over n conditions with its 95 % bootstrap interval, and where "
            "that interval lies. An empty cell under 'paper': the number was not seen in the paper itself."
        )
        made.append(_extra("Claims", note, claims[list(_CLAIM_COLUMNS)], "claims", reproduction.owner))
    for study, tables in tables_by_study(reproduction, results):
        plots = study.plots(tables)
        for name, frame in tables.items():
            figures = [(plot.title, plot_figure(plot, frame)) for plot in plots if plot.table == name]
            note = (study.__doc__ or "").strip()
            extra = _extra(f"Study {name}", note, frame, name, reproduction.owner)
            made.append(replace(extra, plots=drawn(f"study-{name}", figures)))
    return made


def _extra(title: str, note: str, frame: pd.DataFrame, name: str, owner: str) -> Extra:
    if len(frame) > SHOWN_ROWS:
        note += f" The first {SHOWN_ROWS} of {len(frame)} rows; all are in tables/{owner}/{name}.csv."
    return Extra(
        id=f"extra-{name}",
        title=title,
        note=note,
        headers=tuple(map(str, frame.columns)),
        rows=tuple(tuple(map(cell_text, row)) for row in frame.head(SHOWN_ROWS).itertuples(index=False)),
        numeric=tuple(pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns),
    )


def _cells(reproduction: Reproduction, results: Path) -> list[tuple[Study, CellRecord]]:
    """Last records of all studies."""
    return [
        (study, record)
        for study in reproduction.studies
        for record in cell_store(results, reproduction.owner, study.name).latest().values()
    ]
