"""Lookup traces as plain text: one row index per line, one file per table."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from shardbench.datasets.recorded import RecordedWorkload
from shardbench.datasets.text import blocks, decimals, quoted
from shardbench.errors import BadInput
from shardbench.serialise import content_hash
from shardbench.table import Name, Table
from shardbench.trace import Bags
from shardbench.workload import WorkloadConfig

Ints = NDArray[np.int64]

BUILTIN = {name: Path(__file__).parent / "data" / f"meta_trace_reuse_{name}.txt.gz" for name in ("low", "medium")}
BUILTIN_ROWS = 500_000
"""Rows of the two real tables (their traces' ids are below it)."""


def read_indices(path: Path, rows: int | None = None) -> Ints:
    """Row indices int64 [lines] of a text file (plain, .gz or .zst), one a line.

    Raises BadInput naming file and line where an index is not a number, negative, beyond
    int64 or not below ``rows``.
    """
    parts: list[Ints] = []
    line = 0
    for block in blocks(path):
        stops = np.flatnonzero(block == ord("\n"))
        starts = np.concatenate([[0], stops[:-1] + 1])
        stops = stops - ((stops > starts) & (block[stops - 1] == ord("\r")))
        values, good = decimals(block, starts, stops)
        wrong = ~good | (values < 0)
        if rows is not None:
            wrong |= values >= rows
        if wrong.any():
            at = int(np.argmax(wrong))
            field = quoted(block, int(starts[at]), int(stops[at]))
            limit = "" if rows is None else f" below {rows}"
            raise BadInput(f"{path.name} line {line + at + 1}: {field} is not a row index{limit}: one index a line")
        parts.append(values)
        line += len(values)
    if not parts:
        raise BadInput(f"{path.name} is empty: one row index a line")
    return np.concatenate(parts)


class TraceConfig(WorkloadConfig):
    """Recorded lookups of one or several tables; ``pooling`` consecutive lookups make a bag."""

    dataset: Literal["trace"] = "trace"
    name: Name = "trace"
    batch_size: PositiveInt = 512
    files: tuple[str, ...] = Field(default=("builtin:low", "builtin:medium"), min_length=1)
    """``builtin:low``, ``builtin:medium``, or a path relative to the data folder; one table each."""
    rows: tuple[PositiveInt, ...] | None = None
    """Rows of each table; None: largest index + 1 (builtin ones: 500,000)."""
    dim: PositiveInt = 64
    pooling: PositiveInt = 8
    train_share: float = Field(default=0.5, gt=0, lt=1)
    """First share of the bags that trains; the rest tests."""

    def build(self, data: Path) -> "Trace":
        """Reads and checks every file; raises BadInput naming file and line."""
        return Trace(self, data)


class Trace(RecordedWorkload):
    """Every table has as many samples as the shortest file has whole bags."""

    def __init__(self, config: TraceConfig, data: Path) -> None:
        if config.rows is not None and len(config.rows) != len(config.files):
            raise BadInput(f"{config.name}: {len(config.files)} files but {len(config.rows)} rows: give one per file")
        self._config = config
        self.name = config.name
        self.dense = config.dense
        self.batch_size = config.batch_size
        self.test_batches = config.test_batches
        self._indices: list[Ints] = []
        tables: list[Table] = []
        for number, file in enumerate(config.files):
            rows = config.rows[number] if config.rows is not None else None
            name, path, known = _locate(file, data)
            indices = read_indices(path, rows if rows is not None else known)
            self._indices.append(indices)
            tables.append(Table(name=f"t{number}_{name}", rows=rows or known or int(indices.max()) + 1, dim=config.dim))
        self.tables = tuple(tables)
        self._split_samples(min(len(i) for i in self._indices) // config.pooling, config.train_share)

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        pooling = self._config.pooling
        values = self._indices[table][start * pooling : stop * pooling]
        return Bags(values=values, offsets=np.arange(stop - start + 1, dtype=np.int64) * pooling)

    def recipe(self) -> object:
        """The configuration and a hash of the indices read."""
        return {"config": self._config.model_dump(mode="json"), "indices": content_hash(*self._indices)}


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
