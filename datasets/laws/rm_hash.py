"""Hashed features: raw values follow a power law, a fixed hash folds them into a table's rows.

Nothing is kept per value or per row: a value's row is computed when it is drawn.
"""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.datasets.laws.power_law import CHUNK, PowerLaw
from shardbench.workloads.value_hash import mixed

MAX_HASHED_ROWS = 1 << 32
"""Rows are the upper half of a 32 by 32 bit product."""


def hashed_rows(values: Ints, rows: int, key: int) -> Ints:
    """Return the row in [0, rows) of each raw value, int64 [n]: multiply-shift of the mixed value's upper half.

    Raises ValueError where a table has more than 2^32 rows.
    """
    if not 1 <= rows <= MAX_HASHED_ROWS:
        raise ValueError(f"need 1 <= rows <= {MAX_HASHED_ROWS} to hash into, got {rows}")
    half = np.uint64(32)
    row_ids = np.empty(len(values), dtype=np.int64)
    # A chunk's scratch arrays stay in a core's cache.
    for start in range(0, len(values), CHUNK):
        words = mixed(values[start : start + CHUNK], key)
        words >>= half
        words *= np.uint64(rows)
        words >>= half
        row_ids[start : start + CHUNK] = words.view(np.int64)
    return row_ids


@dataclass(frozen=True, kw_only=True)
class HashedLaw:
    """Rows of a hashed feature: ranks of raw values by ``law`` (``law.rows`` values), hashed under ``key``."""

    law: PowerLaw
    rows: int
    key: int

    def sample(self, generator: np.random.Generator, draws: int) -> Ints:
        """Draw ``draws`` independent rows, int64 [draws]."""
        return hashed_rows(self.law.sample(generator, draws), self.rows, self.key)
