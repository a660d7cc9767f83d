"""What users ask of a plan beside speed: tables together, sharding types, kinds of memory, memory of each device."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.base.serialise import STRICT
from shardbench.model.machine import Capacity, Topology
from shardbench.model.plan import (
    CacheRatio,
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
    tier_of,
)
from shardbench.model.problem import Problem
from shardbench.model.table import Table
from shardbench.model.validate import COLUMN_MULTIPLE, memory_bytes

RULE = "constraints"
BY_FREQUENCY, NODE_COPIES, HOST = "by_frequency", "node_copies", "host"
TORCHREC_TYPES = (
    "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "data_parallel", "grid_shard",
)  # fmt: skip
TYPES = (*TORCHREC_TYPES, BY_FREQUENCY, NODE_COPIES, HOST)
"""TorchRec's sharding types, and what it has no type for: rows cut by frequency, a copy a node, a host."""
CACHE_RATIO = 0.2
"""TorchRec's cache where nobody states one (``UVM_CACHING_RATIO``)."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Constraints:
    """What a plan must keep; nothing by default. Tables are named."""

    same_device: tuple[tuple[str, ...], ...] = ()
    """Groups of tables that lie whole on one device."""
    same_node: tuple[tuple[str, ...], ...] = ()
    """Groups of tables of which every row lies on one node, the same for all."""
    sharding_types: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Types that a table may have, by its name; a table that is not named may have any."""
    tiers: dict[str, tuple[Tier, ...]] = Field(default_factory=dict)
    """Memory of devices that a table's rows may be in, by its name; a table that is not named may be in any."""
    cache_ratios: dict[str, CacheRatio] = Field(default_factory=dict)
    """The cache of a table that is placed behind one; where it is not named, a strategy's own choice or CACHE_RATIO."""
    least_columns: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Columns that each part of a table that is cut by columns has at least, by its name."""
    device_hbm_bytes: tuple[Annotated[Capacity, Field(ge=1)], ...] = ()
    """Memory of every device, by rank; the machine's where it is left out."""
    reserved_bytes: Capacity = 0
    """Bytes of every device's memory that are for other things than tables."""

    def __post_init__(self) -> None:
        grouped = [name for group in (*self.same_device, *self.same_node) for name in group]
        twice = sorted(name for name, times in Counter(grouped).items() if times > 1)
        if twice:
            raise ValueError(f"table '{twice[0]}' is in two groups: a table is in one at most")
        for name, types in self.sharding_types.items():
            strange = sorted(set(types) - set(TYPES))
            if strange or not types:
                raise ValueError(f"table '{name}': sharding type '{''.join(strange[:1])}'; known: {', '.join(TYPES)}")
        for name, tiers in self.tiers.items():
            if not tiers:
                raise ValueError(f"table '{name}' may be in no memory: state some of {', '.join(Tier)}")

    def check_tables(self, tables: tuple[Table, ...]) -> None:
        """Raise BadInput where a constraint names a table that there is not, or some leave one no sharding type."""
        names = {name for group in (*self.same_device, *self.same_node) for name in group}
        names |= self.sharding_types.keys() | self.tiers.keys() | self.cache_ratios.keys() | self.least_columns.keys()
        strange = sorted(names - {table.name for table in tables})
        if strange:
            raise BadInput(f"constraints name table '{strange[0]}', which there is not: correct the name")
        for table in tables:
            self._check_types(table)

    def _check_types(self, table: Table) -> None:
        every, name = set(TYPES), table.name
        halves = table.dim // (2 * COLUMN_MULTIPLE) * COLUMN_MULTIPLE
        possible = {
            "same_device": {"table_wise"} if any(name in group for group in self.same_device) else every,
            "tiers": every - ({"data_parallel", HOST} if Tier.HBM not in self.tiers.get(name, Tier) else set()),
            "least_columns": every - ({"column_wise"} if self.least_columns.get(name, 0) > halves else set()),
        }
        types = types_of(self.sharding_types.get(name, TYPES), table)
        for constraint, others in possible.items():
            if others.isdisjoint(types):
                raise BadInput(
                    f"table '{name}': constraints sharding_types ({', '.join(types)}) and {constraint} contradict each "
                    "other, as no type is left by both: change one of the two"
                )

    def device_bytes(self, topology: Topology) -> tuple[int, ...]:
        """Return each device's memory for tables; raises BadInput where nothing is left or the ranks do not match."""
        hbm_bytes = self.device_hbm_bytes or (topology.hbm_bytes,) * topology.world_size
        if len(hbm_bytes) != topology.world_size:
            raise BadInput(f"memory of {len(hbm_bytes)} devices is stated, the machine has {topology.world_size}")
        free_bytes = tuple(size - self.reserved_bytes for size in hbm_bytes)
        if min(free_bytes) <= 0:
            rank, size = free_bytes.index(min(free_bytes)), min(hbm_bytes)
            raise BadInput(f"device {rank} has {size} bytes, {self.reserved_bytes} are reserved")
        return free_bytes

    def applied(self, problem: Problem) -> Problem:
        """Return the problem on devices that all have the memory of the smallest: its plans fit every device.

        Strategies know one capacity, so that what larger devices have more stays empty.
        """
        smallest = min(self.device_bytes(problem.topology))
        topology = replace(problem.topology, hbm_bytes=smallest)
        return replace(problem, topology=topology, machine=replace(problem.machine, topology=topology))

    @property
    def when_applied(self) -> "Constraints":
        """Return what is left to keep where they were ``applied``: what is reserved is no memory of that problem."""
        return self if self.device_hbm_bytes else replace(self, reserved_bytes=0)

    def broken(self, plan: Plan, problem: Problem) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the tables of each constraint but memory's that a valid plan breaks, and what is wrong."""
        by_table, topology = plan.by_table(), problem.topology
        tables = {table.name: table for table in problem.tables}
        for name, types in self.sharding_types.items():
            kind = sharding_type(by_table[name], tables[name], topology)
            if kind not in types_of(types, tables[name]):
                yield (name,), f"table '{name}' is {kind}, allowed are {', '.join(types)}"
        for name, tiers in self.tiers.items():
            strange = sorted(memories(by_table[name]) - set(tiers))
            if strange:
                yield (name,), f"table '{name}' has rows in {strange[0]}, allowed are {', '.join(tiers)}"
        for name, least in self.least_columns.items():
            if too_narrow(by_table[name], tables[name], least):
                yield (name,), f"table '{name}' has a part of fewer than {least} columns"
        for group in self.same_device:
            if not on_one_device([by_table[name] for name in group]):
                yield group, f"tables {', '.join(group)} do not lie whole on one device"
        for group in self.same_node:
            nodes = nodes_of([by_table[name] for name in group], topology)
            if len(nodes) > 1:
                yield group, f"tables {', '.join(group)} lie on {len(nodes)} nodes"

    def check(self, plan: Plan, problem: Problem) -> None:
        """Raise InvalidPlan with the first constraint that a valid plan breaks."""
        for _, text in self.broken(plan, problem):
            raise _violation(text)
        hbm_bytes = memory_bytes(plan, problem).hbm
        for rank, room in enumerate(self.device_bytes(problem.topology)):
            if hbm_bytes[rank] > room:
                raise _violation(f"device {rank} needs {hbm_bytes[rank]} bytes of HBM but has {room} for tables")


ANY_PLAN = Constraints()
"""Constraints that every valid plan keeps."""


def _violation(text: str) -> InvalidPlan:
    return InvalidPlan(f"constraint not kept: {text}", rule=RULE)


def types_of(types: tuple[str, ...], table: Table | None = None) -> tuple[str, ...]:
    """Return the types with TorchRec's other name for column-wise replaced.

    A ``table`` that has no two equal halves of columns is column-wise in one piece, as TorchRec leaves it.
    """
    own = tuple("column_wise" if kind == "table_column_wise" else kind for kind in types)
    in_one = table is not None and table.dim % (2 * COLUMN_MULTIPLE) and "column_wise" in own
    return (*own, "table_wise") if in_one else own


def memories(segments: Iterable[Segment]) -> set[str]:
    """Return the kinds of memory that rows are in: tiers of devices, and HOST."""
    return {HOST if isinstance(s.placement, Host) else tier_of(s.placement).value for s in segments}


def on_one_device(tables: Iterable[list[Segment]]) -> bool:
    """Say whether the tables of these segments lie whole on one device, in whichever of its tiers."""
    homes = {
        place.rank if len(segments) == 1 and isinstance(place := segments[0].placement, OnRank) else None
        for segments in tables
    }
    return len(homes) <= 1 and None not in homes


def nodes_of(tables: Iterable[list[Segment]], topology: Topology) -> set[int]:
    """Return the nodes that hold some of the tables of these segments."""
    return {node for segments in tables for segment in segments for node in _segment_nodes(segment, topology)}


def _segment_nodes(segment: Segment, topology: Topology) -> set[int]:
    place = segment.placement
    if isinstance(place, OnRank):
        return {topology.node_of(place.rank)}
    if isinstance(place, RowWise | Replicated):
        return {topology.node_of(rank) for rank in place.ranks}
    return {place.node} if isinstance(place, Host) else set(range(topology.nodes))


def too_narrow(segments: list[Segment], table: Table, least: int) -> bool:
    """Tell whether a table is cut by columns, and a part of it has fewer than the least."""
    return any(segment.columns < min(least, table.dim) for segment in segments)


def sharding_type(segments: list[Segment], table: Table, topology: Topology) -> str:
    """Return how a plan shards a table, one of TYPES."""
    places = [segment.placement for segment in segments]
    if any(isinstance(place, Host) for place in places):
        return HOST
    if any(isinstance(place, GroupSharded | OnLocalRank) for place in places):
        return NODE_COPIES
    if any(segment.rows < table.rows for segment in segments):
        return BY_FREQUENCY
    if all(isinstance(place, Replicated) for place in places):
        return "data_parallel"
    if all(isinstance(place, OnRank) for place in places):
        return "table_wise" if len(segments) == 1 else "column_wise"
    if len(segments) > 1:
        return "grid_shard"
    ranks = places[0].ranks if isinstance(places[0], RowWise) else ()
    return "row_wise" if len(ranks) == topology.world_size else "table_row_wise"
