"""Access logs as PyArrow reads them, part by part: parquet, CSV and TSV, plain, .gz or .zst, on disk or elsewhere."""

import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.workloads.value_hash import is_text

BLOCK_BYTES = 1 << 20
"""Bytes of a text parsed at once: larger blocks leave a core's cache before all their columns are converted."""
BATCH_ROWS = 1 << 16
"""About how many rows are given at once."""
PART_BYTES = 1 << 28
"""About how many bytes of a parquet file are one part."""
_FETCH_BYTES = 1 << 23
"""Bytes of a text that are fetched at once from where it is stored, if that is no disk."""
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
_WILD = re.compile(r"[*?\[]")
_WILDS = re.compile(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])")
_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
"""Wildcards of a pattern, as regular expressions."""
_SECRET = re.compile("//[^/@]*@")
_DRIVERS = {"hdfs": ": install Java and Hadoop's client, and set JAVA_HOME and HADOOP_HOME"}
"""What to do where a kind of address has no driver here."""
_GOOGLE, _RETRIES = ("gs://", "gcs://"), "retry_limit_seconds"
_RETRIED_S = 30
"""Seconds in which Google's storage must answer, unless the address states others; Arrow's own limit is 15 minutes."""
_MAGIC, _TAIL_BYTES = b"PAR1", 8
_OWN_SCHEMA = (b"ARROW:schema", b"arrow_schema")
"""Name in a parquet file's footer under which Arrow looks for its own schema, and one as long that means nothing."""
_LONGEST_LIST = 200
"""Most characters of a list of columns in a message."""


Heard = Callable[[int], None]
"""Called with the bytes of the files, packed as they are, that were read since the last call."""


class Source(Protocol):
    """Something that has rows with columns, file by file."""

    @property
    def bytes(self) -> int:
        """Return the size of all files."""

    @property
    def state(self) -> str:
        """Return what says whether the files are still the same ones."""

    def parts(self) -> "Sequence[Source]":
        """Return sources that have the rows of this one, one after the other, and can be read side by side."""

    def batches(
        self, columns: Sequence[str], typed: Sequence[str] = (), heard: Heard = lambda more: None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
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
    storage: pyarrow.fs.FileSystem = field(default_factory=pyarrow.fs.LocalFileSystem)
    """Where the files are."""
    partitions: Mapping[Path, Mapping[str, str | None]] = field(default_factory=dict)
    """Columns that are not in a file but in the names of its folders (``day=3``), by file."""
    row_groups: range | None = None
    """Row groups of the one parquet file that are read; None: all."""

    def __post_init__(self) -> None:
        for path in self.files:
            if self._info(path).type != pyarrow.fs.FileType.File:
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
        """Return the names of the first file's columns, and of those that its folders state."""
        path = self.files[0]
        stated = self.partitions.get(path, {})
        with one_line(path):
            if self.kind(path) == ".parquet":
                with self._parquet(path) as file:
                    there = tuple(file.schema_arrow.names)
            else:
                there = self._column_names(path)
        return (*there, *(name for name in stated if name not in there))

    def parts(self) -> "tuple[LogFiles, ...]":
        """Return the files as logs of their own, and runs of the row groups of large parquet files."""
        parts = []
        for path in self.files:
            one = replace(self, files=(path,), partitions={path: self.partitions.get(path, {})})
            if self.kind(path) != ".parquet" or one.bytes <= PART_BYTES:
                parts.append(one)
                continue
            with one_line(path), self._parquet(path) as file:
                groups = file.metadata.num_row_groups
            step = max(1, groups * PART_BYTES // one.bytes)
            starts = range(0, groups, step)
            parts += [replace(one, row_groups=range(start, min(start + step, groups))) for start in starts]
        return tuple(parts)

    def batches(
        self, columns: Sequence[str], typed: Sequence[str] = (), heard: Heard = lambda more: None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield a file's name and a part of its rows, with all ``columns``, file by file.

        Cells of a text are strings, but those of ``kinds``, and of the columns ``typed``, which become what they look
        like; texts of parquet come with a dictionary, but those of ``typed``. Raises BadInput naming the file that
        lacks a column or cannot be read.
        """
        for path in self.files:
            with one_line(path):
                size, before = self._size(path), 0
                for batch, at in self._of_file(path, columns, typed):
                    heard(at - before)
                    before = at
                    yield path.name, batch
                heard(size - before)

    @property
    def bytes(self) -> int:
        """Return the size of what is read of all files."""
        return sum(self._size(path) for path in self.files)

    @property
    def state(self) -> str:
        """Return what says whether the files are still the same ones."""
        infos = [self._info(path) for path in self.files]
        return repr([(self.row_groups, self.header, *((one.path, one.size, one.mtime_ns) for one in infos))])

    def _info(self, path: Path) -> pyarrow.fs.FileInfo:
        with one_line(path):
            return self.storage.get_file_info(str(path))

    def _size(self, path: Path) -> int:
        size: int = self._info(path).size
        if self.row_groups is None:
            return size
        with self._parquet(path) as file:
            groups: int = file.metadata.num_row_groups
        return size * len(self.row_groups) // max(groups, 1)

    @contextmanager
    def _parquet(self, path: Path, alike: Sequence[str] = ()) -> Iterator[pyarrow.parquet.ParquetFile]:
        """Open a parquet file; columns ``alike`` that are texts come with their dictionaries, as they are stored.

        Lists of texts are none of dictionaries, which Arrow cannot read where they are long.
        """
        with self.storage.open_input_file(str(path)) as stream:
            stated = pyarrow.parquet.read_metadata(stream)
            if any(_has_dictionaries(field.type) for field in stated.schema.to_arrow_schema()):
                # Parquet has no such type: that they were some is in a schema of Arrow's own beside the columns.
                size = stream.size()
                length = int.from_bytes(stream.read_at(_TAIL_BYTES, size - _TAIL_BYTES)[:4], "little") + _TAIL_BYTES
                footer = stream.read_at(length, size - length).replace(*_OWN_SCHEMA)
                stated = pyarrow.parquet.read_metadata(pa.BufferReader(_MAGIC + footer))
            texts = [field.name for field in stated.schema.to_arrow_schema() if is_text(field.type)]
            with pyarrow.parquet.ParquetFile(
                stream, metadata=stated, pre_buffer=not self._is_local,
                read_dictionary=[name for name in texts if name in alike],
            ) as file:  # fmt: skip
                yield file

    @property
    def _is_local(self) -> bool:
        return isinstance(self.storage, pyarrow.fs.LocalFileSystem)

    def _of_file(
        self, path: Path, columns: Sequence[str], typed: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield a part of the rows, and about how many bytes of the file lie before its end."""
        stated = self.partitions.get(path, {})
        if self.kind(path) == ".parquet":
            with self._parquet(path, [name for name in columns if name not in typed]) as file:
                own = _own_columns(path, columns, file.schema_arrow.names, stated)
                groups = range(file.metadata.num_row_groups) if self.row_groups is None else self.row_groups
                rows = sum(file.metadata.row_group(group).num_rows for group in groups)
                size, rows_read = self._size(path), 0
                reading = file.iter_batches(BATCH_ROWS, list(groups), columns=own, use_threads=False)
                for batch in reading:
                    rows_read += batch.num_rows
                    yield _with_stated(batch, columns, stated, typed), size * rows_read // max(rows, 1)
            return
        own = _own_columns(path, columns, self._column_names(path), stated)
        kinds = {name: self.kinds.get(name, pa.string()) for name in own if name not in typed}
        convert = pyarrow.csv.ConvertOptions(include_columns=own, column_types=kinds, strings_can_be_null=True)
        convert.null_values = [""]
        with self._text(path, convert) as (reader, position):
            waiting: list[pa.RecordBatch] = []
            for block in reader:
                waiting.append(block)
                if sum(part.num_rows for part in waiting) >= BATCH_ROWS:
                    yield _with_stated(pa.concat_batches(waiting), columns, stated, typed), position()
                    waiting = []
            if waiting:
                yield _with_stated(pa.concat_batches(waiting), columns, stated, typed), position()

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
            self._unpacked(path) as (stream, position),
            pyarrow.csv.open_csv(stream, reading, parsing, convert) as reader,
        ):
            yield reader, position

    @contextmanager
    def _unpacked(self, path: Path) -> Iterator[tuple[pa.NativeFile, Callable[[], int]]]:
        """Open the file's bytes, unpacked as its suffix says, with a function that tells how many of them were read."""
        with self.storage.open_input_file(str(path)) as raw:
            size, packed = raw.size(), raw if self._is_local else pa.BufferedInputStream(raw, _FETCH_BYTES)
            if not path.name.endswith(_ARCHIVE):
                if path.suffix not in _PACKED and path.suffix not in _ALSO_PACKED:
                    yield packed, raw.tell
                    return
                with pa.CompressedInputStream(packed, pa.Codec.detect(path.name).name) as stream:
                    yield pa.PythonFile(_Bounded(stream, size), mode="r"), raw.tell
                return
            with (
                gzip.open(packed) as unpacked,
                tarfile.open(fileobj=_Bounded(unpacked, size), mode="r|") as archive,
            ):
                # In the order of the archive, which is read once: it is packed as a whole.
                for info in archive:
                    entry = archive.extractfile(info) if Path(info.name).name == self.member else None
                    if entry is not None:
                        yield pa.PythonFile(entry, mode="r"), raw.tell
                        return
        raise BadInput(
            f"{path.name} has no file {self.member}: give the archive as it was downloaded, or the file itself"
        )


class _Bounded(io.RawIOBase):
    """A stream that reads no more out of a packed file than it can hold, and raises OSError beyond."""

    def __init__(self, stream: Any, packed_bytes: int) -> None:
        self._stream, self._bytes_left = stream, MOST_UNPACKED * packed_bytes + _ROOM_BYTES

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


def _has_dictionaries(kind: pa.DataType) -> bool:
    """Tell whether these are lists of dictionaries."""
    return bool(pa.types.is_nested(kind)) and any(
        pa.types.is_dictionary(kind.field(number).type) or _has_dictionaries(kind.field(number).type)
        for number in range(kind.num_fields)
    )


def _own_columns(
    path: Path, columns: Sequence[str], there: Sequence[str], stated: Mapping[str, str | None]
) -> list[str]:
    """Return which columns are read of a file itself, at least one; raises BadInput where one is nowhere."""
    missing = [name for name in columns if name not in there and name not in stated]
    if missing:
        raise BadInput(f"{path.name} has no column '{missing[0]}': it has {_names(there)}; needed: {_names(columns)}")
    twice = sorted({name for name in columns if list(there).count(name) > 1})
    if twice:
        raise BadInput(f"{path.name} has two columns '{twice[0]}'")
    return [name for name in columns if name in there] or list(there[:1])


def _with_stated(
    batch: pa.RecordBatch, columns: Sequence[str], stated: Mapping[str, str | None], typed: Sequence[str]
) -> pa.RecordBatch:
    """Return the columns of a file and of its folders' names, in their order."""
    if batch.schema.names == list(columns):
        return batch
    arrays = [
        batch.column(name) if name in batch.schema.names else _repeated(stated[name], batch.num_rows, name in typed)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _repeated(text: str | None, rows: int, is_typed: bool) -> pa.Array:
    """Return a column of one text; of a whole number or a date where it is one and types are wanted."""
    value = pa.scalar(text, pa.string())
    for kind in (pa.int64(), pa.timestamp("us")) if is_typed else ():
        try:
            return pa.repeat(value.cast(kind), rows)
        except pa.ArrowInvalid:
            continue
    return pa.repeat(value, rows)


def find_logs(names: Sequence[str], header: tuple[str, ...] | None = None) -> LogFiles:
    """Return the log that files, folders and patterns name, on disk or where an address such as ``s3://`` says.

    Of a folder come all files in it and its folders, in the order of their names, but for hidden ones and those that
    engines write besides (``_SUCCESS``). A pattern may have ``*``, ``?``, ``[...]`` and ``**``. Folders called
    ``day=3`` below a folder or a pattern's first wildcard give a column ``day``. Raises BadInput where nothing is
    there.
    """
    storage: pyarrow.fs.FileSystem = pyarrow.fs.LocalFileSystem()
    files: list[Path] = []
    partitions: dict[Path, dict[str, str | None]] = {}
    for number, name in enumerate(names):
        own, path = _storage(name)
        if number and own != storage:
            raise BadInput("the logs are stored in different places: profile a log of one place")
        storage = own
        with one_line(Path(path)):
            met = _below(storage, path)
        files += [file for file, _ in met]
        partitions |= {file: dict(_partition(part) for part in below.parts[:-1] if "=" in part) for file, below in met}
    return LogFiles(files=tuple(files), header=header, storage=storage, partitions=partitions)


def _storage(name: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return where a file is stored, and its path there."""
    if "://" not in name:
        return pyarrow.fs.LocalFileSystem(), name
    limit = f"{'&' if '?' in name else '?'}{_RETRIES}={_RETRIED_S}"
    try:
        is_endless = name.startswith(_GOOGLE) and _RETRIES not in name
        storage, path = pyarrow.fs.FileSystem.from_uri(name + limit if is_endless else name)
    except _FAULTS as error:
        # Without the secret that an address may have.
        line = _SECRET.sub("//", f"{name} cannot be reached: {' '.join(str(error).split())[:300]}")
        raise BadInput(line + _DRIVERS.get(name.partition("://")[0], "")) from error
    return storage, str(path)


def _below(storage: pyarrow.fs.FileSystem, path: str) -> list[tuple[Path, PurePosixPath]]:
    """Return the files that a path means, in order, and where they lie below the folder that it names."""
    kind = storage.get_file_info(path).type
    wild = _WILD.search(path)
    if kind == pyarrow.fs.FileType.Directory:
        folder, pattern = path, ".*"
    elif kind == pyarrow.fs.FileType.NotFound and wild:
        cut = path.rfind("/", 0, wild.start()) + 1
        folder, pattern = path[:cut] or ".", "".join(_WILDCARDS.get(word) or word for word in _words(path[cut:]))
    else:
        return [(Path(path), PurePosixPath(Path(path).name))]
    infos = storage.get_file_info(pyarrow.fs.FileSelector(folder, recursive=True, allow_not_found=True))
    files = sorted(PurePosixPath(info.path) for info in infos if info.type == pyarrow.fs.FileType.File)
    below = [(Path(file), file.relative_to(PurePosixPath(folder))) for file in files]
    met = [
        (file, rest)
        for file, rest in below
        if re.fullmatch(pattern, str(rest)) and not any(part.startswith(("_", ".")) for part in rest.parts)
    ]
    if not met:
        if wild and folder != path:
            raise BadInput(f"no file is called {path}: correct the pattern, or name the folder that the files lie in")
        raise BadInput(f"folder {path} has no file of a log in it: name the folder that the files lie in")
    return met


def _words(pattern: str) -> list[str]:
    """Return the wildcards of a pattern, and what is between them as a regular expression that means itself."""
    return [word if _WILD.match(word) else re.escape(word) for word in _WILDS.split(pattern)]


def _partition(part: str) -> tuple[str, str | None]:
    key, _, value = part.partition("=")
    return unquote(key), None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)


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
