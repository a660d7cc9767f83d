"""Access counts of the train split's first samples.

They are streamed batch by batch, and counted in memory that grows with the distinct rows seen, not
with the lookups.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardbench.base.arrays import Ids, Ints
from shardbench.base.errors import BadInput
from shardbench.model.profile import AccessProfile
from shardbench.workloads.trace import Split
from shardbench.workloads.workload import Workload

_PENDING = 1 << 20
"""Lookups gathered before they are merged, where fewer rows than that were seen (8 MiB).

Tables of no more rows have a count for each.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class AccessCounts:
    """Access counts of one table by row, over ``samples`` train samples.

    ``ids`` int64 [seen]: the rows looked up, ascending; ``counts`` int64 [seen]: how often, all
    positive. ``present`` samples had a non-empty bag; the table has ``rows`` rows.
    """

    rows: int
    samples: int
    present: int
    ids: Ints
    counts: Ints

    @cached_property
    def profile(self) -> AccessProfile:
        """Return the profile that a strategy is told."""
        return AccessProfile.from_counts(self.counts, rows=self.rows, samples=self.samples, present=self.present)

    def of(self, ids: Ints) -> Ints:
        """Return the counts int64 [n] of the rows ``ids`` int64 [n], 0 where a row was not seen."""
        if len(self.ids) == 0:
            return np.zeros(len(ids), dtype=np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, self.counts[at], 0)


class RowCounter:
    """Counts the lookups of one table as they stream by; holds 16 bytes a row seen, and lookups not yet merged.

    A table of at most 2^20 rows takes 8 bytes a row instead.

    No more lookups wait than rows were seen (or 2^20, where those are fewer), so memory stays in
    proportion to the distinct rows, and every lookup is merged a bounded number of times.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.samples = 0
        self.present = 0
        self._ids: Ints = np.empty(0, dtype=np.int64)
        self._counts: Ints = np.empty(0, dtype=np.int64)
        self._of_row: Ints | None = np.zeros(rows, dtype=np.int64) if rows <= _PENDING else None
        self._pending: list[Ids] = []
        self._waiting = 0

    def add(self, values: Ids, lengths: Ints) -> None:
        """Count some samples: row ids [lookups], and how many are each sample's, int64 [samples]."""
        self.samples += len(lengths)
        self.present += int(np.count_nonzero(lengths))
        self._pending.append(values)
        self._waiting += len(values)
        if self._waiting > max(_PENDING, len(self._ids)):
            self._merge()

    def counts(self) -> AccessCounts:
        """Return what was counted so far; raises BadInput where no sample was added."""
        if self.samples == 0:
            raise BadInput("no sample was counted: raise samples or rate")
        self._merge()
        if self._of_row is not None:
            self._ids = np.flatnonzero(self._of_row)
            self._counts = self._of_row[self._ids]
        return AccessCounts(
            rows=self.rows, samples=self.samples, present=self.present, ids=self._ids, counts=self._counts
        )

    def _merge(self) -> None:
        if not self._waiting:
            return
        met: NDArray[Any] = np.concatenate(self._pending)
        self._pending, self._waiting = [], 0
        if self._of_row is not None:
            self._of_row += np.bincount(met, minlength=self.rows)
            return
        ids, counts = np.unique(met, return_counts=True)
        at = np.searchsorted(self._ids, ids)
        is_known = np.zeros(len(ids), dtype=np.bool_)
        inside = at < len(self._ids)
        is_known[inside] = self._ids[at[inside]] == ids[inside]
        # What counts() has given stays as it was.
        merged = self._counts.copy()
        merged[at[is_known]] += counts[is_known]
        self._counts = np.insert(merged, at[~is_known], counts[~is_known])
        self._ids = np.insert(self._ids, at[~is_known], ids[~is_known])


def count_samples(workload: Workload, table: int, *, samples: int) -> AccessCounts:
    """Count one table's accesses over the first ``samples`` train samples.

    Raises BadInput for no sample, and where the workload has recorded fewer.
    """
    if samples < 1:
        raise BadInput(f"need at least one sample, got {samples}")
    size = workload.batch_size
    # Drawn workloads have no end; recorded ones state theirs, and would start again from the front.
    if workload.train_samples is not None and samples > (whole := workload.train_samples // size * size):
        raise BadInput(
            f"{workload.name}: {samples} samples wanted, whole batches of the train split have {whole}: lower samples"
        )
    counter = RowCounter(workload.tables[table].rows)
    for batch in range(-(-samples // size)):
        bags = workload.bags(Split.TRAIN, batch, table).samples(0, min(size, samples - batch * size))
        counter.add(bags.values, bags.sample_lengths)
    return counter.counts()
