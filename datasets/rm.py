"""RecShard-shaped models rm1, rm2, rm3: 397 hashed features, 318, 635 and 1,270 GiB of weights.

Remembered, UNVERIFIED (no source at hand states it; memory of RecShard's evaluation, ASPLOS 2022): 397 sparse features
a model, the three total row counts, width 64 in fp32. All else is assumed, from what is generally known of hashed
categorical features (see the card), was fixed before any strategy was run on it, and is a Latin hypercube: the 397
features take evenly spaced quantiles of each distribution, paired by unrelated permutations, so that no feature is an
accident of a random draw. So these are workloads of that shape and size, not the paper's, and no figure found on them
is the paper's.

**Scaling** (``row_scale``). A share of the rows with the same share of the samples profiled, of the batch and of each
device's HBM, host memory, cache and bandwidths is the same question in small. Every law of ranks keeps its form when
ranks, values and shift shrink together, and a row then expects as many accesses. So in expectation these stay: the
share of a table's rows that the profile saw, of its accesses that go to rows never seen, the access CDF over the share
of the rows, the hash's under-use; coverage and bag lengths; a batch's lookups, distinct rows and bytes, each over
those of the full size, and with them times of embeddings and exchanges under the cost model, whose fixed times are not
scaled. The dense model is not a part of it: its parameters stay as many, and their all-reduce takes as many times
longer, unless ``dense`` is made as much smaller. What does not stay: the head below 1 / ``row_scale`` ranks, which
becomes one row; tables of so few rows that rounding shows; chance, which is larger with fewer samples (several test
batches make up for it).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.special import ndtri

from shardbench.base.arrays import Floats, Ints
from shardbench.datasets.laws.power_law import PowerLaw, hashed_rows
from shardbench.model.table import BatchSize, Name, Seed, Table
from shardbench.workloads.drawn import DrawnConfig, DrawnWorkload, bag_lengths
from shardbench.workloads.trace import Bags, Split, bag_offsets
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
TRAIN_DRAW = 16_384
"""About so many train samples are drawn at once, however small the batch is: scaled models have small ones."""


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


class RmConfig(DrawnConfig):
    """One of the three models, or some of its features; a feature has the same lookups in every subset."""

    dataset: Literal["rm"] = "rm"
    name: Name = "rm"
    form: Literal["rm1", "rm2", "rm3"] = "rm1"
    batch_size: BatchSize = 16_384
    tables: Annotated[int, Field(ge=1, le=FEATURES)] | None = None
    """How many features; None: all 397."""
    subset_seed: Seed | None = None
    """Draws the features without replacement; None takes evenly spaced ones."""
    pairing: Seed = 0
    """Which features there are: each number pairs sizes, skews, pooling factors and coverages in another way."""
    exponent_scale: Annotated[float, Field(ge=0.0, le=4.0)] = 1.0
    """Multiplies the exponent of every feature (sensitivity to skew); 0: every raw value alike."""

    row_scale: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of every table's rows and raw values that the model has; the module's docstring explains the scaling."""
    rows_log_std: Annotated[float, Field(ge=0.0, le=4.0)] = ROWS_LOG_STD
    """Standard deviation of the logarithm of the tables' sizes; the total stays."""
    pooling_top: Annotated[float, Field(ge=1.0, le=1000.0)] = POOLING_TOP
    """Longest mean bag of a feature."""
    coverage_low: Annotated[float, Field(gt=0.0, le=1.0)] = COVERAGE_LOW
    """Least share of the samples that a feature is in."""

    def features(self) -> list[int]:
        """Return the numbers of the features taken, ascending."""
        count = FEATURES if self.tables is None else self.tables
        if self.subset_seed is None:
            return [i * FEATURES // count for i in range(count)]
        numbers = np.random.default_rng(self.subset_seed).choice(FEATURES, count, replace=False)
        return [int(i) for i in np.sort(numbers)]

    def build(self, data: Path) -> "Rm":
        """Return the workload, which needs no files."""
        return Rm(self)


class Rm(DrawnWorkload):
    """Lookups drawn and hashed on demand; lengths and lookups of different features are independent."""

    def __init__(self, config: RmConfig) -> None:
        super().__init__(config)
        everything = rm_features(
            config.form, config.pairing, config.rows_log_std, config.pooling_top, config.coverage_low
        )
        self.features = tuple(everything[i].scaled(config.row_scale) for i in config.features())
        self._laws = tuple(
            PowerLaw(rows=f.values, exponent=f.exponent * config.exponent_scale, shift=f.shift) for f in self.features
        )
        self.tables = tuple(Table(name=f"f{f.number:03d}", rows=f.rows, dim=WIDTH) for f in self.features)

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        if split is Split.TEST:
            return self._samples(split, batch, table, self.batch_size)
        bags = self._samples(split, batch // self._train_batches, table, self._train_batches * self.batch_size)
        start = batch % self._train_batches * self.batch_size
        return bags.samples(start, start + self.batch_size)

    def _train(self, table: int) -> Iterator[Bags]:
        samples = self._train_batches * self.batch_size
        return (self._samples(Split.TRAIN, number, table, samples) for number in count())

    @property
    def _train_batches(self) -> int:
        """Return the number of train batches that are drawn at once."""
        return max(1, TRAIN_DRAW // self.batch_size)

    def _samples(self, split: Split, number: int, table: int, samples: int) -> Bags:
        feature = self.features[table]
        generator = self._generator(split, number, feature.number)
        offsets = bag_offsets(bag_lengths(generator, samples, feature.pooling, feature.coverage))
        ranks = self._laws[table].sample(generator, int(offsets[-1]))
        return Bags(values=hashed_rows(ranks, feature.rows, feature.number), offsets=offsets)

    def recipe(self) -> object:
        """Return the configuration; the features show in the tables and the fingerprint's first lookups."""
        # A value that the card describes is not named, so that records from before there was a choice stay the same.
        fields = self._config.model_dump(mode="json")
        return {name: value for name, value in fields.items() if name not in KNOBS or value != KNOBS[name]}


KNOBS = {
    name: RmConfig.model_fields[name].default
    for name in ("pairing", "row_scale", "rows_log_std", "pooling_top", "coverage_low")
}
"""Parameters that the models did not have at first, with the values that the card describes."""

CONFIG = RmConfig
