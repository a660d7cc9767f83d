"""Turns Criteo Kaggle's files into arrays that can be memory-mapped.

A line is: label (none in ``test.txt``), 13 integers, 26 categories (32-bit hex numbers), tab-separated; cells may
be empty. The file, or the archive ``dac.tar.gz`` with its ``train.txt``, is streamed; a malformed line is refused by
its number.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from shardbench.base.arrays import Bools, Bytes, Floats32, Ints
from shardbench.base.atomic import whole_folder
from shardbench.base.errors import BadInput
from shardbench.datasets.array_file import ArrayFile
from shardbench.datasets.criteo_like import cardinalities
from shardbench.datasets.prepared import NOTE, Note, write_model
from shardbench.datasets.text import blocks, decimals, hexadecimals, quoted

INTEGERS, CATEGORIES = 13, 26
COLUMNS = 1 + INTEGERS + CATEGORIES
MEMBER = "train.txt"
"""What is read of an archive."""
MISSING = -1
"""Row of an empty category cell in the prepared columns."""
MAX_ROWS = 2**31 - 1

Mode = Literal["hash", "vocabulary"]


class Prepared(Note):
    """What ``prepared.json`` says of a prepared folder."""

    mode: Mode
    rows: tuple[PositiveInt, ...] = pydantic.Field(min_length=CATEGORIES, max_length=CATEGORIES)
    missing: tuple[NonNegativeInt, ...] = pydantic.Field(min_length=CATEGORIES, max_length=CATEGORIES)


def category_file(category: int) -> str:
    """File name of category 0..25: C01.npy .. C26.npy."""
    return f"C{category + 1:02d}.npy"


def stable_hash(values: Ints, rows: int, category: int, seed: int = 0) -> Ints:
    """Rows int64 [n] in [0, rows) of 32-bit category values: splitmix64(value + key) mod rows.

    ``key`` is (seed * 26 + category + 1) << 32, so that every column and seed has its own
    hash; splitmix64 is Steele, Lea and Flood's finaliser (OOPSLA 2014), the same everywhere.
    """
    key = ((seed * CATEGORIES + category + 1) << 32) % 2**64
    mixed = values.astype(np.uint64) + np.array([key], dtype=np.uint64)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(rows)).astype(np.int64)


class Vocabulary:
    """Values numbered by first appearance; memory is that of the distinct values."""

    def __init__(self) -> None:
        self._keys = np.empty(0, dtype=np.int64)
        self._rows = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def encode(self, values: Ints) -> Ints:
        """Rows int64 [n] of values int64 [n]; new values get the next rows."""
        distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        at = np.searchsorted(self._keys, distinct)
        known = np.zeros(len(distinct), dtype=np.bool_)
        inside = at < len(self._keys)
        known[inside] = self._keys[at[inside]] == distinct[inside]
        fresh = np.flatnonzero(~known)
        rows = np.empty(len(distinct), dtype=np.int64)
        rows[known] = self._rows[at[known]]
        rows[fresh[np.argsort(first[fresh])]] = len(self._keys) + np.arange(len(fresh))
        self._keys = np.insert(self._keys, at[fresh], distinct[fresh])
        self._rows = np.insert(self._rows, at[fresh], rows[fresh])
        return rows[inverse]


def prepare(
    source: Path,
    target: Path,
    *,
    mode: Mode = "hash",
    rows: int | tuple[int, ...] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Prepared:
    """Writes the folder ``target`` from ``source`` (plain, .gz, .zst or .tar.gz) and returns its description.

    Mode ``hash`` maps a category to a row by ``stable_hash`` over ``rows`` (one number for all
    columns, or 26; None: the published cardinalities); ``vocabulary`` numbers the values by
    first appearance. A file without labels gives no ``label.npy``. ``progress`` is called with
    the samples done so far. Nothing is left behind on an error; raises BadInput naming the line.
    """
    sizes = _table_rows(mode, rows)
    with whole_folder(target) as folder:
        prepared = _stream(source, folder, _Encoder(mode, sizes, seed), progress)
        write_model(folder / NOTE, prepared)
    return prepared


def _table_rows(mode: Mode, rows: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if mode == "vocabulary":
        if rows is not None:
            raise BadInput("mode 'vocabulary' counts the rows itself: leave rows out, or take mode 'hash'")
        return (0,) * CATEGORIES
    if mode != "hash":
        raise BadInput(f"no mode '{mode}': take 'hash' or 'vocabulary'")
    if rows is None:
        return tuple(cardinalities()["kaggle"]["rows"])
    sizes = (rows,) * CATEGORIES if isinstance(rows, int) else rows
    if len(sizes) != CATEGORIES or min(sizes) < 1 or max(sizes) > MAX_ROWS:
        raise BadInput(f"rows must be one number or {CATEGORIES} numbers in 1..{MAX_ROWS}")
    return sizes


class _Encoder:
    """Category values to rows, column by column, by hash or by vocabulary."""

    def __init__(self, mode: Mode, rows: tuple[int, ...], seed: int) -> None:
        self.mode = mode
        self.seed = seed
        self._rows = rows
        self._vocabularies = [Vocabulary() for _ in range(CATEGORIES)]

    def __call__(self, category: int, values: Ints, there: Bools) -> Ints:
        """Rows int64 [n] of a column of values; MISSING where ``there`` is false."""
        column = np.full(len(values), MISSING, dtype=np.int64)
        if self.mode == "hash":
            column[there] = stable_hash(values[there], self._rows[category], category, self.seed)
        else:
            column[there] = self._vocabularies[category].encode(values[there])
        return column

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of every table: as configured, or the values met (at least 1)."""
        return self._rows if self.mode == "hash" else tuple(max(1, len(v)) for v in self._vocabularies)


def _stream(source: Path, folder: Path, encoder: _Encoder, progress: Callable[[int], None] | None) -> Prepared:
    missing = np.zeros(CATEGORIES, dtype=np.int64)
    labelled = True
    label = ArrayFile(folder / "label.npy", np.int8)
    dense = ArrayFile(folder / "dense.npy", np.float32, (INTEGERS,))
    columns = [ArrayFile(folder / category_file(c), np.int32) for c in range(CATEGORIES)]
    for block in blocks(source, member=MEMBER):
        labelled = has_labels(block) if dense.length == 0 else labelled
        labels, integers, categories, absent = parse_block(block, source.name, dense.length, labelled=labelled)
        label.append(labels)
        dense.append(integers)
        missing += absent.sum(axis=0)
        for c, column in enumerate(columns):
            column.append(encoder(c, categories[:, c], ~absent[:, c]))
        if progress is not None:
            progress(dense.length)
    if dense.length == 0:
        raise BadInput(f"{source.name} is empty: give Criteo Kaggle's dac.tar.gz, or a file of it")
    checksums = {file.path.name: file.close() for file in (label, dense, *columns)}
    if not labelled:
        label.path.unlink()
        del checksums[label.path.name]
    return Prepared(
        samples=dense.length,
        mode=encoder.mode,
        seed=encoder.seed,
        rows=encoder.rows,
        missing=tuple(missing.tolist()),
        checksums=checksums,
    )


def has_labels(block: Bytes) -> bool:
    """Whether the first line of a block has a label, by its number of columns."""
    end = int(np.argmax(block == ord("\n")))
    return int(np.count_nonzero(block[:end] == ord("\t"))) != COLUMNS - 2


def parse_block(
    block: Bytes, name: str, lines_before: int = 0, *, labelled: bool = True
) -> tuple[NDArray[np.int8], Floats32, Ints, Bools]:
    """Labels [n], integers [n, 13] (NaN if empty), categories [n, 26] and where those are empty.

    ``block`` is whole lines of ``name`` of which ``lines_before`` came earlier; labels are [0] where they are not
    ``labelled``. Raises BadInput naming the line of a wrong number of columns or a bad cell.
    """
    first = 1 if labelled else 0
    stops, starts = _fields(block, name, lines_before, COLUMNS - 1 + first)
    empty = stops == starts
    cut = first + INTEGERS
    numbers, number_good = decimals(block, starts[:, :cut].ravel(), stops[:, :cut].ravel())
    hexes, hex_good = hexadecimals(block, starts[:, cut:].ravel(), stops[:, cut:].ravel())
    numbers, number_good = numbers.reshape(-1, cut), number_good.reshape(-1, cut) | empty[:, :cut]
    labels = numbers[:, :first]
    number_good[:, :first] &= ~empty[:, :first] & (labels >= 0) & (labels <= 1)
    good = np.concatenate([number_good, hex_good.reshape(-1, CATEGORIES) | empty[:, cut:]], axis=1)
    if not good.all():
        line, column = (int(i) for i in np.argwhere(~good)[0])
        field = quoted(block, int(starts[line, column]), int(stops[line, column]))
        raise BadInput(f"{name} line {lines_before + line + 1}: {_wanted(column, first)}, not {field}")
    integers = np.where(empty[:, first:cut], np.nan, numbers[:, first:]).astype(np.float32)
    return labels.ravel().astype(np.int8), integers, hexes.reshape(-1, CATEGORIES), empty[:, cut:]


def _fields(block: Bytes, name: str, lines_before: int, columns: int) -> tuple[Ints, Ints]:
    """Where every field of the block stops and starts, int64 [lines, columns]; BadInput for other numbers of them."""
    separators = np.flatnonzero((block == ord("\t")) | (block == ord("\n")))
    line_ends = np.flatnonzero(block[separators] == ord("\n"))
    found = np.diff(line_ends, prepend=-1)
    if (found != columns).any():
        at = int(np.argmax(found != columns))
        raise BadInput(
            f"{name} line {lines_before + at + 1}: {found[at]} columns, expected {columns} "
            "(label, 13 integers, 26 categories, tab-separated; no label in test.txt): give dac.tar.gz or a file of it"
        )
    stops = separators.reshape(-1, columns)
    starts = np.concatenate([[0], separators[:-1] + 1]).reshape(-1, columns)
    stops[:, -1] -= (stops[:, -1] > starts[:, -1]) & (block[stops[:, -1] - 1] == ord("\r"))
    return stops, starts


def _wanted(column: int, first: int) -> str:
    if column < first:
        return "column 1 (label) must be 0 or 1"
    kind = "an integer" if column < first + INTEGERS else "1 to 8 hex digits"
    return f"column {column + 1} must be {kind} or empty"
