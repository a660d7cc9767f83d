"""Lookups whose hot rows are others than those that the profile counted: exchanged at random, or of a later log.

Whatever moved, the lookups are given in the frequency order of the profile that plans were made on: there a plan is
judged on them as on any others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.model.profile import AccessProfile
from shardbench.workloads.hotness import take
from shardbench.workloads.materialise import BatchSource, KeptBatches
from shardbench.workloads.recorded import RecordedWorkload
from shardbench.workloads.trace import Bags, Split

HOT_SHARE = 0.8
"""Share of a table's train lookups that its hot rows carry."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchange:
    """A bijection of a table's rows that is its own inverse: ``rows`` int64 [2k], ascending, become ``images``."""

    rows: Ints
    images: Ints

    def __call__(self, ids: Ints) -> Ints:
        """Return what the rows ``ids`` int64 [n] become, int64 [n]; rows that have no partner stay."""
        if len(self.rows) == 0:
            return ids
        at = np.minimum(np.searchsorted(self.rows, ids), len(self.rows) - 1)
        return np.where(self.rows[at] == ids, self.images[at], ids)


def hot_rows(profile: AccessProfile) -> int:
    """Return the fewest hottest rows that take HOT_SHARE of the table's train lookups; 0 where it has none."""
    return int(profile.inverse_cdf(HOT_SHARE))


def exchange(profile: AccessProfile, share: float, seed: int, table: int) -> Exchange:
    """Return the exchange of a ``share`` (0..1) of the hot rows of table number ``table`` with rows of the rest.

    Every hot row is as likely to be exchanged as any other one, whatever it is looked up, and so is every row of the
    rest, never-seen ones included. With h hot rows floor(share x h + u) are exchanged, u in [0, 1) drawn by seed and
    table: never one row more or less than the share, and the share in the mean over seeds. Where the rest is smaller,
    all of it is exchanged. A larger share of one seed exchanges what a smaller one does, and more.
    """
    hot = hot_rows(profile)
    rest = profile.rows - hot
    generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(table,)))
    count = min(int(share * hot + generator.random()), hot, rest)
    if count == 0:
        none = np.empty(0, dtype=np.int64)
        return Exchange(rows=none, images=none)
    leaving = generator.permutation(hot)[:count]
    coming = hot + generator.choice(rest, size=min(hot, rest), replace=False)[:count]
    rows, images = np.concatenate([leaving, coming]), np.concatenate([coming, leaving])
    order = np.argsort(rows)
    return Exchange(rows=rows[order], images=images[order])


class DriftedBatches(KeptBatches):
    """Test batches in which a share of every table's hot rows has changed places with other rows."""

    def __init__(self, source: BatchSource, profiles: Sequence[AccessProfile], share: float, seed: int) -> None:
        super().__init__(range(len(source.numbers)))
        self._source, self._profiles = source, profiles
        self._share, self._seed = share, seed
        self._exchanges: dict[int, Exchange] = {}

    def _make(self, number: int, table: int) -> Bags:
        bags = self._source.bags(number, table)
        if table not in self._exchanges:
            self._exchanges[table] = exchange(self._profiles[table], self._share, self._seed, table)
        return replace(bags, values=self._exchanges[table](bags.values))


class LaterBatches(KeptBatches):
    """Test batches of a recorded workload in the frequency order of an older one of the same tables and row ids."""

    def __init__(self, newer: RecordedWorkload, older: RecordedWorkload, batches: int = 1, *, first: int = 0) -> None:
        if first + batches > newer.test_batches:
            raise BadInput(
                f"{newer.name} has {newer.test_batches} test batches, not {first + batches}: set test_batches"
            )
        super().__init__(range(first, first + batches))
        self._newer, self._older = newer, older

    def _make(self, number: int, table: int) -> Bags:
        bags = self._newer.recorded(Split.TEST, number, table)
        return replace(bags, values=self._older.ranking(table)(bags.values))


class Period(RecordedWorkload):
    """Some consecutive samples of a recorded workload as one of its own, with a profile and test batches.

    The test batches are samples spread evenly over the period; all others are profiled. So a plan can be judged on the
    days that it was made for, and on other ones.
    """

    def __init__(self, source: RecordedWorkload, start: int, stop: int, test_batches: int) -> None:
        super().__init__(source._config.model_copy(update={"test_batches": test_batches, "profile_samples": None}))
        self.tables = source.tables
        self._source, self._start = source, start
        samples, tested = stop - start, test_batches * self.batch_size
        if samples < tested + self.batch_size:
            raise BadInput(
                f"{source.name}: {samples} samples from {start} on are too few to profile one batch of "
                f"{self.batch_size} and to test {test_batches}: lower batch_size"
            )
        test_samples = np.arange(tested, dtype=np.int64) * samples // tested
        self._order = np.concatenate(
            [np.delete(np.arange(samples, dtype=np.int64), test_samples), _deal(test_samples, test_batches)]
        )
        self._split_samples(samples, samples - tested)

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        samples = self._order[start:stop]
        first, last = int(samples.min()), int(samples.max())
        source = self._source._raw(table, self._start + first, self._start + last + 1)
        return take(source, samples - first)

    def recipe(self) -> object:
        """Return the recipe of what it is a part of, and which part."""
        return {"source": self._source.recipe(), "start": self._start, "samples": self.samples}


def _deal(samples: Ints, batches: int) -> Ints:
    """Return the samples batch by batch, each batch with samples of the whole period."""
    return samples.reshape(-1, batches).T.ravel()
