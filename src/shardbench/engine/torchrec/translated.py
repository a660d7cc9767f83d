"""TorchRec's sharding of every table as a plan of ours."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from torchrec.distributed.planner.constants import UVM_CACHING_RATIO
from torchrec.distributed.types import CacheParams

from shardbench.base.errors import Unsupported
from shardbench.engine.torchrec.exported import DENSE, TorchRecTable
from shardbench.model.caching import KERNELS
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, Segment, Tier, whole_table
from shardbench.model.problem import Problem
from shardbench.model.sharding_plan import uneven
from shardbench.model.table import Table

TIERS = {kernel: tier for tier, kernel in KERNELS.items()} | {DENSE: Tier.HBM}
"""The tier of a kernel's rows."""


def load_factor(sharded: Any, otherwise: float = UVM_CACHING_RATIO) -> float:
    """Return the share of rows that a table's cache holds: what its cache's parameters say, or that of its sharder."""
    params = getattr(sharded, "cache_params", None)
    return otherwise if params is None or params.load_factor is None else float(params.load_factor)


def cache_params(piece: TorchRecTable) -> CacheParams | None:
    """Return TorchRec's parameters of a table's cache; None without one."""
    return None if piece.cache_load_factor is None else CacheParams(load_factor=piece.cache_load_factor)


def translate(
    sharding: Mapping[str, Any], problem: Problem, cache_ratios: Mapping[str, float] = MappingProxyType({})
) -> Plan:
    """Return the plan of TorchRec's ParameterSharding (type, kernel, ranks, shard metadata) by table name.

    ``cache_ratios`` are those of tables whose sharding states no cache, TorchRec's own where it is left out. Blocks of
    rows become rows that are dealt over the same ranks. Raises Unsupported for a type or a kernel that has
    no segments here, and for blocks of unlike sizes.
    """
    segments: list[Segment] = []
    kinds: dict[str, int] = defaultdict(int)
    for table in problem.tables:
        parameter = sharding[table.name]
        kinds[parameter.sharding_type] += 1
        ratio = cache_ratios.get(table.name, UVM_CACHING_RATIO)
        segments.extend(_segments(table, parameter, problem.world_size, ratio))
    notes: dict[str, float | int | str] = {f"tables_{kind}": kinds[kind] for kind in sorted(kinds)}
    return Plan(world_size=problem.world_size, segments=tuple(segments), notes=notes)


def _segments(table: Table, parameter: Any, world_size: int, cache_ratio: float) -> Iterator[Segment]:
    kind = parameter.sharding_type
    if parameter.compute_kernel not in TIERS:
        raise Unsupported(f"table '{table.name}': TorchRec's kernel '{parameter.compute_kernel}' has no tier here")
    tier = TIERS[parameter.compute_kernel]
    ratio = load_factor(parameter, cache_ratio) if tier is Tier.CACHED else None
    if kind == "data_parallel":
        yield whole_table(table, Replicated(ranks=tuple(range(world_size))))
    elif kind in ("table_wise", "column_wise", "table_column_wise"):
        for rank, columns in _column_shards(parameter):
            yield whole_table(table, OnRank(rank=rank, tier=tier, cache_ratio=ratio), columns)
    elif kind in ("row_wise", "table_row_wise", "grid_shard"):
        groups: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for (rank, columns), shard in zip(_column_shards(parameter), parameter.sharding_spec.shards, strict=True):
            groups[columns][rank] = shard.shard_sizes[0]
        for columns, rows in groups.items():
            fault = uneven(table, rows)
            if fault:
                raise Unsupported(fault)
            yield whole_table(table, RowWise(ranks=tuple(sorted(rows)), tier=tier, cache_ratio=ratio), columns)
    else:
        raise Unsupported(f"table '{table.name}': TorchRec's sharding type '{kind}' has no segments here")


def _column_shards(parameter: Any) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the rank, and the range of columns, of each shard."""
    for rank, shard in zip(parameter.ranks, parameter.sharding_spec.shards, strict=True):
        yield rank, (shard.shard_offsets[1], shard.shard_offsets[1] + shard.shard_sizes[1])
