"""Access logs as PyArrow reads them, part by part: parquet, CSV and TSV, plain, .gz or .zst."""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput

BLOCK_BYTES = 1 << 20
"""Bytes of a text parsed at once: larger blocks leave a core's cache before all their columns are converted."""
BATCH_ROWS = 1 << 16
"""About how many rows are given at once."""
_HEAD_BYTES = 1 << 18
_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_PACKED = frozenset({".gz", ".zst"})
_ARCHIVES = frozenset({".zip", ".tar", ".7z"})
_ALSO_PACKED = frozenset({".bz2", ".lz4", ".br"})
"""Suffixes of what Arrow unpacks as well."""
_KINDS = "give .parquet, .csv or .tsv (.gz or .zst)"
_ARCHIVE = ".tar.gz"
_FAULTS = (
    pa.ArrowException, OSError, EOFError, UnicodeDecodeError, zlib.error, tarfile.TarError, zipfile.BadZipFile,
    NotImplementedError, RuntimeError,
)  # fmt: skip
"""What reading damaged files raises; archives raise the last two for unknown ways of packing, and for keys."""
MOST_UNPACKED = 50
"""A packed text unpacks to at most so many times its size; logs of clicks come to ten."""
_ROOM_BYTES = 1 << 26
_LONGEST_LIST = 200
"""Most characters of a list of columns in a message."""


class Source(Protocol):
    """Something that has rows with columns, file by file."""

    def batches(self, columns: Sequence[str], typed: Sequence[str] = ()) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield a file's name and a part of its rows, with all ``columns``; raises BadInput in one line."""


@dataclass(frozen=True, kw_only=True)
class LogFiles:
    """Files of one log in their order, and the names of a text's columns where its first line does not state them."""

    files: tuple[Path, ...]
    header: tuple[str, ...] | None = None
    suffix: str | None = None
    """Kind of all files, such as .csv; None: each file is of the kind that its name says."""
    kinds: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Types of those columns of texts that are to be no strings."""
    member: str | None = None
    """Name of the file that is read of a .tar.gz."""
    heard: Callable[[int], None] | None = None
    """Called with the bytes of the files, packed as they are, that were read since the last call."""

    def __post_init__(self) -> None:
        for path in self.files:
            if not path.is_file():
                raise BadInput(f"no file {path}: bring it, or correct the name")
            if self.kind(path) != ".parquet" and self.kind(path) not in _DELIMITERS:
                advice = "unpack it first, and " if path.suffix in _ARCHIVES else ""
                raise BadInput(f"{path.name}: unknown kind of log: {advice}{_KINDS}")
        if not self.files:
            raise BadInput(f"no log was given: {_KINDS}")

    def kind(self, path: Path) -> str:
        """Return the suffix that says what a file is, packed or not."""
        suffixes = [suffix for suffix in path.suffixes if suffix not in _PACKED]
        return self.suffix or (suffixes[-1] if suffixes else "")

    def columns(self) -> tuple[str, ...]:
        """Return the names of the first file's columns."""
        path = self.files[0]
        with one_line(path):
            if self.kind(path) == ".parquet":
                return tuple(pyarrow.parquet.read_schema(path).names)
            return self._column_names(path)

    def batches(self, columns: Sequence[str], typed: Sequence[str] = ()) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield a file's name and a part of its rows, with all ``columns``, file by file.

        Cells of a text are strings, but those of ``kinds``, and of the columns ``typed``, which become what they look
        like. Raises BadInput naming the file that lacks a column or cannot be read.
        """
        for path in self.files:
            with one_line(path):
                size, before = path.stat().st_size, 0
                for batch, at in self._of_file(path, list(columns), typed):
                    self._hear(at - before)
                    before = at
                    yield path.name, batch
                self._hear(size - before)

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(path.stat().st_size for path in self.files)

    def _hear(self, more: int) -> None:
        if self.heard is not None:
            self.heard(more)

    def _of_file(self, path: Path, columns: list[str], typed: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield a part of the rows, and about how many bytes of the file lie before its end."""
        if self.kind(path) == ".parquet":
            with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
                _check_columns(path, columns, file.schema_arrow.names)
                size, rows, rows_read = path.stat().st_size, file.metadata.num_rows, 0
                for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns, use_threads=False):
                    rows_read += batch.num_rows
                    yield batch, size * rows_read // max(rows, 1)
            return
        _check_columns(path, columns, self._column_names(path))
        kinds = {name: self.kinds.get(name, pa.string()) for name in columns if name not in typed}
        convert = pyarrow.csv.ConvertOptions(include_columns=columns, column_types=kinds, strings_can_be_null=True)
        convert.null_values = [""]
        with self._text(path, convert) as (reader, position):
            waiting: list[pa.RecordBatch] = []
            for block in reader:
                waiting.append(block)
                if sum(part.num_rows for part in waiting) >= BATCH_ROWS:
                    yield pa.concat_batches(waiting), position()
                    waiting = []
            if waiting:
                yield pa.concat_batches(waiting), position()

    def _column_names(self, path: Path) -> tuple[str, ...]:
        """Return the names of a text's columns; raises BadInput where ``header`` names more or fewer than there are."""
        with self._text(path, None) as (reader, _):
            there = tuple(reader.schema.names)
        if self.header is None:
            return there
        if len(there) != len(self.header):
            raise BadInput(
                f"{path.name} has {len(there)} columns, the header names {len(self.header)}: {_names(self.header)}"
            )
        return self.header

    @contextmanager
    def _text(
        self, path: Path, convert: pyarrow.csv.ConvertOptions | None
    ) -> Iterator[tuple[pyarrow.csv.CSVStreamingReader, Callable[[], int]]]:
        """Open a text, with a function that tells how many bytes of its file were read; its head where None."""
        kind = self.kind(path)
        # Only columns are asked for where nothing is converted: they are in the first lines.
        block = BLOCK_BYTES if convert is not None else min(BLOCK_BYTES, _HEAD_BYTES)
        # One thread: only then are faults told by their row.
        reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=block)
        if convert is None:
            reading.autogenerate_column_names = self.header is not None
        elif self.header is not None:
            reading.column_names = self.header
        # A quote is a sign like others in a TSV; a line with nothing in it is a row whose cells are missing.
        parsing = pyarrow.csv.ParseOptions(
            delimiter=_DELIMITERS[kind], quote_char='"' if kind == ".csv" else False, ignore_empty_lines=False
        )
        with (
            _unpack(path, self.member) as (stream, position),
            pyarrow.csv.open_csv(stream, reading, parsing, convert) as reader,
        ):
            yield reader, position


@contextmanager
def _unpack(path: Path, member: str | None) -> Iterator[tuple[pa.NativeFile, Callable[[], int]]]:
    """Open the file's bytes, unpacked as its suffix says, with a function that tells how many of them were read."""
    if not path.name.endswith(_ARCHIVE):
        packed = path.suffix in _PACKED or path.suffix in _ALSO_PACKED
        with pa.OSFile(str(path)) as raw:
            if not packed:
                yield raw, raw.tell
                return
            with pa.CompressedInputStream(raw, pa.Codec.detect(path.name).name) as stream:
                yield pa.PythonFile(_Bounded(stream, path), mode="r"), raw.tell
        return
    with (
        path.open("rb") as file,
        gzip.open(file) as unpacked,
        tarfile.open(fileobj=_Bounded(unpacked, path), mode="r|") as archive,
    ):
        # In the order of the archive, which is read once: it is packed as a whole.
        for info in archive:
            entry = archive.extractfile(info) if Path(info.name).name == member else None
            if entry is not None:
                yield pa.PythonFile(entry, mode="r"), file.tell
                return
    raise BadInput(f"{path.name} has no file {member}: give the archive as it was downloaded, or the file itself")


class _Bounded(io.RawIOBase):
    """A stream that reads no more out of a packed file than it can hold, and raises OSError beyond."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._bytes_left = stream, MOST_UNPACKED * path.stat().st_size + _ROOM_BYTES

    def readable(self) -> bool:
        """Say that this stream can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes; raises OSError where the file unpacks to more than it can hold."""
        data: bytes = self._stream.read(size)
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise OSError(f"it unpacks to more than {MOST_UNPACKED} times its size: unpack it yourself to have it read")
        return data


@contextmanager
def one_line(path: Path) -> Iterator[None]:
    """Raise BadInput of one line that names the file where reading it fails."""
    try:
        yield
    except MemoryError:
        # Of Arrow as well: the file is not to blame.
        raise
    except _FAULTS as error:
        raise BadInput(f"{path.name} cannot be read: {' '.join(str(error).split())[:300]}") from error


def _check_columns(path: Path, columns: Sequence[str], there: Sequence[str]) -> None:
    missing = [name for name in columns if name not in there]
    if missing:
        raise BadInput(f"{path.name} has no column '{missing[0]}': it has {_names(there)}; needed: {_names(columns)}")
    twice = sorted({name for name in columns if list(there).count(name) > 1})
    if twice:
        raise BadInput(f"{path.name} has two columns '{twice[0]}'")


def _names(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= _LONGEST_LIST else f"{text[: _LONGEST_LIST - 4]} ..."


def times(column: pa.Array, where: str) -> Ints:
    """Return the times int64 [rows] of a column of whole numbers, or of dates and times (microseconds since 1970).

    Raises BadInput for other kinds, and where one is missing.
    """
    kind = column.type
    if column.null_count:
        raise BadInput(f"{where}: a time is missing: every row needs one")
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = pc.cast(pc.cast(column, pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False), pa.int64())
    elif not pa.types.is_integer(kind):
        raise BadInput(f"{where}: times are {kind}: give whole numbers or dates")
    return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
