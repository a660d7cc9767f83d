"""How cells of a log become rows: by hash, by vocabulary or as they are; a missing one is no lookup or a row."""

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardbench.base.arrays import Bools, Ints, Words
from shardbench.base.errors import BadInput
from shardbench.datasets.preparation.distinct import sharing, suggested_rows
from shardbench.model.table import MAX_ROWS
from shardbench.workloads.value_hash import (
    Missing,
    Spans,
    is_category,
    is_text,
    mixed,
    own_rows,
    rows_of_words,
    spans,
    table_key,
    text_hashes,
    texts_of,
)

Places = NDArray[np.unsignedinteger[Any]]
Mode = Literal["hash", "vocabulary", "ids"]
_NARROW = (np.uint8, np.uint16, np.uint32)
"""Types of places, the first one that can number the words and one more is taken."""
_HEAD, _WEIGHTED = 1000, r"^[^:]+:-?\d*\.\d+$"
"""How many values are looked at for weights, and what each then is: an id, a colon, a number with a point."""
_RECENT, _SHARE = 1 << 16, 8
"""Values of a vocabulary met of late that wait: so many, or this part of all others."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """How the cells of a log are to be read."""

    mode: Mode = "hash"
    missing: Missing = "empty"
    delimiter: str | None = None
    """Text between the values of a cell; None: a cell is one value."""
    null: tuple[str, ...] = ()
    """Texts that mean a missing value, beside the empty one."""
    weights: str | None = None
    """Text between a value and its weight, which is left out; empty: there are no weights; None: nobody said."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode == "ids" and self.missing == "row":
            raise BadInput("ids are rows already: none is left for missing values, take missing 'empty'")
        if self.delimiter == "":
            raise BadInput("the delimiter is empty: give at least one character")


@dataclass(frozen=True, eq=False)
class Coded:
    """Values of some cells: each of ``words`` uint64 [words] stands for a value, and ``places`` say where it is met.

    ``places`` are unsigned, one for each value; a cell that is missing has the place behind the last word. ``lengths``
    say how many values each cell has, integers [cells]; None: one, or it is missing. A word may be there twice, and
    one that is in no place may be there, too.
    """

    words: Words
    places: Places
    lengths: NDArray[np.signedinteger[Any]] | None = None

    @property
    def cells(self) -> int:
        """Return the number of cells."""
        return len(self.places if self.lengths is None else self.lengths)

    def of(self, chosen: Bools) -> "Coded":
        """Return those of some cells, bool [cells]."""
        if chosen.all():
            return self
        if self.lengths is None:
            return Coded(self.words, self.places[chosen])
        return Coded(self.words, self.places[np.repeat(chosen, self.lengths)], self.lengths[chosen])

    @property
    def there(self) -> Bools:
        """Return which cells have a value, bool [cells]."""
        return self.places < len(self.words) if self.lengths is None else self.lengths > 0

    @property
    def bag_lengths(self) -> Ints:
        """Return how many values each cell has, int64 [cells]."""
        return (self.there if self.lengths is None else self.lengths).astype(np.int64)

    def counts(self) -> Ints:
        """Return how often each word is met, and then how many cells have none, int64 [words + 1]."""
        counts = np.bincount(self.places, minlength=len(self.words) + 1)
        if self.lengths is not None:
            counts[-1] = np.count_nonzero(self.lengths == 0)
        return counts

    def each(self, of_words: NDArray[Any]) -> NDArray[Any]:
        """Return for each value what ``of_words`` [words, or with what stands for a missing cell] say of its word."""
        if len(of_words) == len(self.words):
            there = self.places < len(self.words)
            return of_words[self.places if there.all() else self.places[there]]
        return of_words[self.places]


def kind_of_places(words: int) -> type[np.unsignedinteger[Any]]:
    """Return the type of the places of so many words, and of one more."""
    return next(kind for kind in _NARROW if words <= np.iinfo(kind).max)


class _ValueRows:
    """Values int64 [n], ascending, and their rows."""

    def __init__(self) -> None:
        self.values = self.rows = np.empty(0, dtype=np.int64)

    def find(self, values: Ints) -> Ints:
        """Return the rows int64 of ``values``, -1 where one is not among the values."""
        if len(self.values) == 0:
            return np.full(len(values), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        return np.where(self.values[at] == values, self.rows[at], -1)

    def add(self, values: Ints, rows: Ints) -> None:
        """Add values, ascending, none of which is there."""
        at = np.searchsorted(self.values, values)
        self.values = np.insert(self.values, at, values)
        self.rows = np.insert(self.rows, at, rows)


class Vocabulary:
    """Numbers values by first appearance; memory is that of the distinct values."""

    def __init__(self) -> None:
        # All values are moved whenever some are put between them: those met of late wait until they are many.
        self._all, self._recent = _ValueRows(), _ValueRows()

    def __len__(self) -> int:
        return len(self._all.values) + len(self._recent.values)

    def encode(self, values: Ints) -> Ints:
        """Return the rows int64 [n] of values int64 [n]; new values get the next rows."""
        codes, distinct = pd.factorize(values)
        order = np.argsort(distinct)
        ascending = distinct[order]
        rows = np.empty(len(distinct), dtype=np.int64)
        rows[order] = np.maximum(self._all.find(ascending), self._recent.find(ascending))
        fresh = rows < 0
        if fresh.any():
            rows[fresh] = len(self) + np.arange(np.count_nonzero(fresh))
            new = order[fresh[order]]
            self._recent.add(distinct[new], rows[new])
            if len(self._recent.values) > max(_RECENT, len(self._all.values) // _SHARE):
                self._all.add(self._recent.values, self._recent.rows)
                self._recent = _ValueRows()
        return np.asarray(rows[codes])


class RowsOfTable:
    """Rows of one table's values: features that share a table share this.

    A value is its text: 7 in a parquet file and "7" in a CSV are one. Cells are first ``coded``, to a word for each
    different value, the same wherever in the log it is; ``codes`` of words, given in the order of the log, become
    ``rows_of``. Modes: ``hash``, as ``hash_ids`` hashes values; ``vocabulary``, numbers by first appearance; ``ids``,
    the number itself. A hashed table without rows gets those that fit its ``values``, the number of different ones,
    which whoever counts them sets.
    """

    def __init__(self, table: str, cells: Cells, rows: int | None) -> None:
        self._table, self._cells, self._limit = table, cells, rows
        self._key = table_key(table, cells.seed)
        self._vocabulary = Vocabulary()
        self._own = own_rows(cells.missing)
        self.values = 0
        self.most_id = 0
        """The largest of all ``ids``."""
        if cells.mode == "hash" and rows is not None and rows <= self._own:
            raise BadInput(f"table {table}: give more than {self._own} rows, or take mode 'vocabulary'")

    @property
    def rows(self) -> int:
        """Return the rows of the table: as stated, else as suggested (hash) or met (at least 1)."""
        if self._limit is not None:
            return self._limit
        return self.most_id + 1 if self._cells.mode == "ids" else self.suggested_rows

    @property
    def suggested_rows(self) -> int:
        """Return the rows that fit what was met: those of the vocabulary, or enough to hash the values into."""
        if self._cells.mode == "vocabulary":
            return max(1, len(self._vocabulary) + self._own)
        return suggested_rows(self.values + self._own)

    @property
    def sharing(self) -> float:
        """Return the expected share of the values that share their row with another one."""
        return sharing(self.values, self.rows - self._own) if self._cells.mode == "hash" else 0.0

    def coded(self, column: pa.Array, where: str) -> Coded:
        """Return the values of a column's cells; faults begin with ``where``."""
        values, lengths = _bags(column, self._cells.delimiter, where)
        coded = self._coded(values, where)
        if lengths is None:
            return coded
        there = coded.places < len(coded.words)
        if not there.all():
            ends = np.concatenate([[0], np.cumsum(there)])
            lengths = np.diff(ends[np.concatenate([[0], np.cumsum(lengths)])])
            coded = Coded(coded.words, coded.places[there])
        return Coded(coded.words, coded.places, lengths)

    def codes(self, words: Words) -> Words:
        """Return what stands for words, uint64 as ``words``: numbers of a vocabulary, which grows, else the words."""
        if self._cells.mode != "vocabulary":
            return words
        codes = self._vocabulary.encode(words.view(np.int64))
        if self._limit is not None and len(self._vocabulary) + self._own > self._limit:
            most = self._limit - self._own
            raise BadInput(f"table {self._table}: more than {most} different values: give more rows, or hash")
        return codes.view(np.uint64)

    def rows_of(self, codes: Words) -> Ints:
        """Return the rows int64 as ``codes`` uint64."""
        if self._cells.mode == "hash":
            return rows_of_words(codes, self.rows, self._own)
        return codes.view(np.int64) + self._own

    def bags(self, coded: Coded, kind: type[np.signedinteger[Any]] = np.int64) -> tuple[NDArray[Any], Ints]:
        """Return the rows, of a kind that has room for all, and the bag lengths int64 [cells] that values come to."""
        rows = self.rows_of(self.codes(coded.words)).astype(kind, copy=False)
        if not self._own:
            return coded.each(rows), coded.bag_lengths
        if coded.lengths is None:
            return coded.each(np.append(rows, kind(0))), np.ones(coded.cells, dtype=np.int64)
        return _with_missing(coded.each(rows), coded.bag_lengths)

    def _coded(self, values: pa.Array, where: str) -> Coded:
        """Return what values stand for that are not in lists."""
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if pa.types.is_temporal(kind):
            raise BadInput(f"{where}: values are {kind}: name it with --time, or leave it out by --columns")
        if not is_category(kind):
            raise BadInput(f"{where}: values are {kind}: give whole numbers, texts, or lists of them")
        # Hashing takes several times longer than telling which values are alike.
        alike = _alike(values, whole=self._cells.mode == "hash")
        words, is_word = self._words_of(alike.dictionary, where)
        places = alike.indices.cast(pa.int32()).fill_null(len(is_word)).to_numpy()
        if not is_word.all():
            new_places = np.where(is_word, np.cumsum(is_word) - 1, len(words))
            places = np.append(new_places, len(words))[places]
        return Coded(words, places.astype(kind_of_places(len(words))))

    def _words_of(self, values: pa.Array, where: str) -> tuple[Words, Bools]:
        """Return a word for each of the values that are there, and which of the values these are, bool [values]."""
        kind = values.type
        if self._cells.mode == "ids" and pa.types.is_integer(kind) and not self._cells.null:
            return self._ids(values, where), np.ones(len(values), dtype=np.bool_)
        try:
            texts = texts_of(values)
        except pa.ArrowInvalid as error:
            raise BadInput(
                f"{where}: values are {kind}, and not all are whole numbers: leave the column out"
            ) from error
        if is_text(kind):
            texts = self._without_weights(texts, where)
        cells = spans(texts)
        there = cells.lengths > 0
        if self._cells.null:
            is_null = pc.is_in(texts, value_set=pa.array(self._cells.null, texts.type))
            there &= ~np.asarray(is_null.to_numpy(zero_copy_only=False))
        if self._cells.mode == "ids":
            return self._ids(texts.filter(pa.array(there)), where), there
        if not there.all():
            cells = Spans(cells.data, cells.starts[there], cells.lengths[there])
        return mixed(text_hashes(cells), self._key), there

    def _without_weights(self, texts: pa.Array, where: str) -> pa.Array:
        """Return texts of ids alone; raises BadInput where the first look like ``id:weight`` and nobody says so."""
        if self._cells.weights:
            return pc.replace_substring_regex(texts, re.escape(self._cells.weights) + r"[-+0-9.eE]+$", "")
        first = texts[:_HEAD].drop_null()
        if self._cells.weights is None and len(first) and pc.all(pc.match_substring_regex(first, _WEIGHTED)).as_py():
            raise BadInput(
                f"{where}: values such as '{first[0]}' look like an id and its weight: --weights : leaves the weights "
                "out, --weights '' takes them for parts of the ids"
            )
        return texts

    def _ids(self, values: pa.Array, where: str) -> Words:
        """Return whole numbers, of which none is missing, as words, uint64 [values]."""
        try:
            rows: Ints = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            raise BadInput(f"{where}: {str(error).splitlines()[0]}: ids are whole numbers, else hash them") from error
        limit = self._limit if self._limit is not None else MAX_ROWS
        most = int(rows.max(initial=0))
        if most >= limit or rows.min(initial=0) < 0:
            wrong = rows[(rows < 0) | (rows >= limit)]
            raise BadInput(f"{where}: {wrong[0]} is no row of 0..{limit - 1}: give more rows, or hash")
        return rows.view(np.uint64)


def _alike(values: pa.Array, *, whole: bool) -> pa.DictionaryArray:
    """Return values with their dictionary: in the order of first appearance, or, if it may be ``whole``, as it was."""
    if pa.types.is_null(values.type):
        values = values.cast(pa.string())
    elif pa.types.is_dictionary(values.type) and values.dictionary.null_count:
        values = values.dictionary_decode()
    if not pa.types.is_dictionary(values.type):
        return values.dictionary_encode()
    if whole and len(values.dictionary) <= len(values):
        return values
    met = values.indices.dictionary_encode()
    texts = values.dictionary.take(met.dictionary)
    return pa.DictionaryArray.from_arrays(met.indices, texts)


def _bags(column: pa.Array, delimiter: str | None, where: str) -> tuple[pa.Array, Ints | None]:
    """Return the values of a column's cells, and how many each cell has, int64 [cells]; None: one, or it is missing."""
    if pa.types.is_dictionary(column.type) and (delimiter is not None or pa.types.is_nested(column.type.value_type)):
        column = column.dictionary_decode()
    if delimiter is not None and is_text(column.type):
        column = pc.split_pattern(column, delimiter)
    kind = column.type
    fixed = pa.types.is_fixed_size_list(kind)
    if not (fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return column, None
    if pa.types.is_nested(kind.value_type):
        raise BadInput(f"{where}: values are {kind}: give lists of whole numbers or texts")
    if fixed and column.null_count == 0:
        return column.flatten(), np.full(len(column), kind.list_size, dtype=np.int64)
    if fixed:
        column = column.cast(pa.list_(kind.value_type))
    lengths = pc.fill_null(pc.list_value_length(column).cast(pa.int64()), 0)
    # flatten() leaves out what lies under a missing list.
    return column.flatten(), np.asarray(lengths.to_numpy(zero_copy_only=False))


def _with_missing(rows: NDArray[Any], lengths: Ints) -> tuple[NDArray[Any], Ints]:
    """Put a lookup of row 0 into every empty bag."""
    empty = lengths == 0
    starts = np.cumsum(lengths) - lengths
    return np.insert(rows, starts[empty], 0), np.where(empty, 1, lengths)
