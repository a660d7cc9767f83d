"""A session: the open part of a list of work is run, and every piece ends in a record on disk."""

import os
import queue
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from shardbench.base.atomic import sole_writer
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment, cores
from shardbench.base.temporary import clean_left_folders
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.launch import Worker
from shardbench.engine.processes.server import FORK_SERVER, set_rank_variables
from shardbench.records.base_record import BaseRecord
from shardbench.records.store import RecordStore
from shardbench.records.trial import Failure
from shardbench.trials.cluster import CallOutcome

I = TypeVar("I")  # noqa: E741
R = TypeVar("R", bound=BaseRecord)
G = TypeVar("G")
P = TypeVar("P")

LOADS_S = 300.0
"""Seconds that a call's preparation may take."""


class Listener(Protocol):
    """Somebody who is told how a session goes."""

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """Hear once, before the first piece of a list of work, how many units it has and how many need not run."""

    def started(self, piece: str) -> None:
        """Hear that a piece begins; nobody is told of pieces that run side by side."""

    def noted(self, line: str) -> None:
        """Hear something that the user should know."""

    def finished(self, number: int, record: BaseRecord) -> None:
        """Hear that the record of the ``number``-th open piece (1, 2, ...) is on disk."""


class Work(ABC, Generic[I, R]):
    """A list of pieces of work, each known by a key, and the store that keeps their records."""

    title: str
    """The name of the list, such as ``suite quick``."""
    unit: str
    """The word for a piece: ``trial`` or ``cell``."""
    store: RecordStore[R]
    pieces: Sequence[I]

    @abstractmethod
    def key(self, piece: I) -> str:
        """Return the key of the piece's record."""

    @abstractmethod
    def version(self, piece: I) -> str | None:
        """Return the version of what would be judged now."""

    @abstractmethod
    def is_timed(self, piece: I) -> bool:
        """Tell whether time is measured, so that a record holds only in the environment where it was taken."""

    @abstractmethod
    def wants_rerun(self, record: R) -> bool:
        """Tell whether the user wants it run again, settled or not."""

    @abstractmethod
    def run(self, pieces: Sequence[I], environment: str, started: Callable[[str], None]) -> Generator[R, None, None]:
        """Yield the records of the pieces as they are done, in any order; ``environment`` is a hash."""

    def keep_extras(self, record: R) -> None:
        """Keep what belongs to a record that is on disk now; nothing by default."""

    def settled_pieces(self, latest: Mapping[str, R], environment: str) -> list[I]:
        """List the pieces that need not run (again) here: no version, place or wish stands against their record."""
        return [piece for piece in self.pieces if self._is_settled(piece, latest.get(self.key(piece)), environment)]

    def _is_settled(self, piece: I, record: R | None, environment: str) -> bool:
        if record is None or self.wants_rerun(record) or not record.is_of(self.version(piece)):
            return False
        return not self.is_timed(piece) or record.environment == environment


def run_session(work: Work[I, R], results: Path, listener: Listener) -> list[R]:
    """Run what is open and give the records of all pieces that have one, settled ones too.

    Raises BadInput where two pieces have one key, and where another run writes to the results.
    """
    clean_left_folders()
    with sole_writer(results):
        set_rank_variables()
        environment = Environment.here()
        aside_path = work.store.set_aside()
        if aside_path is not None:
            listener.noted(f"a line that was cut off is set aside: {aside_path}; its {work.unit} is repeated")
        latest = work.store.latest()
        keys = [work.key(piece) for piece in work.pieces]
        if len(set(keys)) < len(keys):
            raise BadInput(f"{work.title} lists a {work.unit} twice")
        settled = {work.key(piece) for piece in work.settled_pieces(latest, environment.hash)}
        todo = [piece for piece, key in zip(work.pieces, keys) if key not in settled]
        listener.planned(work.title, work.unit, len(keys), len(settled))
        if todo:
            environment.save(results)
        # Closed whatever happens, so that what runs side by side ends here and not when Python exits.
        with closing(work.run(todo, environment.hash, listener.started)) as records:
            for number, record in enumerate(records, 1):
                work.store.append(record)
                latest[record.key] = record
                _keep_extras(work, record)
                listener.finished(number, record)
        left = len(set(keys) - latest.keys())
        if left:
            listener.noted(f"{left} {work.unit}s are left for later: the same command goes on")
    return [latest[key] for key in keys if key in latest]


def _keep_extras(work: Work[I, R], record: R) -> None:
    try:
        work.keep_extras(record)
    except OSError as error:
        raise BadInput(
            f"{error.filename}: {error.strerror}: the {work.unit} just done is recorded, this file of it is not; "
            "make room, and run it again by --force where you need the file"
        ) from error


@dataclass(frozen=True, kw_only=True)
class WorkerOutcome(CallOutcome[G]):
    """The outcome of a call in a worker, and the time that it took by this process's clocks."""

    wall_s: float
    cpu_s: float
    """CPU seconds of the worker's process."""
    log: Path
    """The file of what the call printed."""


def side_by_side(
    prepare: Callable[..., P], call: Callable[..., G], arguments: Sequence[tuple[object, ...]], workers: int, *,
    timeout_s: float, logs: Path,
) -> Generator[WorkerOutcome[G], None, None]:  # fmt: skip
    """Yield what ``call`` gives for each of the arguments, as it is done, in ``workers`` processes; 0 are one a core.

    It gets what ``prepare`` gave for the arguments, and them. That loads in the same process what the call needs, whose
    time then counts. A call that takes longer than ``timeout_s``, or whose process dies, is a Failure, and the next one
    runs. The prints of calls are kept in ``logs``.
    """
    workers = min(workers or cores(), max(len(arguments), 1))
    # A study may keep what outgrows a planner's files.
    crew = [Worker(logs / f"worker{i}", file_bytes=None) for i in range(workers)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in crew:
        idle.put(worker)

    def answer_next(number: int, call_arguments: tuple[object, ...]) -> WorkerOutcome[G]:
        worker = idle.get()
        try:
            if worker.log.is_file():
                os.truncate(worker.log, 0)
            preparation = worker.call(prepare, call_arguments, timeout_s=LOADS_S, phase="run")
            value: G | Failure = worker.call(call, (preparation, *call_arguments), timeout_s=timeout_s, phase="run")
        except TrialFailed as error:
            value = error.failure
        finally:
            log = logs / f"call{number}.log"
            # What it printed is worth less than what it gave.
            with suppress(OSError):
                shutil.copyfile(worker.log, log)
            wall_s, cpu_s = worker.took_s, worker.took_cpu_s
            idle.put(worker)
        return WorkerOutcome(number=number, value=value, log=log, wall_s=wall_s, cpu_s=cpu_s)

    FORK_SERVER.context()
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield from _as_done(pool, answer_next, list(enumerate(arguments)))
    finally:
        for worker in crew:
            worker.end()


def waiting_side_by_side(
    call: Callable[..., G], arguments: Sequence[tuple[object, ...]], workers: int
) -> Generator[G, None, None]:
    """Yield what a call gives that works in processes of its own (``call_in_child``), for which threads wait.

    So what a call needs is there once, and a worker that is killed is the failure of one call.
    """
    FORK_SERVER.context()
    with ThreadPoolExecutor(workers or cores()) as pool:
        yield from _as_done(pool, call, arguments)


def _as_done(
    pool: Executor, call: Callable[..., G], arguments: Sequence[tuple[object, ...]]
) -> Generator[G, None, None]:
    """Yield what the calls give, and end what they wait for where nobody reads further."""
    running: set[Future[G]] = {pool.submit(call, *each) for each in arguments}
    try:
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
    finally:
        # Ctrl-C too, and a caller who reads no further: what has not begun must not begin.
        pool.shutdown(wait=False, cancel_futures=True)
        unfinished = [future for future in running if not future.cancelled()]
        # A call may go on to a next process.
        while wait(unfinished, timeout=0.2).not_done:
            FORK_SERVER.kill_all()
