"""What a search looks among: the forms that a user's constraints leave to a table, and tables that go together."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardbench.model.constraints import BY_FREQUENCY, NODE_COPIES, sharding_type, types_of
from shardbench.model.plan import Segment, Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move, TableLimits
from shardbench.model.table import Table

from .pieces import Holders, PieceCut

TYPES = {
    Holders.RANK: "table_wise",
    Holders.NODE: "table_row_wise",
    Holders.WORLD: "row_wise",
    Holders.COPIES: "data_parallel",
}
"""The sharding type of a table that is whole in one scope."""


@dataclass(frozen=True)
class Limits(TableLimits):
    """Limits of a problem's tables."""

    node_devices: int = 1

    @classmethod
    def of(cls, limits: TableLimits, problem: Problem) -> "Limits":
        """Return the limits as they are for a problem: where there is one node, all tables are on it."""
        tables, whole = {table.name: table for table in problem.tables}, frozenset({"table_wise"})
        types = {name: frozenset(types_of(tuple(one), tables[name])) for name, one in limits.types.items()}
        types |= {name: types.get(name, whole) & whole for group in limits.devices for name in group}
        nodes, local = limits.nodes if problem.topology.nodes > 1 else (), problem.topology.devices_per_node
        return cls(types, limits.tiers, limits.devices, nodes, limits.columns, limits.caches, local if nodes else 1)

    @cached_property
    def in_node(self) -> frozenset[str]:
        """The tables of which every row is on one node."""
        return frozenset(name for group in self.nodes for name in group)

    def name(self, table: Table) -> bool:
        """Tell whether there are limits for a table's form."""
        limited = (self.types, self.tiers, self.in_node, self.columns)
        return any(table.name in tables for tables in limited)

    def allow(self, table: Table, cuts: Sequence[PieceCut], shards: int = 1) -> bool:
        """Tell whether a table may be in these pieces, the last of which stands for so many column ranges."""
        kind, parts = type_of(table, cuts, shards), sum(cut.alone for cut in cuts) - 1 + shards
        is_apart = kind == "grid_shard" or parts > self.node_devices or any(cut.scope > Holders.NODE for cut in cuts)
        if (is_apart and table.name in self.in_node) or kind not in self.types.get(table.name, {kind}):
            return False
        if shards > 1 and table.dim < shards * self.columns.get(table.name, 0):
            return False
        return {cut.tier for cut in cuts} <= set(self.tiers.get(table.name, Tier))

    def may_cut(self, table: Table) -> bool:
        """Tell whether a table's rows may be in both kinds of memory."""
        types, tiers = self.types.get(table.name), self.tiers.get(table.name)
        return (types is None or BY_FREQUENCY in types) and (tiers is None or tiers >= {Tier.HBM, Tier.UVM})

    def may_be_in(self, table: Table, tier: Tier) -> bool:
        """Tell whether a table's rows may be in one kind of memory."""
        return tier in self.tiers.get(table.name, Tier)

    def may_cache(self, table: Table) -> bool:
        """Tell whether limits name caches for a table's rows."""
        return Tier.CACHED in self.tiers.get(table.name, ())

    def may_copy(self, tables: Sequence[Table]) -> bool:
        """Tell whether some table may have a copy a sharding group."""
        if self.devices or self.nodes:
            return False
        return any(NODE_COPIES in self.types.get(table.name, {NODE_COPIES}) for table in tables)

    def allow_types(self, segments: Iterable[Segment], problem: Problem) -> bool:
        """Tell whether tables have types that they may have."""
        tables, by_table = {table.name: table for table in problem.tables}, defaultdict[str, list[Segment]](list)
        for segment in segments:
            by_table[segment.table].append(segment)
        return all(
            sharding_type(by_table[name], tables[name], problem.topology) in types for name, types in self.types.items()
        )

    def units(self, tables: Sequence[Table]) -> list[tuple[int, ...]]:
        """Return the numbers of tables with one place: those of a device's group together, each other alone."""
        number = {table.name: at for at, table in enumerate(tables)}
        groups = {name: tuple(number[one] for one in group) for group in self.devices for name in group}
        return list(dict.fromkeys(groups.get(table.name, (at,)) for at, table in enumerate(tables)))


ANY_FORM = Limits()
"""Limits that every plan keeps."""


@dataclass(frozen=True, eq=False)
class Space:
    """The plans of a problem that a search looks among."""

    problem: Problem
    moves: frozenset[Move]
    limits: Limits = ANY_FORM
    """The forms of tables. One that may have none of a menu's has them all: whoever set the limits places it anew."""
    seen_rows: Sequence[int] = ()
    """How many rows of each table the train split saw; the profiles' numbers where nothing is stated."""
    averaging_s: float = 0.0
    """Seconds a weight that a device averages with those of other sharding groups after each backward pass."""
    check: Callable[[], None] = lambda: None
    """Is called before each table is looked at and each choice is made, and may raise what ends that."""


def type_of(table: Table, cuts: Sequence[PieceCut], shards: int) -> str:
    """Return the type as ``sharding_type`` names it."""
    if any(cut.scope is Holders.NODES for cut in cuts):
        return NODE_COPIES
    if any(cut.stop - cut.start < table.rows for cut in cuts):
        return BY_FREQUENCY
    if shards > 1:
        return "column_wise" if cuts[-1].scope is Holders.RANK else "grid_shard"
    return TYPES[cuts[-1].scope]
