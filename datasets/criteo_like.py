"""Criteo-like tables without Criteo's data: published cardinalities, measured head, fitted tail.

Form ``kaggle`` has Criteo Kaggle's 26 cardinalities and the measured counts of its first
80,000 rows. Form ``terabyte_dcnv2`` has MLPerf DLRM-DCNv2's cardinalities (capped at 40M) and
multi-hot sizes; nothing is measured of its skew, so the table of k-th most rows takes the
skew of Kaggle's k-th most rows, and the lookups of a bag are independent (assumptions). Form
``terabyte_one_hot`` is the same with one lookup a feature, as models were trained before MLPerf's.

Columns of an input with one lookup a feature depend on each other as published of Criteo Kaggle's
(``criteo_dependence``); with ``column_dependence`` 0 they are independent, and so are multi-hot bags always.
"""

import gzip
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from shardbench.base.arrays import Floats, Floats32, Ints
from shardbench.datasets.laws.criteo_dependence import (
    ABSENCE,
    ABSENT_TOGETHER,
    FEATURES,
    SAME_PLACE,
    Dependence,
    fitted_dependence,
)
from shardbench.datasets.laws.power_law import PowerLaw, RankLaw
from shardbench.model.table import BatchSize, Name, Table, Width
from shardbench.workloads.drawn import DrawnConfig, DrawnWorkload
from shardbench.workloads.trace import Bags, Split, bag_offsets

_DATA = Path(__file__).parent / "data"
_FACTORS_STREAM, _KINDS_STREAM, _SCORES_STREAM = 100, 101, 200
"""Random streams of what an input's columns share, and of the first score; columns have 0..25, absences 26..51."""
KEPT_BYTES = 1 << 27
"""Bytes that are kept of what the columns of inputs share."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadTailLaw(RankLaw):
    """Ranks 0..H-1 drawn in proportion to ``head`` float64 [H], the rest by a power law.

    ``tail_weight`` is the tail's weight on the scale of ``head``; without a ``tail`` it is 0.
    """

    head: Floats
    tail: PowerLaw | None
    tail_weight: float

    @property
    def rows(self) -> int:
        """Return the number of ranks, of head and tail together."""
        return len(self.head) + (self.tail.rows if self.tail else 0)

    def inverse(self, shares: Floats) -> Ints:
        """Return the ranks int64 [n] of uniform draws ``shares`` float64 [n] in [0, 1); overwrites ``shares``."""
        ends = self._ends
        shares *= ends[-1] + self.tail_weight
        ranks = np.searchsorted(ends, shares, side="right").astype(np.int64)
        cold = np.flatnonzero(ranks == len(ends))
        if self.tail is None:
            # Only rounding at the very end of the interval gets here.
            ranks[cold] = len(ends) - 1
        else:
            ranks[cold] += self.tail.inverse((shares[cold] - ends[-1]) / self.tail_weight)
        return ranks

    @cached_property
    def _ends(self) -> Floats:
        return np.asarray(np.cumsum(self.head))


@lru_cache(maxsize=1)
def measured_fields() -> dict[str, Any]:
    """Return Kaggle's head counts and fitted tails, C1..C26 (data/criteo_like_parameters.json.gz)."""
    data: dict[str, Any] = json.loads(gzip.decompress((_DATA / "criteo_like_parameters.json.gz").read_bytes()))
    return data


@lru_cache(maxsize=1)
def cardinalities() -> dict[str, Any]:
    """Return the published rows and multi-hot sizes of both forms (data/criteo_cardinalities.json)."""
    data: dict[str, Any] = json.loads((_DATA / "criteo_cardinalities.json").read_text())
    return data


def field_law(field: dict[str, Any], rows: int) -> HeadTailLaw:
    """Return the law of a table of ``rows`` rows with the skew of a measured field.

    The tail keeps its exponent and shift over as many rows as there are, and its weight as far
    as no tail rank gets hotter than the head's last; with fewer rows than the head it is cut.
    """
    head = np.repeat(np.array(field["head_counts"], dtype=np.float64), field["head_rows"])
    if rows <= len(head):
        return HeadTailLaw(head=head[:rows], tail=None, tail_weight=0.0)
    # A field whose every value is in its head leaves half a lookup to rows it does not have.
    exponent, shift = field.get("tail_exponent", 0.0), field.get("tail_shift", 1.0)
    tail = PowerLaw(rows=rows - len(head), exponent=exponent, shift=shift)
    # A tail cut short holds less, or its first rank would be hotter than the head's last.
    most = head[-1] / float(tail.cdf(np.array([1.0]))[0])
    return HeadTailLaw(head=head, tail=tail, tail_weight=min(field.get("tail_lookups", 0.5), most))


class CriteoLikeConfig(DrawnConfig):
    """26 tables of Criteo's shape; needs no data."""

    dataset: Literal["criteo_like"] = "criteo_like"
    name: Name = "criteo_like"
    batch_size: BatchSize = 4096
    form: Literal["kaggle", "terabyte_dcnv2", "terabyte_one_hot"] = "kaggle"
    dim: Width | None = None
    """Width of every table; None: 16 (kaggle) or 128 (both Terabyte forms)."""
    column_dependence: float | None = Field(default=None, ge=0, le=1)
    """Scale of how columns of an input depend on each other: 1 as published, 0 not at all, as multi-hot bags always.

    None: 1 with one lookup a feature, 0 with many.
    """

    @model_validator(mode="after")
    def _multi_hot_is_independent(self) -> "CriteoLikeConfig":
        if self.form == "terabyte_dcnv2" and self.column_dependence:
            raise ValueError("nothing is known of how multi-hot bags depend on each other: column_dependence must be 0")
        return self

    @property
    def dependence(self) -> float:
        """Return the scale in force, the form's own where none is stated."""
        if self.column_dependence is None:
            return 0.0 if self.form == "terabyte_dcnv2" else 1.0
        return self.column_dependence

    def build(self, data: Path) -> "CriteoLike":
        """Return the workload, which needs no files."""
        return CriteoLike(self)


class CriteoLike(DrawnWorkload):
    """One-hot (kaggle, terabyte_one_hot) or fixed multi-hot (terabyte_dcnv2) bags."""

    _config: CriteoLikeConfig
    _kept: dict[tuple[Split, int], tuple[Floats32, Ints]]

    def __init__(self, config: CriteoLikeConfig) -> None:
        super().__init__(config)
        fields = list(measured_fields()["fields"].values())
        shape = cardinalities()["kaggle" if config.form == "kaggle" else "terabyte_dcnv2"]
        rows: list[int] = shape["rows"]
        one_hot = config.form == "terabyte_one_hot"
        self.hotness: list[int] = [1] * FEATURES if one_hot else shape.get("multi_hot", [1] * FEATURES)
        skews = _skews(config.form, rows, [f["cardinality"] for f in fields])
        self.laws = [field_law(fields[skews[i]], rows[i]) for i in range(FEATURES)]
        self._skews = skews
        self._depends = config.dependence > 0
        self._where_present: dict[int, tuple[Floats, Floats]] = {}
        missing = [f["missing"] for f in fields] if config.form == "kaggle" else [0] * FEATURES
        self.coverage = [1.0 - count / measured_fields()["rows"] for count in missing]
        # Features missing equally often are taken to be missing together.
        self._absence_stream = [FEATURES + missing.index(count) for count in missing]
        dim = config.dim or (16 if config.form == "kaggle" else int(shape["dim"]))
        self.tables = tuple(Table(name=f"C{i + 1}", rows=rows[i], dim=dim) for i in range(FEATURES))

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        present = self._present(split, batch, table)
        offsets = bag_offsets(present * self.hotness[table])
        if self._depends:
            score = SAME_PLACE.get(self._skews[table], self._skews[table])
            places = self._places(split, batch, score)[present > 0]
            if score in ABSENT_TOGETHER and self.coverage[table] < 1.0:
                places = np.interp(places, *self._present_places(score, 1.0 - self.coverage[table]))
            return Bags(values=self.laws[table].inverse(places), offsets=offsets)
        generator = self._generator(split, batch, table)
        return Bags(values=self.laws[table].sample(generator, int(offsets[-1])), offsets=offsets)

    @cached_property
    def _dependence(self) -> Dependence:
        return fitted_dependence().scaled(self._config.dependence)

    def _present_places(self, score: int, missing: float) -> tuple[Floats, Floats]:
        """Return ``Dependence.places_where_present`` of a column, worked out once."""
        if score not in self._where_present:
            self._where_present[score] = self._dependence.places_where_present(score, missing)
        return self._where_present[score]

    def _common(self, split: Split, batch: int) -> tuple[Floats32, Ints]:
        """Return what the columns of an input share: factors float32 [batch, factors] and kinds int64 [batch].

        It is drawn when it is asked for, and kept while there is room.
        """
        if (split, batch) not in self._kept:
            shape = self.batch_size, self._dependence.factors
            factors = self._generator(split, batch, _FACTORS_STREAM).standard_normal(shape, dtype=np.float32)
            uniform = self._generator(split, batch, _KINDS_STREAM).random(self.batch_size)
            kinds = self._dependence.kinds(uniform)
            # The newest goes first: tables are asked for in turn, each in the same order of batches.
            while self._kept and (len(self._kept) + 1) * (factors.nbytes + kinds.nbytes) > KEPT_BYTES:
                self._kept.popitem()
            self._kept[split, batch] = factors, kinds
        return self._kept[split, batch]

    def _places(self, split: Split, batch: int, score: int) -> Floats:
        factors, kinds = self._common(split, batch)
        noise = self._generator(split, batch, _SCORES_STREAM + score).standard_normal(self.batch_size)
        return self._dependence.places(score, factors, kinds, noise)

    def _present(self, split: Split, batch: int, table: int) -> Ints:
        if self.coverage[table] == 1.0:
            return np.ones(self.batch_size, dtype=np.int64)
        if self._depends and self._skews[table] in ABSENT_TOGETHER:
            together = self._places(split, batch, ABSENCE)
            return np.asarray(together >= 1.0 - self.coverage[table], dtype=np.int64)
        draws = self._generator(split, batch, self._absence_stream[table]).random(self.batch_size)
        return np.asarray(draws < self.coverage[table], dtype=np.int64)

    def recipe(self) -> object:
        """Return the configuration; the laws show in the fingerprint's first lookups."""
        scale = self._config.dependence
        plain = self._config.model_dump(mode="json", exclude={"column_dependence"})
        # Independent columns are drawn as they were before there was a choice: the workload is the same as then.
        return {**plain, "column_dependence": scale} if scale else plain


def _skews(form: str, rows: list[int], field_rows: list[int]) -> list[int]:
    """Return the number of the measured field that each table takes its skew from."""
    if form == "kaggle":
        return list(range(FEATURES))
    by_rows = np.argsort(np.negative(rows), kind="stable")
    by_field_rows = np.argsort(np.negative(field_rows), kind="stable")
    skews = np.empty(FEATURES, dtype=np.int64)
    skews[by_rows] = by_field_rows
    return [int(i) for i in skews]


CONFIG = CriteoLikeConfig
