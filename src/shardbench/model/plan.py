"""One representation for every plan: segments of tables, in frequency order, and where they live."""

import math
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.base.serialise import STRICT, from_json, to_json
from shardbench.model.machine import MAX_DEVICES, Devices, Topology
from shardbench.model.table import MAX_ROWS, Table


class Tier(StrEnum):
    """Memory of a device: its own, or host memory that it reads directly or through a cache in its own."""

    HBM = "hbm"
    UVM = "uvm"
    CACHED = "cached"
    """Host memory with a cache in HBM, which the rows of every batch enter (FBGEMM's MANAGED_CACHING)."""


MAX_SEGMENTS = 100_000
"""Most segments of a plan: 856 tables of 128 columns in pieces of four numbers are 27,392."""
MAX_PHASES = 100_000
MAX_SYNC_EVERY = 1_000_000
MAX_JSON_BYTES = 1 << 25
"""Most bytes of a plan: 856 tables, each dealt over 1,024 devices, take four million."""
Rank = Annotated[int, Field(ge=0, lt=MAX_DEVICES)]


def _check_group(ranks: tuple[int, ...]) -> tuple[int, ...]:
    if any(a >= b for a, b in zip(ranks, ranks[1:])):
        raise ValueError("ranks must be strictly ascending")
    return ranks


Ranks = Annotated[tuple[Rank, ...], Field(min_length=1, max_length=MAX_DEVICES), AfterValidator(_check_group)]
First = Annotated[int, Field(ge=0, le=MAX_ROWS)]
Stop = Annotated[int, Field(ge=1, le=MAX_ROWS)]
MAX_NOTES, MAX_NOTE = 100, 1_000
"""How many notes a plan may have, and how many characters the name and the value of one."""


def _check_notes(notes: dict[str, float | int | str]) -> dict[str, float | int | str]:
    if len(notes) > MAX_NOTES:
        raise ValueError(f"{len(notes)} notes; a plan may have {MAX_NOTES}")
    for name, note in notes.items():
        large = isinstance(note, int) and note.bit_length() > 64
        if large or len(name) > MAX_NOTE or (isinstance(note, str) and len(note) > MAX_NOTE):
            raise ValueError(f"note '{name[:40]}' is too long: {MAX_NOTE} characters at most, or a number of 64 bits")
        if isinstance(note, float) and not math.isfinite(note):
            raise ValueError(f"note '{name}' is {note}: leave it out, as JSON has no such number")
    return notes


Notes = Annotated[dict[str, float | int | str], AfterValidator(_check_notes)]
"""A strategy's own words on its plan."""


def deal_start(table: str, ways: int) -> int:
    """Return which of ``ways`` sharers gets the first row of a dealt segment of the table: stable, by the table's name.

    Rows are in frequency order: were it the first sharer for every table, all hottest rows would meet there.
    """
    return int.from_bytes(blake2b(table.encode(), digest_size=8).digest()) % ways


CacheRatio = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
"""Share of a segment's rows that its cache in HBM has slots for."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class InTier:
    """A placement that chooses a tier; ``cache_ratio`` is stated for CACHED, and for no other."""

    tier: Tier = Tier.HBM
    # Not in the JSON, nor in the plan's hash, where there is no cache.
    cache_ratio: CacheRatio | None = Field(default=None, exclude_if=lambda ratio: ratio is None)

    def __post_init__(self) -> None:
        if (self.tier is Tier.CACHED) != (self.cache_ratio is not None):
            raise ValueError(
                f"tier '{self.tier}' with cache_ratio {self.cache_ratio}: 'cached' states a ratio above 0 and up to 1, "
                f"the other tiers have no cache"
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OnRank(InTier):
    """The segment lives on one device."""

    kind: Literal["on_rank"] = "on_rank"
    rank: Rank


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RowWise(InTier):
    """Rows dealt round-robin over ``ranks``: row i of the segment lives on ranks[(i + deal_start) % len]."""

    kind: Literal["row_wise"] = "row_wise"
    ranks: Ranks


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Replicated:
    """Every rank of the group holds the segment in HBM; gradients are all-reduced.

    A group that is not the whole world serves only its own samples: the plan must cover the
    other ranks' samples too, so a table's replicated groups partition the world.
    """

    kind: Literal["replicated"] = "replicated"
    ranks: Ranks


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GroupSharded(InTier):
    """One copy a sharding group, rows dealt round-robin (as RowWise) over its ranks; copies are averaged.

    A plan's sharding groups are ``Plan.groups``: its nodes, unless it states others.
    """

    # The word of records: plans are named by their hash.
    kind: Literal["node_sharded"] = "node_sharded"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OnLocalRank(InTier):
    """One copy a sharding group, whole on the group's rank number ``local_rank``; copies are averaged."""

    kind: Literal["on_local_rank"] = "on_local_rank"
    local_rank: Rank


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Host:
    """Held in a node's host memory and looked up by its CPU."""

    kind: Literal["host"] = "host"
    node: Rank


def tier_of(placement: "Placement") -> Tier:
    """Return the tier of a placement on devices: replicas are in HBM, and so is where a host's rows are sent."""
    return placement.tier if isinstance(placement, InTier) else Tier.HBM


OnDevices = OnRank | RowWise | Replicated | GroupSharded | OnLocalRank
Placement = Annotated[OnDevices | Host, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Segment:
    """Rows [row_start, row_stop) of the frequency order, columns [column_start, column_stop)."""

    table: Annotated[str, Field(max_length=1_000)]
    row_start: First = 0
    row_stop: Stop
    column_start: First = 0
    column_stop: Stop
    placement: Placement

    def __post_init__(self) -> None:
        if self.row_start >= self.row_stop:
            raise ValueError(f"segment of {self.table} has no rows ({self.row_start}..{self.row_stop})")
        if self.column_start >= self.column_stop:
            raise ValueError(f"segment of {self.table} has no columns ({self.column_start}..{self.column_stop})")

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.row_stop - self.row_start

    @property
    def columns(self) -> int:
        """Return the number of columns."""
        return self.column_stop - self.column_start


class PhaseKind(StrEnum):
    """A phase trains on mini-batches whose lookups are all hot, or on the rest."""

    HOT = "hot"
    COLD = "cold"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Phase:
    """A run of mini-batches of one kind; hot rows are synchronised where the kind changes."""

    kind: PhaseKind
    batches: Stop


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BatchSchedule:
    """Order of pure-hot and pure-cold mini-batches in one epoch; epochs follow one another.

    Hot rows, which a plan replicates, have a master copy on a host (``master_node``) if there are
    cold phases: there a cold batch looks them up, while a hot one uses the replicas alone.
    """

    phases: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=MAX_PHASES)]

    @property
    def has_cold(self) -> bool:
        """Say whether any mini-batch uses the master copies."""
        return any(phase.kind is PhaseKind.COLD for phase in self.phases)

    @property
    def has_hot(self) -> bool:
        """Say whether any mini-batch uses the replicas."""
        return any(phase.kind is PhaseKind.HOT for phase in self.phases)

    @property
    def batches(self) -> int:
        """Return the number of mini-batches of an epoch."""
        return sum(phase.batches for phase in self.phases)

    @property
    def heats(self) -> int:
        """Return how often in an epoch a hot phase begins after a cold one, and so ends before one."""
        kinds = [phase.kind for phase in self.phases]
        return list(zip(kinds, kinds[1:] + kinds[:1])).count((PhaseKind.COLD, PhaseKind.HOT))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShardingGroups:
    """The ranks are cut into groups of ``size``, each with a copy of what a plan copies by group.

    Contiguous groups are of neighbouring ranks, 0 1 2 3 and 4 5 6 7; interleaved ones of ranks that are as far apart
    as there are groups, 0 2 4 6 and 1 3 5 7, so that the copies of a row lie side by side (TorchRec's default).
    """

    size: Devices
    interleaved: bool
    sync_every: Annotated[int, Field(ge=1, le=MAX_SYNC_EVERY)] = 1
    """Steps from one averaging of the copies to the next; with more than one they drift apart between."""

    def ranks(self, world_size: int) -> Ints:
        """Return the ranks of each group, int64 [groups, size]; raises InvalidPlan where they do not part the world."""
        if world_size % self.size:
            raise InvalidPlan(f"sharding groups of {self.size} ranks do not divide the plan's {world_size} ranks")
        everyone = np.arange(world_size, dtype=np.int64)
        return everyone.reshape(self.size, -1).T if self.interleaved else everyone.reshape(-1, self.size)


class DenseHome(StrEnum):
    """Where the model around the tables is trained."""

    DEVICES = "devices"
    HOSTS = "hosts"
    """The nodes' CPUs train it, as they do all of the lookups: nothing crosses to a device."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Plan:
    """All segments placed on a world of ``world_size`` devices; ``notes`` are the strategy's own words."""

    world_size: Devices
    segments: Annotated[tuple[Segment, ...], Field(min_length=1, max_length=MAX_SEGMENTS)]
    schedule: BatchSchedule | None = None
    notes: Notes = Field(default_factory=dict)
    # The ordinary home is not in the JSON, nor in the plan's hash.
    dense: DenseHome = Field(default=DenseHome.DEVICES, exclude_if=lambda home: home is DenseHome.DEVICES)
    # Nor are the ordinary groups: one a node, whose copies are averaged after every step.
    groups: ShardingGroups | None = Field(default=None, exclude_if=lambda groups: groups is None)

    @property
    def sync_every(self) -> int:
        """Return the steps from one averaging of copies to the next; 1 where nothing is copied by group."""
        if self.groups is None or self.groups.size == self.world_size:
            return 1
        copied = any(isinstance(s.placement, GroupSharded | OnLocalRank) for s in self.segments)
        return self.groups.sync_every if copied else 1

    def by_table(self) -> dict[str, list[Segment]]:
        """Return the segments of each table, sorted by their first row, then first column."""
        grouped: dict[str, list[Segment]] = {}
        for segment in sorted(self.segments, key=lambda s: (s.row_start, s.column_start)):
            grouped.setdefault(segment.table, []).append(segment)
        return grouped

    def to_json(self) -> str:
        """Return it as canonical JSON: sorted keys, no spaces; ValueError for notes that were put in unchecked."""
        _check_notes(self.notes)
        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes, what: str = "plan") -> "Plan":
        """Parse; raises BadInput that names the first wrong field, or where it is longer than any plan."""
        if len(text) > MAX_JSON_BYTES:
            raise BadInput(f"{what}: {len(text)} bytes of JSON; a plan has {MAX_JSON_BYTES} at most")
        return from_json(cls, text, what)


def sharding_groups(groups: ShardingGroups | None, topology: Topology) -> Ints:
    """Return the ranks of each sharding group, int64 [groups, size]: the nodes' where a plan states no others."""
    nodes = ShardingGroups(size=topology.devices_per_node, interleaved=False)
    return (groups or nodes).ranks(topology.world_size)


def homes(placement: OnDevices, groups: Ints) -> Ints:
    """Return the ranks that hold a segment, int64 [copies, ways]: the rows of a copy are dealt over its ranks.

    ``groups`` are the plan's sharding groups, as ``sharding_groups`` gives them.
    """
    match placement:
        case OnRank():
            return np.array([[placement.rank]])
        case RowWise():
            return np.array([placement.ranks])
        case Replicated():
            return np.array(placement.ranks)[:, None]
        case GroupSharded():
            return groups
        case OnLocalRank():
            return groups[:, [placement.local_rank]]


def copied_by_group(plan: Plan, world_size: int, groups: ShardingGroups) -> Plan:
    """Return a plan for one sharding group's ranks copied to all groups of ``world_size`` ranks.

    Rows are dealt over all ranks of the group, and what its ranks all hold is on every rank of the world.
    """
    everyone = Replicated(ranks=tuple(range(world_size)))

    def copied(place: Placement) -> Placement:
        if isinstance(place, OnRank):
            return OnLocalRank(local_rank=place.rank, tier=place.tier, cache_ratio=place.cache_ratio)
        return GroupSharded(tier=place.tier, cache_ratio=place.cache_ratio) if isinstance(place, RowWise) else everyone

    segments = tuple(replace(segment, placement=copied(segment.placement)) for segment in plan.segments)
    return replace(plan, world_size=world_size, segments=segments, groups=groups)


def master_node(segments: Iterable[Segment]) -> int:
    """Return the node whose host keeps the master of replicated rows: that of the table's host rows, else the first."""
    return next((s.placement.node for s in segments if isinstance(s.placement, Host)), 0)


def hot_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Return those of a table's segments that hot mini-batches of a batch schedule use: the replicas."""
    return [segment for segment in segments if isinstance(segment.placement, Replicated)]


def cold_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Return a table's segments as cold mini-batches use them: their master copy on a host stands for the replicas.

    ``segments`` are in the order of ``Plan.by_table``; what meets on a host is one segment there.
    """
    segments = tuple(segments)
    home = Host(node=master_node(segments))
    cold: list[Segment] = []
    for segment in segments:
        if isinstance(segment.placement, Replicated):
            if segment.placement.ranks[0] != 0:  # the same rows for other ranks
                continue
            segment = replace(segment, placement=home)  # noqa: PLW2901 - the same rows, held elsewhere
        last = cold[-1] if cold else None
        if (
            last is not None
            and isinstance(segment.placement, Host)
            and (last.placement, last.row_stop) == (segment.placement, segment.row_start)
            and (last.column_start, last.column_stop) == (segment.column_start, segment.column_stop)
        ):
            cold[-1] = replace(last, row_stop=segment.row_stop)
        else:
            cold.append(segment)
    return cold


def whole_table(table: Table, placement: Placement, columns: tuple[int, int] | None = None) -> Segment:
    """Return the segment of all rows of a table, in all columns or in the range ``columns``."""
    start, stop = columns or (0, table.dim)
    return Segment(table=table.name, row_stop=table.rows, column_start=start, column_stop=stop, placement=placement)


def row_ranges(table: Table, *ends: tuple[int, Placement]) -> tuple[Segment, ...]:
    """Return a table's consecutive ranges of rows, in all columns, each given by its end; empty ranges are left out."""
    starts = (0, *(stop for stop, _ in ends))
    return tuple(
        Segment(table=table.name, row_start=start, row_stop=stop, column_stop=table.dim, placement=placement)
        for start, (stop, placement) in zip(starts, ends)
        if start < stop
    )


def whole_tables(
    tables: Iterable[Table], ranks: Iterable[int], tiers: Iterable[Tier] | None = None
) -> tuple[Segment, ...]:
    """Place table i wholly on ranks[i], in tiers[i] (HBM where these are not given)."""
    tables = tuple(tables)
    own_tiers = tiers if tiers is not None else [Tier.HBM] * len(tables)
    placed = zip(tables, ranks, own_tiers, strict=True)
    return tuple(whole_table(t, OnRank(rank=int(rank), tier=tier)) for t, rank, tier in placed)
