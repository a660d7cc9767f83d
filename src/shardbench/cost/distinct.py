"""Finds distinct rows without sorting: each row keeps a stamp of its last lookup."""

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats, Ids, Ints, Ints32, zeros

STAMPED_ROWS = 1 << 26
"""Rows up to which stamps are kept (256 MiB); beyond, a hash table of the lookups is cheaper."""

_stamps: Ints32 = np.empty(0, dtype=np.int32)


def _scratch(rows: int) -> Ints32:
    # Kept between calls: fresh pages would cost more than the stamps. Old stamps do no harm, since
    # every stamp that is read was written for the same lookups just before.
    global _stamps
    if len(_stamps) < rows:
        _stamps = np.empty(rows, dtype=np.int32)
    return _stamps


def distinct_ids(values: Ids, rows: int) -> Ids:
    """Return the distinct ids among ``values`` (all below ``rows``), in no particular order."""
    if rows > STAMPED_ROWS or len(values) > np.iinfo(np.int32).max:
        return np.asarray(pd.unique(values))
    stamps = _scratch(rows)
    order = np.arange(len(values), dtype=np.int32)
    stamps[values] = order
    return np.asarray(values[stamps[values] == order])


def distinct_per_chunk(values: Ids, ends: Ints, rows: int, start: int, stop: int) -> Floats:
    """Count the distinct ids in [start, stop) of each chunk values[ends[i]:ends[i + 1]], [chunks]."""
    counts = zeros(len(ends) - 1)
    for i, (low, high) in enumerate(zip(ends[:-1], ends[1:])):
        ids = distinct_ids(values[low:high], rows)
        whole = start <= 0 and stop >= rows
        counts[i] = len(ids) if whole else np.count_nonzero((ids >= start) & (ids < stop))
    return counts
