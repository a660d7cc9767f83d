"""Values that are numbered by first appearance."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from shardbench.base.arrays import Ints

_RECENT = 1 << 16
_SHARE = 8


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass
class _ValueRows:
    """Values int64 [n], ascending, and their rows."""

    values: Ints = field(default_factory=_none)
    rows: Ints = field(default_factory=_none)

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
