"""Kept plans by device: which part of which table lies where, fullest devices and their biggest parts first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_json
from shardbench.model.plan import (
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Placement,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    Tier,
    master_node,
)
from shardbench.model.table import Optimizer, Precision
from shardbench.model.validate import dealt
from shardbench.records.plan_files import lookups_path, plan_path
from shardbench.records.record import Planned, Record
from shardbench.report.groups import Group
from shardbench.report.rows import Row

DEVICES = 8
"""Fullest devices of a plan that are shown."""
BIGGEST, HOTTEST = 10, 4
"""Parts of a device that are shown, by bytes and by lookups."""


@dataclass(frozen=True, kw_only=True)
class PlacedPart:
    """The part of a table that a segment puts on a device."""

    table: str
    row_start: int
    row_stop: int
    """The segment ends before this row; rows are in frequency order, and 0 is the hottest."""
    table_rows: int
    columns: int
    table_columns: int
    placement_text: str
    """How the segment is placed, in words."""
    memory: str
    bytes: float
    """Weights and optimiser state on this device."""
    lookups: float | None
    """Lookups that a sample asks this device for, by the train split; None where they are not kept."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A device, or the host memory of a node."""

    name: str
    bytes: float
    lookups: float | None
    parts: tuple[PlacedPart, ...]
    parts_in_all: int


@dataclass(frozen=True, kw_only=True)
class ExploredPlan:
    """A plan, holder by holder."""

    strategies: tuple[str, ...]
    """All strategies of the group that made this very plan."""
    key: str
    plan_hash: str
    segments: int
    holders: tuple[Holder, ...]
    holders_in_all: int


def explored_plans(results: Path, group: Group, most: int) -> tuple[list[ExploredPlan], int]:
    """Return plans of a group's fastest strategies, at most so many different ones, and how many are kept no more.

    Raises BadInput where a kept plan is not a plan.
    """
    plans: list[ExploredPlan] = []
    missing = 0
    for hash_, rows in list(_by_plan(group).items())[:most]:
        if plan_path(results, hash_).is_file():
            plans.append(_explored_plan(results, rows[0].records[0], tuple(row.strategy for row in rows)))
        else:
            missing += 1
    return plans, missing


def _by_plan(group: Group) -> dict[str, list[Row]]:
    """Return rows by the plan of their first trial, fastest first."""
    rows_by_plan: dict[str, list[Row]] = {}
    for row in sorted(group.ok_rows, key=lambda row: (group.estimate(row).value, row.strategy)):
        planned = row.records[0].planned
        if planned is not None:
            rows_by_plan.setdefault(planned.plan_hash, []).append(row)
    return rows_by_plan


def _explored_plan(results: Path, record: Record, strategies: tuple[str, ...]) -> ExploredPlan:
    planned = record.planned
    if planned is None:
        raise BadInput(f"record {record.key} has no plan")
    if not planned.host_memory_bytes:
        raise BadInput(f"record {record.key} has no memory of its nodes")
    path = plan_path(results, planned.plan_hash)
    plan = Plan.from_json(path.read_bytes(), str(path))
    lookups = _stored_lookups(lookups_path(results, planned.plan_hash, record.spec.workload_fingerprint), plan)
    holders, in_all = holders_of(plan, planned, record.spec.precision, record.spec.optimizer, lookups)
    return ExploredPlan(
        strategies=strategies, key=record.key, plan_hash=planned.plan_hash, segments=len(plan.segments),
        holders=tuple(holders), holders_in_all=in_all,
    )  # fmt: skip


def _stored_lookups(path: Path, plan: Plan) -> Floats | None:
    """Return a sample's lookups in each segment of the plan, by the train split; None where not kept."""
    if not path.is_file():
        return None
    lookups = np.asarray(from_json(tuple[float, ...], path.read_bytes(), str(path)), dtype=np.float64)
    if lookups.shape != (len(plan.segments),):
        raise BadInput(f"{path} has lookups of {len(lookups)} segments, the plan has {len(plan.segments)}")
    return lookups


def holders_of(
    plan: Plan, planned: Planned, precision: Precision, optimizer: Optimizer, lookups: Floats | None
) -> tuple[list[Holder], int]:
    """Return the fullest devices and hosts with their parts, and how many hold anything."""
    nodes = len(planned.host_memory_bytes)
    shares = [list(_shares(segment, plan, nodes)) for segment in plan.segments]
    row_bytes = [s.columns * precision.bytes + optimizer.state_bytes(s.columns) for s in plan.segments]
    bytes_held = np.zeros(plan.world_size + nodes)
    lookups_asked = np.zeros(plan.world_size + nodes)
    for i, segment_shares in enumerate(shares):
        for share in segment_shares:
            for place, rows in share.rows.items():
                bytes_held[place] += rows * row_bytes[i]
                lookups_asked[place] += 0.0 if lookups is None else lookups[i] * share.of_lookups
    order = np.argsort(-bytes_held, kind="stable")
    tables = plan.by_table()
    holders = []
    for place in [int(place) for place in order[:DEVICES] if bytes_held[place] > 0]:
        parts = [
            _part(
                segment,
                tables[segment.table],
                share,
                plan.groups,
                bytes_=rows * row_bytes[i],
                lookups=None if lookups is None else lookups[i] * share.of_lookups,
                on_host=place >= plan.world_size,
            )
            for i, segment in enumerate(plan.segments)
            for share in shares[i]
            if (rows := share.rows.get(place, 0)) > 0
        ]
        holders.append(
            Holder(
                name=f"rank {place}" if place < plan.world_size else f"host of node {place - plan.world_size}",
                bytes=float(bytes_held[place]),
                lookups=None if lookups is None else float(lookups_asked[place]),
                parts=_first(parts),
                parts_in_all=len(parts),
            )
        )
    return holders, int((bytes_held > 0).sum())


class _Share(NamedTuple):
    """What each of some holders has of a segment; hosts are numbered after the ranks."""

    rows: dict[int, int]
    """Numbers of rows, by the number of their holder."""
    of_lookups: float
    """Each holder serves this share of the segment's lookups."""


def _shares(segment: Segment, plan: Plan, nodes: int) -> Iterator[_Share]:
    place, world = segment.placement, plan.world_size
    by_node = ShardingGroups(size=world // nodes, interleaved=False)
    groups = (plan.groups or by_node).ranks(world)
    if isinstance(place, OnRank):
        yield _Share({place.rank: segment.rows}, 1.0)
    elif isinstance(place, Host):
        yield _Share({world + place.node: segment.rows}, 1.0)
    elif isinstance(place, RowWise):
        rows = dealt(segment.table, segment.rows, len(place.ranks)).tolist()
        yield _Share(dict(zip(place.ranks, rows)), 1.0 / len(place.ranks))
    elif isinstance(place, GroupSharded):
        rows = dealt(segment.table, segment.rows, groups.shape[1])
        yield _Share(dict(zip(groups.ravel().tolist(), np.tile(rows, len(groups)).tolist())), 1.0 / world)
    elif isinstance(place, OnLocalRank):
        yield _Share(dict.fromkeys(groups[:, place.local_rank].tolist(), segment.rows), 1.0 / len(groups))
    else:
        yield _Share(dict.fromkeys(place.ranks, segment.rows), 1.0 / world)
        if plan.schedule is not None and plan.schedule.has_cold and place.ranks[0] == 0:
            home = master_node(s for s in plan.segments if s.table == segment.table)
            # The master copy, which cold mini-batches use.
            yield _Share({world + home: segment.rows}, 0.0)


def _part(
    segment: Segment,
    of_table: Sequence[Segment],
    share: _Share,
    groups: ShardingGroups | None,
    *,
    bytes_: int,
    lookups: float | None,
    on_host: bool,
) -> PlacedPart:
    tier = getattr(segment.placement, "tier", Tier.HBM)
    return PlacedPart(
        table=segment.table,
        row_start=segment.row_start,
        row_stop=segment.row_stop,
        table_rows=max(other.row_stop for other in of_table),
        columns=segment.columns,
        table_columns=max(other.column_stop for other in of_table),
        placement_text=_words(segment.placement, groups),
        memory="host" if on_host else str(tier).upper(),
        bytes=float(bytes_),
        lookups=lookups,
    )


def _words(place: Placement, groups: ShardingGroups | None) -> str:
    extent = "node" if groups is None else f"sharding group of {groups.size} ranks"
    if isinstance(place, RowWise):
        return f"dealt over {len(place.ranks)} ranks"
    if isinstance(place, Replicated):
        return f"a copy on each of {len(place.ranks)} ranks"
    if isinstance(place, GroupSharded):
        return f"a copy in each {extent}, dealt over it"
    if isinstance(place, OnLocalRank):
        return f"a copy in each {extent}"
    return "here alone"


def _first(parts: Sequence[PlacedPart]) -> tuple[PlacedPart, ...]:
    """Return the biggest parts, then the hottest of the rest."""
    biggest = sorted(parts, key=lambda part: (-part.bytes, part.table, part.row_start))
    hottest = sorted(biggest[BIGGEST:], key=lambda part: -(part.lookups or 0.0))
    return (*biggest[:BIGGEST], *(part for part in hottest[:HOTTEST] if part.lookups))
