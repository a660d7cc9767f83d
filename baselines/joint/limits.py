"""The forms that a user's constraints leave to a table: options that break one are not on the menu."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardbench.model.constraints import BY_FREQUENCY, NODE_COPIES
from shardbench.model.plan import Tier
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
class Limits:
    """The types and the kinds of memory that tables may have, by name; any for a table that is not named."""

    types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    tiers: Mapping[str, frozenset[Tier]] = field(default_factory=dict)

    def name(self, table: Table) -> bool:
        """Tell whether there are limits for a table."""
        return table.name in self.types or table.name in self.tiers

    def allow(self, table: Table, kind: str, tiers: Iterable[str]) -> bool:
        """Tell whether a table may have this type, and its rows be in these kinds of memory."""
        return kind in self.types.get(table.name, {kind}) and set(tiers) <= set(self.tiers.get(table.name, Tier))

    def allow_cuts(self, table: Table, cuts: Sequence[PieceCut], shards: int = 1) -> bool:
        """Tell whether a table may be in these pieces, the last of which stands for so many column ranges."""
        return self.allow(table, type_of(table, cuts, shards), {cut.tier for cut in cuts})

    def may_cut(self, table: Table) -> bool:
        """Tell whether a table's rows may be in both kinds of memory."""
        types, tiers = self.types.get(table.name), self.tiers.get(table.name)
        return (types is None or BY_FREQUENCY in types) and (tiers is None or tiers >= {Tier.HBM, Tier.UVM})

    def may_be_in(self, table: Table, tier: Tier) -> bool:
        """Tell whether a table's rows may be in one kind of memory."""
        return tier in self.tiers.get(table.name, Tier)


ANY_FORM = Limits()
"""Limits that every form keeps."""


def type_of(table: Table, cuts: Sequence[PieceCut], shards: int) -> str:
    """Return the type as ``sharding_type`` names it."""
    if any(cut.scope is Holders.NODES for cut in cuts):
        return NODE_COPIES
    if any(cut.stop - cut.start < table.rows for cut in cuts):
        return BY_FREQUENCY
    if shards > 1:
        return "column_wise" if cuts[-1].scope is Holders.RANK else "grid_shard"
    return TYPES[cuts[-1].scope]
