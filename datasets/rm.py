"""RecShard-shaped models rm1, rm2, rm3: 397 hashed features, 318, 635 and 1,270 GiB of weights.

The totals are UNVERIFIED MEMORY of RecShard's evaluation (ASPLOS 2022), the features are
assumptions: see ``rm_features`` and the card. So these are workloads of that shape and size,
not the paper's, and no figure found on them is the paper's.
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from shardbench.datasets.drawn import DrawnWorkload, bag_lengths, bag_offsets
from shardbench.datasets.rm_features import FEATURES, WIDTH, rm_features
from shardbench.model.table import Name, Table
from shardbench.workloads.trace import Bags, Split
from shardbench.workloads.workload import WorkloadConfig


class RmConfig(WorkloadConfig):
    """One of the three models, or some of its features; a feature has the same lookups in every subset."""

    dataset: Literal["rm"] = "rm"
    name: Name = "rm"
    form: Literal["rm1", "rm2", "rm3"] = "rm1"
    batch_size: PositiveInt = 16_384
    tables: Annotated[int, Field(ge=1, le=FEATURES)] | None = None
    """How many features; None: all 397."""
    subset_seed: NonNegativeInt | None = None
    """Draws the features without replacement; None takes evenly spaced ones."""
    pairing: NonNegativeInt = 0
    """Which features: each number pairs their sizes, skews, pooling factors and coverages in another way."""
    seed: NonNegativeInt = 0
    """Of the lookups; the features themselves are fixed."""
    profile_samples: PositiveInt = 65_536
    """Train samples that profiles are counted over."""
    exponent_scale: Annotated[float, Field(ge=0.0, le=4.0)] = 1.0
    """Multiplies the exponent of every feature (sensitivity to skew); 0: every raw value alike."""

    def features(self) -> list[int]:
        """Numbers of the features taken, ascending."""
        count = FEATURES if self.tables is None else self.tables
        if self.subset_seed is None:
            return [i * FEATURES // count for i in range(count)]
        drawn = np.random.default_rng(self.subset_seed).choice(FEATURES, count, replace=False)
        return [int(i) for i in np.sort(drawn)]

    def build(self, data: Path) -> "Rm":
        """The workload; needs no files."""
        return Rm(self)


class Rm(DrawnWorkload):
    """Lookups drawn and hashed on demand; lengths and lookups of different features are independent."""

    def __init__(self, config: RmConfig) -> None:
        everything = rm_features(config.form, config.pairing)
        self._config = config
        self.features = tuple(everything[i] for i in config.features())
        self._laws = tuple(feature.law(config.exponent_scale) for feature in self.features)
        self.name = config.name
        self.tables = tuple(Table(name=f"f{f.number:03d}", rows=f.rows, dim=WIDTH) for f in self.features)
        self.dense = config.dense
        self.batch_size = config.batch_size
        self.test_batches = config.test_batches
        self.seed = config.seed
        self.profile_samples = config.profile_samples

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        feature = self.features[table]
        generator = self._generator(split, batch, feature.number)
        offsets = bag_offsets(bag_lengths(generator, self.batch_size, feature.pooling, feature.coverage))
        return Bags(values=self._laws[table].sample(generator, int(offsets[-1])), offsets=offsets)

    def recipe(self) -> object:
        """The configuration; the features show in the tables and the fingerprint's first lookups."""
        # The card's pairing is not named, so that what was recorded before others existed stays the same.
        return self._config.model_dump(mode="json", exclude=None if self._config.pairing else {"pairing"})


CONFIG = RmConfig
