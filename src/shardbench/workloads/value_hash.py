"""How values of a log become rows by hash, for the program that reads the log and for the trainer alike.

A value is its text: 7 and "7" are one, and so are 7.0 and "7.0", as which pandas keeps and writes whole numbers of a
column with missing ones. Its row is splitmix64 of the text's 64-bit hash, under a key of seed and table,
modulo the rows.
"""

import hashlib
import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardbench.base.arrays import Bytes, Ints, Words
from shardbench.base.errors import BadInput

Missing = Literal["empty", "row"]
"""A missing value is no lookup (``empty``), or one of the table's row 0, which it then has to itself (``row``)."""

_WORD = 8
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_WORD + 1)], dtype=np.uint64)
"""Masks of a word's first 0..8 bytes."""
_GOLDEN = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_LOW_BITS = (1 << 64) - 1


def hash_ids(values: Any, *, table: str, rows: int, seed: int = 0, missing: Missing = "empty") -> Any:
    """Return the row of each value in a table, as ``shardbench profile --mode hash`` numbers them.

    ``values`` are whole numbers (floats as well) or texts: a numpy array, tensor or list of any shape, or a column of
    pandas or Arrow. The rows are int64 of the same shape, on the same device where ``values`` is a tensor, else a numpy
    array. ``table``, ``rows``, ``seed`` and ``missing`` are those of the profile: features that share a table are
    hashed by the table's name. Empty and missing texts are row 0 where ``missing`` is ``row``. Raises BadInput for them
    where it is ``empty``, as they are no lookups then, and for other kinds of values.
    """
    own = own_rows(missing)
    if rows <= own:
        raise BadInput(f"table {table}: hashing needs more than {own} rows, not {rows}")
    # Who gives a tensor has imported torch; nobody else needs it.
    torch = sys.modules.get("torch")
    tensor = values if torch is not None and isinstance(values, torch.Tensor) else None
    if tensor is not None:
        values = tensor.detach().cpu().numpy()
    cells, there, shape = _cells(values, table)
    if not there.all() and not own:
        at = int(np.argmin(there))
        raise BadInput(f"table {table}: value {at} is missing, which is no lookup: leave it out, or take missing 'row'")
    hashed_rows = rows_of_words(mixed(text_hashes(cells), table_key(table, seed)), rows, own)
    hashed_rows[~there] = 0
    hashed_rows = hashed_rows.reshape(shape)
    return hashed_rows if torch is None or tensor is None else torch.from_numpy(hashed_rows).to(tensor.device)


def _cells(values: Any, table: str) -> "tuple[Spans, np.ndarray[Any, np.dtype[np.bool_]], tuple[int, ...]]":
    """Return where the values' texts lie, which of them are there, and the shape that they came in."""
    try:
        if isinstance(values, pa.Array) or hasattr(values, "__arrow_c_stream__"):
            column = values if isinstance(values, pa.Array) else pa.chunked_array(values).combine_chunks()
            shape: tuple[int, ...] = (len(column),)
        else:
            array = np.asarray(values)
            # An empty list is one of floats to numpy.
            column = pa.array(array.reshape(-1) if array.size else np.empty(0, dtype=np.int64), from_pandas=True)
            shape = array.shape
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not is_category(column.type):
            raise BadInput(f"table {table}: values are {column.type}: give whole numbers or texts")
        cells = spans(texts_of(column))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadInput(f"table {table}: {str(error).splitlines()[0]}: give whole numbers or texts") from error
    return cells, cells.lengths > 0, shape


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_category(kind: pa.DataType) -> bool:
    """Tell whether values of this type can be hashed: texts, whole numbers, floats that are some, or nothing at all."""
    return is_text(kind) or bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def texts_of(values: pa.Array) -> pa.Array:
    """Return values' texts, of whole numbers without a point; raises ArrowInvalid for floats that are none."""
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values).cast(pa.int64())
    if not is_text(values.type):
        return values.cast(pa.string())
    if pc.any(pc.ends_with(values, ".0")).as_py():
        return pc.replace_substring_regex(values, r"^(-?\d+)\.0$", r"\1")
    return values


def own_rows(missing: Missing) -> int:
    """Return how many rows of a table belong to missing values alone: 0 or 1."""
    return 1 if missing == "row" else 0


def table_key(table: str, seed: int) -> int:
    """Return the key under which the values of a table are hashed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{table}".encode()).digest()[:8], "little")


def rows_of_words(words: Words, rows: int, own: int) -> Ints:
    """Fold mixed hashes uint64 [n] into rows int64 [n] of a table of ``rows``, of which the first ``own`` stay free."""
    return (words % np.uint64(rows - own)).astype(np.int64) + own


@dataclass(frozen=True, eq=False)
class Spans:
    """Text i of a column is data[starts[i] : starts[i] + lengths[i]]; a missing one has no length.

    ``data`` uint8; ``starts`` (ascending) and ``lengths`` int64 [texts].
    """

    data: Bytes
    starts: Ints
    lengths: Ints


def spans(texts: pa.Array) -> Spans:
    """Return where the texts of a column of (large) strings lie."""
    _, places, data = texts.buffers()
    if len(texts) == 0 or data is None:
        none = np.zeros(len(texts), dtype=np.int64)
        return Spans(np.empty(0, dtype=np.uint8), none, none)
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    ends = np.frombuffer(places, dtype=kind)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    lengths = np.diff(ends)
    if texts.null_count:
        lengths *= np.asarray(texts.is_valid().to_numpy(zero_copy_only=False))
    return Spans(np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]], ends[:-1] - ends[0], lengths)


def text_hashes(cells: Spans) -> Ints:
    """Hash every text to 64 bits, int64 [texts]; different texts of one length up to 8 bytes never share a hash.

    The text's words of 8 bytes, the last filled with zeros, each xored to the splitmix64 of what was before it,
    first the length.
    """
    starts, lengths = cells.starts, cells.lengths
    if len(starts) == 0:
        return np.empty(0, dtype=np.int64)
    longest, fixed = int(lengths.max()), len(cells.data) == _WORD * len(starts)
    if fixed and longest == _WORD and int(lengths.min()) == _WORD:
        return (cells.data.view("<u8") ^ mixed(lengths[:1], 0)).view(np.int64)
    hashes = mixed(np.arange(longest + 1), 0)[lengths] if longest < len(lengths) else mixed(lengths, 0)
    words = _words(cells.data)
    hashes ^= words[starts] & _MASKS[np.minimum(lengths, _WORD)]
    unfinished = np.flatnonzero(lengths > _WORD)
    for at in range(_WORD, longest, _WORD):
        unfinished = unfinished[lengths[unfinished] > at]
        mask = _MASKS[np.minimum(lengths[unfinished] - at, _WORD)]
        hashes[unfinished] = mixed(hashes[unfinished].view(np.int64), 0) ^ (words[starts[unfinished] + at] & mask)
    return hashes.view(np.int64)


def _words(data: Bytes) -> Words:
    """Return the 8 bytes that begin at every byte and at the end, uint64 [bytes + 1]; zeros lie beyond the end."""
    padded = np.concatenate([data, np.zeros(_WORD, dtype=np.uint8)])
    return np.ndarray(len(data) + 1, "<u8", padded, strides=(1,))


def first_unlike(cells: Spans, signs: bytes, lengths: range) -> int | None:
    """Return the first text that has another byte than ``signs``, or another number of bytes than ``lengths``.

    None: there is none. A missing text has none.
    """
    wrong_length = (cells.lengths < lengths.start) | (cells.lengths >= lengths.stop)
    if not wrong_length.any() and not cells.data.tobytes().translate(None, signs):
        return None
    strange = ~np.isin(cells.data, np.frombuffer(signs, dtype=np.uint8))
    before = np.concatenate([[0], np.cumsum(strange)])
    wrong = wrong_length | (before[cells.starts + cells.lengths] > before[cells.starts])
    return int(np.argmax(wrong)) if wrong.any() else None


def quoted(texts: pa.Array, at: int) -> str:
    """Quote a cell for an error message: printable ASCII, at most 40 characters."""
    return repr((texts[at].as_py() or "")[:40]).encode("ascii", "backslashreplace").decode()


def mixed(counters: Ints, key: int) -> Words:
    """Return splitmix64 of ``counters`` int64 [n] under a key, uint64 [n] (Steele et al., OOPSLA 2014).

    A bijection of 64-bit words for every key; different keys give unrelated orders.
    """
    words = counters.astype(np.uint64)
    words *= np.uint64(_GOLDEN)
    words += np.uint64(_mix_key(key))
    shifted = np.empty_like(words)
    for shift, factor in _STEPS:
        np.right_shift(words, np.uint64(shift), out=shifted)
        np.bitwise_xor(words, shifted, out=words)
        words *= np.uint64(factor)
    np.right_shift(words, np.uint64(_LAST_SHIFT), out=shifted)
    np.bitwise_xor(words, shifted, out=words)
    return words


def _mix_key(key: int) -> int:
    """Mix one key likewise: sums with keys as they are would only shift each other's orders."""
    word = (key + 1) * _GOLDEN & _LOW_BITS
    for shift, factor in _STEPS:
        word = (word ^ word >> shift) * factor & _LOW_BITS
    return word ^ word >> _LAST_SHIFT
