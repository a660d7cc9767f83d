"""Tables of studies and claims as files: generated from records, the same bytes for the same records."""

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.atomic import write_atomically
from shardbench.records.store import RecordStore
from shardbench.report.groups import current
from shardbench.studies.claim import Evidence, claims_frame
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.study import Study
from shardbench.studies.study_store import StudyStore, rows_frame

DIGITS = 6
"""Significant digits of every number."""


def study_tables(reproduction: Reproduction, results: Path) -> dict[str, pd.DataFrame]:
    """Tables of all studies that have records, by name; of a full run's cells, those on record."""
    return {name: frame for _, frames in tables_by_study(reproduction, results) for name, frame in frames.items()}


def tables_by_study(reproduction: Reproduction, results: Path) -> list[tuple[Study, Mapping[str, pd.DataFrame]]]:
    """Tables of each study that has any row on record."""
    found = []
    for study in reproduction.studies:
        known = StudyStore(results, reproduction.owner, study.name).latest()
        rows = rows_frame(study, study.cells(False), known)
        if len(rows):
            found.append((study, study.tables(rows)))
    return found


def claims_table(reproduction: Reproduction, results: Path) -> pd.DataFrame | None:
    """The claims and our numbers; None for a baseline without claims."""
    if not reproduction.claims or reproduction.observe is None:
        return None
    records = tuple(current(RecordStore(results, reproduction.owner).read()))
    evidence = Evidence(records=records, tables=study_tables(reproduction, results))
    return claims_frame(reproduction.claims, reproduction.observe(evidence), reproduction.owner)


def expected_files(reproduction: Reproduction, results: Path) -> dict[Path, str]:
    """Text of every table file under ``<results>/tables/<owner>/``."""
    folder = results / "tables" / reproduction.owner
    frames = study_tables(reproduction, results)
    claims = claims_table(reproduction, results)
    if claims is not None:
        frames["claims"] = claims
    return {folder / f"{name}.csv": frame_csv(frame) for name, frame in frames.items()}


def write_files(reproduction: Reproduction, results: Path) -> list[Path]:
    """Write them; gives their paths."""
    files = expected_files(reproduction, results)
    for path, text in files.items():
        write_atomically(path, text)
    return list(files)


def check_files(reproduction: Reproduction, results: Path) -> list[str]:
    """Files that differ from what the records give, one line each; none is good."""
    return [
        f"{path}: not what the records give"
        for path, text in expected_files(reproduction, results).items()
        if not path.is_file() or path.read_text(encoding="ascii") != text
    ]


def frame_csv(frame: pd.DataFrame) -> str:
    """CSV with one header line, six significant digits, empty cells for what is not known; ASCII."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(frame.columns)
    for row in frame.itertuples(index=False):
        writer.writerow([cell_text(value) for value in row])
    return out.getvalue()


def cell_text(value: object) -> str:
    """One cell as ASCII text."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 10**15 else f"{number:.{DIGITS}g}"
    return str(value).encode("ascii", "backslashreplace").decode("ascii")
