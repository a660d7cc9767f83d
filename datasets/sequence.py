"""Sequence workloads: unpooled features with long histories, a Taobao-like and a production-like form.

Only sizes are known (see the card): Taobao's rows, width and history bound. How skewed lookups
are and how long histories are is assumed, in both forms.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pydantic
from pydantic import Field, PositiveInt

from shardbench.base.arrays import Ints
from shardbench.datasets.laws.power_law import PowerLaw
from shardbench.model.table import BatchSize, Distinct, Name, Pooling, Seed, Table
from shardbench.workloads.drawn import DrawnConfig, DrawnWorkload, ProfileSamples
from shardbench.workloads.trace import Bags, Split, bag_offsets

TAOBAO_ROWS = {"user": 987_994, "item": 4_162_024, "category": 9_439}
TAOBAO_WIDTH = 16
TAOBAO_HISTORY = 20

SEQUENCES, POOLED = 24, 12
"""Features of the production form."""
PRODUCTION_WIDTH = 64
PRODUCTION_SEED = 2301_02959

Scale = Annotated[float, Field(gt=0.0, le=16.0)]


@dataclass(frozen=True, kw_only=True)
class SequenceFeature:
    """One feature: its table, how long its histories are, and how skewed its lookups."""

    number: int
    name: str
    rows: int
    active_rows: int
    """Rows that are ever looked up: hash tables are larger than what falls into them."""
    dim: int
    bound: int
    """Longest history; older lookups are cut off."""
    mean: float
    """Mean history before it is cut."""
    exponent: float
    pooled: bool = False


def taobao_features() -> tuple[SequenceFeature, ...]:
    """Return users (one lookup a sample) and histories of up to 20 items and categories, all by Zipf's law."""
    bounds = {"user": 1, "item": TAOBAO_HISTORY, "category": TAOBAO_HISTORY}
    return tuple(
        SequenceFeature(
            number=i, name=name, rows=rows, active_rows=rows, dim=TAOBAO_WIDTH, bound=bounds[name],
            mean=float(bounds[name]), exponent=1.0,
        )
        for i, (name, rows) in enumerate(TAOBAO_ROWS.items())
    )  # fmt: skip


@cache
def production_features(draw: int = 0) -> tuple[SequenceFeature, ...]:
    """Return 24 histories of up to 20, 50 or 100 lookups and 12 pooled features; all draws follow the same laws."""
    rng = np.random.default_rng([PRODUCTION_SEED, draw] if draw else PRODUCTION_SEED)
    total = SEQUENCES + POOLED
    rows = np.exp(rng.uniform(np.log(1e5), np.log(1e7), total)).astype(int)
    active = rng.uniform(0.3, 1.0, total)
    exponents = rng.uniform(0.8, 1.2, total)
    bounds = np.where(np.arange(total) < SEQUENCES, rng.choice([20, 50, 100], total), rng.choice([1, 5, 10], total))
    return tuple(
        SequenceFeature(
            number=i,
            name=f"{'bag' if i >= SEQUENCES else 'history'}{i:02d}",
            rows=int(rows[i]),
            active_rows=max(1, int(active[i] * rows[i])),
            dim=PRODUCTION_WIDTH,
            bound=int(bounds[i]),
            mean=float(bounds[i]) / 2.0,
            exponent=float(exponents[i]),
            pooled=i >= SEQUENCES,
        )
        for i in range(total)
    )


class SequenceConfig(DrawnConfig):
    """One of the two forms, or some of its features; a feature has the same lookups in every subset."""

    dataset: Literal["sequence"] = "sequence"
    name: Name = "sequence"
    form: Literal["taobao", "production"] = "taobao"
    batch_size: BatchSize = 4096
    tables: PositiveInt | None = None
    """How many features, evenly spaced; None: all of the form."""
    draw: Seed = 0
    """Which draw of the production form's features (rows, skew, histories): each is a model of the same laws."""
    profile_samples: ProfileSamples = 32_768
    """Train samples that profiles are counted over."""
    empty_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Share of samples that have no history of a feature."""
    exponent_scale: Annotated[float, Field(ge=0.0, le=4.0)] = 1.0
    """Multiplies every feature's exponent (sensitivity to skew); 0: all active rows alike."""
    history_scale: Scale = 1.0
    """Multiplies the length of the histories (sensitivity to sequence length); other features keep theirs."""
    row_scale: Scale = 1.0
    """Multiplies the rows of every table: below 1 for ranks on a small machine."""
    distinct: Distinct = False
    """Whether ids of histories are made distinct before ranks exchange them."""

    @pydantic.model_validator(mode="after")
    def _drawn(self) -> "SequenceConfig":
        if self.form == "taobao" and self.draw:
            raise ValueError("draw: the features of form taobao are not drawn, leave it out")
        return self

    def features(self) -> tuple[SequenceFeature, ...]:
        """Return the features taken, as the form has them."""
        everything = taobao_features() if self.form == "taobao" else production_features(self.draw)
        count = len(everything) if self.tables is None else min(self.tables, len(everything))
        return tuple(everything[i * len(everything) // count] for i in range(count))

    def build(self, data: Path) -> "Sequence":
        """Return the workload, which needs no files."""
        return Sequence(self)


class Sequence(DrawnWorkload):
    """Histories drawn on demand; lengths and lookups of different features are independent."""

    _config: SequenceConfig

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__(config)
        self.features = config.features()
        self.tables = tuple(
            Table(
                name=f.name, rows=self._rows(f.rows), dim=f.dim, pooling=Pooling.SUM if f.pooled else Pooling.NONE,
                distinct=config.distinct and not f.pooled,
            )
            for f in self.features
        )  # fmt: skip
        self._laws = tuple(
            PowerLaw(rows=self._rows(f.active_rows), exponent=f.exponent * config.exponent_scale, shift=1.0)
            for f in self.features
        )

    def _rows(self, rows: int) -> int:
        return max(1, round(rows * self._config.row_scale))

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        feature = self.features[table]
        generator = self._generator(split, batch, feature.number)
        is_history = feature.bound > 1 and not feature.pooled
        scale = self._config.history_scale if is_history else 1.0
        lengths = history_lengths(
            generator, self.batch_size, max(1, round(feature.bound * scale)), feature.mean * scale,
            self._config.empty_share,
        )  # fmt: skip
        offsets = bag_offsets(lengths)
        return Bags(values=self._laws[table].sample(generator, int(offsets[-1])), offsets=offsets)

    def recipe(self) -> object:
        """Return the configuration; the features show in the tables and the fingerprint's first lookups."""
        # The first draw is what the form was before there were others: its fingerprints stay.
        return self._config.model_dump(mode="json", exclude=None if self._config.draw else {"draw"})


def history_lengths(
    generator: np.random.Generator, samples: int, bound: int, mean: float, empty_share: float
) -> Ints:  # fmt: skip
    """Draw lengths int64 [samples]: 0 with ``empty_share``, else exponential, rounded up and cut at ``bound``."""
    lengths = np.minimum(np.ceil(generator.exponential(mean, samples)), bound).astype(np.int64)
    return np.maximum(lengths, 1) * (generator.random(samples) >= empty_share)


CONFIG = SequenceConfig
