"""A study as work: its cells, run side by side where time is not measured."""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardbench.base.code import class_code
from shardbench.base.serialise import content_hash
from shardbench.engine.failures import failure_of
from shardbench.model.discovery import strategy_codes
from shardbench.records.cell import Cell, CellRecord, SeriesRow, cell_key
from shardbench.records.provenance import Provenance
from shardbench.records.store import cell_store
from shardbench.runs.session import Listener, Work, run_session, side_by_side
from shardbench.studies.reproduction import Reproduction, find_reproduction
from shardbench.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Which studies to run and where; no selection means all."""

    results: Path
    quick: bool = False
    studies: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    """Of cells that name a strategy, those of these alone."""
    force: bool = False
    retry: bool = False
    """Run failed cells again."""
    workers: int = 0
    """Processes; 0 means as many as cores."""


class StudyWork(Work[Cell, CellRecord]):
    """The cells of one study."""

    unit = "cell"

    def __init__(self, owner: str, study: Study, options: SessionOptions) -> None:
        self.title = f"study {study.name}"
        self.store = cell_store(options.results, owner, study.name)
        self.pieces = [cell for cell in study.cells(options.quick) if _wanted(cell, options.strategies)]
        self._owner = owner
        self._study = study
        self._options = options

    def key(self, piece: Cell) -> str:
        """That of the study, its version and the cell."""
        return cell_key(self._study.name, self._study.version, piece)

    def code(self, piece: Cell, record: CellRecord) -> str | None:
        """The owner's and the named strategies'."""
        return cell_code(self._study, piece)

    def timed(self, piece: Cell) -> bool:
        """As the study says."""
        return self._study.exclusive

    def again(self, record: CellRecord) -> bool:
        """By the options."""
        return self._options.force or (self._options.retry and record.failure is not None)

    def run(
        self, pieces: Sequence[Cell], environment: str, started: Callable[[str], None]
    ) -> Generator[CellRecord, None, None]:
        """In any order, or one after the other where time is measured."""
        # Whole, for processes that run elsewhere.
        folder = (self._options.results / "cache" / self._owner).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        workers = 1 if self._study.exclusive else self._options.workers
        arguments = [(self._owner, self._study.name, cell, folder, environment) for cell in pieces]
        return side_by_side(run_cell, arguments, workers)


def _wanted(cell: Cell, strategies: tuple[str, ...]) -> bool:
    return not strategies or cell.get("strategy") in (None, *strategies)


def run_studies(reproduction: Reproduction, options: SessionOptions, listener: Listener) -> list[CellRecord]:
    """Run what is open and give the records of all cells of the selection.

    A cell that raises is recorded with its reason and the run goes on.
    """
    selected = [reproduction.study(name) for name in options.studies] or list(reproduction.studies)
    works = [StudyWork(reproduction.owner, study, options) for study in selected]
    return [record for work in works for record in run_session(work, options.results, listener)]


def run_cell(owner: str, study: str, cell: Cell, folder: Path, environment: str) -> CellRecord:
    """Run one cell in this process to its record; whatever it raises is its failure."""
    found = find_reproduction(owner).study(study)
    draft = {
        "key": cell_key(found.name, found.version, cell),
        "study": found.name,
        "version": found.version,
        "cell": cell,
        "environment": environment,
    }
    # The code that runs is the one that was loaded, whatever becomes of its files meanwhile.
    begun = Provenance.begin(cell_code(found, cell))
    wall, cpu = time.perf_counter(), time.process_time()

    def record(rows: Sequence[SeriesRow] = (), failure: str | None = None) -> CellRecord:
        spent = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        outcome = {"rows": rows, "failure": failure, "provenance": begun.ended()}
        return CellRecord.model_validate({**draft, **spent, **outcome})

    try:
        rows = [dict(row) for row in found.run(cell, folder)]
        unnamed = {name for row in rows if isinstance(name := row.get("strategy"), str)} - found.strategies_of(cell)
        if unnamed:
            cause = f"study {study} used {min(unnamed)}, which is not among its strategies: add it to uses"
            return record(failure=cause)
        return record(rows) if rows else record(failure="the study gave no rows for this cell")
    except Exception as error:
        return record(failure=failure_of(error, "run").cause)


def cell_code(study: Study, cell: Cell) -> str | None:
    """Hash of the code behind a cell: the study's owner with its reproduction, and the strategies that it asks.

    None where the study has no file to read.
    """
    own = class_code(study, Study, reproduction=True)
    return content_hash(own, {name: _strategy_code(name) for name in study.strategies_of(cell)}) if own else None


@cache
def _strategy_code(name: str) -> str | None:
    return strategy_codes([name])[name]
