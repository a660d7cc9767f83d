"""Which segments share a cache in HBM, how many rows it holds, and the memory that it takes: as FBGEMM's kernels do.

A device has one kernel for all its tables of one sharding type and module, whatever their widths, and that kernel has
one cache: as many slots as its tables' ratios ask for together (TorchRec averages their load factors by rows), each as
wide as the widest of them. So a table may take slots that another one's ratio paid for.
"""

from typing import NamedTuple

from shardbench.base.arrays import Ints
from shardbench.model.machine import Topology
from shardbench.model.plan import (
    GroupSharded,
    Host,
    InTier,
    OnLocalRank,
    OnRank,
    Replicated,
    RowWise,
    Segment,
    Tier,
    deal_start,
    homes,
)
from shardbench.model.table import Pooling, Table

KERNELS = {Tier.HBM: "fused", Tier.UVM: "fused_uvm", Tier.CACHED: "fused_uvm_caching"}
"""TorchRec's kernel for the rows of each tier of a GPU."""
WAYS = 32
"""Slots of a set: the threads of a warp, which look at them together."""
SLOT_BYTES = 16
"""Which row a slot holds and when it was used, int64 each; its weights come on top."""
MAP_BYTES = 4
"""The table of every row that may enter the cache, int32."""
ROWWISE_STATE_BYTES = 4
"""Optimiser state of a row up to which it stays in HBM when the row is in host memory (FBGEMM)."""


class Kernel(NamedTuple):
    """The tables of a device that one kernel looks up, and whose vectors are exchanged together."""

    kind: str
    """The sharding type; a host's rows are exchanged as those of a rank are."""
    columns: int
    """0 for pooled tables of any width; unpooled ones of one width share a module."""


_KINDS: dict[type, str] = {
    OnRank: "table_wise", Host: "table_wise", GroupSharded: "node_sharded", OnLocalRank: "node_table_wise",
    Replicated: "data_parallel",
}  # fmt: skip


class CachedPart(NamedTuple):
    """The rows of a cached segment that one device holds."""

    rank: int
    way: int
    """Rows (i - row_start) % ways == way are its own."""
    ways: int
    rows: int
    group: int | None
    """The sharding group whose samples ask for them; None where all do."""


def sets_of(rows: float) -> int:
    """Return the number of sets of a cache of so many rows, as FBGEMM rounds it: up, and at least one."""
    return max((int(rows) + WAYS - 1) // WAYS, 1)


def slots_of(cached_rows: float) -> int:
    """Return the slots of a cache that is asked to hold ``cached_rows`` rows: whole sets."""
    # Shares of rows are no binary fractions: 0.29 x 100 is a little less than 29.
    return WAYS * sets_of(cached_rows + 1e-6)


def is_cached(segment: Segment) -> bool:
    """Say whether the rows are in host memory behind a cache."""
    return isinstance(segment.placement, InTier) and segment.placement.tier is Tier.CACHED


def kernel_of(segment: Segment, table: Table, topology: Topology) -> Kernel:
    """Return the kernel that looks a segment up, on each device that holds a part of it."""
    place = segment.placement
    if isinstance(place, RowWise):
        kind = "row_wise" if len(place.ranks) == topology.world_size else "table_row_wise"
    else:
        kind = _KINDS[type(place)]
    return Kernel(kind, segment.columns if table.pooling is Pooling.NONE else 0)


def cached_parts(segment: Segment, groups: Ints) -> list[CachedPart]:
    """Return the parts of a cached segment, one a device, in the order in which the counter goes through them.

    ``groups`` are the plan's sharding groups, the ranks of each, int64 [groups, ranks].
    """
    place = segment.placement
    if isinstance(place, Host):
        raise TypeError(f"rows of '{segment.table}' have no cache")
    by_group, copies = isinstance(place, GroupSharded | OnLocalRank), homes(place, groups)
    ways = copies.shape[1]
    start = deal_start(segment.table, ways)
    parts = []
    for number, ranks in enumerate(copies.tolist()):
        for at, rank in enumerate(ranks):
            way = (at - start) % ways
            rows = (segment.rows - way + ways - 1) // ways
            parts.append(CachedPart(rank, way, ways, rows, number if by_group else None))
    return parts


def ratio_of(segment: Segment) -> float:
    """Return the share of a cached segment's rows that its cache has slots for."""
    place = segment.placement
    if not isinstance(place, InTier) or place.cache_ratio is None:
        raise TypeError(f"rows of '{segment.table}' have no cache")
    return place.cache_ratio


def cache_bytes(cached_rows: float, rows: float, row_bytes: int) -> int:
    """Return the HBM of a cache that is asked to hold ``cached_rows`` of ``rows`` rows, ``row_bytes`` each at most."""
    return slots_of(cached_rows) * (row_bytes + SLOT_BYTES) + MAP_BYTES * int(rows)
