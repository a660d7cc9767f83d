"""Lookup traces as plain text: one row index per line, one file per table."""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, PositiveInt

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.model.table import MAX_ROWS, BatchSize, Name, Rows, Table, Width
from shardbench.workloads.recorded import RecordedConfig, RecordedWorkload
from shardbench.workloads.trace import Bags, bag_offsets
from shardbench.workloads.value_hash import first_unlike, quoted, spans

BUILTIN = {name: Path(__file__).parent / "data" / f"meta_trace_reuse_{name}.txt.gz" for name in ("low", "medium")}
BUILTIN_ROWS = 500_000
"""Rows of the two real tables (their traces' ids are below it)."""
BagLength = Annotated[int, Field(ge=1, le=1 << 31)]
_DIGITS = b"0123456789"
_LINES_A_BYTE = 8
"""Most lines that a byte of a packed file may hold: no lookups that mean anything take less than a bit."""
_ROOM_LINES = 1 << 24
_MAX_DIGITS = 18
"""Most digits of whole numbers that always fit int64."""


def read_indices(path: Path, rows: int | None = None) -> Ints:
    """Read the row indices int64 [lines] of a text file (plain, .gz or .zst), one a line.

    Raises BadInput naming file and line where an index is not a number, negative, or not below
    ``rows`` (None: below 2**40, which no table exceeds).
    """
    return _read_numbers(path, MAX_ROWS if rows is None else rows, "row index")


def read_lengths(path: Path, lookups: int) -> Ints:
    """Read bag lengths int64 [lines], zeros allowed, one a line; raises BadInput unless they add up to ``lookups``."""
    lengths = _read_numbers(path, lookups + 1, "bag length")
    total = sum(lengths.tolist())
    if total != lookups:
        raise BadInput(f"{path.name}: bag lengths add up to {total} but there are {lookups} lookups")
    return lengths


def _read_numbers(path: Path, limit: int, what: str) -> Ints:
    parts: list[Ints] = []
    line = 0
    most = _ROOM_LINES + _LINES_A_BYTE * path.stat().st_size if path.is_file() else 0
    for _, batch in LogFiles(files=(path,), header=(what,), suffix=".tsv").batches([what]):
        texts = batch.column(0)
        at = first_unlike(spans(texts), _DIGITS, range(1, _MAX_DIGITS + 1))
        # What comes after a cell that is no number need not be read.
        values: Ints = texts[:at].cast(pa.int64()).to_numpy(zero_copy_only=False)
        if (values >= limit).any():
            at = int(np.argmax(values >= limit))
        if at is not None:
            short = what.split(" ")[1]
            raise BadInput(
                f"{path.name} line {line + at + 1}: {quoted(texts, at)} is not a {what} below {limit}: "
                f"one {short} a line"
            )
        parts.append(values)
        line += len(values)
        if line > most:
            raise BadInput(f"{path.name}: more than {most} lines, which no trace of this size has: unpack it yourself")
    return np.concatenate(parts)


class TraceConfig(RecordedConfig):
    """Recorded lookups of one or several tables, cut into bags of a fixed or a recorded length.

    A suite states it so (its files lie in the data folder)::

        [[workloads]]
        name = "ours"
        dataset = "trace"
        files = ["ours/users.txt.gz", "ours/items.txt.gz"]
        lengths = ["ours/users.lengths.txt.gz", "ours/items.lengths.txt.gz"]
        rows = [80_000_000, 2_000_000]
        dims = [64, 128]
    """

    dataset: Literal["trace"] = "trace"
    name: Name = "trace"
    batch_size: BatchSize = 512
    files: tuple[str, ...] = Field(default=("builtin:low", "builtin:medium"), min_length=1)
    """``builtin:low``, ``builtin:medium``, or a path relative to the data folder; one feature each."""
    features: tuple[PositiveInt, ...] | None = Field(default=None, exclude_if=lambda features: features is None)
    """How many of the files, in their order, look up each table; None: every file has a table of its own."""
    rows: tuple[Rows, ...] | None = None
    """Rows of each table; None: largest index + 1 (builtin ones: 500,000)."""
    dim: Width = 64
    """Width of every table."""
    dims: tuple[Width, ...] | None = None
    """Width of each table, instead of ``dim``."""
    pooling: BagLength = 8
    """Bag length of every file."""
    poolings: tuple[BagLength, ...] | None = None
    """Bag length of each file, instead of ``pooling``."""
    lengths: tuple[str, ...] | None = None
    """Files of bag lengths, one a file, a bag a line (0: an empty bag), instead of ``pooling``."""
    train_share: float = Field(default=0.5, gt=0, lt=1)
    """First share of the bags that trains; the rest tests."""

    def build(self, data: Path) -> "Trace":
        """Read and check every file; raises BadInput that names file and line."""
        return Trace(self, data)


class Trace(RecordedWorkload):
    """Recorded lookups; every table has as many samples as the file of fewest whole bags."""

    _config: TraceConfig

    def __init__(self, config: TraceConfig, data: Path) -> None:
        shared = config.features or (1,) * len(config.files)
        if sum(shared) != len(config.files):
            raise BadInput(f"{config.name}: {len(config.files)} files but features of {sum(shared)}")
        for field, count, of in (
            ("rows", len(shared), "table"), ("dims", len(shared), "table"),
            ("poolings", len(config.files), "file"), ("lengths", len(config.files), "file"),
        ):  # fmt: skip
            entries = getattr(config, field)
            if entries is not None and len(entries) != count:
                raise BadInput(f"{config.name}: {count} {of}s but {len(entries)} {field}: give one per {of}")
        if config.lengths is not None and config.poolings is not None:
            raise BadInput(f"{config.name}: give poolings or lengths, not both")
        super().__init__(config)
        self._indices: list[Ints] = []
        self._ends: list[Ints] = []
        stops = np.cumsum([0, *shared]).tolist()
        self._files = [range(start, stop) for start, stop in zip(stops, stops[1:])]
        self.tables = tuple(self._read(number, data) for number in range(len(shared)))
        samples = min(len(ends) for ends in self._ends) - 1
        self._split_samples(samples, int(samples * config.train_share))

    def _read(self, number: int, data: Path) -> Table:
        """Keep the lookups of a table's files."""
        config, names, needed = self._config, [], []
        rows = config.rows[number] if config.rows is not None else None
        for file in self._files[number]:
            name, path, stated_rows = _locate(config.files[file], data)
            indices = read_indices(path, rows if rows is not None else stated_rows)
            names.append(name)
            needed.append(stated_rows or int(indices.max()) + 1)
            self._indices.append(indices)
            if config.lengths is not None:
                self._ends.append(bag_offsets(read_lengths(data / config.lengths[file], len(indices))))
            else:
                pooling = config.poolings[file] if config.poolings else config.pooling
                self._ends.append(np.arange(len(indices) // pooling + 1, dtype=np.int64) * pooling)
        dim = config.dims[number] if config.dims else config.dim
        return Table(name=f"t{number}_{names[0]}", rows=rows or max(needed), dim=dim, features=len(names))

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        of_features = []
        for file in self._files[table]:
            ends = self._ends[file][start : stop + 1]
            of_features.append(Bags(values=self._indices[file][ends[0] : ends[-1]], offsets=ends - ends[0]))
        return Bags.shared(of_features)

    def recipe(self) -> object:
        """Return the configuration and a hash of the indices and bags read."""
        content = content_hash(*self._indices, *self._ends)
        return {"config": self._config.model_dump(mode="json"), "bags": content}


def _locate(file: str, data: Path) -> tuple[str, Path, int | None]:
    kind, _, name = file.partition(":")
    if kind == "builtin":
        if name not in BUILTIN:
            raise BadInput(f"no built-in trace '{name}': there are {', '.join(sorted(BUILTIN))}")
        return name, BUILTIN[name], BUILTIN_ROWS
    path = data / file
    stem = "".join(c if c.isalnum() and c.isascii() else "-" for c in path.name.split(".")[0])
    return stem, path, None


CONFIG = TraceConfig
