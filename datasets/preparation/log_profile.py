"""Turns access logs into a folder of bags, profiles and row orders, which the kind ``access_log`` reads.

The log is read part by part, on all cores, into a word for each value; then the tables are counted and written, several
side by side. Memory is that of the batches being read, and of the different values of the tables being counted. A run
that is killed leaves ``FOLDER.unfinished`` with the parts that it has read; the same command goes on there.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from shardbench.base.arrays import Bools, Ints, Words
from shardbench.base.atomic import sole_writer, whole_folder
from shardbench.base.errors import BadInput
from shardbench.base.serialise import StrictModel, content_hash, to_json
from shardbench.datasets.preparation.array_file import ArrayFile
from shardbench.datasets.preparation.distinct import WordCounts, sharing
from shardbench.datasets.preparation.log_encode import Cells, Mode, RowsOfTable
from shardbench.datasets.preparation.log_reader import Source, times
from shardbench.datasets.preparation.prepared import NOTE, Note, read_model, write_model
from shardbench.datasets.preparation.side_by_side import Tell, cores, side_by_side
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Rows, TableName, Width
from shardbench.workloads.table_list import ListedTable
from shardbench.workloads.value_hash import Missing, mixed, own_rows

PROFILES = "profiles.json"
SEEN = "seen.json"
HOT_SHARE = 0.01
"""Share of the rows seen, hottest first, whose share of the lookups is told."""
UNFINISHED = ".unfinished"
"""What is behind the folder's name where a run that was killed left what it had read."""
WORTH_BYTES = 1 << 26
"""Bytes of a log, or of its words, for which one more process is worth starting."""
_WORD_BYTES = 8
_SAMPLED_TIMES = 1 << 21
_MAX_ROWS32 = 2**31 - 1
_WORDS, _PART, _WHOLE, _TIME = "words.arrow", "part.json", "whole", "time"


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


@dataclass(frozen=True, kw_only=True)
class SampleSplit:
    """Which samples of a log are kept, and which of these train."""

    time: str | None = None
    """Column of times; None: the log is in the order of time."""
    train_share: float = 0.8
    rate: float = 1.0
    """Share of the rows that is kept."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.train_share < 1 and 0 < self.rate <= 1):
            raise BadInput(f"train share {self.train_share} must be in (0, 1), rate {self.rate} in (0, 1]")

    def kept(self, first: int, rows: int) -> Bools:
        """Return which rows [first, first + rows) of the log are kept, bool [rows]: the same ones however it is cut."""
        if self.rate == 1.0:
            return np.ones(rows, dtype=np.bool_)
        draws = mixed(np.arange(first, first + rows, dtype=np.int64), self.seed) >> np.uint64(11)
        return np.asarray(draws < np.uint64(round(self.rate * 2**53)))


def values_file(table: int, feature: int) -> str:
    """Return the name of the file of a feature's row ids, one after the other."""
    return f"t{table}_f{feature}_values.npy"


def offsets_file(table: int, feature: int) -> str:
    """Return the name of the file of where a feature's bags begin and end in its row ids, int64 [samples + 1]."""
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
    count_values: bool = False,
    progress: Tell = lambda read_bytes, rows: None,
    counted: Callable[[int], None] = lambda tables: None,
) -> Profiled:
    """Write the folder ``target``, which must not exist, and return its description; nothing is left of a failure.

    ``tables`` say which columns are looked up where; hashed ones without rows get the rows that fit their values.
    With ``count_values`` the folder also says what was seen (``SeenTables``). ``progress`` is called with the bytes and
    rows read since the last call, and then ``counted`` with the number of tables counted so far. Raises BadInput that
    names file and column.
    """
    for table in tables:
        # What cannot be is refused before anything is read.
        RowsOfTable(table.name, cells, table.rows)
    with _unfinished(target) as folder:
        words, read_rows = _read_all(_Reading(log, folder, tuple(tables), cells, cut), progress)
        whole = folder / _WHOLE
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        features = [0, *accumulate(len(table.inputs) for table in tables)]
        jobs = [
            _Counting(whole, words, number, table, range(first, last), cells, count_values)
            for number, (table, first, last) in enumerate(zip(tables, features, features[1:]))
        ]
        done = 0

        def tell(_: int, finished: int) -> None:
            nonlocal done
            done += finished
            if finished:
                counted(done)

        processes = min(cores(), 1 + features[-1] * words.samples * _WORD_BYTES // WORTH_BYTES)
        of_tables = side_by_side(_count, jobs, processes, tell)
        write_model(whole / PROFILES, TableProfiles(tables={one.table.name: one.profile for one in of_tables}))
        if count_values:
            seen = {one.table.name: one.seen for one in of_tables if one.seen is not None}
            write_model(whole / SEEN, SeenTables(tables=seen))
        profiled = Profiled(
            samples=words.samples, train_samples=words.train, read_rows=read_rows, mode=cells.mode,
            missing=cells.missing, rate=cut.rate, seed=cells.seed, time=cut.time, split_at=words.split_at,
            tables=tuple(one.table for one in of_tables),
            checksums={name: digest for one in of_tables for name, digest in one.checksums.items()},
        )  # fmt: skip
        write_model(whole / NOTE, profiled)
        whole.replace(target)
    return profiled


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Give a folder for what is to become ``target``; it stays only where the process is killed, to be gone on with."""
    if target.exists():
        raise BadInput(f"{target} is there already: remove it, or take another folder")
    folder = target.with_name(target.name + UNFINISHED)
    with sole_writer(folder):
        try:
            yield folder
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _read_all(log: "_Reading", progress: Tell) -> tuple["_LogWords", int]:
    """Turn all values into words, as far as an earlier run did not; return them, and the number of rows of the log."""
    cut = log.cut
    processes = min(cores(), 1 + log.log.bytes // WORTH_BYTES)
    jobs = [replace(log, log=part, number=number) for number, part in enumerate(log.log.parts())]
    if cut.rate < 1:
        # Whether a row is kept depends on its number.
        rows = side_by_side(_number_of_rows, jobs, processes, lambda *_: None)
        jobs = [replace(job, first=first) for job, first in zip(jobs, [0, *accumulate(rows)])]
    parts = side_by_side(_read, jobs, processes, progress)
    samples = sum(part.samples for part in parts)
    words = _LogWords(tuple(job.target / _WORDS for job in jobs), samples)
    if samples:
        words = words.divided(cut)
    if not 0 < words.train < samples:
        raise BadInput(f"{words.train} of {samples} samples train: give more rows, or another train share or rate")
    return words, sum(part.rows for part in parts)


@dataclass(frozen=True)
class _Reading:
    """A log or a part of it that is to be read, and how; ``number`` parts and ``first`` rows are before it."""

    log: Source
    folder: Path
    tables: tuple[ListedTable, ...]
    cells: Cells
    cut: SampleSplit
    number: int = 0
    first: int = 0

    @property
    def columns(self) -> list[str]:
        """Return the columns of all features, table by table."""
        return [column for table in self.tables for column in table.inputs]

    @property
    def target(self) -> Path:
        """Return the folder of the part, whose name says what is in it: whatever is changed gets another one."""
        tables = [to_json(table) for table in self.tables]
        return self.folder / content_hash(self.log.state, tables, self.cells, self.cut, self.number, self.first)


class _Part(StrictModel):
    """What ``part.json`` says of a part of the log."""

    rows: NonNegativeInt
    samples: NonNegativeInt
    """Rows that were kept."""


def _number_of_rows(job: _Reading, tell: Tell) -> int:
    rows = 0
    for _, batch in job.log.batches(job.columns[:1]):
        rows += batch.num_rows
        tell(0, 0)
    return rows


def _read(job: _Reading, tell: Tell) -> _Part:
    """Write the words of one part of a log, and its times, or take those that are there."""
    if job.target.is_dir():
        part = read_model(_Part, job.target / _PART, "remove the folder")
        tell(job.log.bytes, part.rows)
        return part
    time, columns = job.cut.time, job.columns
    tables = [
        rows for table in job.tables for rows in [RowsOfTable(table.name, job.cells, table.rows)] * len(table.inputs)
    ]
    fields = [pa.field(str(place), pa.list_(pa.uint64())) for place in range(len(columns))]
    schema = pa.schema([*fields, *([pa.field(_TIME, pa.int64())] if time is not None else [])])
    rows = samples = 0
    with whole_folder(job.target) as folder:
        with pa.OSFile(str(folder / _WORDS), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            typed = [time] if time is not None else []
            needed = list(dict.fromkeys([*typed, *columns]))
            for name, batch in job.log.batches(needed, typed, lambda more: tell(more, 0)):
                is_kept = job.cut.kept(job.first + rows, batch.num_rows)
                kept = batch if is_kept.all() else batch.filter(pa.array(is_kept))
                made = [
                    _as_lists(*table.words(kept.column(column), f"{name} column {column}"))
                    for column, table in zip(columns, tables)
                ]
                if time is not None:
                    made.append(pa.array(times(batch.column(time), f"{name} column {time}")[is_kept]))
                writer.write_batch(pa.RecordBatch.from_arrays(made, schema=schema))
                rows, samples = rows + batch.num_rows, samples + kept.num_rows
                tell(0, batch.num_rows)
        part = _Part(rows=rows, samples=samples)
        write_model(folder / _PART, part)
    return part


def _as_lists(words: Words, lengths: Ints) -> pa.ListArray:
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(words))


@dataclass(frozen=True)
class _LogWords:
    """The words of a whole log, in the files of its parts, and which of its samples train."""

    files: tuple[Path, ...]
    samples: int
    train: int = 0
    split_at: int | None = None
    """Samples before this time train; None: the first ones."""

    def divided(self, cut: SampleSplit) -> "_LogWords":
        """Return the words with the samples divided; by at most 2^21 evenly spread times where the log has some."""
        if cut.time is None:
            return replace(self, train=int(self.samples * cut.train_share))
        step = -(-self.samples // _SAMPLED_TIMES)
        parts: list[Ints] = []
        rows = 0
        for batch in self._batches():
            row_times = batch.column(_TIME).to_numpy()
            parts.append(row_times[-rows % step :: step])
            rows += len(row_times)
        split_at = int(np.quantile(np.concatenate(parts), cut.train_share, method="higher"))
        by_time = replace(self, split_at=split_at)
        return replace(by_time, train=sum(int(of_train.sum()) for of_train, _ in by_time.bags([])))

    def bags(self, places: Sequence[int]) -> Iterator[tuple[Bools, list[tuple[Words, Ints]]]]:
        """Yield which samples train, bool [n], and the words and bag lengths of each place, some samples at a time."""
        rows = 0
        for batch in self._batches():
            if self.split_at is not None:
                of_train = batch.column(_TIME).to_numpy() < self.split_at
            else:
                of_train = np.arange(rows, rows + batch.num_rows) < self.train
            rows += batch.num_rows
            yield of_train, [_words_of(batch.column(str(place))) for place in places]

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches; they are mapped, so that columns which are not looked at are not read."""
        for path in self.files:
            with pa.memory_map(str(path)) as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)


def _words_of(lists: pa.ListArray) -> tuple[Words, Ints]:
    return lists.flatten().to_numpy(), np.diff(lists.offsets.to_numpy()).astype(np.int64)


@dataclass(frozen=True)
class _Counting:
    """A table that is to be counted and written; its features are at these places of the words."""

    folder: Path
    words: _LogWords
    number: int
    table: ListedTable
    places: range
    cells: Cells
    count_values: bool


@dataclass(frozen=True)
class _Counted:
    """What was counted of a table, and the checksums of its files."""

    table: LoggedTable
    profile: AccessProfile
    seen: "SeenTable | None"
    checksums: dict[str, str]


def _count(job: _Counting, tell: Tell) -> _Counted:
    """Count a table, and write its bags, train ones first, and its rows in frequency order."""
    table, rows = job.table, RowsOfTable(job.table.name, job.cells, job.table.rows)
    count_all = job.count_values or (job.cells.mode == "hash" and table.rows is None)
    train, test = WordCounts(), WordCounts()
    empty = present = 0
    for of_train, features in job.words.bags(job.places):
        tell(0, 0)
        for words, lengths in features:
            codes = rows.codes(words)
            if job.cells.mode == "ids":
                rows.most_id = max(rows.most_id, int(codes.max(initial=0)))
            train.add(_chosen(codes, lengths, of_train))
            if count_all:
                test.add(_chosen(codes, lengths, ~of_train))
            empty += int(np.count_nonzero(lengths[of_train] == 0))
        together = np.sum([lengths for _, lengths in features], axis=0)
        present += int(np.count_nonzero(together[of_train]))
    codes, counts = train.counts()
    if count_all:
        test.add(codes)
        rows.values = len(test)
    if not own_rows(job.cells.missing):
        empty = 0
    elif empty:
        present = job.words.train
    in_order, sums = ordered(rows.rows_of(codes), counts, empty)
    profile = AccessProfile.from_counts(sums, rows=rows.rows, samples=job.words.train, present=present)
    files = _write_bags(job, rows, tell)
    order = ArrayFile(job.folder / order_file(job.number), np.int64)
    order.append(in_order)
    logged = LoggedTable(
        name=table.name, rows=rows.rows, dim=table.dim, pooled=table.pooled, features=table.inputs,
        lookups=tuple(values.length for values, _ in files),
    )  # fmt: skip
    seen = seen_table(logged, profile, rows, job.cells) if job.count_values else None
    arrays = [order, *(file for pair in files for file in pair)]
    tell(0, 1)
    return _Counted(logged, profile, seen, {file.path.name: file.close() for file in arrays})


def ordered(rows: Ints, counts: Ints, empty: int) -> tuple[Ints, Ints]:
    """Return the rows in frequency order, ties by number, and how often each is looked up, both int64 [seen].

    ``counts`` int64 as ``rows``, in which one may be several times; row 0 is looked up ``empty`` times more.
    """
    if empty:
        rows, counts = np.append(rows, 0), np.append(counts, empty)
    seen, of_row = np.unique(rows, return_inverse=True)
    sums = np.zeros(len(seen), dtype=np.int64)
    np.add.at(sums, of_row, counts)
    order = np.argsort(-sums, kind="stable")
    return seen[order], sums[order]


def _write_bags(job: _Counting, rows: RowsOfTable, tell: Tell) -> list[tuple[ArrayFile, ArrayFile]]:
    """Write the row ids and offsets of each feature, the train samples before those that test."""
    kind = np.int64 if rows.rows > _MAX_ROWS32 else np.int32
    files = []
    for feature in range(len(job.places)):
        offsets = ArrayFile(job.folder / offsets_file(job.number, feature), np.int64)
        offsets.append(np.zeros(1, dtype=np.int64))
        files.append((ArrayFile(job.folder / values_file(job.number, feature), kind), offsets))
    for trains in (True, False):
        for of_train, features in job.words.bags(job.places):
            chosen = of_train == trains
            if not chosen.any():
                continue
            tell(0, 0)
            for (values, offsets), (words, lengths) in zip(files, features):
                bags, bag_lengths = rows.bags(_chosen(words, lengths, chosen), lengths[chosen])
                offsets.append(values.length + np.cumsum(bag_lengths))
                values.append(bags)
    return files


def _chosen(words: Words, lengths: Ints, samples: Bools) -> Words:
    """Return the words of some samples."""
    if samples.all():
        return words
    return words[np.repeat(samples, lengths)] if samples.any() else words[:0]


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


def seen_table(table: LoggedTable, profile: AccessProfile, rows: RowsOfTable, cells: Cells) -> SeenTable:
    """Tell what was seen of a table, of which ``profile`` counts the train split."""
    lookups, seen_rows = profile.lookups, sum(profile.row_counts)
    once = profile.row_counts[-1] if profile.counts and profile.counts[-1] == 1 else 0
    return SeenTable(
        rows=table.rows,
        dim=table.dim,
        values=rows.values,
        suggested_rows=rows.suggested_rows,
        sharing=sharing(rows.values, table.rows - own_rows(cells.missing)) if cells.mode == "hash" else 0.0,
        pooling=profile.mean_pooling,
        coverage=profile.coverage,
        hot=float(profile.cdf(np.ceil(HOT_SHARE * seen_rows))) if lookups else 0.0,
        new=once / lookups if lookups else 0.0,
    )
