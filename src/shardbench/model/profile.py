"""What the train split tells about one table: access counts in frequency order.

A profile is a run-length of counts, never an array per row, so that tables of billions of
rows cost what their number of *distinct* counts costs.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from operator import gt, mul
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from shardbench.base.arrays import Floats, Ids, Ints
from shardbench.base.errors import BadInput
from shardbench.base.serialise import STRICT

REUSE_BINS = 17
"""Number of bins (0,1], (1,2], (2,4] ... (16384,32768], >32768: dlrm_datasets' and AutoShard's histogram."""


Share = Annotated[float, Field(ge=0.0, le=1.0 + 1e-9)]


def count_classes(counts: Any) -> Ints:
    """Return the classes of access counts: 0 for never, then one for each power of two: 1, 2 to 3, 4 to 7, ..."""
    return np.frexp(np.asarray(counts, dtype=np.float64))[1].astype(np.int64)


BLOCKS = 8
"""Blocks of consecutive train lookups, each of which is left out in turn: with more, clusters would be cut in two."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HeldOut:
    """What blocks of train lookups met of rows that were counted in the others."""

    shares: tuple[Share, ...]
    """Shares of new lookups that meet rows of each of the ``count_classes``."""
    block_rows: Annotated[float, Field(ge=1.0)]
    """Mean distinct rows of a block, of one ``BLOCKS``-th of the lookups."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AccessProfile:
    """Access statistics of one table over ``samples`` training samples.

    ``counts`` are the distinct access counts, strictly descending and positive;
    ``row_counts[i]`` rows were touched ``counts[i]`` times each. Rows are thought of in
    frequency order: hottest first, never-touched rows last. ``present`` samples had a
    non-empty bag: at least one where something was looked up (BadInput otherwise).
    """

    rows: PositiveInt
    samples: PositiveInt
    present: NonNegativeInt
    counts: tuple[PositiveInt, ...]
    row_counts: tuple[PositiveInt, ...]
    held_out: HeldOut | None = Field(default=None, exclude_if=lambda held_out: held_out is None)
    """What train lookups left out met, where lookups come in clusters.

    None where lookups are as if they were drawn one by one, so that the counts tell, or where nobody measured.
    """
    drawn_share: Share = Field(default=1.0, exclude_if=lambda share: share == 1.0)
    """Lookups that are drawn one by one and have as many distinct rows as a lookup in clusters."""

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.row_counts):
            raise ValueError("counts and row_counts differ in length")
        if not all(map(gt, self.counts, self.counts[1:])):
            raise ValueError("counts must be strictly descending")
        if self.present > self.samples:
            raise ValueError(f"present {self.present} exceeds samples {self.samples}")
        if self.seen_rows > self.rows:
            raise ValueError(f"{self.seen_rows} rows were seen but the table has {self.rows}")
        if self.lookups and not self.present:
            raise BadInput(f"{self.lookups} lookups but no sample that has one: present must be at least 1")
        if self.held_out is not None:
            self._check_held_out(np.array(self.held_out.shares))

    def _check_held_out(self, shares: Floats) -> None:
        if abs(shares.sum() - 1.0) > 1e-6:
            raise ValueError(f"held_out: the shares add up to {shares.sum():g}, not to 1")
        has_rows = np.bincount(count_classes(self.counts), minlength=len(shares))
        has_rows[0] = self.rows - self.seen_rows
        if len(has_rows) > len(shares) or np.any(shares[has_rows == 0] > 0.0):
            raise ValueError("held_out: there is a share for each class of counts, and 0 for one that has no row")

    @classmethod
    def from_counts(
        cls, counts: Ints, *, rows: int, samples: int, present: int, held_out: HeldOut | None = None
    ) -> "AccessProfile":
        """Make a profile out of the access counts of any rows (zeros allowed, any order)."""
        values, multiplicity = np.unique(counts[counts > 0], return_counts=True)
        return cls(
            rows=rows,
            samples=samples,
            present=present,
            counts=tuple(values[::-1].tolist()),
            row_counts=tuple(multiplicity[::-1].tolist()),
            held_out=held_out,
        )

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats, Floats]:
        counts = np.asarray(self.counts, dtype=np.float64)
        rows = np.asarray(self.row_counts, dtype=np.float64)
        row_ends = np.concatenate([[0.0], np.cumsum(rows)])
        lookup_ends = np.concatenate([[0.0], np.cumsum(rows * counts)])
        for array in (counts, rows, row_ends, lookup_ends):
            array.setflags(write=False)
        return counts, rows, row_ends, lookup_ends

    @cached_property
    def lookups(self) -> int:
        """Return the number of lookups in all samples."""
        return sum(map(mul, self.counts, self.row_counts))

    @cached_property
    def seen_rows(self) -> int:
        """Return the number of rows that were touched at least once."""
        return sum(self.row_counts)

    @property
    def mean_pooling(self) -> float:
        """Return the mean lookups of a sample; an absent feature counts as zero."""
        return self.lookups / self.samples

    @property
    def coverage(self) -> float:
        """Share of samples in which the feature is present."""
        return self.present / self.samples

    def cdf(self, hottest_rows: Any) -> Floats:
        """Share of accesses that the hottest ``hottest_rows`` rows take (array in, array out).

        With no access at all the share is that of the rows, so that a plan stays defined.
        """
        k = np.asarray(hottest_rows, dtype=np.float64)
        _, _, row_ends, lookup_ends = self._arrays
        if lookup_ends[-1] == 0:
            return np.asarray(np.clip(k / self.rows, 0.0, 1.0))
        return np.asarray(np.interp(k, row_ends, lookup_ends) / lookup_ends[-1])

    def inverse_cdf(self, shares: Any) -> Ints:
        """Return the fewest hottest rows that take at least ``shares`` (0..1) of the accesses."""
        share = np.asarray(shares, dtype=np.float64)
        counts, _, row_ends, lookup_ends = self._arrays
        if lookup_ends[-1] == 0:
            return np.zeros(share.shape, dtype=np.int64)
        lookups = np.clip(share, 0.0, 1.0) * lookup_ends[-1]
        run = np.clip(np.searchsorted(lookup_ends, lookups, side="left") - 1, 0, len(counts) - 1)
        inside = np.ceil((lookups - lookup_ends[run]) / counts[run] - 1e-9)
        return np.asarray(row_ends[run] + np.maximum(inside, 0), dtype=np.int64)

    def counts_of(self, rows: Ids) -> Floats:
        """Return how often each row of the frequency order was touched, float64 [rows]; zero if never."""
        counts, _, row_ends, _ = self._arrays
        run = np.searchsorted(row_ends, rows, side="right") - 1
        return np.append(counts, 0.0)[np.minimum(run, len(counts))]

    def share(self, row_start: int, row_stop: int) -> float:
        """Share of accesses that go to rows [row_start, row_stop) of the frequency order."""
        if row_start <= 0 and row_stop >= self.rows:
            return 1.0
        ends = self.cdf([row_start, row_stop])
        return float(ends[1] - ends[0])

    def expected_distinct(self, lookups: float, row_start: int = 0, row_stop: int | None = None) -> float:
        """Return the expected distinct rows of [row_start, row_stop) among ``lookups`` new lookups of the table.

        Up to as many lookups as the sample has, by rarefaction: a row seen c times is met with
        1 - (1 - n/N)^c, which does not underrate rarely seen rows as drawing from the sample
        would. Beyond, the rows seen and the never-seen ones of the Chao1 extrapolation (Chao et
        al., Ecological Monographs 84(1), 2014, eq. 9). Grows with ``lookups``, without a jump.
        Of lookups in clusters only their ``drawn_share`` counts.
        """
        _, rows, row_ends, lookup_ends = self._arrays
        sampled, lookups = lookup_ends[-1], self.drawn_share * lookups
        if sampled == 0 or lookups <= 0:
            return 0.0
        stop = self.rows if row_stop is None else row_stop
        if row_start > 0 or stop < self.rows:
            rows = np.clip(np.minimum(row_ends[1:], stop) - np.maximum(row_ends[:-1], row_start), 0, None)
        if lookups <= sampled:
            return float(rows @ self._met_shares(lookups))
        seen_in_range = float(rows.sum())
        never = self.rows - self.seen_rows
        inside = min(stop, self.rows) - max(row_start, self.seen_rows)
        return seen_in_range + (self._unseen_met(lookups - sampled) * inside / never if inside > 0 else 0.0)

    def met_shares(self, lookups: float) -> Floats:
        """Return the chance of a row of each run of ``counts`` to be among ``lookups`` new lookups, float64 [runs]."""
        return self._met_shares(self.drawn_share * lookups)

    def _met_shares(self, lookups: float) -> Floats:
        counts, _, _, lookup_ends = self._arrays
        if lookups > lookup_ends[-1]:
            return np.ones_like(counts)
        return np.asarray(-np.expm1(np.log1p(-min(lookups / lookup_ends[-1], 1.0 - 1e-12)) * counts))

    def _unseen_met(self, more: float) -> float:
        """Return the number of never-seen rows that are expected among ``more`` lookups beyond the sample."""
        undetected, rate = self._undetected
        return undetected * -math.expm1(-more * rate)

    @cached_property
    def _undetected(self) -> tuple[float, float]:
        """Return the number of never-seen rows that lookups can meet, and at which rate a lookup meets each."""
        singles = self.row_counts[-1] if self.counts and self.counts[-1] == 1 else 0
        doubles = sum(n for c, n in zip(self.counts, self.row_counts) if c == 2)
        if singles == 0:
            return 0.0, 0.0
        undetected = singles**2 / (2 * doubles) if doubles else singles * (singles - 1) / 2
        undetected = min(max(undetected, 1.0), float(self.rows - self.seen_rows))
        if undetected == 0:
            return 0.0, 0.0
        return undetected, singles / (self.lookups * undetected + singles)

    @property
    def unseen_rate(self) -> float:
        """Return the chance of a lookup beyond the sample to meet a certain never-seen row that can be met."""
        return self._undetected[1]

    def distinct_below(self, lookups: float, ends: Any) -> Floats:
        """Return ``expected_distinct`` of rows [0, end) for each of ``ends`` (array in, array out)."""
        _, rows, row_ends, lookup_ends = self._arrays
        sampled, lookups = lookup_ends[-1], self.drawn_share * lookups
        below = np.asarray(ends, dtype=np.float64)
        if sampled == 0 or lookups <= 0:
            return np.zeros(below.shape)
        if lookups <= sampled:
            met = np.cumsum(rows * self._met_shares(lookups))
            return np.asarray(np.interp(below, row_ends, np.concatenate([[0.0], met])))
        unseen = np.clip((below - self.seen_rows) / max(self.rows - self.seen_rows, 1), 0.0, 1.0)
        return np.asarray(np.minimum(below, self.seen_rows) + self._unseen_met(lookups - sampled) * unseen)

    @property
    def unseen_share(self) -> float:
        """Share of the accesses that rows which the sample never saw are expected to get.

        As measured, or else what Good and Turing expect: as many as there are rows that the sample saw once.
        """
        if self.held_out is not None:
            return self.held_out.shares[0]
        if not self.counts or self.counts[-1] != 1 or self.seen_rows == self.rows:
            return 0.0
        return self.row_counts[-1] / self.lookups

    def reuse_bins(self) -> Floats:
        """Share of touched rows per reuse bin, float64 [17]; zeros if nothing was touched."""
        counts, rows, row_ends, _ = self._arrays
        bins = np.minimum(np.ceil(np.log2(np.maximum(counts, 1.0))).astype(np.int64), REUSE_BINS - 1)
        total = np.bincount(bins, weights=rows, minlength=REUSE_BINS)
        return np.asarray(total / max(row_ends[-1], 1.0))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class InputSample:
    """Single train inputs, as far as they tell which of them ask for hot rows alone.

    ``coldest[i][n]`` is the last row, in the frequency order of table i's profile, that input n asks for; -1 where it
    asks for none. Inputs are others than those that the profiles counted, unless these are all there are.
    """

    coldest: tuple[tuple[int, ...], ...]
    train_inputs: PositiveInt | None = None
    """Inputs of the train split, where they are on record: an epoch. None where they are drawn, without end."""

    def __post_init__(self) -> None:
        if not self.coldest or not self.coldest[0] or len({len(rows) for rows in self.coldest}) != 1:
            raise BadInput("an input sample needs at least one table, and as many inputs for each")

    def hot_share(self, hot_rows: Sequence[int]) -> float:
        """Share of the inputs that ask for the hottest ``hot_rows[i]`` rows of every table i alone, 0..1."""
        if len(hot_rows) != len(self.coldest):
            raise BadInput(f"hot rows of {len(hot_rows)} tables for inputs of {len(self.coldest)}")
        hot = np.ones(len(self.coldest[0]), dtype=np.bool_)
        for rows, first in zip(self.coldest, hot_rows):
            hot &= np.asarray(rows, dtype=np.int64) < first
        return float(hot.mean())
