"""Lookup traces as plain text: one row index per line, one file per table."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.datasets.drawn import bag_offsets
from shardbench.datasets.recorded import RecordedWorkload
from shardbench.datasets.selection import MAX_ROWS, Rows, Width
from shardbench.datasets.text import blocks, decimals, quoted
from shardbench.model.table import Name, Table
from shardbench.workloads.trace import Bags
from shardbench.workloads.workload import WorkloadConfig

BUILTIN = {name: Path(__file__).parent / "data" / f"meta_trace_reuse_{name}.txt.gz" for name in ("low", "medium")}
BUILTIN_ROWS = 500_000
"""Rows of the two real tables (their traces' ids are below it)."""


def read_indices(path: Path, rows: int | None = None) -> Ints:
    """Row indices int64 [lines] of a text file (plain, .gz or .zst), one a line.

    Raises BadInput naming file and line where an index is not a number, negative, or not below
    ``rows`` (None: below 2**40, which no table exceeds).
    """
    return _read_numbers(path, MAX_ROWS if rows is None else rows, "row index")


def read_lengths(path: Path, lookups: int) -> Ints:
    """Bag lengths int64 [lines], zeros allowed, one a line; raises BadInput unless they add up to ``lookups``."""
    lengths = _read_numbers(path, lookups + 1, "bag length")
    total = sum(lengths.tolist())
    if total != lookups:
        raise BadInput(f"{path.name}: bag lengths add up to {total} but there are {lookups} lookups")
    return lengths


def _read_numbers(path: Path, limit: int, what: str) -> Ints:
    parts: list[Ints] = []
    line = 0
    for block in blocks(path):
        stops = np.flatnonzero(block == ord("\n"))
        starts = np.concatenate([[0], stops[:-1] + 1])
        stops = stops - ((stops > starts) & (block[stops - 1] == ord("\r")))
        values, good = decimals(block, starts, stops)
        wrong = ~good | (values < 0) | (values >= limit)
        if wrong.any():
            at = int(np.argmax(wrong))
            short = what.split(" ")[1]
            field = quoted(block, int(starts[at]), int(stops[at]))
            raise BadInput(
                f"{path.name} line {line + at + 1}: {field} is not a {what} below {limit}: one {short} a line"
            )
        parts.append(values)
        line += len(values)
    if not parts:
        raise BadInput(f"{path.name} is empty: one {what} a line")
    return np.concatenate(parts)


class TraceConfig(WorkloadConfig):
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
    batch_size: PositiveInt = 512
    files: tuple[str, ...] = Field(default=("builtin:low", "builtin:medium"), min_length=1)
    """``builtin:low``, ``builtin:medium``, or a path relative to the data folder; one table each."""
    rows: tuple[Rows, ...] | None = None
    """Rows of each table; None: largest index + 1 (builtin ones: 500,000)."""
    dim: PositiveInt = 64
    """Width of every table."""
    dims: tuple[Width, ...] | None = None
    """Width of each table, instead of ``dim``."""
    pooling: PositiveInt = 8
    """Bag length of every table."""
    poolings: tuple[PositiveInt, ...] | None = None
    """Bag length of each table, instead of ``pooling``."""
    lengths: tuple[str, ...] | None = None
    """Files of bag lengths, one per table, a bag a line (0: an empty bag), instead of ``pooling``."""
    train_share: float = Field(default=0.5, gt=0, lt=1)
    """First share of the bags that trains; the rest tests."""

    def build(self, data: Path) -> "Trace":
        """Reads and checks every file; raises BadInput naming file and line."""
        return Trace(self, data)


class Trace(RecordedWorkload):
    """Every table has as many samples as the file of fewest whole bags."""

    def __init__(self, config: TraceConfig, data: Path) -> None:
        for field in ("rows", "dims", "poolings", "lengths"):
            given = getattr(config, field)
            if given is not None and len(given) != len(config.files):
                raise BadInput(f"{config.name}: {len(config.files)} files but {len(given)} {field}: give one per file")
        if config.lengths is not None and config.poolings is not None:
            raise BadInput(f"{config.name}: give poolings or lengths, not both")
        self._config = config
        self.name = config.name
        self.dense = config.dense
        self.batch_size = config.batch_size
        self.test_batches = config.test_batches
        self._indices: list[Ints] = []
        self._ends: list[Ints] = []
        tables: list[Table] = []
        for number, file in enumerate(config.files):
            rows = config.rows[number] if config.rows is not None else None
            name, path, known = _locate(file, data)
            indices = read_indices(path, rows if rows is not None else known)
            self._indices.append(indices)
            if config.lengths is not None:
                self._ends.append(bag_offsets(read_lengths(data / config.lengths[number], len(indices))))
            else:
                pooling = config.poolings[number] if config.poolings else config.pooling
                self._ends.append(np.arange(len(indices) // pooling + 1, dtype=np.int64) * pooling)
            dim = config.dims[number] if config.dims else config.dim
            tables.append(Table(name=f"t{number}_{name}", rows=rows or known or int(indices.max()) + 1, dim=dim))
        self.tables = tuple(tables)
        self._split_samples(min(len(ends) for ends in self._ends) - 1, config.train_share)

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        ends = self._ends[table][start : stop + 1]
        return Bags(values=self._indices[table][ends[0] : ends[-1]], offsets=ends - ends[0])

    def recipe(self) -> object:
        """The configuration and a hash of the indices and bags read."""
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
