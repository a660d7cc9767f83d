"""Lowering: a plan becomes logical tables, one a segment, grouped into the modules that run them.

Row ids arrive in frequency order. A row-wise segment is padded to equal blocks and its rows
are permuted (row j -> block (j + start) % ways, place j // ways), so that TorchRec's contiguous blocks
deal rows round-robin. A column range is a logical table of its own on its rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torchrec import KeyedJaggedTensor

from shardbench.base.errors import BadInput, Unsupported
from shardbench.engine.row_ranges import cut_bags
from shardbench.model.caching import is_cached
from shardbench.model.machine import Topology
from shardbench.model.plan import (
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    cold_segments,
    deal_start,
    hot_segments,
    sharding_groups,
)
from shardbench.model.table import Optimizer, Pooling, Precision, Table
from shardbench.workloads.trace import Bags

NO_BF16_ON_CPU = "FBGEMM looks up no bf16 weights on a CPU: ask for fp16 or fp32 weights, or for GPUs alone"


class Reach(StrEnum):
    """The ranks over which a module exchanges lookups and vectors."""

    WORLD = "world"
    GROUP = "group"
    """Exchange within each sharding group, for rows that every one has a copy of."""
    LOCAL = "local"
    """No exchange: unpooled replicas, which TorchRec's modules cannot hold on a CPU."""
    HOSTS = "hosts"
    """Exchange over the CPUs of all ranks, beside GPUs; where devices are CPUs a host's tables are like any rank's."""
    GATHERED = "gathered"
    """No exchange of lookups either: replicas of a batch schedule, whose touched rows' gradients are gathered."""


class ModuleKey(NamedTuple):
    """Which module a logical table is in; TorchRec's unpooled modules hold tables of one width."""

    pooled: bool
    scope: Reach
    columns: int
    """0 where pooled, unless the module is one of gathered replicas."""
    distinct: bool = False
    """Whether it makes ids distinct before it exchanges them."""


class Slot(NamedTuple):
    """What the dense model is given a vector of."""

    table: int
    feature: int


@dataclass(frozen=True, kw_only=True)
class LogicalTable:
    """One segment as a table of TorchRec."""

    name: str
    table: int
    segment: Segment
    module: ModuleKey
    ways: int
    """Ranks its rows are dealt over; 1 if not row-wise."""

    features: int = 1
    """How many share the table."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return its features, as TorchRec names their lookups and vectors."""
        if self.features == 1:
            return (self.name,)
        return tuple(f"{self.name}_f{feature}" for feature in range(self.features))

    @property
    def start(self) -> int:
        """Return the number of the rank, of those it is dealt over, that gets its first row."""
        return deal_start(self.segment.table, self.ways)

    @property
    def block(self) -> int:
        """Return the rows that a rank holds, padding included."""
        return -(-self.segment.rows // self.ways)

    @property
    def rows(self) -> int:
        """Return the rows of the logical table, padding included."""
        return self.block * self.ways

    @property
    def is_replicated(self) -> bool:
        """Tell whether it is data-parallel, and so has an ordinary optimiser."""
        return isinstance(self.segment.placement, Replicated)

    def local_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Turn ids within the segment into rows of the logical table, int64 [n]."""
        if self.ways == 1:
            return ids
        return ((ids + self.start) % self.ways) * self.block + torch.div(ids, self.ways, rounding_mode="floor")

    def weights(self, full: torch.Tensor) -> torch.Tensor:
        """Take the logical table's weights [rows, columns] out of the whole table's [rows, dim]; padding is zero."""
        s = self.segment
        part = full[s.row_start : s.row_stop, s.column_start : s.column_stop]
        out = part.new_zeros((self.rows, s.columns))
        out[self.local_ids(torch.arange(s.rows))] = part
        return out


@dataclass(frozen=True, kw_only=True)
class LocalLookups:
    """A rank's lookups of one batch.

    ``jagged`` holds the keys of each module's logical tables. Of unpooled tables also ``lengths``
    (slot -> int64 [bags]) and ``positions`` (key -> places of its lookups among the feature's,
    None for all in order).
    """

    jagged: dict[ModuleKey, KeyedJaggedTensor]
    lengths: dict[Slot, torch.Tensor]
    positions: dict[str, torch.Tensor | None]

    def to(self, device: torch.device) -> "LocalLookups":
        """Return the lookups on another device, but for what hosts look up."""
        return LocalLookups(
            jagged={
                key: jagged if key.scope is Reach.HOSTS else jagged.to(device) for key, jagged in self.jagged.items()
            },
            lengths={i: lengths.to(device) for i, lengths in self.lengths.items()},
            positions={name: None if at is None else at.to(device) for name, at in self.positions.items()},
        )

    @property
    def in_turn(self) -> tuple[KeyedJaggedTensor, ...]:
        """Return the lookups of every module, modules in their fixed order."""
        return tuple(self.jagged.values())

    def on_device(self) -> list[Any]:
        """List what lies with the rank's device: tensors, and jagged ones."""
        placed = [at for at in self.positions.values() if at is not None]
        jagged = [one for key, one in self.jagged.items() if key.scope is not Reach.HOSTS]
        return [*jagged, *self.lengths.values(), *placed]


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A plan as the modules see it."""

    tables: tuple[Table, ...]
    logical: tuple[LogicalTable, ...]
    topology: Topology
    precision: Precision
    exchange: Precision = Precision.FP32
    groups: ShardingGroups | None = None
    sync_every: int = 1
    """Steps from one averaging of the sharding groups' copies to the next."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Every feature of every table, in the dense model's order."""
        return tuple(Slot(i, feature) for i, table in enumerate(self.tables) for feature in range(table.features))

    @property
    def modules(self) -> dict[ModuleKey, list[LogicalTable]]:
        """Logical tables of every module, modules in a fixed order."""
        grouped: dict[ModuleKey, list[LogicalTable]] = {}
        for table in self.logical:
            grouped.setdefault(table.module, []).append(table)
        return dict(sorted(grouped.items()))

    def local_lookups(self, bags: Callable[[int], Bags]) -> LocalLookups:
        """Make a rank's lookups; ``bags(i)`` gives table i's local bags in frequency-ranked ids."""
        ids: dict[str, torch.Tensor] = {}
        counts: dict[str, torch.Tensor] = {}
        positions: dict[str, torch.Tensor | None] = {}
        lengths: dict[Slot, torch.Tensor] = {}
        for i, table in enumerate(self.tables):
            shared = bags(i)
            parts = [t for t in self.logical if t.table == i]
            ranges = sorted({(t.segment.row_start, t.segment.row_stop) for t in parts})
            for feature in range(table.features):
                own = shared.feature(feature)
                # A hot mini-batch asks for no row of a table without replicas.
                cuts = cut_bags(own, ranges, table.rows) if ranges else {}
                for t in parts:
                    cut, key = cuts[(t.segment.row_start, t.segment.row_stop)], t.keys[feature]
                    ids[key], counts[key] = t.local_ids(cut.ids), cut.lengths
                    positions[key] = cut.positions if table.pooling is Pooling.NONE else None
                if table.pooling is Pooling.NONE:
                    lengths[Slot(i, feature)] = torch.from_numpy(own.lengths.copy())
        jagged = {}
        for module, parts in self.modules.items():
            keys = [key for t in parts for key in t.keys]
            values, sizes = torch.cat([ids[key] for key in keys]), torch.cat([counts[key] for key in keys])
            jagged[module] = KeyedJaggedTensor(keys=keys, values=values, lengths=sizes)
        return LocalLookups(jagged=jagged, lengths=lengths, positions=positions)


def lower(
    plan: Plan,
    tables: Sequence[Table],
    topology: Topology,
    precision: Precision,
    *,
    optimizer: Optimizer = Optimizer.SGD,
    exchange: Precision = Precision.FP32,
    device: str = "cpu",
    phase: PhaseKind | None = None,
) -> Lowered:
    """Lower a plan, or what mini-batches of one ``phase`` use of a plan with a batch schedule.

    Raises Unsupported for what the modules cannot run, BadInput for a schedule without a phase, or
    the other way round.
    """
    if (plan.schedule is None) != (phase is None):
        raise BadInput("a plan with a batch schedule, and no other, is lowered for one of its phases")
    segments_of_phase: dict[PhaseKind | None, Callable[[list[Segment]], list[Segment]]] = {
        None: list, PhaseKind.HOT: hot_segments, PhaseKind.COLD: cold_segments
    }  # fmt: skip
    by_table, group_size = plan.by_table(), sharding_groups(plan.groups, topology).shape[1]
    logical = []
    for i, table in enumerate(tables):
        for k, segment in enumerate(segments_of_phase[phase](by_table[table.name])):
            # Groups of replicas partition the world: together they are one replica on every rank.
            if isinstance(segment.placement, Replicated) and segment.placement.ranks[0] != 0:
                continue
            _check(segment, table, topology, optimizer, device)
            logical.append(
                LogicalTable(
                    name=f"t{i}_s{k}",
                    table=i,
                    segment=segment,
                    module=_module(segment, table, phase, device),
                    ways=_ways(segment, group_size),
                    features=table.features,
                )
            )
    _check_hosts(logical)
    if precision is Precision.BF16 and (device == "cpu" or any(t.module.scope is Reach.HOSTS for t in logical)):
        raise Unsupported(NO_BF16_ON_CPU)
    return Lowered(
        tables=tuple(tables),
        logical=tuple(logical),
        topology=topology,
        precision=precision,
        exchange=exchange,
        groups=plan.groups,
        sync_every=plan.sync_every,
    )


def _check_hosts(logical: Sequence[LogicalTable]) -> None:
    """Raise Unsupported for one exchange of which GPUs and their hosts would each make a part."""
    on_hosts = {t.module._replace(scope=Reach.WORLD) for t in logical if t.module.scope is Reach.HOSTS}
    for table in logical:
        if isinstance(table.segment.placement, OnRank) and table.module in on_hosts:
            raise Unsupported(
                f"table '{table.segment.table}': beside GPUs, whole tables are all on hosts or all on devices"
            )


def _ways(segment: Segment, group_size: int) -> int:
    if isinstance(segment.placement, RowWise):
        return len(segment.placement.ranks)
    return group_size if isinstance(segment.placement, GroupSharded) else 1


def _module(segment: Segment, table: Table, phase: PhaseKind | None, device: str) -> ModuleKey:
    pooled = table.pooling is Pooling.SUM
    if phase is PhaseKind.HOT:
        return ModuleKey(pooled, Reach.GATHERED, segment.columns)
    scope = Reach.GROUP if isinstance(segment.placement, GroupSharded | OnLocalRank) else Reach.WORLD
    if isinstance(segment.placement, Host) and device == "cuda":
        scope = Reach.HOSTS
    if isinstance(segment.placement, Replicated) and not pooled:
        scope = Reach.LOCAL
    return ModuleKey(pooled, scope, 0 if pooled else segment.columns, table.distinct)


def _check(segment: Segment, table: Table, topology: Topology, optimizer: Optimizer, device: str) -> None:
    place = segment.placement
    if isinstance(place, GroupSharded | OnLocalRank) and optimizer is not Optimizer.SGD:
        raise Unsupported(f"table '{table.name}': copies by group are kept equal by averaging, exact for sgd only")
    if is_cached(segment) and device == "cpu":
        raise Unsupported(f"table '{table.name}': a CPU has no HBM to cache its rows in")
    if is_cached(segment) and isinstance(place, GroupSharded | OnLocalRank):
        # A cache neither knows of what changes in host memory nor has written it back before.
        raise Unsupported(f"table '{table.name}': copies by group are averaged in host memory, behind their caches")
    if optimizer is Optimizer.ADAM and device == "cpu":
        raise Unsupported(f"table '{table.name}': FBGEMM's CPU kernels have no fused adam")
    if optimizer is Optimizer.ROWWISE_ADAGRAD and segment.columns < table.dim:
        # Each column range would keep a moment of its own: another model than the one compared.
        raise Unsupported(f"table '{table.name}': row-wise Adagrad needs whole rows, not column ranges")
    if not isinstance(place, RowWise) or len(place.ranks) == topology.world_size:
        return
    if place.ranks not in {topology.node_ranks(node) for node in range(topology.nodes)}:
        raise Unsupported(f"table '{table.name}': row-wise runs over all ranks or all ranks of one node")
    if table.pooling is Pooling.NONE:
        raise Unsupported(f"table '{table.name}': unpooled row-wise runs over all ranks, not over one node")


def home_rank(segment: Segment, topology: Topology) -> int | None:
    """Return the one rank that holds a segment (a host's rows are looked up by its node's first rank), or None."""
    place = segment.placement
    if isinstance(place, OnRank):
        return place.rank
    return topology.node_ranks(place.node)[0] if isinstance(place, Host) else None
