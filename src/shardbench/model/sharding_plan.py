"""TorchRec's sharding plan as plain JSON, read without torch: how it shards each table, by the path of its module.

``shardbench.torchrec.sharding_plan_json`` writes it of a ``ShardingPlan``:

{"model.tables": {"user": {"sharding_type": "table_wise", "compute_kernel": "fused", "ranks": [0],
"sharding_spec": [{"offsets": [0, 0], "sizes": [400000, 64], "rank": 0}]}}}
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from pydantic import Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from shardbench.base.errors import BadInput
from shardbench.base.serialise import STRICT, from_data, from_json
from shardbench.model.caching import KERNELS
from shardbench.model.constraints import CACHE_RATIO
from shardbench.model.plan import CacheRatio, OnRank, Plan, Rank, Replicated, RowWise, Segment, Tier, whole_table
from shardbench.model.table import Table

COLUMN_TYPES = ("table_wise", "column_wise", "table_column_wise")
ROW_TYPES = ("row_wise", "table_row_wise", "grid_shard")
_TIERS = {kernel: tier for tier, kernel in KERNELS.items()} | {"dense": Tier.HBM}
TITLE = "Parameter Info:"
_TYPES = {
    "TW": "table_wise", "CW": "column_wise", "RW": "row_wise", "TWRW": "table_row_wise", "TWCW": "table_column_wise",
    "DP": "data_parallel",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShardBlock:
    """A block of a table's rows and columns on one rank; ``offsets`` and ``sizes`` are [rows, columns]."""

    offsets: tuple[NonNegativeInt, NonNegativeInt]
    sizes: tuple[NonNegativeInt, NonNegativeInt]
    rank: Rank


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShardedTable:
    """How TorchRec shards a table: its ParameterSharding."""

    sharding_type: str
    compute_kernel: str
    ranks: tuple[Rank, ...] = Field(min_length=1)
    sharding_spec: tuple[ShardBlock, ...] | None = None
    """Its blocks; None where every rank holds the table."""
    cache_load_factor: CacheRatio | None = None
    """Share of the rows that the cache holds, for the caching kernel."""


ShardedModules = dict[str, dict[str, ShardedTable]]


def read_sharding_plan(text: str | bytes, what: str = "sharding plan") -> ShardedModules:
    """Parse how each table is sharded, by module path and name; raises BadInput that names the first wrong field.

    ``text`` is what ``sharding_plan_json`` wrote, what TorchRec itself makes of a ShardingPlan (``{"plan": {...}}``),
    or the statistics that its planner prints.
    """
    printed = text if isinstance(text, str) else text.decode(errors="replace")
    if TITLE in printed:
        return from_data(ShardedModules, sharded_tables(printed, what), what)
    fields = from_json(dict[str, Any], text, what)
    if fields.keys() != {"plan"} or not isinstance(fields["plan"], dict):
        return from_json(ShardedModules, text, what)
    torchrecs = from_data(dict[str, dict[str, _SerializedTable]], fields["plan"], what)
    return {path: {name: one.sharded for name, one in tables.items()} for path, tables in torchrecs.items()}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _SerializedShard:
    """A block as TorchRec writes it; ``placement`` is such as ``rank:3/cuda:3``."""

    shard_offsets: tuple[NonNegativeInt, NonNegativeInt]
    shard_sizes: tuple[NonNegativeInt, NonNegativeInt]
    placement: str = Field(pattern=r"^rank:\d+(/|$)")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _SerializedTable:
    """A table's sharding as TorchRec writes it."""

    sharding_type: str
    compute_kernel: str
    ranks: tuple[Rank, ...] | None = None
    shards: tuple[_SerializedShard, ...] | None = None

    @property
    def sharded(self) -> ShardedTable:
        """Return the same in our words."""
        blocks = tuple(
            ShardBlock(
                offsets=shard.shard_offsets, sizes=shard.shard_sizes, rank=int(shard.placement[5:].partition("/")[0])
            )
            for shard in self.shards or ()
        )
        return ShardedTable(
            sharding_type=self.sharding_type,
            compute_kernel=self.compute_kernel,
            ranks=self.ranks or tuple(block.rank for block in blocks),
            sharding_spec=blocks or None,
        )


def plan_of(modules: ShardedModules, tables: Sequence[Table], world_size: int) -> Plan:
    """Return the plan for these tables; TorchRec's blocks of rows become rows that are dealt over the same ranks.

    (Where rows are hashed a block of them is as hot as another, which is what dealing rows comes to.) Raises BadInput
    for tables that are others, for shards that do not make up a table, and for what has no segments.
    """
    by_name: dict[str, ShardedTable] = {}
    for path, sharded in modules.items():
        for name, table in sharded.items():
            if name in by_name:
                raise BadInput(f"table '{name}' is in two modules of the plan, the second is '{path}'")
            by_name[name] = table
    _check_names(by_name.keys(), tables)
    segments = tuple(part for table in tables for part in _segments(table, by_name[table.name], world_size))
    return Plan(world_size=world_size, segments=segments)


def _check_names(there: Set[str], tables: Sequence[Table]) -> None:
    """Raise BadInput where a plan's tables are not the user's."""
    missing = [table.name for table in tables if table.name not in there]
    if missing:
        raise BadInput(f"table '{missing[0]}' is not in the plan")
    extra = sorted(there - {table.name for table in tables})
    if extra:
        raise BadInput(f"the plan has table '{extra[0]}', which is none of yours")


def _check_size(table: Table, rows: int, columns: int) -> None:
    """Raise BadInput where a table has other rows or columns in the plan than the user's."""
    if (rows, columns) != (table.rows, table.dim):
        raise BadInput(f"table '{table.name}' is {rows} x {columns} in the plan, yours is {table.rows} x {table.dim}")


def _segments(table: Table, sharded: ShardedTable, world_size: int) -> Iterator[Segment]:
    kind, where = sharded.sharding_type, f"table '{table.name}'"
    if sharded.compute_kernel not in _TIERS:
        kernels = ", ".join(_TIERS)
        raise BadInput(f"{where}: compute_kernel '{sharded.compute_kernel}' is not known here, but {kernels} are")
    tier = _TIERS[sharded.compute_kernel]
    ratio = (sharded.cache_load_factor or CACHE_RATIO) if tier is Tier.CACHED else None
    blocks = [block for block in sharded.sharding_spec or () if min(block.sizes) > 0]
    beyond = max([*sharded.ranks, *(block.rank for block in blocks)])
    everyone = tuple(range(world_size))
    if beyond >= world_size:
        raise BadInput(f"{where} is on rank {beyond}: the machine has {world_size} devices, 0 to {world_size - 1}")
    if kind == "data_parallel":
        if tuple(sorted(set(sharded.ranks))) != everyone:
            raise BadInput(f"{where} is copied to {len(sharded.ranks)} ranks: the machine has {world_size} devices")
        yield whole_table(table, Replicated(ranks=everyone))
        return
    if kind not in COLUMN_TYPES + ROW_TYPES:
        types = ", ".join((*COLUMN_TYPES, *ROW_TYPES, "data_parallel"))
        raise BadInput(f"{where}: sharding_type '{kind}' is not known here, but {types} are")
    if kind == "row_wise" and len(sharded.sharding_spec or ()) not in (0, world_size):
        ways = len(sharded.sharding_spec or ())
        raise BadInput(f"{where} is dealt over {ways} ranks: the machine has {world_size} devices")
    _check_blocks(table, blocks)
    by_columns: dict[tuple[int, int], dict[int, int]] = {}
    for block in blocks:
        columns = (block.offsets[1], block.offsets[1] + block.sizes[1])
        rows = by_columns.setdefault(columns, {})
        if block.rank in rows:
            raise BadInput(f"{where} has two blocks of rows on one rank")
        rows[block.rank] = block.sizes[0]
    for columns, rows in by_columns.items():
        if kind in COLUMN_TYPES:
            if len(rows) > 1:
                raise BadInput(f"{where} is {kind} and has its rows in {len(rows)} blocks")
            yield whole_table(table, OnRank(rank=next(iter(rows)), tier=tier, cache_ratio=ratio), columns)
        else:
            fault = uneven(table, rows)
            if fault:
                raise BadInput(fault)
            yield whole_table(table, RowWise(ranks=tuple(sorted(rows)), tier=tier, cache_ratio=ratio), columns)


def uneven(table: Table, rows_by_rank: Mapping[int, int]) -> str:
    """Say which rank has more than an even share of a table's rows; empty where none has: plans deal rows evenly."""
    most = max(rows_by_rank, key=lambda rank: rows_by_rank[rank])
    share = -(-table.rows // len(rows_by_rank))
    if rows_by_rank[most] <= share:
        return ""
    return (
        f"table '{table.name}' has {rows_by_rank[most]} of its {table.rows} rows on rank {most}, where an even share "
        f"is {share}: plans here deal rows evenly, so that neither time nor memory of this one can be told"
    )


def _check_blocks(table: Table, blocks: Sequence[ShardBlock]) -> None:
    """Raise BadInput where blocks are not as large as the table, or do not lie side by side."""
    rows = max((block.offsets[0] + block.sizes[0] for block in blocks), default=0)
    columns = max((block.offsets[1] + block.sizes[1] for block in blocks), default=0)
    _check_size(table, rows, columns)
    if sum(block.sizes[0] * block.sizes[1] for block in blocks) != rows * columns:
        raise BadInput(f"table '{table.name}': the plan's shards do not make up its {rows} x {columns} numbers")


def check_sizes(plan: Plan, tables: Sequence[Table], world_size: int) -> None:
    """Raise BadInput, in words of the user's tables, where a plan is of others or for another number of devices."""
    if plan.world_size != world_size:
        raise BadInput(f"the plan is for {plan.world_size} devices, the machine has {world_size}")
    by_table = plan.by_table()
    _check_names(by_table.keys(), tables)
    for table in tables:
        segments = by_table[table.name]
        _check_size(table, max(s.row_stop for s in segments), max(s.column_stop for s in segments))


def sharded_tables(text: str, what: str) -> dict[str, dict[str, Any]]:
    """Return the fields of ``ShardedTable`` by module path and table, of printed statistics, log lines or not.

    Ranks are printed in their order and blocks of rows or columns are not, so that these are taken for even ones.
    Raises BadInput where a line is missing or unlike TorchRec's.
    """
    modules: dict[str, dict[str, Any]] = {}
    for cells in _lines(text, what):
        path, _, name = cells["FQN"].rpartition(".")
        try:
            modules.setdefault(path, {})[name] = _fields(cells)
        except (KeyError, ValueError) as error:
            raise BadInput(f"{what}: the line of '{cells['FQN']}' is none that can be read: {error}") from error
    return modules


def _lines(text: str, what: str) -> Iterator[dict[str, str]]:
    """Yield the cells of each table's line by the heading of their column: cells end where the dashes under it end."""
    lines = [line.partition("#")[2].rstrip().removesuffix("#").rstrip() for line in text.splitlines()]
    start = next((number for number, line in enumerate(lines) if line.strip() == TITLE), len(lines))
    if len(lines) < start + 4:
        raise BadInput(f"{what}: no table under '{TITLE}': give the planner's statistics whole")
    heading, dashes, *rest = lines[start + 1 :]
    ends = [0, *(match.end() for match in re.finditer(r"-+", dashes))]
    names = [heading[low:high].strip() for low, high in pairwise(ends)]
    for line in rest:
        if not line.strip():
            return
        yield dict(zip(names, (line[low:high].strip() for low, high in pairwise(ends))))


def _fields(cells: dict[str, str]) -> dict[str, Any]:
    kind = _TYPES.get(cells["Sharding"])
    if kind is None:
        raise ValueError(f"sharding '{cells['Sharding']}' does not say where its blocks lie")
    ranks = [rank for part in cells["Ranks"].split(",") for rank in _range(part)]
    rows, width = int(cells["Hash Size"]), int(cells["Emb Dim (CW Dim)"].split()[0])
    blocks = []
    if kind.endswith("column_wise"):
        part = re.search(r"\((\d+)\)", cells["Emb Dim (CW Dim)"])
        columns = int(part[1]) if part else -(-width // len(ranks))
        starts = range(0, width, columns)
        blocks = [_block(rank, 0, first, rows, min(columns, width - first)) for rank, first in zip(ranks, starts)]
    elif kind != "data_parallel":
        share = -(-rows // len(ranks))
        blocks = [
            _block(rank, number * share, 0, min(share, max(rows - number * share, 0)), width)
            for number, rank in enumerate(ranks)
        ]
    factor = cells.get("Cache Load Factor", "None")
    return {
        "sharding_type": kind,
        "compute_kernel": cells["Compute Kernel"],
        "ranks": ranks,
        "sharding_spec": blocks or None,
        "cache_load_factor": None if factor == "None" else float(factor),
    }


def _range(part: str) -> range:
    low, _, high = part.partition("-")
    return range(int(low), int(high or low) + 1)


def _block(rank: int, row: int, column: int, rows: int, columns: int) -> dict[str, Any]:
    return {"offsets": [row, column], "sizes": [rows, columns], "rank": rank}
