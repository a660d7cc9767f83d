"""Published measurements that the cost model is held against: committed points, split and loads.

The points lie in the JSON files beside this module, each family with its source, device, what had to
be assumed, and the machine whose constants it is predicted with: kernels in ``points.json``, whole
training steps in ``steps.json``, collectives and copies in files of their names. Steps that were restated because a
source compares them, and that judge nothing but their ratio, are in ``pairs.json``.
"""

from dataclasses import fields
from functools import lru_cache
from importlib import resources
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter
from pydantic.dataclasses import dataclass

from shardbench.base.serialise import STRICT
from shardbench.cost.caching import CacheWork
from shardbench.cost.load import Load, segment_load
from shardbench.model.plan import Tier
from shardbench.model.table import Optimizer, Precision

FIT, HELD_OUT = "fit", "held-out"
DISCRETE = 4096
"""The ranks of a power law that are summed one by one; beyond them the sum is an integral."""
GRID = 4096


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedPoint:
    """What every published point has; those of one group are one measurement repeated."""

    point: str
    group: str
    published_ms: PositiveFloat


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedKernel(PublishedPoint):
    """One kernel over ``tables`` equal tables; lookups, distinct rows and bags are a table's."""

    kind: Literal["kernel"]
    phase: Literal["forward", "backward", "train"]
    """``train`` is a forward and a backward together."""
    tier: Literal["hbm", "uvm", "uvm_cache"]
    optimizer: Literal["sgd", "adam", "rowwise_adagrad"]
    tables: PositiveInt
    rows: PositiveInt
    dim: PositiveInt
    lookups: PositiveFloat
    distinct: NonNegativeFloat
    bags: PositiveFloat
    longest_bag: PositiveFloat = 1.0
    unpooled: bool = False
    alpha: PositiveFloat | None = None
    """Exponent of the power law of the rows, where there is one."""
    cached_ratio: PositiveFloat | None = None
    """The share of all rows that the cache in HBM holds."""
    filled: NonNegativeFloat = 0.0
    """Rows that a batch puts in the cache in HBM before the lookup; of a backward that is the difference of two runs,
    those of which the one that it was taken from has more."""
    evicted: NonNegativeFloat = 0.0
    """Rows that leave it, in the same way."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedStep(PublishedPoint):
    """One training step of a model on some GPUs."""

    kind: Literal["step"]
    model: str
    machine: str
    """Machine file of the GPU, whatever the number of GPUs and nodes."""
    gpus: PositiveInt
    nodes: PositiveInt
    batch_size: PositiveInt
    """Samples of a step over all GPUs."""
    executor: str
    """Software that ran the step, by its name in the data file."""
    plan: str
    """``table_wise``, ``row_wise`` or ``hybrid``, or the name of a plan of the data file."""
    in_uvm: tuple[NonNegativeInt, ...] = ()
    """Numbers of the tables whose rows are in host memory."""
    dense: Literal["fp32", "tf32", "fp16"]
    exchange: Literal["fp32", "fp16"]
    weight_gradient: bool = True
    """Whether gradients of the weights of weighted lookups are computed."""
    batches: PositiveInt | None = None
    """Steps of the run that was timed, where filling and emptying its pipeline is part of the time."""
    assumed: str | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedExchange(PublishedPoint):
    """One collective; ``bytes`` is one rank's buffer, ``constants`` are of that machine alone."""

    kind: Literal["all_to_all", "all_reduce"]
    bytes: PositiveInt
    nodes: PositiveInt
    devices_per_node: PositiveInt
    constants: dict[str, PositiveFloat] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedCopy(PublishedPoint):
    """Vectors that are put in another order; ``moved_bytes`` are read and written ones together."""

    kind: Literal["copy"]
    moved_bytes: PositiveInt


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedBucketise(PublishedPoint):
    """Lookups of row-wise tables that are put in the buckets of their owners."""

    kind: Literal["bucketise"]
    lookups: PositiveInt


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedProduct(PublishedPoint):
    """``count`` products of an [m, k] and a [k, n] matrix."""

    kind: Literal["product"]
    count: PositiveInt
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt
    precision: Literal["fp32", "tf32", "fp16"]


Point = Annotated[
    PublishedKernel | PublishedStep | PublishedExchange | PublishedCopy | PublishedBucketise | PublishedProduct,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelTables:
    """``count`` tables; each is asked by one feature for every entry of ``hotness`` (lookups a sample)."""

    count: PositiveInt
    hotness: tuple[PositiveInt, ...]
    rows: PositiveInt
    dim: PositiveInt
    weighted: bool = False
    """Whether every lookup has a weight of its own."""
    half: bool = False
    """Whether the weights of the table are fp16."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedModel:
    """Tables and dense layers of a published model.

    Vectors meet by pairwise ``dot`` products, by concatenation (``cat``), by ``cross_layers`` of ``cross_rank``, or are
    averaged in runs of ``stride`` (``pool``).
    """

    tables: tuple[ModelTables, ...]
    numerical: PositiveInt
    bottom: tuple[PositiveInt, ...]
    top: tuple[PositiveInt, ...]
    interaction: Literal["dot", "cat", "cross", "pool"]
    cross_layers: NonNegativeInt = 0
    cross_rank: NonNegativeInt = 0
    stride: PositiveInt = 1
    state: Literal["none", "element"]
    """Optimiser state: none, or four bytes for each weight."""
    alpha: PositiveFloat | None = None
    """Exponent of the power law of the ids; uniform ones where it is not stated."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedPlan:
    """Where the tables of a published step lay, by number: on all GPUs, or by rows over the buckets that name them."""

    replicated: tuple[NonNegativeInt, ...]
    buckets: tuple[tuple[NonNegativeInt, ...], ...]
    two_level: bool
    """Whether a bucket is a node, whose GPUs share its parts by rows; else it is a GPU."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Executor:
    """Software that ran steps, by what it does in one and no machine has; a pass reads and writes every byte once.

    The simulated backend counts what TorchRec's modules do. Published steps were run by other software as well, which
    fuses less or more, copies vectors more or less often, and hides other parts. Each property is the same for all
    steps of a software on all machines; what it costs follows from the machine's constants.
    """

    why: str
    """Where the properties come from."""
    vector_passes_forward: float
    """Passes over the pooled vectors that a rank sends."""
    vector_passes_backward: float
    """Passes over the gradients that it receives."""
    assembly_passes: float
    """Passes over the vectors of a rank's own samples between the exchange and the dense model, and back again."""
    elementwise_passes: float
    """Passes over the results of dense layers, forward and backward, outside the products' kernels."""
    interaction_passes: float
    """Passes over the vectors in which they meet, forward and backward, for each step of the interaction."""
    kernels_a_table: float = 0.0
    """Kernels of each table, forward and backward, one after another; 0 where one fused kernel serves all tables."""
    materialised_passes: float = 0.0
    """Passes over gradients of single lookups that are written out before the update; 0 where they never are."""
    graph: bool = False
    """Whether a step is one recorded graph, so that the host's time is no floor."""
    host_ratio: float = 1.0
    """Host time of a step over TorchRec's; below it a step cannot fall, but for a recorded graph."""
    hides_input: bool = True
    """Whether the next step's input is copied and exchanged beside this one."""
    sort_ratio: float = 1.0
    """Time to sort lookups over that of FBGEMM; 0 where it is done for the next step beside this one."""
    hides_gradient_exchange: bool = False
    """Whether gradients of vectors are exchanged beside the products of weight gradients."""
    bottom_on_one: bool = False
    """Whether the bottom layers run on the first GPU, for the samples of all."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FamilyConstant:
    """A constant that replaces the machine's for one family, with where it comes from."""

    value: NonNegativeFloat
    source: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """Where points were published, and what they were measured on."""

    title: str
    source: str
    device: str
    machine: str
    """Machine file whose constants predict these points."""
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Family(Source):
    """The published points of one source."""

    fitted: bool = True
    """False where no constant is fitted to any point: all are held out."""
    compared: bool = False
    """Whether all points are compared with each other, for which they were restated, whatever they differ in."""
    constants: dict[str, FamilyConstant] = Field(default_factory=dict)
    notice: str | None = None
    """What has to be said wherever these points are printed."""
    points: tuple[Point, ...]

    def split(self) -> dict[str, str]:
        """Return the split of each point: of groups in the order of their names, the first, third ... are fitted."""
        groups = sorted({p.group for p in self.points})
        fitted = set(groups[::2]) if self.fitted else set()
        return {p.point: FIT if p.group in fitted else HELD_OUT for p in self.points}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PublishedData:
    """The contents of the data files."""

    families: dict[str, Family]
    models: dict[str, PublishedModel] = Field(default_factory=dict)
    plans: dict[str, PublishedPlan] = Field(default_factory=dict)
    executors: dict[str, Executor] = Field(default_factory=dict)


FILES = ("points.json", "lent.json", "collectives.json", "copies.json", "steps.json", "pairs.json")


@lru_cache(maxsize=1)
def published() -> PublishedData:
    """Read all published points; raises pydantic.ValidationError if a file is malformed."""
    folder = resources.files("shardbench.cost.published")
    read = [TypeAdapter(PublishedData).validate_json((folder / name).read_text()) for name in FILES]
    return PublishedData(
        **{
            part.name: {k: v for data in read for k, v in getattr(data, part.name).items()}
            for part in fields(PublishedData)
        }
    )


@lru_cache(maxsize=1024)
def power_law_distinct(rows: int, lookups: float, alpha: float) -> float:
    """Return the expected distinct rows of lookups of rank floor(x), x in [1, rows + 1) of density x^-alpha."""
    power = 1.0 - alpha
    whole = 1.0 - (rows + 1.0) ** power
    ends = np.arange(1.0, min(rows, DISCRETE) + 2.0)
    shares = np.minimum(-np.diff(ends**power) / whole, 1.0 - 1e-12)
    distinct = float(-np.expm1(lookups * np.log1p(-shares)).sum())
    if rows > DISCRETE:
        x = np.geomspace(DISCRETE + 1.0, rows + 1.0, GRID)
        density = (alpha - 1.0) * x**-alpha / whole
        distinct += float(np.trapezoid(-np.expm1(-lookups * density), x))
    return distinct


@lru_cache(maxsize=512)
def kernel_load(point: PublishedKernel) -> Load:
    """Return the load of a kernel point, [1]; a cached tier counts as HBM but for its optimiser state.

    Fits and draws ask for it thousands of times.
    """
    load = Load.zeros(1)
    cached = point.tier == "uvm_cache"
    tier = Tier.UVM if point.tier == "uvm" else Tier.HBM
    state = Optimizer(point.optimizer).state_bytes(point.dim)
    alone = segment_load(
        lookups=float(point.lookups), distinct=float(point.distinct), bags=float(point.bags),
        longest_bag=float(point.longest_bag), rows=float(point.rows), columns=point.dim, unpooled=point.unpooled,
        tier=tier, precision=Precision.FP32, state=state,
    )  # fmt: skip
    for _ in range(point.tables):
        load.add_at(0, alone)
    if cached and state:
        load.uvm.state_bytes[:], load.state_bytes[:] = load.state_bytes, 0.0
    return load


def cache_work(point: PublishedKernel) -> CacheWork:
    """Return what the cache does for a kernel point, [1]; a backward looks nothing up in its directory."""
    asked = point.lookups if point.phase != "backward" and point.tier == "uvm_cache" else 0.0
    lookups, filled, evicted = (np.array([point.tables * rows]) for rows in (asked, point.filled, point.evicted))
    return CacheWork.of(lookups, filled, evicted, point.dim * Precision.FP32.bytes)
