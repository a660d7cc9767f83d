"""Turns Criteo Kaggle's files into arrays that can be memory-mapped.

A line is: label (none in ``test.txt``), 13 integers, 26 categories (32-bit hex numbers), tab-separated; cells may
be empty. The file, or the archive ``dac.tar.gz`` with its ``train.txt``, is read part by part; a malformed line is
refused by its number.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pydantic
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from shardbench.base.arrays import Floats32, Ints
from shardbench.base.atomic import whole_folder
from shardbench.base.errors import BadInput
from shardbench.datasets.criteo_like import cardinalities
from shardbench.datasets.preparation.log_encode import Cells, RowsOfTable
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.datasets.preparation.prepared import NOTE, ArrayFile, Note, write_model
from shardbench.datasets.preparation.side_by_side import Tell
from shardbench.workloads.value_hash import first_unlike, quoted, spans

INTEGERS, CATEGORIES = 13, 26
LABEL = "label"
INTEGER_NAMES = tuple(f"I{number + 1}" for number in range(INTEGERS))
CATEGORY_NAMES = tuple(f"C{number + 1}" for number in range(CATEGORIES))
HEADER = (LABEL, *INTEGER_NAMES, *CATEGORY_NAMES)
"""Names of a line's columns."""
MEMBER = "train.txt"
"""Name of the file that is read of an archive."""
MISSING = -1
"""Row of an empty category cell in the prepared columns."""
MAX_ROWS = 2**31 - 1
EXPECTED = (
    "dac.tar.gz or a file of it (label, 13 integers, 26 categories of 1 to 8 hex digits, tab-separated; "
    "no label in test.txt)"
)

Mode = Literal["hash", "vocabulary"]

_HEX = b"0123456789abcdefABCDEF"
_HEX_LENGTHS = range(9)


class Prepared(Note):
    """What ``prepared.json`` says of a prepared folder."""

    mode: Mode
    rows: tuple[PositiveInt, ...] = pydantic.Field(min_length=CATEGORIES, max_length=CATEGORIES)
    missing: tuple[NonNegativeInt, ...] = pydantic.Field(min_length=CATEGORIES, max_length=CATEGORIES)


def category_file(category: int) -> str:
    """Return the file name of category 0..25: C01.npy .. C26.npy."""
    return f"C{category + 1:02d}.npy"


def prepare(
    source: Path,
    target: Path,
    *,
    mode: Mode = "hash",
    rows: int | None = None,
    seed: int = 0,
    progress: Tell = lambda read_bytes, rows: None,
) -> Prepared:
    """Write the folder ``target`` from ``source`` (plain, .gz, .zst or .tar.gz) and return its description.

    A category becomes a row as a value of any log does (``RowsOfTable``): mode ``hash`` over ``rows`` of every column
    (None: the published cardinalities), ``vocabulary`` by first appearance. A file without labels gives
    no ``label.npy``. ``progress`` is called with 0 and the samples done since the last call. Nothing is left behind on
    an error; raises BadInput naming the line.
    """
    sizes = _table_rows(mode, rows)
    cells = Cells(mode=mode, seed=seed)
    tables = [RowsOfTable(name, cells, size) for name, size in zip(CATEGORY_NAMES, sizes)]
    with whole_folder(target) as folder:
        try:
            prepared = _stream(source, folder, tables, cells, progress)
        except BadInput as error:
            raise BadInput(f"{error}; expected: {EXPECTED}") from error
        write_model(folder / NOTE, prepared)
    return prepared


def _table_rows(mode: Mode, rows: int | None) -> Sequence[int | None]:
    if mode == "vocabulary":
        if rows is not None:
            raise BadInput("mode 'vocabulary' counts the rows itself: leave rows out, or take mode 'hash'")
        return (None,) * CATEGORIES
    if rows is None:
        return tuple(cardinalities()["kaggle"]["rows"])
    if rows > MAX_ROWS:
        raise BadInput(f"{rows} rows: {MAX_ROWS} is the most")
    return (rows,) * CATEGORIES


def _stream(
    source: Path,
    folder: Path,
    tables: Sequence[RowsOfTable],
    cells: Cells,
    progress: Tell,
) -> Prepared:
    log = _log(source)
    names = log.header or ()
    label = ArrayFile(folder / "label.npy", np.int8) if LABEL in names else None
    dense = ArrayFile(folder / "dense.npy", np.float32, (INTEGERS,))
    columns = [ArrayFile(folder / category_file(c), np.int32) for c in range(CATEGORIES)]
    missing = [0] * CATEGORIES
    for _, batch in log.batches(names):
        first = dense.length
        if label is not None:
            label.append(_labels(batch.column(LABEL), source.name, first))
        dense.append(_integers(batch))
        for c, (name, table, column) in enumerate(zip(CATEGORY_NAMES, tables, columns)):
            texts = batch.column(name)
            at = first_unlike(spans(texts), _HEX, _HEX_LENGTHS)
            if at is not None:
                place = f"{source.name} line {first + at + 1}: column {names.index(name) + 1}"
                raise BadInput(f"{place} must be 1 to 8 hex digits or empty, not {quoted(texts, at)}")
            rows, lengths = table.bags(table.coded(texts, source.name))
            missing[c] += len(lengths) - len(rows)
            column.append(_one_each(rows, lengths))
        progress(0, batch.num_rows)
    files = [dense, *columns] if label is None else [label, dense, *columns]
    return Prepared(
        samples=dense.length,
        mode="hash" if cells.mode == "hash" else "vocabulary",
        seed=cells.seed,
        rows=tuple(table.rows for table in tables),
        missing=tuple(missing),
        checksums={file.path.name: file.close() for file in files},
    )


def _log(source: Path) -> LogFiles:
    """Return the file as a log, with or without labels as its first line has them."""
    kinds = {LABEL: pa.int8(), **dict.fromkeys(INTEGER_NAMES, pa.int64())}
    log = LogFiles(files=(source,), header=HEADER, suffix=".tsv", kinds=kinds, member=MEMBER)
    # What is read of an archive has labels.
    if source.name.endswith(".tar.gz") or len(replace(log, header=None).columns()) != len(HEADER) - 1:
        return log
    return replace(log, header=HEADER[1:])


def _labels(column: pa.Array, name: str, lines_before: int) -> NDArray[np.int8]:
    """Return the labels int8 [lines]; raises BadInput where one is no 0 or 1."""
    labels: NDArray[np.int8] = column.fill_null(MISSING).to_numpy(zero_copy_only=False)
    wrong = (labels < 0) | (labels > 1)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise BadInput(f"{name} line {lines_before + at + 1}: column 1 (label) must be 0 or 1, not {column[at]}")
    return labels


def _integers(batch: pa.RecordBatch) -> Floats32:
    """Return the integers float32 [lines, 13]; NaN stands for an empty cell."""
    integers = np.empty((batch.num_rows, INTEGERS), dtype=np.float32)
    for i, name in enumerate(INTEGER_NAMES):
        integers[:, i] = batch.column(name).to_numpy(zero_copy_only=False)
    return integers


def _one_each(rows: Ints, lengths: Ints) -> Ints:
    """Return the row of every cell, int64 [cells]; MISSING stands for an empty one."""
    if len(rows) == len(lengths):
        return rows
    column = np.full(len(lengths), MISSING, dtype=np.int64)
    column[lengths > 0] = rows
    return column
