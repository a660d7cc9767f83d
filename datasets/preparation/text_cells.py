"""Texts of a column out of Arrow's buffers: where they lie, their hashes, and the first that is not as it should be."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardbench.base.arrays import Bytes, Ints, Words
from shardbench.datasets.laws.rm_hash import mixed

_WORD = 8
_KEPT = np.array([(1 << 8 * kept) - 1 for kept in range(_WORD + 1)], dtype=np.uint64)
"""Masks of a word's first 0..8 bytes."""


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
    found = mixed(np.arange(longest + 1), 0)[lengths] if longest < len(lengths) else mixed(lengths, 0)
    words = _words(cells.data)
    found ^= words[starts] & _KEPT[np.minimum(lengths, _WORD)]
    left = np.flatnonzero(lengths > _WORD)
    for at in range(_WORD, longest, _WORD):
        left = left[lengths[left] > at]
        kept = _KEPT[np.minimum(lengths[left] - at, _WORD)]
        found[left] = mixed(found[left].view(np.int64), 0) ^ (words[starts[left] + at] & kept)
    return found.view(np.int64)


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
