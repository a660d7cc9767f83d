"""Reuse statistics of lookups: measured from counts, or expected from power laws."""

from dataclasses import dataclass

import numpy as np
from scipy.special import pdtr

from shardbench.base.arrays import Floats, Ints
from shardbench.datasets.laws.power_law import cdf
from shardbench.model.profile import REUSE_BINS

BUCKETS = 192
_GRID = np.linspace(np.log(1e-9), np.log(1e9), 4001)
_BIN_TOPS = 2.0 ** np.arange(REUSE_BINS - 1)


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Rows and lookups per reuse bin (float64 [17] each), as dlrm_datasets' locality_stats.txt has them."""

    rows: Floats
    lookups: Floats

    def __add__(self, other: "Reuse") -> "Reuse":
        return Reuse(rows=self.rows + other.rows, lookups=self.lookups + other.lookups)

    @property
    def mean(self) -> float:
        """Return the lookups per distinct row."""
        return float(self.lookups.sum() / max(self.rows.sum(), 1.0))

    def distances(self, row_shares: Floats, lookup_shares: Floats) -> tuple[float, float]:
        """Return the Kolmogorov distances of the row and of the lookup histogram to published shares."""
        pairs = ((self.rows, row_shares), (self.lookups, lookup_shares))
        rows, lookups = (float(np.abs(np.cumsum(a / max(a.sum(), 1.0) - b / b.sum())).max()) for a, b in pairs)
        return rows, lookups


def measured(counts: Ints) -> Reuse:
    """Return the reuse of one table out of its rows' access counts int64 [any] (zeros allowed)."""
    touched = counts[counts > 0]
    bins = np.minimum(np.ceil(np.log2(touched)).astype(np.int64), REUSE_BINS - 1)
    return Reuse(
        rows=np.bincount(bins, minlength=REUSE_BINS).astype(np.float64),
        lookups=np.bincount(bins, weights=touched, minlength=REUSE_BINS).astype(np.float64),
    )


def expected(lookups: Floats, rows: Floats, exponent: Floats, shift: Floats) -> Reuse:
    """Return the expected reuse of ``lookups`` float64 [T] draws from T power laws, all tables added up.

    A row of mean m is drawn Poisson(m) times. Ranks are taken in log-spaced buckets of equal
    rows; bin probabilities come from a table over log m, linearly interpolated.
    """
    edges = rank_edges(rows, BUCKETS)
    width = np.diff(edges, axis=1)
    mass = np.diff(cdf(edges, rows[:, None], exponent[:, None], shift[:, None]), axis=1)
    has_rows = width > 0
    mean = np.where(has_rows, lookups[:, None] * mass, 0.0)[has_rows] / width[has_rows]
    at = np.interp(np.log(np.maximum(mean, 1e-9)), _GRID, np.arange(len(_GRID)))
    low = np.minimum(at.astype(np.int64), len(_GRID) - 2)
    part = (at - low) * width[has_rows]
    weights = np.bincount(low, width[has_rows] - part, len(_GRID)) + np.bincount(low + 1, part, len(_GRID))
    return Reuse(rows=weights @ _ROW_BINS, lookups=weights @ _LOOKUP_BINS)


def rank_edges(rows: Floats, buckets: int) -> Floats:
    """Return the log-spaced edges float64 [len(rows), buckets + 1] from 0 to ``rows``; single ranks at the head."""
    steps = np.arange(buckets + 1, dtype=np.float64)
    spaced = np.expm1(np.outer(np.log1p(rows), steps / buckets))
    edges = np.minimum(np.maximum(np.round(spaced), steps), rows[:, None])
    edges[:, -1] = rows
    return np.asarray(edges)


def _bin_tables() -> tuple[Floats, Floats]:
    mean = np.exp(_GRID)[:, None]
    below = np.concatenate([np.exp(-mean), pdtr(_BIN_TOPS, mean), np.ones_like(mean)], axis=1)
    # E[k; k <= top] = mean * P(k <= top - 1) for a Poisson k.
    lookups = np.concatenate([0 * mean, mean * pdtr(_BIN_TOPS - 1, mean), mean], axis=1)
    return np.diff(below, axis=1), np.diff(lookups, axis=1)


_ROW_BINS, _LOOKUP_BINS = _bin_tables()
