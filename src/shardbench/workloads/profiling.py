"""Profiles out of a sample of the train split, and how far they are from the full one.

A strategy that profiles its training data reads a small sample of it. Here the sample is taken
sample by sample (all of a sample's bags or none), streamed batch by batch, and counted in
memory that grows with the distinct rows seen, not with the lookups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardbench.base.arrays import Floats, Ids, Ints
from shardbench.base.errors import BadInput
from shardbench.model.profile import AccessProfile
from shardbench.workloads.trace import Split
from shardbench.workloads.workload import Workload

CDF_STEPS = 100
"""Steps of the inverse CDF at which profiles are compared."""

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


def count_samples(
    workload: Workload, table: int, *, samples: int, rates: Sequence[float] = (1.0,), seed: int = 0
) -> tuple[AccessCounts, ...]:
    """Count one table's accesses over a share of the first ``samples`` train samples, for each of ``rates``.

    A sample is kept with probability ``rate`` in (0, 1], by a draw that depends on ``seed`` and
    the sample alone: all tables of a workload keep the same samples, and those of a lower rate
    are among those of a higher one. The lookups are read once for all rates. Raises BadInput
    where a rate keeps no sample or the workload has recorded fewer.
    """
    if samples < 1 or not rates or not all(0 < rate <= 1 for rate in rates):
        raise BadInput(f"need at least one sample and rates in (0, 1], got {samples} samples, rates {tuple(rates)}")
    size = workload.batch_size
    # Drawn workloads have no end; recorded ones state theirs, and would start again from the front.
    if workload.train_samples is not None and samples > (whole := workload.train_samples // size * size):
        raise BadInput(
            f"{workload.name}: {samples} samples wanted, whole batches of the train split have {whole}: lower samples"
        )
    counters = [RowCounter(workload.tables[table].rows) for _ in rates]
    for batch in range(-(-samples // size)):
        # The same for every table.
        generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(batch,)))
        draws = generator.random(min(size, samples - batch * size))
        bags = workload.bags(Split.TRAIN, batch, table).samples(0, len(draws))
        lengths = bags.sample_lengths
        for rate, counter in zip(rates, counters):
            is_sampled = draws < rate
            counter.add(bags.values[np.repeat(is_sampled, lengths)], lengths[is_sampled])
    for rate, counter in zip(rates, counters):
        if counter.samples == 0:
            raise BadInput(f"rate {rate:g} keeps none of {samples} samples: raise samples or rate")
    return tuple(counter.counts() for counter in counters)


@dataclass(frozen=True, kw_only=True)
class ProfileError:
    """How far a sample's profile of a table is from the full one.

    The CDFs are compared at k_1 .. k_100, where k_i is the full profile's inverse CDF at i %: the
    fewest rows that can take i % of the accesses. For each k: *ideal* is the share of the full
    accesses that the truly hottest k rows take (the full CDF); *claimed* is what the sample says
    its hottest k rows take (its own CDF); *true* is the share of the full accesses that these
    rows really take. Rows that the sample counted equally often, or not at all, are in no order:
    ``true`` is its expectation over all orders of them (linear between the ends of a tie, as both
    CDFs are).
    """

    steps: int
    claim_error: float
    """Largest difference of claimed and true, either way: how wrong a plan is about what it gets, 0..1."""
    order_error: float
    """Largest ideal - true: what is lost by ordering rows by the sample, 0..1."""
    cdf_error: float
    """Largest difference of claimed and ideal, either way: distance of the two profiles' own curves, 0..1."""
    pooling_error: float
    """(sampled - full) / full of the mean pooling, absent features counted as zero."""
    coverage_error: float
    """(sampled - full) / full of the coverage."""
    unseen_rows: float
    """Share of the rows that the full counts saw and the sample did not, 0..1."""
    unseen_accesses: float
    """Share of the full accesses that go to rows the sample did not see, 0..1."""


def profile_error(sampled: AccessCounts, full: AccessCounts) -> ProfileError:
    """Compare the counts of a sample with the full ones of the same table.

    Raises BadInput where they are of different tables, or ``sampled`` saw what ``full`` did not.
    """
    if sampled.rows != full.rows:
        raise BadInput(f"the sample is of a table of {sampled.rows} rows, the full counts of one of {full.rows}")
    if np.any(full.of(sampled.ids) < sampled.counts) or sampled.present > full.present:
        raise BadInput("the sample saw lookups that the full counts lack: take it out of the same samples")
    hottest = full.profile.inverse_cdf(np.arange(1, CDF_STEPS + 1) / CDF_STEPS)
    claimed, ideal = sampled.profile.cdf(hottest), full.profile.cdf(hottest)
    true = _true_cdf(sampled, full, hottest)
    met, lookups = int(full.of(sampled.ids).sum()), full.profile.lookups
    return ProfileError(
        steps=CDF_STEPS,
        claim_error=float(np.abs(claimed - true).max()),
        order_error=float(np.clip(ideal - true, 0.0, None).max()),
        cdf_error=float(np.abs(claimed - ideal).max()),
        pooling_error=_relative(sampled.profile.mean_pooling, full.profile.mean_pooling),
        coverage_error=_relative(sampled.profile.coverage, full.profile.coverage),
        unseen_rows=1.0 - len(sampled.ids) / len(full.ids) if len(full.ids) else 0.0,
        unseen_accesses=1.0 - met / lookups if lookups else 0.0,
    )


def _true_cdf(sampled: AccessCounts, full: AccessCounts, hottest: Ints) -> Floats:
    """Return the expected share of full accesses that the sample's hottest rows take, float64 as ``hottest``."""
    lookups = full.profile.lookups
    if lookups == 0:
        return np.asarray(full.profile.cdf(hottest))
    values, tie = np.unique(-sampled.counts, return_inverse=True)
    accesses = np.bincount(tie, weights=full.of(sampled.ids), minlength=len(values))
    row_ends = np.concatenate([[0], np.cumsum(np.bincount(tie, minlength=len(values))), [sampled.rows]])
    share_ends = np.concatenate([[0.0], np.cumsum(accesses), [lookups]]) / lookups
    return np.asarray(np.interp(hottest, row_ends, share_ends))


def _relative(sampled: float, full: float) -> float:
    """Return the relative difference; nothing of nothing is no error."""
    return (sampled - full) / full if full else 0.0
