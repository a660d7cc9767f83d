"""Workloads whose lookups are drawn from known laws: what synthetic and Criteo-like tables share."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from shardbench.profile import AccessProfile
from shardbench.trace import Bags, Split
from shardbench.workload import Workload, rng

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BINCOUNT_ROWS = 1 << 22
"""Below this many rows counting by array is quicker than sorting (32 MiB of counts)."""


class DrawnWorkload(Workload):
    """Every (split, batch, table) is an independent seeded draw; ids are ranks of the true law.

    The true rank order is the train split's frequency order in the limit of infinitely many
    train samples. Profiles are counted from the first ``profile_samples`` train samples, the
    same lookups that ``bags(Split.TRAIN, ...)`` gives.
    """

    seed: int
    profile_samples: int

    @abstractmethod
    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        """The ``batch_size`` bags of one table in one batch."""

    def _bags(self, split: Split, batch: int, table: int) -> Bags:
        return self._draw(split, batch, table)

    def _generator(self, split: Split, batch: int, stream: int) -> np.random.Generator:
        return rng(self.seed, split, batch, stream)

    def _profile(self, table: int) -> AccessProfile:
        rows = self.tables[table].rows
        drawn: list[Ints] = []
        present = 0
        for batch in range(-(-self.profile_samples // self.batch_size)):
            bags = self._draw(Split.TRAIN, batch, table)
            wanted = min(self.batch_size, self.profile_samples - batch * self.batch_size)
            if wanted < self.batch_size:
                bags = bags.samples(0, wanted)
            present += int(np.count_nonzero(bags.lengths))
            drawn.append(bags.values)
        counts = access_counts(np.concatenate(drawn), rows)
        return AccessProfile.from_counts(counts, rows=rows, samples=self.profile_samples, present=present)


def access_counts(ids: Ints, rows: int) -> Ints:
    """Access counts of the rows that occur in ``ids``, int64 [any order, zeros possible]."""
    if rows <= _BINCOUNT_ROWS:
        return np.bincount(ids, minlength=1).astype(np.int64)
    ordered = np.sort(ids.astype(np.int32 if rows < 2**31 else np.int64))
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else ordered
    return np.diff(np.append(starts, len(ordered))).astype(np.int64)


def bag_offsets(lengths: Ints) -> Ints:
    """Offsets int64 [n + 1] of bags of ``lengths`` int64 [n]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
