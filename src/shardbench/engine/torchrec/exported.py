"""A plan in TorchRec's words: for every table the tables that stand for it, and how each of them is sharded."""

from dataclasses import replace

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.serialise import STRICT, from_json, to_json
from shardbench.engine.lower import LogicalTable, ModuleKey, Reach
from shardbench.model.caching import KERNELS, is_cached, ratio_of
from shardbench.model.plan import (
    CacheRatio,
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Placement,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
    tier_of,
)

DENSE = "dense"
SEQUENCE_TYPES = ("table_wise", "column_wise", "row_wise", "data_parallel")
"""Types that TorchRec's EmbeddingCollection can be sharded by."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Shard:
    """A block of a TorchRec table on one rank."""

    rank: NonNegativeInt
    row: NonNegativeInt
    column: NonNegativeInt
    rows: PositiveInt
    columns: PositiveInt


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TorchRecTable:
    """A table in TorchRec that holds rows and columns of one of ours: ranges in the order that ids come in."""

    name: str
    table: str
    row_start: NonNegativeInt
    row_stop: PositiveInt
    column_start: NonNegativeInt
    column_stop: PositiveInt
    sharding_type: str
    compute_kernel: str
    cache_load_factor: CacheRatio | None = Field(default=None, exclude_if=lambda factor: factor is None)
    """Share of the rows that the cache in HBM holds, for the caching kernel."""
    ways: PositiveInt = 1
    """Ranks that its rows are dealt over, by the remap; 1 where it deals none."""
    ranks: tuple[NonNegativeInt, ...]
    shards: tuple[Shard, ...] = ()
    """Its blocks on ranks; empty where every rank holds the table."""

    def logical(self) -> LogicalTable:
        """Return the piece as a table that the engine deals, cuts and puts together again."""
        segment = Segment(
            table=self.table,
            row_start=self.row_start,
            row_stop=self.row_stop,
            column_start=self.column_start,
            column_stop=self.column_stop,
            placement=OnRank(rank=0),  # where it lives is in ``shards``
        )
        module = ModuleKey(pooled=True, scope=Reach.WORLD, columns=0)
        return LogicalTable(name=self.name, table=0, segment=segment, module=module, ways=self.ways)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ExportedTable:
    """One of our tables, and the TorchRec tables that stand for it."""

    name: str
    rows: PositiveInt
    dim: PositiveInt
    pieces: tuple[TorchRecTable, ...]

    @property
    def is_remapped(self) -> bool:
        """Say whether ids must be remapped, so that the module that holds the table is not the user's own."""
        return len(self.pieces) > 1 or self.pieces[0].ways > 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Exported:
    """All tables of a plan, for ``world_size`` ranks on nodes of ``devices_per_node``."""

    world_size: PositiveInt
    devices_per_node: PositiveInt
    tables: tuple[ExportedTable, ...]

    @property
    def pieces(self) -> dict[str, TorchRecTable]:
        """Return every TorchRec table by its name."""
        return {piece.name: piece for table in self.tables for piece in table.pieces}

    @property
    def remapped(self) -> tuple[str, ...]:
        """Return the names of tables whose ids must be remapped."""
        return tuple(table.name for table in self.tables if table.is_remapped)

    def plan(self) -> Plan:
        """Return the plan that was exported; what was one copy a node, on the only node, is one copy of the world."""
        segments = [part for table in self.tables for piece in table.pieces for part in _segments(piece, table, self)]
        return Plan(world_size=self.world_size, segments=tuple(segments))

    def to_json(self) -> str:
        """Return it as canonical JSON: sorted keys, no spaces."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes, what: str = "exported plan") -> "Exported":
        """Parse; raises BadInput that names the first wrong field."""
        return from_json(cls, text, what)


def _segments(piece: TorchRecTable, table: ExportedTable, exported: Exported) -> list[Segment]:
    tier = {kernel: tier for tier, kernel in KERNELS.items()}.get(piece.compute_kernel, Tier.HBM)
    ratio, everyone = piece.cache_load_factor, tuple(range(exported.world_size))
    placements: list[tuple[Placement, int, int]] = []
    if piece.sharding_type == "data_parallel":
        placements.append((Replicated(ranks=everyone), piece.column_start, piece.column_stop))
    elif piece.sharding_type in ("row_wise", "table_row_wise"):
        dealt = RowWise(ranks=piece.ranks, tier=tier, cache_ratio=ratio)
        placements.append((dealt, piece.column_start, piece.column_stop))
    else:
        for shard in piece.shards:
            start = piece.column_start + shard.column
            placements.append((OnRank(rank=shard.rank, tier=tier, cache_ratio=ratio), start, start + shard.columns))
    return [
        Segment(
            table=table.name,
            row_start=piece.row_start,
            row_stop=piece.row_stop,
            column_start=start,
            column_stop=stop,
            placement=placement,
        )
        for placement, start, stop in placements
    ]


def export(plan: Plan, *, devices_per_node: int | None = None, in_blocks: bool = False) -> Exported:
    """Export the plan for TorchRec; all devices are on one node unless ``devices_per_node`` says otherwise.

    Rows that a plan deals are dealt by the remap. With ``in_blocks`` a whole table is instead cut
    into TorchRec's own blocks of rows in the order of ids, so that it needs no remap: as even as
    the ids are hashed. Raises Unsupported, with a sentence a segment, for what TorchRec cannot express.
    """
    local = devices_per_node or plan.world_size
    if plan.world_size % local:
        raise BadInput(f"{plan.world_size} devices are not on whole nodes of {local}")
    faults = inexpressible(plan, devices_per_node=local)
    if faults:
        raise Unsupported("TorchRec cannot express this plan: " + "; ".join(faults))
    tables = []
    for name, segments in plan.by_table().items():
        pieces = tuple(_pieces(segments, plan.world_size, in_blocks=in_blocks))
        rows, dim = max(s.row_stop for s in segments), max(s.column_stop for s in segments)
        tables.append(ExportedTable(name=name, rows=rows, dim=dim, pieces=pieces))
    return Exported(world_size=plan.world_size, devices_per_node=local, tables=tuple(tables))


def inexpressible(plan: Plan, *, devices_per_node: int) -> list[str]:
    """Say what TorchRec cannot express: a sentence a segment, or one about the whole plan; nothing where it can all."""
    faults = ["batches of hot and of cold samples (a batch schedule) are no part of a sharding plan"]
    faults = faults if plan.schedule is not None else []
    faults += _faults_of_groups(plan)
    for segment in plan.segments:
        why = _fault(segment, plan.world_size, devices_per_node, grouped=plan.groups is not None)
        if why:
            columns = f" columns {segment.column_start}..{segment.column_stop}"
            faults.append(f"table '{segment.table}' rows {segment.row_start}..{segment.row_stop}{columns}: {why}")
    return faults


def mlperf_overrides(exported: Exported) -> str:
    """Return the sharding types of all tables as MLPerf's DLRMv4 takes them: ``EMB_SHARDING_OVERRIDES=table=type,...``.

    Of a plan that was exported in blocks and of which ``beyond_overrides`` says nothing.
    """
    types = ",".join(f"{table.name}={table.pieces[0].sharding_type}" for table in exported.tables)
    return f"EMB_SHARDING_OVERRIDES={types}"


def beyond_overrides(exported: Exported) -> list[str]:
    """Say why one sharding type cannot stand for a table: a sentence for each such table of those exported."""
    faults = {}
    for table in exported.tables:
        piece = table.pieces[0]
        if set(",=") & set(table.name):
            faults[table.name] = "',' and '=' part the names and types"
        elif table.is_remapped:
            faults[table.name] = f"it is cut by rows into {len(table.pieces)}, and has one sharding type"
        elif piece.sharding_type not in SEQUENCE_TYPES:
            faults[table.name] = f"unpooled tables cannot be sharded {piece.sharding_type}"
        elif piece.compute_kernel not in (DENSE, KERNELS[Tier.HBM]):
            faults[table.name] = f"a sharding type does not say that its kernel is {piece.compute_kernel}"
    return [f"table '{name}': {fault}" for name, fault in faults.items()]


def _faults_of_groups(plan: Plan) -> list[str]:
    """Say what TorchRec's own 2D parallelism would be asked for in the place of a plan with sharding groups."""
    if plan.groups is None or not any(isinstance(s.placement, GroupSharded | OnLocalRank) for s in plan.segments):
        return []
    arguments = (
        f"sharding_group_size={plan.groups.size}, use_inter_host_allreduce={not plan.groups.interleaved}, "
        f"and sync() every {plan.sync_every} step{'s' if plan.sync_every > 1 else ''}"
    )
    return [f"sharding groups are no part of a sharding plan: DMPCollection shards a group's plan by {arguments}"]


def _fault(segment: Segment, world_size: int, local: int, *, grouped: bool) -> str:
    place = segment.placement
    if isinstance(place, Host):
        return f"rows looked up by the CPUs of node {place.node} have no sharding type"
    if isinstance(place, GroupSharded | OnLocalRank) and grouped:
        return ""  # said of the whole plan
    if isinstance(place, GroupSharded | OnLocalRank):
        if world_size > local:
            return "a copy a node is TorchRec's 2D parallelism, which copies all tables or none"
        return "" if isinstance(place, OnLocalRank) else _too_few(segment, local)
    if not isinstance(place, RowWise):
        return ""
    nodes = {tuple(range(first, first + local)) for first in range(0, world_size, local)}
    if len(place.ranks) < world_size and place.ranks not in nodes:
        return f"rows are dealt over all ranks or over those of one node, not over {list(place.ranks)}"
    return _too_few(segment, len(place.ranks))


def _too_few(segment: Segment, ways: int) -> str:
    return f"{segment.rows} rows leave one of {ways} ranks empty" if segment.rows < ways else ""


def _pieces(segments: list[Segment], world_size: int, *, in_blocks: bool) -> list[TorchRecTable]:
    """Return the fewest TorchRec tables: column ranges of the same rows on devices are one, sharded column-wise."""
    # Groups of replicas partition the world: together they are one replica on every rank.
    one = [s for s in segments if not isinstance(s.placement, Replicated) or s.placement.ranks[0] == 0]
    rows = sorted({(s.row_start, s.row_stop) for s in one})
    pieces: list[TorchRecTable] = []
    for start, stop in rows:
        level = [s for s in one if (s.row_start, s.row_stop) == (start, stop)]
        tiers = {(p.tier, p.cache_ratio) for s in level if isinstance(p := s.placement, OnRank | OnLocalRank)}
        on_ranks = all(isinstance(s.placement, OnRank | OnLocalRank) for s in level)
        tiled = level[0].column_start == 0 and all(a.column_stop == b.column_start for a, b in zip(level, level[1:]))
        side_by_side = on_ranks and tiled and len(tiers) == 1
        pieces += [_piece(group, world_size) for group in ([level] if side_by_side else [[s] for s in level])]
    if len(pieces) != 1:
        return [replace(piece, name=f"{piece.table}_s{number}") for number, piece in enumerate(pieces)]
    return [_in_blocks(pieces[0])] if in_blocks and pieces[0].ways > 1 else pieces


def _piece(level: list[Segment], world_size: int) -> TorchRecTable:
    """Return the TorchRec table of one segment, or of several on devices that lie side by side in the same rows."""
    first, place, everyone = level[0], level[0].placement, tuple(range(world_size))
    if isinstance(place, Replicated):
        return _table(level, "data_parallel", everyone)
    if isinstance(place, OnRank | OnLocalRank):
        shards = tuple(
            Shard(
                rank=_rank(s.placement),
                row=0,
                column=s.column_start - first.column_start,
                rows=s.rows,
                columns=s.columns,
            )
            for s in level
        )
        return _table(level, "column_wise" if len(level) > 1 else "table_wise", tuple(s.rank for s in shards), shards)
    ranks = place.ranks if isinstance(place, RowWise) else everyone
    # Padded to equal blocks; the remap deals rows into them.
    block = -(-first.rows // len(ranks))
    shards = tuple(
        Shard(rank=rank, row=i * block, column=0, rows=block, columns=first.columns) for i, rank in enumerate(ranks)
    )
    return _table(level, "row_wise" if ranks == everyone else "table_row_wise", ranks, shards, ways=len(ranks))


def _rank(place: object) -> int:
    if isinstance(place, OnRank):
        return place.rank
    if isinstance(place, OnLocalRank):  # on the only node
        return place.local_rank
    raise TypeError(f"{place} is not on one device")


def _table(
    level: list[Segment], kind: str, ranks: tuple[int, ...], shards: tuple[Shard, ...] = (), ways: int = 1
) -> TorchRecTable:
    first, place = level[0], level[0].placement
    return TorchRecTable(
        name=first.table,
        table=first.table,
        row_start=first.row_start,
        row_stop=first.row_stop,
        column_start=first.column_start,
        column_stop=level[-1].column_stop,
        sharding_type=kind,
        compute_kernel=DENSE if isinstance(place, Replicated) else KERNELS[tier_of(place)],
        cache_load_factor=ratio_of(first) if is_cached(first) else None,
        ways=ways,
        ranks=ranks,
        shards=shards,
    )


def _in_blocks(piece: TorchRecTable) -> TorchRecTable:
    """Return the piece without padding; raises Unsupported where TorchRec's blocks leave a rank empty."""
    rows, last = piece.row_stop, piece.shards[-1]
    if last.row >= rows:
        raise Unsupported(
            f"table '{piece.table}': blocks of {last.rows} of its {rows} rows leave one of {piece.ways} ranks empty"
        )
    return replace(piece, ways=1, shards=(*piece.shards[:-1], replace(last, rows=rows - last.row)))
