"""Turns access logs into a folder of bags, profiles and row orders, which the kind ``access_log`` reads.

The log is read part by part into a word for each value; then the tables are counted and written. Parts and tables go
side by side, on all cores or on the workers of a cluster, and what is written is the same wherever they go. Memory is
that of the batches being read, and of the different values of the tables being counted. A run that is killed leaves
``FOLDER.unfinished`` with the parts that it has read; the same command goes on there.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from shardbench.base.arrays import Ints, Words
from shardbench.base.atomic import sole_writer
from shardbench.base.errors import BadInput
from shardbench.base.serialise import StrictModel
from shardbench.datasets.preparation.distinct import WordCounts, added_up
from shardbench.datasets.preparation.log_encode import Cells, Mode, RowsOfTable
from shardbench.datasets.preparation.log_reader import Source
from shardbench.datasets.preparation.log_words import LogWords, Reading, SampleSplit, read_words
from shardbench.datasets.preparation.prepared import NOTE, ArrayFile, Note, write_model
from shardbench.datasets.preparation.side_by_side import LostWorkers, Tell, side_by_side
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Rows, TableName, Width
from shardbench.workloads.table_list import ListedTable
from shardbench.workloads.value_hash import Missing, own_rows

PROFILES = "profiles.json"
SEEN = "seen.json"
HOT_SHARE = 0.01
"""Share of the rows seen, hottest first, whose share of the lookups is told."""
UNFINISHED = ".unfinished"
"""What is behind the folder's name where a run that was killed left what it had read."""
_WORD_BYTES = 8
_MAX_INT32 = 2**31 - 1
_WHOLE = "whole-"


class LoggedTable(StrictModel):
    """One table of a profiled log."""

    name: TableName
    rows: Rows
    dim: Width
    pooled: bool
    features: Annotated[tuple[str, ...], Field(min_length=1)]
    lookups: tuple[NonNegativeInt, ...]
    """Lookups of each feature, of both splits together."""

    @pydantic.model_validator(mode="after")
    def _of_each(self) -> "LoggedTable":
        if len(self.lookups) != len(self.features):
            raise ValueError(f"{len(self.features)} features but lookups of {len(self.lookups)}")
        return self


class Profiled(Note):
    """What ``prepared.json`` says of a profiled log."""

    train_samples: PositiveInt
    read_rows: PositiveInt
    """Rows of the log, of which ``samples`` were kept."""
    mode: Mode
    missing: Missing
    rate: float
    time: str | None
    split_at: int | None
    """Samples before this time train."""
    counted: bool = Field(default=False, exclude_if=lambda counted: not counted)
    """Whether others counted the log: there are no bags then, only profiles."""
    tables: Annotated[tuple[LoggedTable, ...], Field(min_length=1)]


def values_file(table: int, feature: int) -> str:
    """Return the name of the file of a feature's row ids, one after the other."""
    return f"t{table}_f{feature}_values.npy"


def offsets_file(table: int, feature: int) -> str:
    """Return the name of the file of where a feature's bags begin and end in its row ids, integers [samples + 1]."""
    return f"t{table}_f{feature}_offsets.npy"


def order_file(table: int) -> str:
    """Return the name of the file of a table's rows seen in the train split, hottest first, int64 [seen]."""
    return f"t{table}_order.npy"


def profile_log(
    log: Source,
    target: Path,
    tables: Sequence[ListedTable],
    *,
    cells: Cells,
    cut: SampleSplit,
    progress: Tell = lambda read_bytes, rows: None,
    counted: Callable[[int], None] = lambda tables: None,
    workers: Executor | None = None,
) -> Profiled:
    """Write the folder ``target``, which must not exist, and return its description; nothing is left of a failure.

    ``tables`` say which columns are looked up where; hashed ones without rows get the rows that fit their values.
    ``progress`` is called with the bytes and rows read since the last call, and then ``counted`` with the number of
    tables counted so far. ``workers`` read and count, where they see the log and ``target`` by the same names; None:
    processes of this machine. Raises BadInput that names file and column, and LostWorkers, after which the same call
    goes on.
    """
    for table in tables:
        # What cannot be is refused before anything is read.
        RowsOfTable(table.name, cells, table.rows)
    with _unfinished(target) as folder:
        words, read_rows = read_words(Reading(log, folder, tuple(tables), cells, cut), progress, workers)
        for left in folder.glob(f"{_WHOLE}*"):
            shutil.rmtree(left, ignore_errors=True)
        # Workers of an earlier run may still write to what that one called its own.
        whole = Path(tempfile.mkdtemp(prefix=_WHOLE, dir=folder))
        features = [0, *accumulate(len(table.inputs) for table in tables)]
        jobs = [
            _Counting(whole, words, number, table, range(first, last), cells)
            for number, (table, first, last) in enumerate(zip(tables, features, features[1:]))
        ]
        done = 0

        def tell(_: int, finished: int) -> None:
            nonlocal done
            done += finished
            if finished:
                counted(done)

        of_tables = side_by_side(_count, jobs, features[-1] * words.samples * _WORD_BYTES, tell, workers)
        profiled = write_notes(
            whole, of_tables, samples=words.samples, train_samples=words.train, read_rows=read_rows, mode=cells.mode,
            missing=cells.missing, rate=cut.rate, seed=cells.seed, time=cut.time, split_at=words.split_at,
        )  # fmt: skip
        # mkdtemp makes folders that only the owner can enter.
        whole.chmod(0o755)
        whole.replace(target)
    return profiled


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Give a folder for what is to become ``target``.

    It stays only where the process is killed, or the workers are, to be gone on with.
    """
    if target.exists():
        raise BadInput(f"{target} is there already: remove it, or take another folder")
    folder = target.with_name(target.name + UNFINISHED)
    with sole_writer(folder):
        try:
            yield folder
        except LostWorkers:
            raise
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Counting:
    """A table that is to be counted and written; its features are at these places of the words."""

    folder: Path
    words: LogWords
    number: int
    table: ListedTable
    places: range
    cells: Cells


def _count(job: _Counting, tell: Tell) -> "CountedTable":
    """Count a table, and write its bags, train ones first, and its rows in frequency order."""
    table, rows = job.table, RowsOfTable(job.table.name, job.cells, job.table.rows)
    counted = WordCounts()
    lookups = [0] * len(job.places)
    empty = present = 0
    for of_train, features in job.words.bags(job.places):
        tell(0, 0)
        for feature, coded in enumerate(features):
            codes = rows.codes(coded.words)
            if job.cells.mode == "ids":
                rows.most_id = max(rows.most_id, int(codes.max(initial=0)))
            every = coded.counts()
            train = every if of_train.all() else coded.of(of_train).counts()
            counted.add(codes, train[:-1], every[:-1])
            lookups[feature] += len(coded.places) if coded.lengths is not None else int(np.count_nonzero(coded.there))
            empty += int(train[-1])
        present += int(np.count_nonzero(np.logical_or.reduce([coded.there for coded in features])[of_train]))
    codes, counts, rows.values = counted.of_train()
    if not own_rows(job.cells.missing):
        empty = 0
    elif empty:
        present = job.words.train
    files = _write_bags(job, rows, lookups, tell)
    tell(0, 1)
    return counted_table(
        job.folder / order_file(job.number), table, rows, codes=codes, counts=counts, empty=empty,
        samples=job.words.train, present=present, lookups=tuple(values.length for values, _ in files),
        checksums={file.path.name: file.close() for pair in files for file in pair},
    )  # fmt: skip


def _write_bags(
    job: _Counting, rows: RowsOfTable, lookups: Sequence[int], tell: Tell
) -> list[tuple[ArrayFile, ArrayFile]]:
    """Write the row ids and offsets of each feature, the train samples before those that test."""
    kind = _kind(rows.rows)
    files = []
    for feature, of_feature in enumerate(lookups):
        offsets = ArrayFile(job.folder / offsets_file(job.number, feature), _kind(of_feature + job.words.samples))
        offsets.append(np.zeros(1, dtype=np.int64))
        files.append((ArrayFile(job.folder / values_file(job.number, feature), kind), offsets))
    for trains in (True, False):
        for of_train, features in job.words.bags(job.places):
            chosen = of_train == trains
            if not chosen.any():
                continue
            tell(0, 0)
            for (values, offsets), coded in zip(files, features):
                bags, bag_lengths = rows.bags(coded.of(chosen), kind)
                offsets.append(values.length + np.cumsum(bag_lengths))
                values.append(bags)
    return files


def _kind(most: int) -> type[np.signedinteger[Any]]:
    """Return the type of numbers up to ``most``."""
    return np.int64 if most > _MAX_INT32 else np.int32


class TableProfiles(StrictModel):
    """What ``profiles.json`` says: the train split's profile of every table, by its name."""

    tables: dict[str, AccessProfile]


class SeenTable(StrictModel):
    """What a log showed of one table; shares are 0..1."""

    rows: Rows
    dim: Width
    values: NonNegativeInt
    """Different values in the whole log."""
    suggested_rows: Rows
    """Rows that would fit the values: as many in a vocabulary, else enough to hash them into."""
    sharing: float
    """Expected share of the values that share their row with another one."""
    pooling: float
    """Mean lookups of a train sample, absent features counted as zero."""
    coverage: float
    """Share of the train samples that have a lookup."""
    hot: float
    """Share of the train lookups that go to the hottest 1 % of the rows seen."""
    new: float
    """Expected share of further lookups that go to rows not seen yet: rows seen once over lookups (Good, 1953)."""


class SeenTables(StrictModel):
    """What ``seen.json`` says, by the table's name."""

    tables: dict[str, SeenTable]


@dataclass(frozen=True)
class CountedTable:
    """What was counted of a table, and the checksums of its files."""

    table: LoggedTable
    profile: AccessProfile
    seen: SeenTable
    checksums: dict[str, str]


def counted_table(
    order: Path,
    table: ListedTable,
    rows: RowsOfTable,
    *,
    codes: Words,
    counts: Ints,
    empty: int,
    samples: int,
    present: int,
    lookups: tuple[int, ...],
    checksums: Mapping[str, str],
) -> CountedTable:
    """Write a table's rows in frequency order, ties by number, to the file ``order``; return what is told of it.

    ``codes`` uint64 [n] of different values are looked up ``counts`` int64 [n] times by the ``samples`` that train, and
    row 0 ``empty`` times more; ``present`` of these samples have a lookup. ``lookups`` are those of each feature, and
    ``checksums`` those of the table's other files.
    """
    hashed = rows.rows_of(codes)
    if empty:
        hashed, counts = np.append(hashed, 0), np.append(counts, empty)
    seen_rows, sums = added_up(hashed, counts)
    file = ArrayFile(order, np.int64)
    file.append(seen_rows[np.lexsort((seen_rows, -sums))])
    profile = AccessProfile.from_counts(sums, rows=rows.rows, samples=samples, present=present)
    once = profile.row_counts[-1] if profile.counts and profile.counts[-1] == 1 else 0
    seen = SeenTable(
        rows=rows.rows, dim=table.dim, values=rows.values, suggested_rows=rows.suggested_rows,
        sharing=rows.sharing, pooling=profile.mean_pooling, coverage=profile.coverage,
        hot=float(profile.cdf(np.ceil(HOT_SHARE * len(seen_rows)))) if profile.lookups else 0.0,
        new=once / profile.lookups if profile.lookups else 0.0,
    )  # fmt: skip
    logged = LoggedTable(
        name=table.name, rows=rows.rows, dim=table.dim, pooled=table.pooled, features=table.inputs, lookups=lookups
    )
    return CountedTable(logged, profile, seen, {order.name: file.close(), **checksums})


def write_notes(folder: Path, tables: Sequence[CountedTable], **of_all: Any) -> Profiled:
    """Write what is told of each table, and return the note, of whose fields ``of_all`` are those of no table."""
    write_model(folder / PROFILES, TableProfiles(tables={one.table.name: one.profile for one in tables}))
    write_model(folder / SEEN, SeenTables(tables={one.table.name: one.seen for one in tables}))
    checksums = {name: digest for one in tables for name, digest in one.checksums.items()}
    profiled = Profiled(tables=tuple(one.table for one in tables), checksums=checksums, **of_all)
    write_model(folder / NOTE, profiled)
    return profiled
