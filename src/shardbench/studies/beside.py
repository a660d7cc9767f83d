"""Cells of one strategy beside those that are on record in another results folder, such as the committed one."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from shardbench.base.atomic import sole_writer
from shardbench.records.cell import CellRecord
from shardbench.records.store import cell_store
from shardbench.studies.places import Place
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.session import SessionOptions, StudyWork, cell_version
from shardbench.studies.study import Study
from shardbench.studies.study_tables import rows_frame

_STALE = "no rank: {} cells of this run are of another version than this; run them again"


@dataclass(frozen=True, kw_only=True)
class CellComparison:
    """What is said of one study's cells of a strategy beside those of others."""

    study: str
    others: int
    """Strategies that have cells on record in the other folder, of this version of the judge, and none in the run's."""
    not_compared: int
    """Strategies that have cells of other versions alone, which are compared with nothing."""
    commits: tuple[str, ...]
    """The commits that they state, in short."""
    places: tuple[Place, ...]


def reuse(reproduction: Reproduction, options: SessionOptions, committed: Path) -> tuple[int, int]:
    """Copy what a run of some strategies needs beside their cells, such as bounds, where this version made it.

    Gives the cells that were copied out of ``committed``, and those that it has of another version.
    """
    copied = others = 0
    with sole_writer(options.results):
        for study in options.studies_of(reproduction):
            work = StudyWork(reproduction.owner, study, options)
            own, committed_records = work.store.latest(), cell_store(committed, reproduction.owner, study.name).latest()
            for key in (work.key(cell) for cell in work.pieces if cell.get("strategy") is None):
                if key not in committed_records or (key in own and is_current(study, own[key])):
                    continue
                if is_current(study, committed_records[key]):
                    work.store.append(committed_records[key])
                    _copy_environment(committed_records[key].environment, committed, options.results)
                    copied += 1
                elif key not in own:
                    others += 1
    return copied, others


def compare_cells(
    reproduction: Reproduction, options: SessionOptions, committed: Path | None
) -> Iterator[CellComparison]:
    """Yield, of each study that has cells of the options' strategies, what is said of them beside others' cells."""
    for study in options.studies_of(reproduction):
        work = StudyWork(reproduction.owner, study, options)
        if not work.pieces:
            continue
        own = work.store.latest()
        committed_records = {} if committed is None else cell_store(committed, reproduction.owner, study.name).latest()
        names = {cell.get("strategy") for cell in work.pieces} - {None}
        cells = [cell for cell in study.cells(False) if "strategy" in cell and cell["strategy"] not in names]
        # Bounds are proven anew where another version proved those on record, and are then held beside these.
        own_cells = [*(cell for cell in cells if cell["strategy"] is not None and work.key(cell) in own), *work.pieces]
        mine = rows_frame(study, own_cells, own)
        beside = {work.key(cell): cell for cell in cells if cell["strategy"] is None or work.key(cell) not in own}
        records = [
            (cell, committed_records[key])
            for key, cell in beside.items()
            if key in committed_records and not committed_records[key].failure
        ]
        here = [(cell, record) for cell, record in records if record.judged_here and study.holds(record)]
        theirs = pd.DataFrame([{**cell, **row} for cell, record in here for row in record.rows])
        compared = {cell["strategy"] for cell, _ in here} - {None}
        own_records = (own[key] for key in map(work.key, work.pieces) if key in own)
        stale = [record for record in own_records if not record.failure and not is_current(study, record)]
        places = [place for name in sorted(map(str, names)) for place in study.places(mine, theirs, name)]
        yield CellComparison(
            study=study.name,
            others=len(compared),
            not_compared=len({cell["strategy"] for cell, _ in records} - {None} - compared),
            commits=_commits(record for cell, record in here if cell["strategy"] is not None),
            places=(Place(_STALE.format(len(stale))),) if stale else tuple(places),
        )


def is_current(study: Study, record: CellRecord) -> bool:
    """Tell whether the record is what would be made here: of this judge, strategy and machine, by their versions."""
    return not record.failure and record.is_of(cell_version(study, record.cell)) and study.holds(record)


def _copy_environment(name: str, source: Path, to: Path) -> None:
    file = Path("environments") / f"{name}.json"
    if (source / file).is_file() and not (to / file).exists():
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, to / file)


def _commits(records: Iterable[CellRecord]) -> tuple[str, ...]:
    commits = {record.provenance.commit for record in records if record.provenance is not None}
    return tuple(sorted(commit[:10] for commit in commits if commit is not None))
