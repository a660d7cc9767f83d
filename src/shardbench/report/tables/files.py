"""The tables as CSV files; the same bytes for the same records."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.base.generated import ascii_text, check_files, csv_text, write_files
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.report.tables.suite_tables import TABLES, tables
from shardbench.report.tables.text import unknown

DIGITS = 6
"""A number without decimals of its own has so many significant digits."""
_DECIMALS = {
    "max_over_mean": 4,
    "cpu_max_over_mean": 4,
    "distinct_rows_max": 1,
    "samples_per_s": 1,
    "p_slower_than_best": 3,
    "p_slower_than_best_found": 3,
    "plan_s": 4,
    "fit_s": 4,
}


def write_tables(results: Path, suite: str) -> list[Path]:
    """Write ``<results>/tables/<suite>/<table>.csv`` from the suite's records; raises BadInput where it has none."""
    return write_files(_expected_files(results, suite, suite_records(results, suite)))


def check_tables(results: Path, suite: str) -> list[str]:
    """Return the differences between the tables on disk and what the records give, one line each."""
    store = trial_store(results, suite)
    records = store.read()
    nothing = [] if records else [f"{suite}: nothing to check: {store.path} holds no records"]
    expected_files = _expected_files(results, suite, records) if records else {}
    return nothing + check_files(expected_files, f"shardbench report {suite}", suite_paths(results, suite))


def suite_records(results: Path, suite: str) -> list[Record]:
    """Return all records of a suite; raises BadInput where there are none."""
    store = trial_store(results, suite)
    records = store.read()
    if not records:
        raise BadInput(f"{store.path} holds no records; run: shardbench run {suite}")
    return records


def table_csv(frame: pd.DataFrame) -> str:
    """Return a suite's table as CSV: fixed decimals by column, empty cells for what is not known."""
    rows = frame.to_dict("records")
    return csv_text(frame.columns, ([_cell(column, value) for column, value in row.items()] for row in rows))


def frame_csv(frame: pd.DataFrame) -> str:
    """Return any table as CSV: six significant digits, empty cells for what is not known."""
    return csv_text(frame.columns, (map(cell_text, row) for row in frame.itertuples(index=False)))


def cell_text(value: object) -> str:
    """Return one cell of any table as ASCII text."""
    if unknown(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 10**15 else f"{number:.{DIGITS}g}"
    return ascii_text(str(value))


def json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain data with full precision, None for what is not known."""
    return [
        {column: None if unknown(value) else value for column, value in row.items()} for row in frame.to_dict("records")
    ]


def _expected_files(results: Path, suite: str, records: list[Record]) -> dict[Path, str]:
    return dict(zip(suite_paths(results, suite), map(table_csv, tables(records).values())))


def suite_paths(results: Path, suite: str) -> list[Path]:
    """Return the paths of a suite's tables, whether they are there or not."""
    return [results / "tables" / suite / f"{name}.csv" for name in TABLES]


def _cell(column: str, value: object) -> str:
    if not isinstance(value, float) or math.isnan(value):
        return cell_text(value)
    decimals = _DECIMALS.get(column, 0 if "_bytes" in column else 3 if column.endswith("_pct") else 5)
    text = f"{value:.{decimals}f}"
    # -0.000 and 0.000 are one number.
    return text.removeprefix("-") if float(text) == 0 else text
