"""Published pairs of runs of the same tables in host memory with and without a cache in HBM: judged, never fitted.

They lie in ``cached.json``, apart from the points that constants are fitted to and steps of machine files are judged
by. A time is the cost model's for the tables alone, forward and backward; or a step's, whose largest table takes
longer than in HBM.
"""

from dataclasses import replace
from functools import lru_cache, partial
from importlib import resources
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, TypeAdapter
from pydantic.dataclasses import dataclass

from shardbench.base.arrays import Floats
from shardbench.base.serialise import STRICT
from shardbench.cost.caching import CacheWork, SteadyCache
from shardbench.cost.costmodel import backward_s, caching_s, forward_s
from shardbench.cost.load import Load, segment_load
from shardbench.cost.published.gpus import committed, shared
from shardbench.cost.published.points import PublishedStep, Source, published
from shardbench.cost.published.steps import distinct_rows, step_parts
from shardbench.model.caching import slots_of
from shardbench.model.machine import Machine
from shardbench.model.plan import Tier
from shardbench.model.table import Optimizer, Precision


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CachedRun:
    """One run of ``tables`` equal fp32 tables on a GPU; lookups, distinct rows and bags are a table's.

    In host memory, behind a cache where ``cache_ratio`` says how many of the rows that one holds, or ``in_hbm``.
    """

    point: str
    published_ms: PositiveFloat
    tables: PositiveInt
    rows: PositiveInt
    dim: PositiveInt
    lookups: PositiveInt
    bags: PositiveInt
    optimizer: Literal["sgd", "adam"]
    in_hbm: bool = False
    cache_ratio: PositiveFloat | None = Field(default=None, le=1.0)
    alpha: PositiveFloat | None = None
    """Exponent of the power law of the ids; uniform ones where it is not stated."""
    distinct: NonNegativeFloat | None = None
    """Distinct rows where the source counts them."""
    filled: NonNegativeFloat | None = None
    """Rows that a batch inserts and that no steady state tells, since the run began with an empty cache."""
    evicted: NonNegativeFloat = 0.0
    """Rows that leave it then."""
    fills_all: bool = False
    """Whether the cache lacks every row of a batch that it will hold."""
    prefetched: bool = False
    """Whether the next batch is fetched while this one is in work."""
    within: str | None = None
    """The published step, as family/point, of which the tables are a part when they are in HBM."""

    @property
    def placed(self) -> str:
        """Return where the tables lie, as pairs name it."""
        if self.in_hbm:
            return "hbm"
        if self.cache_ratio is None:
            return "uvm"
        return f"cached {self.cache_ratio:g}{', prefetched' * self.prefetched}"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CachedFamily(Source):
    """The runs of one source."""

    points: tuple[CachedRun, ...]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CachedData:
    """The contents of the data file."""

    families: dict[str, CachedFamily]
    not_predicted: dict[str, str]
    """Published runs with host memory that are left out, and why."""


@lru_cache(maxsize=1)
def cached_runs() -> CachedData:
    """Read the published runs; raises pydantic.ValidationError if the file is malformed."""
    text = (resources.files("shardbench.cost.published") / "cached.json").read_text()
    return TypeAdapter(CachedData).validate_json(text)


class Kernels(NamedTuple):
    """Seconds of the tables' lookups: what the step waits for, and what is fetched beside it."""

    step: float
    beside: float


def run_ms(run: CachedRun, family: CachedFamily) -> float:
    """Return the milliseconds that the cost model predicts for a run."""
    machine = committed(family.machine)
    own = kernels(run, machine)
    if run.within is None:
        return 1e3 * (own.step + own.beside)
    name, _, point = run.within.partition("/")
    step = next(p for p in published().families[name].points if p.point == point)
    if not isinstance(step, PublishedStep):
        raise TypeError(f"{run.within} is no step")
    whole = step_parts(step, committed(step.machine), shared()).total
    in_hbm = kernels(replace(run, in_hbm=True, cache_ratio=None, prefetched=False), machine)
    return 1e3 * max(whole - in_hbm.step + own.step, own.beside)


def kernels(run: CachedRun, machine: Machine) -> Kernels:
    """Return the seconds of a run's forward and backward lookups, and of a prefetch."""
    distinct = run.distinct if run.distinct is not None else distinct_rows(run.rows, run.lookups, run.alpha)
    tier = Tier.HBM if run.in_hbm else Tier.UVM if run.cache_ratio is None else Tier.CACHED
    counts = run.tables * _cache_counts(run, distinct) if tier is Tier.CACHED else np.zeros(4)
    alone = segment_load(
        lookups=float(run.lookups), distinct=distinct, bags=float(run.bags), rows=float(run.rows), columns=run.dim,
        longest_bag=float(run.lookups / run.bags), tier=tier, precision=Precision.FP32,
        state=Optimizer(run.optimizer).state_bytes(run.dim),
        missed=counts[1] / run.tables, missed_lookups=counts[2] / run.tables,
    )  # fmt: skip
    load = Load.zeros(1)
    for _ in range(run.tables):
        load.add_at(0, alone)
    constants = machine.constants
    lookup_s = float(forward_s(load, constants)[0] + backward_s(load, constants)[0])
    if tier is not Tier.CACHED:
        return Kernels(lookup_s, 0.0)
    lookups = np.array([float(run.tables * run.lookups)])
    work = CacheWork.of(lookups, counts[[0]], counts[[3]], Precision.FP32.bytes * run.dim)
    fill = float(caching_s(work, constants, shared()["cache_directory_s"])[0])
    return Kernels(lookup_s, fill) if run.prefetched else Kernels(lookup_s + fill, 0.0)


def _cache_counts(run: CachedRun, distinct: float) -> Floats:
    """Return the rows of one table that a batch inserts, that find no slot, their lookups, and those evicted."""
    if run.fills_all:
        return np.array([distinct, 0.0, 0.0, distinct])
    if run.filled is not None:
        return np.array([run.filled, 0.0, 0.0, run.evicted])
    if run.cache_ratio is None:
        raise TypeError(f"{run.point} has no cache")
    steady = SteadyCache(
        distinct=(partial(_distinct, run),), lookups=(float(run.lookups),), slots=slots_of(run.cache_ratio * run.rows),
        # The power law has no end of new rows: long enough to fill every cache here.
        longest=1e5, locked=2 if run.prefetched else 1,
    )  # fmt: skip
    return np.asarray(steady.batch_counts()[0])


def _distinct(run: CachedRun, batches: float) -> float:
    return distinct_rows(run.rows, batches * run.lookups, run.alpha)
