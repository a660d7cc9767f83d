"""Texts of a column that are not as they should be: the first of them, and how a message shows it."""

import numpy as np
import pyarrow as pa

from shardbench.workloads.value_hash import Spans


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
