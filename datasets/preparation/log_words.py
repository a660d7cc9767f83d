"""Reads access logs, part by part, into a word for each value, and divides their samples in two: to train, to test."""

import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray
from pydantic import NonNegativeInt

from shardbench.base.arrays import Bools, Ints
from shardbench.base.atomic import whole_folder
from shardbench.base.errors import BadInput
from shardbench.base.serialise import StrictModel, content_hash, to_json
from shardbench.datasets.preparation.log_encode import Cells, Coded, RowsOfTable, kind_of_places
from shardbench.datasets.preparation.log_reader import Source, times
from shardbench.datasets.preparation.prepared import read_model, write_model
from shardbench.datasets.preparation.side_by_side import Tell, side_by_side
from shardbench.workloads.table_list import ListedTable
from shardbench.workloads.value_hash import mixed

_SAMPLED_TIMES = 1 << 21
_WORDS, _PART, _TIME = "words.arrow", "part.json", "time"
FORMAT = 3
"""What a part's files hold: an unfinished folder of another format is read anew."""
_ARRAYS = 3
"""Arrays of the values of a batch's cells: words, places and lengths."""


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


def read_words(log: "Reading", progress: Tell, workers: Executor | None = None) -> tuple["LogWords", int]:
    """Turn all values into words, as far as an earlier run did not; return them, and the number of rows of the log.

    ``workers`` do so, where they see the log and the folder; None: processes of this machine. ``progress`` is called
    with the bytes and rows read since the last call. Raises BadInput that names file and column, and where no sample
    trains or tests.
    """
    cut, size = log.cut, log.log.bytes
    jobs = [replace(log, log=part, number=number) for number, part in enumerate(log.log.parts())]
    if cut.rate < 1:
        # Whether a row is kept depends on its number.
        rows = side_by_side(_number_of_rows, jobs, size, lambda *_: None, workers)
        jobs = [replace(job, first=first) for job, first in zip(jobs, [0, *accumulate(rows)])]
    parts = side_by_side(_read, jobs, size, progress, workers)
    samples = sum(part.samples for part in parts)
    words = LogWords(tuple(job.target / _WORDS for job in jobs), samples)
    if samples:
        words = words.divided(cut)
    if not 0 < words.train < samples:
        raise BadInput(f"{words.train} of {samples} samples train: give more rows, or another train share or rate")
    return words, sum(part.rows for part in parts)


@dataclass(frozen=True)
class Reading:
    """A log or a part of it that is to be read, and how; ``number`` parts and ``first`` rows are before it."""

    log: Source
    folder: Path
    """Where the words come to lie; it is there."""
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
        return self.folder / content_hash(FORMAT, self.log.state, tables, self.cells, self.cut, self.number, self.first)


class _Part(StrictModel):
    """What ``part.json`` says of a part of the log."""

    rows: NonNegativeInt
    samples: NonNegativeInt
    """Rows that were kept."""


def _number_of_rows(job: Reading, tell: Tell) -> int:
    rows = 0
    for _, batch in job.log.batches(job.columns[:1]):
        rows += batch.num_rows
        tell(0, 0)
    return rows


def _read(job: Reading, tell: Tell) -> _Part:
    """Write the words of one part of a log, and its times, or take those that are there."""
    if not job.folder.is_dir():
        raise BadInput(f"{platform.node()} sees no folder {job.folder}: give an --out that all workers see")
    if job.target.is_dir():
        part = read_model(_Part, job.target / _PART, "remove the folder")
        tell(job.log.bytes, part.rows)
        return part
    try:
        return _read_anew(job, tell)
    except OSError:
        if not job.target.is_dir():
            raise
        # A worker of an earlier run went on with it after that run was killed.
        return read_model(_Part, job.target / _PART, "remove the folder")


def _read_anew(job: Reading, tell: Tell) -> _Part:
    time, columns = job.cut.time, job.columns
    tables = [
        rows for table in job.tables for rows in [RowsOfTable(table.name, job.cells, table.rows)] * len(table.inputs)
    ]
    names = [_TIME, *map(str, range(len(columns)))]
    schema = pa.schema([pa.field(name, pa.large_binary()) for name in names])
    rows = samples = 0
    with whole_folder(job.target) as folder:
        with pa.OSFile(str(folder / _WORDS), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            typed = [time] if time is not None else []
            needed = list(dict.fromkeys([*typed, *columns]))
            for name, batch in job.log.batches(needed, typed, lambda more: tell(more, 0)):
                is_kept = job.cut.kept(job.first + rows, batch.num_rows)
                kept = batch if is_kept.all() else batch.filter(pa.array(is_kept))
                moments = None if time is None else times(batch.column(time), f"{name} column {time}")[is_kept]
                made = [_packed(moments)]
                for column, table in zip(columns, tables):
                    coded = table.coded(kept.column(column), f"{name} column {column}")
                    lengths = None if coded.lengths is None else coded.lengths.astype(np.int32)
                    made.append(_packed(coded.words, coded.places, lengths))
                writer.write_batch(pa.RecordBatch.from_arrays(made, schema=schema))
                rows, samples = rows + batch.num_rows, samples + kept.num_rows
                tell(0, batch.num_rows)
        part = _Part(rows=rows, samples=samples)
        write_model(folder / _PART, part)
    return part


def _packed(*arrays: NDArray[Any] | None) -> pa.Array:
    """Return three rows of bytes: those of up to three arrays."""
    # Bytes: of views Arrow 26 keeps each one for ever.
    data = [b"" if array is None else array.tobytes() for array in arrays]
    return pa.array([*data, *[b""] * (_ARRAYS - len(data))], pa.large_binary())


@dataclass(frozen=True)
class LogWords:
    """The words of a whole log, in the files of its parts, and which of its samples train."""

    files: tuple[Path, ...]
    samples: int
    train: int = 0
    split_at: int | None = None
    """Samples before this time train; None: the first ones."""

    def divided(self, cut: SampleSplit) -> "LogWords":
        """Return the words with the samples divided; by at most 2^21 evenly spread times where the log has some."""
        if cut.time is None:
            return replace(self, train=int(self.samples * cut.train_share))
        step = -(-self.samples // _SAMPLED_TIMES)
        parts: list[Ints] = []
        rows = 0
        for batch in self._batches([]):
            row_times = _times(batch)
            parts.append(row_times[-rows % step :: step])
            rows += len(row_times)
        split_at = int(np.quantile(np.concatenate(parts), cut.train_share, method="higher"))
        by_time = replace(self, split_at=split_at)
        return replace(by_time, train=sum(int(of_train.sum()) for of_train, _ in by_time.bags([])))

    def bags(self, places: Sequence[int]) -> Iterator[tuple[Bools, list[Coded]]]:
        """Yield which samples train, bool [n], and the values of each place, some samples at a time."""
        rows = 0
        for batch in self._batches(places):
            coded = [_unpacked(batch.column(str(place))) for place in places]
            if self.split_at is not None:
                of_train = _times(batch) < self.split_at
            else:
                of_train = np.arange(rows, rows + coded[0].cells) < self.train
            rows += len(of_train)
            yield of_train, coded

    def _batches(self, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the times and the values of some places of all batches, which are mapped: no others are read."""
        options = pa.ipc.IpcReadOptions(included_fields=[0, *(place + 1 for place in places)])
        for path in self.files:
            with pa.memory_map(str(path)) as file:
                reader = pa.ipc.open_file(file, options=options)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)


def _times(batch: pa.RecordBatch) -> Ints:
    return np.frombuffer(batch.column(_TIME)[0].as_buffer(), dtype=np.int64)


def _unpacked(column: pa.Array) -> Coded:
    words, places, lengths = (cell.as_buffer() for cell in column)
    of_words = np.frombuffer(words, dtype=np.uint64)
    of_cells = np.frombuffer(lengths, dtype=np.int32)
    return Coded(
        of_words, np.frombuffer(places, dtype=kind_of_places(len(of_words))), of_cells if len(of_cells) else None
    )
