"""A session: the open part of a list of work is run, and every piece ends in a record on disk."""

import multiprocessing as mp
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from shardbench.base.atomic import sole_writer
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.engine.launch import end_children, end_with, own_lifeline, set_rank_variables, start_server
from shardbench.records.base_record import BaseRecord
from shardbench.records.store import RecordStore

I = TypeVar("I")  # noqa: E741
R = TypeVar("R", bound=BaseRecord)
G = TypeVar("G")


class Listener(Protocol):
    """Is told how a session goes."""

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """Once, before the first piece of a list of work: how many units it has, and how many need not run."""

    def started(self, piece: str) -> None:
        """A piece begins; not told of pieces that run side by side."""

    def noted(self, line: str) -> None:
        """Something that the user should know before the first piece."""

    def finished(self, number: int, record: BaseRecord) -> None:
        """The record of the ``number``-th open piece (1, 2, ...) is on disk."""


class Work(ABC, Generic[I, R]):
    """A list of pieces of work, each known by a key, and the store that keeps their records."""

    title: str
    """Such as ``suite quick``."""
    unit: str
    """What a piece is: ``trial`` or ``cell``."""
    store: RecordStore[R]
    pieces: Sequence[I]

    @abstractmethod
    def key(self, piece: I) -> str:
        """Key of the piece's record."""

    @abstractmethod
    def code(self, piece: I, record: R) -> str | None:
        """Hash of the code that would run the piece now; ``record`` is what it gave before."""

    @abstractmethod
    def timed(self, piece: I) -> bool:
        """Whether time is measured, so that a record holds only in the environment where it was taken."""

    @abstractmethod
    def again(self, record: R) -> bool:
        """Whether the user wants it run again, settled or not."""

    @abstractmethod
    def run(self, pieces: Sequence[I], environment: str, started: Callable[[str], None]) -> Generator[R, None, None]:
        """Records of the pieces as they are done, in any order; ``environment`` is a hash."""

    def settled(self, known: Mapping[str, R], environment: str) -> list[I]:
        """Pieces that need not run (again) here: no code, place or wish stands against their record."""
        return [piece for piece in self.pieces if self._is_settled(piece, known.get(self.key(piece)), environment)]

    def _is_settled(self, piece: I, record: R | None, environment: str) -> bool:
        if record is None or self.again(record) or not record.made_by(self.code(piece, record)):
            return False
        return not self.timed(piece) or record.environment == environment


def run_session(work: Work[I, R], results: Path, listener: Listener) -> list[R]:
    """Run what is open and give the records of all pieces, settled ones too.

    Raises BadInput where two pieces have one key, and where another run writes to the results.
    """
    with sole_writer(results):
        return _run_alone(work, results, listener)


def _run_alone(work: Work[I, R], results: Path, listener: Listener) -> list[R]:
    set_rank_variables()
    environment = Environment.here()
    aside = work.store.set_aside()
    if aside is not None:
        listener.noted(f"a line that was cut off is set aside: {aside}; its {work.unit} is repeated")
    known = work.store.latest()
    keys = [work.key(piece) for piece in work.pieces]
    if len(set(keys)) < len(keys):
        raise BadInput(f"{work.title} lists a {work.unit} twice")
    settled = {work.key(piece) for piece in work.settled(known, environment.hash)}
    todo = [piece for piece, key in zip(work.pieces, keys) if key not in settled]
    listener.planned(work.title, work.unit, len(keys), len(settled))
    if todo:
        environment.save(results)
    # Closed whatever happens, so that what runs side by side ends here and not when Python exits.
    with closing(work.run(todo, environment.hash, listener.started)) as made:
        for number, record in enumerate(made, 1):
            work.store.append(record)
            known[record.key] = record
            listener.finished(number, record)
    return [known[key] for key in keys]


def side_by_side(
    call: Callable[..., G], arguments: Sequence[tuple[object, ...]], workers: int
) -> Generator[G, None, None]:
    """What ``call`` gives for each of the arguments, as it is done; 1 worker is this process, 0 are one a core."""
    workers = workers or cores()
    if workers == 1 or len(arguments) <= 1:
        yield from (call(*each) for each in arguments)
        return
    context = mp.get_context("forkserver")
    # Workers are not recycled: with max_tasks_per_child the pool of Python 3.11 hangs (CPython issue 115634).
    with ProcessPoolExecutor(workers, mp_context=context, initializer=end_with, initargs=(own_lifeline(),)) as pool:
        yield from _as_done(pool, call, arguments)


def waiting_side_by_side(
    call: Callable[..., G], arguments: Sequence[tuple[object, ...]], workers: int
) -> Generator[G, None, None]:
    """The same for a call that does its work in processes of its own (``call_in_child``): threads wait for them.

    So what a call needs is there once, and a worker that is killed is the failure of one call.
    """
    start_server()
    with ThreadPoolExecutor(workers or cores()) as pool:
        yield from _as_done(pool, call, arguments, end_children)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _as_done(
    pool: Executor,
    call: Callable[..., G],
    arguments: Sequence[tuple[object, ...]],
    end: Callable[[], None] | None = None,
) -> Generator[G, None, None]:
    """``end`` ends what calls wait for; called where nobody reads further."""
    running: set[Future[G]] = {pool.submit(call, *each) for each in arguments}
    try:
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        # Ctrl-C too, and a caller who reads no further: what has not begun must not begin.
        pool.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in running if not future.cancelled()]
        # A call may go on to a next process.
        while end is not None and wait(begun, timeout=0.2).not_done:
            end()
