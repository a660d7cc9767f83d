"""Runs the open cells of a baseline's studies, side by side where time is not measured."""

import multiprocessing as mp
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.engine.launch import end_with, own_lifeline, set_rank_variables
from shardbench.records.provenance import Provenance
from shardbench.records.store import made_by
from shardbench.studies.reproduction import Reproduction, find_reproduction
from shardbench.studies.study import Cell, Row, Study
from shardbench.studies.study_store import StudyRecord, StudyStore, cell_code, cell_key


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Which studies to run and where; no selection means all."""

    results: Path
    quick: bool = False
    studies: tuple[str, ...] = ()
    force: bool = False
    retry: bool = False
    """Run failed cells again."""
    workers: int = 0
    """Processes; 0 means as many as cores."""


class StudyListener(Protocol):
    """Is told how the run goes."""

    def study(self, name: str, cells: int, settled: int) -> None:
        """Before a study: its cells, and how many are on record."""

    def cell(self, number: int, of: int, record: StudyRecord) -> None:
        """A cell's record is on disk."""


def run_studies(reproduction: Reproduction, options: SessionOptions, listener: StudyListener) -> list[StudyRecord]:
    """Run what is open and give the records of all cells of the selection.

    A cell that raises is recorded with its reason and the run goes on.
    """
    set_rank_variables()
    environment = Environment.here()
    records = []
    selected = [reproduction.study(name) for name in options.studies] or list(reproduction.studies)
    for study in selected:
        store = StudyStore(options.results, reproduction.owner, study.name)
        known = store.latest()
        cells = list(study.cells(options.quick))
        keys = [cell_key(study.name, study.version, cell) for cell in cells]
        if len(set(keys)) < len(keys):
            raise BadInput(f"study {study.name} of {reproduction.owner} lists a cell twice")
        todo = [c for c, key in zip(cells, keys) if _open(known.get(key), options, study, environment.hash)]
        listener.study(study.name, len(cells), len(cells) - len(todo))
        if todo:
            environment.save(options.results)
        for number, record in enumerate(_run(reproduction.owner, study, todo, options, environment.hash), 1):
            store.append(record)
            known[record.key] = record
            listener.cell(number, len(todo), record)
        records += [known[key] for key in keys]
    return records


def _open(record: StudyRecord | None, options: SessionOptions, study: Study, environment: str) -> bool:
    if record is None or options.force or (options.retry and record.failure is not None):
        return True
    # What was timed holds only where it was timed, and every number only for the code that made it.
    if not made_by(record, cell_code(study, record.cell, record.rows)):
        return True
    return study.exclusive and record.environment != environment


def _run(
    owner: str, study: Study, cells: Sequence[Cell], options: SessionOptions, environment: str
) -> Iterator[StudyRecord]:
    # Whole, for processes that run elsewhere.
    folder = (options.results / "cache" / owner).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    workers = options.workers or len(os.sched_getaffinity(0))
    if study.exclusive or workers == 1 or len(cells) <= 1:
        for cell in cells:
            yield run_cell(owner, study.name, cell, folder, environment)
        return
    context = mp.get_context("forkserver")
    # Workers are not recycled: with max_tasks_per_child the pool of Python 3.11 hangs (CPython issue 115634).
    with ProcessPoolExecutor(workers, mp_context=context, initializer=end_with, initargs=(own_lifeline(),)) as pool:
        running: set[Future[StudyRecord]] = {
            pool.submit(run_cell, owner, study.name, cell, folder, environment) for cell in cells
        }
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            # Ctrl-C too, and a caller who reads no further: what has not begun must not begin.
            pool.shutdown(wait=False, cancel_futures=True)


def run_cell(owner: str, study: str, cell: Cell, folder: Path, environment: str) -> StudyRecord:
    """Run one cell in this process to its record; whatever it raises is its failure."""
    found = find_reproduction(owner).study(study)
    draft = {
        "key": cell_key(found.name, found.version, cell),
        "study": found.name,
        "version": found.version,
        "cell": cell,
        "environment": environment,
    }
    begun = Provenance.begin(None)
    wall, cpu = time.perf_counter(), time.process_time()

    def record(rows: Sequence[Row] = (), failure: str | None = None) -> StudyRecord:
        spent = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        code = begun.ended().model_copy(update={"strategy_code": cell_code(found, cell, rows)})
        outcome = {"rows": rows, "failure": failure, "provenance": code}
        return StudyRecord.model_validate({**draft, **spent, **outcome})

    try:
        rows = [dict(row) for row in found.run(cell, folder)]
        return record(rows) if rows else record(failure="the study gave no rows for this cell")
    except Exception as error:
        return record(failure=" ".join(f"{type(error).__name__}: {error}".split())[:500])
