"""RecShard-shaped models rm1, rm2, rm3: 397 hashed features, 318, 635 and 1,270 GiB of weights.

The totals are UNVERIFIED MEMORY of RecShard's evaluation (ASPLOS 2022), the features are
assumptions: see ``rm_features`` and the card. So these are workloads of that shape and size,
not the paper's, and no figure found on them is the paper's.

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
from itertools import count
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from shardbench.datasets.laws.rm_features import (
    COVERAGE_LOW,
    FEATURES,
    POOLING_TOP,
    ROWS_LOG_STD,
    WIDTH,
    rm_features,
)
from shardbench.model.table import BatchSize, Name, Seed, Table
from shardbench.workloads.drawn import DrawnConfig, DrawnWorkload, bag_lengths
from shardbench.workloads.trace import Bags, Split, bag_offsets

TRAIN_DRAW = 16_384
"""About so many train samples are drawn at once, however small the batch is: scaled models have small ones."""


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
        self._laws = tuple(feature.law(config.exponent_scale) for feature in self.features)
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
        return Bags(values=self._laws[table].sample(generator, int(offsets[-1])), offsets=offsets)

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
