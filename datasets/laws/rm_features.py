"""The 397 features of the RecShard-shaped models: what is remembered, and what is assumed.

Remembered, UNVERIFIED (no source at hand states it; memory of RecShard's evaluation, ASPLOS
2022): 397 sparse features a model, the three total row counts, width 64 in fp32. Nothing else
of these models' features is known here. All that follows is assumed, from what is generally
known of hashed categorical features, was fixed before any strategy was run on it, and is a
Latin hypercube: the 397 features take evenly spaced quantiles of each distribution, paired by
unrelated permutations, so that no feature is an accident of a random draw.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from shardbench.base.arrays import Floats, Ints
from shardbench.datasets.laws.power_law import PowerLaw
from shardbench.datasets.laws.rm_hash import HashedLaw
from shardbench.workloads.value_hash import mixed

FEATURES = 397
WIDTH = 64
TOTAL_ROWS = {"rm1": 1_331_656_544, "rm2": 2_661_369_917, "rm3": 5_320_796_628}
"""Rows of all tables together, by model (unverified memory of the paper)."""

COLUMNS = 6
"""Quantities that a feature is made of: rows, values, exponent, shift, pooling, coverage."""
SIZES_BASE = "rm1"
ROWS_LOG_STD = 2.0
"""Table sizes are log-normal: a few tables hold most rows, the median has a seventh of the mean."""
ROWS_TOP_STDS = 2.5
"""Sizes above it are cut, as hash sizes are capped in practice; one device's host memory holds any table."""
VALUES_PER_ROW = (0.05, 20.0)
"""Distinct raw values for each row of rm1's table, log-uniform: hash sizes are guesses made before the data."""
EXPONENT = (0.6, 1.4)
"""Uniform around Zipf's 1: from nearly flat to a few values taking most lookups."""
SHIFT = (1.0, 100.0)
"""Log-uniform; the larger, the more values share the head."""
ONE_HOT_SHARE = 0.55
POOLING_TOP = 100.0
"""Features that are not one-hot: mean bag length log-uniform in 1..100."""
ALWAYS_SHARE = 0.3
COVERAGE_LOW = 0.01
"""Features that are not always there: coverage log-uniform in 1 %..100 %."""


@dataclass(frozen=True, kw_only=True)
class RmFeature:
    """One hashed feature; ``values`` and the skew are the same in all three models, ``rows`` are not."""

    number: int
    rows: int
    values: int
    """Distinct raw values that exist."""
    exponent: float
    shift: float
    pooling: float
    """Mean length of a bag that is there."""
    coverage: float
    """Share of samples that have a bag."""

    def scaled(self, row_scale: float) -> "RmFeature":
        """Return the feature with ``row_scale`` times the rows and raw values, and its head as much narrower.

        With x -> x ``row_scale`` the law of ranks goes over into itself, so that ``row_scale`` times the
        samples leave the same shares of rows and of accesses seen and unseen.
        """
        rows, values = (max(1, round(count * row_scale)) for count in (self.rows, self.values))
        return replace(self, rows=rows, values=values, shift=self.shift * row_scale)

    def law(self, exponent_scale: float = 1.0) -> HashedLaw:
        """Return the law of its lookups, with the exponent multiplied by ``exponent_scale``."""
        law = PowerLaw(rows=self.values, exponent=self.exponent * exponent_scale, shift=self.shift)
        return HashedLaw(law=law, rows=self.rows, key=self.number)


@lru_cache(maxsize=len(TOTAL_ROWS))
def rm_features(
    form: str,
    pairing: int = 0,
    rows_log_std: float = ROWS_LOG_STD,
    pooling_top: float = POOLING_TOP,
    coverage_low: float = COVERAGE_LOW,
) -> tuple[RmFeature, ...]:
    """Return the 397 features of ``form`` (rm1, rm2 or rm3); their rows sum to TOTAL_ROWS[form] exactly.

    Every ``pairing`` pairs the same quantiles of the distributions in another way (which table is
    hot, which long, which rarely there); 0 is the model that the card describes. rm2 and rm3 are rm1
    with every table about 2 and 4 times as large, which is what the totals
    suggest (their quotients are 1.9985 and 3.9956); the values that fall into them stay the same.
    """

    def quantiles(column: int) -> Floats:
        return _quantiles(COLUMNS * pairing + column)

    sizes = np.exp(rows_log_std * np.minimum(ndtri(quantiles(0)), ROWS_TOP_STDS))
    rows = _apportion(sizes, TOTAL_ROWS[form])
    values = _apportion(sizes, TOTAL_ROWS[SIZES_BASE]) * _log_uniform(quantiles(1), *VALUES_PER_ROW)
    values = np.maximum(np.round(values), 2.0)
    exponent = EXPONENT[0] + (EXPONENT[1] - EXPONENT[0]) * quantiles(2)
    shift = _log_uniform(quantiles(3), *SHIFT)
    pooling = _log_uniform(_beyond(quantiles(4), ONE_HOT_SHARE), 1.0, pooling_top)
    coverage = _log_uniform(1.0 - _beyond(quantiles(5), ALWAYS_SHARE), coverage_low, 1.0)
    return tuple(
        RmFeature(
            number=i,
            rows=int(rows[i]),
            values=int(values[i]),
            exponent=round(float(exponent[i]), 5),
            shift=round(float(shift[i]), 5),
            pooling=round(float(pooling[i]), 5),
            coverage=round(float(coverage[i]), 5),
        )
        for i in range(FEATURES)
    )


def _quantiles(column: int) -> Floats:
    """Return evenly spaced quantiles float64 [397] in (0, 1), in an order of the column's own.

    The order comes from a written-down mix, so that no library's random stream can change it.
    """
    order = np.argsort(mixed(np.arange(FEATURES), FEATURES + column), kind="stable")
    return np.asarray((np.argsort(order, kind="stable") + 0.5) / FEATURES)


def _log_uniform(quantiles: Floats, low: float, high: float) -> Floats:
    return np.asarray(low * (high / low) ** quantiles)


def _beyond(quantiles: Floats, share: float) -> Floats:
    """Return 0 for the first ``share`` of the quantiles and stretch the rest over 0..1."""
    return np.asarray(np.maximum(quantiles - share, 0.0) / (1.0 - share))


def _apportion(sizes: Floats, total: int) -> Ints:
    """Share ``total`` rows out in proportion to ``sizes``; what rounding leaves goes to the largest."""
    rows: Ints = np.floor(sizes * (total / sizes.sum())).astype(np.int64)
    rest = total - int(rows.sum())
    rows[np.argsort(-sizes, kind="stable")[:rest]] += 1
    return rows
