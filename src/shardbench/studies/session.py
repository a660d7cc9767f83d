"""A study as work: its cells, run side by side where time is not measured."""

import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from shardbench.base.deadline import interrupts
from shardbench.base.temporary import temporary_folder
from shardbench.engine.processes.failures import failed, failure_of
from shardbench.records.cell import Cell, CellRecord, cell_key
from shardbench.records.provenance import Provenance
from shardbench.records.store import cell_store, keep_log, keep_plan
from shardbench.records.trial import Failure, Outcome
from shardbench.studies.reproduction import Reproduction, find_reproduction
from shardbench.studies.study import Study
from shardbench.trials.cluster import Cluster, submit_all
from shardbench.trials.discovery import strategies, strategy_version
from shardbench.trials.planning import wall_kind
from shardbench.trials.session import Listener, Work, WorkerOutcome, run_session, side_by_side

Draft = dict[str, object]
"""What of a cell's record is known before it runs."""


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Which studies to run and where; no selection means all."""

    results: Path
    quick: bool = False
    studies: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    """Only cells of these run, and what the study proves about their tasks; none means all."""
    force: bool = False
    retry: frozenset[Outcome] = frozenset()
    """Run cells again that failed so; one that does not say how is an error."""
    workers: int = 0
    """Processes; 0 means as many as cores."""
    cluster: Cluster | None = None
    """Where cells run as jobs, each its own, but for those that measure time; None: here."""

    def studies_of(self, reproduction: Reproduction) -> list[Study]:
        """List the studies that are selected; raises BadInput for a name that is none of the reproduction's."""
        return [reproduction.study(name) for name in self.studies] or list(reproduction.studies)

    def cells(self, study: Study) -> list[Cell]:
        """List the cells that are selected; those of strategies come with what the study proves about their tasks.

        A strategy that the study does not name enters it, where it poses all of them the same tasks.
        """
        listed = list(study.cells(self.quick))
        if not self.strategies:
            return listed
        names = {cell.get("strategy") for cell in listed}
        entering = [cell for name in self.strategies if name not in names for cell in study.entering(name, self.quick)]
        if not entering and names.isdisjoint(self.strategies):
            return []
        owners = (None, *self.strategies)
        return [*(cell for cell in listed if "strategy" in cell and cell["strategy"] in owners), *entering]


class StudyWork(Work[Cell, CellRecord]):
    """The cells of one study."""

    unit = "cell"

    def __init__(self, owner: str, study: Study, options: SessionOptions) -> None:
        self.title = f"study {study.name}"
        self.store = cell_store(options.results, owner, study.name)
        self.pieces = options.cells(study)
        self._owner = owner
        self._study = study
        self._options = options
        self._printed = Path()
        """The file of what the last cell printed."""

    def key(self, piece: Cell) -> str:
        """Key a cell by the study, its version and the cell."""
        return cell_key(self._study.name, self._study.version, piece)

    def version(self, piece: Cell) -> str:
        """Return the versions of the strategies that the cell asks; the study's own is in its key."""
        return cell_version(self._study, piece)

    def is_timed(self, piece: Cell) -> bool:
        """Follow the study: some measure time."""
        return self._study.exclusive

    def wants_rerun(self, record: CellRecord) -> bool:
        """Follow the options to run it again."""
        is_retried = record.failure is not None and (record.outcome or Outcome.ERROR) in self._options.retry
        return self._options.force or is_retried

    def run(
        self, pieces: Sequence[Cell], environment: str, started: Callable[[str], None]
    ) -> Generator[CellRecord, None, None]:
        """Run cells in any order, or in turn where time is measured, in processes that keep what they loaded."""
        # Whole, for processes that run elsewhere.
        results = self._options.results.resolve()
        folder = results / "cache" / self._owner
        folder.mkdir(parents=True, exist_ok=True)
        workers = 1 if self._study.exclusive else self._options.workers
        # Plans of a strategy that enters are kept for whoever checks its records; those of all would be gigabytes.
        plans = results if self._options.strategies else None
        study = partial(_study, find_reproduction, self._owner, self._study.name, plans)
        arguments = [(study, cell, folder, environment) for cell in pieces]
        if self._options.cluster is not None and not self._study.exclusive:
            for made in submit_all(_cell_elsewhere, arguments, self._options.cluster):
                answered = made.value
                if isinstance(answered, Failure):
                    answered = WorkerOutcome(number=made.number, value=answered, log=Path(), wall_s=0.0, cpu_s=0.0)
                yield self._record(pieces[made.number], answered, environment)
            return
        with temporary_folder() as logs:
            timeout_s = self._study.timeout_s
            for answer in side_by_side(_begin, _run_draft, arguments, workers, timeout_s=timeout_s, logs=logs):
                record = self._record(pieces[answer.number], answer, environment)
                self._printed = answer.log
                yield record

    def keep_extras(self, record: CellRecord) -> None:
        """Keep what a cell that failed printed."""
        printed = self._printed.is_file() and self._printed.stat().st_size > 0
        parts = [self._printed] if record.failure is not None and printed else []
        keep_log(self._options.results, record.key, parts)

    def _record(self, cell: Cell, answer: WorkerOutcome[CellRecord], environment: str) -> CellRecord:
        """Record what a worker gave, or why it gave nothing, with the time that it took."""
        record = answer.value
        if isinstance(record, Failure):
            now = _begin_provenance(self._study, cell)
            start = now.started - timedelta(seconds=round(answer.wall_s))
            draft = _draft(self._study, cell, environment, now.model_copy(update={"started": start}))
            record = _failure_record(draft, record)
        provenance = record.provenance.ended() if record.provenance is not None else None
        return record.model_copy(update={"wall_s": answer.wall_s, "cpu_s": answer.cpu_s, "provenance": provenance})


def run_studies(reproduction: Reproduction, options: SessionOptions, listener: Listener) -> list[CellRecord]:
    """Run what is open and give the records of all cells of the selection.

    A cell that raises is recorded with its reason and the run goes on. Studies without a cell of the strategies that
    are selected are passed over.
    """
    works = [StudyWork(reproduction.owner, study, options) for study in options.studies_of(reproduction)]
    if options.strategies:
        works = [work for work in works if work.pieces]
    return [record for work in works for record in run_session(work, options.results, listener)]


def run_cell(study: Callable[[], Study], cell: Cell, folder: Path, environment: str) -> CellRecord:
    """Run one cell in this process to its record; whatever it raises is its failure. What it took is not in it."""
    return _run_draft(_begin(study, cell, folder, environment), study, cell, folder, environment)


def _begin(load: Callable[[], Study], cell: Cell, folder: Path, environment: str) -> Draft:
    """Load what a cell needs; the code that runs is this one, whatever becomes of its files meanwhile."""
    study = load()
    return _draft(study, cell, environment, _begin_provenance(study, cell))


def _run_draft(draft: Draft, load: Callable[[], Study], cell: Cell, folder: Path, environment: str) -> CellRecord:
    study = load()
    try:
        rows = [dict(row) for row in study.run(cell, folder)]
        unnamed = {name for row in rows if isinstance(name := row.get("strategy"), str)} - study.strategies_of(cell)
        if unnamed:
            cause = f"study {study.name} used {min(unnamed)}, which is not among its strategies: add it to uses"
            raise failed(Outcome.ERROR, cause, "run")
        if not rows:
            raise failed(Outcome.ERROR, "the study gave no rows for this cell", "run")
        return CellRecord.model_validate({**draft, "rows": rows})
    except BaseException as error:
        if interrupts(error):
            raise
        traceback.print_exc()
        return _failure_record(draft, failure_of(error, "run"))


def _cell_elsewhere(
    study: Callable[[], Study], cell: Cell, folder: Path, environment: str
) -> WorkerOutcome[CellRecord]:
    """Run one cell in a job of its own, whose time is measured there; what it prints stays with the job."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    record = run_cell(study, cell, folder, environment)
    spent = {"wall_s": time.perf_counter() - start_s, "cpu_s": time.process_time() - start_cpu_s}
    return WorkerOutcome(number=0, value=record, log=Path(), **spent)


def _study(find: Callable[[str], Reproduction], owner: str, name: str, plans: Path | None) -> Study:
    study = find(owner).study(name)
    return study if plans is None else study.telling(lambda answer: keep_plan(plans, answer.plan))


def _draft(study: Study, cell: Cell, environment: str, provenance: Provenance) -> Draft:
    return {
        "key": cell_key(study.name, study.version, cell),
        "study": study.name,
        "version": study.version,
        "cell": cell,
        "environment": environment,
        "provenance": provenance,
        "wall_s": 0.0,
        "cpu_s": 0.0,
    }


def _failure_record(draft: Draft, failure: Failure) -> CellRecord:
    return CellRecord.model_validate({**draft, "failure": failure.cause, "outcome": failure.outcome})


def _begin_provenance(study: Study, cell: Cell) -> Provenance:
    """Return the provenance of a cell that begins now; strategies of other people plan behind a wall."""
    by_name = strategies()
    walls = {wall_kind(by_name[name]) for name in study.strategies_of(cell) if name in by_name}
    return Provenance.begin(cell_version(study, cell), next(filter(None, walls), None))


def cell_version(study: Study, cell: Cell) -> str:
    """Return the versions of the strategies that a cell asks, by name; those that are not here have none."""
    versions = {name: strategy_version(name) for name in sorted(study.strategies_of(cell))}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
