"""What studies and claims give: tables as files; from records only."""

from pathlib import Path

import pandas as pd

from shardbench.base.generated import check_files, write_files
from shardbench.records.store import trial_store
from shardbench.report.compare.versions import OtherVersions, compare_versions
from shardbench.report.tables.files import frame_csv, suite_paths
from shardbench.studies.ledger import check_ledger, ledger, write_ledger
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.session import cell_version
from shardbench.studies.study_tables import recorded_cells, study_tables


def frames(reproduction: Reproduction, results: Path) -> dict[str, pd.DataFrame]:
    """Tables of studies, and the paper's part of the ledger, by name."""
    paper_ledger = ledger(results, reproduction)
    ledger_tables = {"claims": paper_ledger.claims, "readings": paper_ledger.readings}
    return study_tables(reproduction, results) | {name: frame for name, frame in ledger_tables.items() if len(frame)}


def expected_files(reproduction: Reproduction, results: Path) -> dict[Path, str]:
    """Text of every table file under ``<results>/tables/<owner>/``."""
    folder = results / "tables" / reproduction.owner
    return {folder / f"{name}.csv": frame_csv(frame) for name, frame in study_tables(reproduction, results).items()}


def write_study_files(reproduction: Reproduction, results: Path) -> list[Path]:
    """Write them, and the ledger of all papers that have records there; gives their paths."""
    return [*write_files(expected_files(reproduction, results)), *write_ledger(results)]


def check_study_files(reproduction: Reproduction, results: Path) -> list[str]:
    """Files that differ from what the records give, one line each; none is good."""
    owner = reproduction.owner
    recorded = bool(trial_store(results, owner).read() or recorded_cells(reproduction, results))
    nothing = [] if recorded else [f"{owner}: nothing to check: neither a suite nor a study of it has records"]
    existing = sorted({*(results / "tables" / owner).glob("*.csv")} - {*suite_paths(results, owner)})
    differences = check_files(expected_files(reproduction, results), f"shardbench report {owner}", existing)
    return [*nothing, *differences, *(check_ledger(results) if recorded else [])]


def study_versions(reproduction: Reproduction, results: Path) -> OtherVersions:
    """Hold the versions of all studies' cells on record against those that are here."""
    cells = recorded_cells(reproduction, results)
    return compare_versions((record, cell_version(study, record.cell)) for study, record in cells)
