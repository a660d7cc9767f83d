"""Kept plans by device: which part of which table lies where, fullest devices and their biggest parts first."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

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
from shardbench.records.record import Planned, Record
from shardbench.records.store import lookups_path, plan_path
from shardbench.report.groups import Group
from shardbench.report.rows import Row

DEVICES = 8
"""Fullest devices of a plan that are shown."""
BIGGEST, HOTTEST = 10, 4
"""Parts of a device that are shown, by bytes and by lookups."""
COLUMNS = (
    "device", "part_of", "rows", "of_its_rows_pct", "columns", "placed", "memory", "held_bytes", "lookups_a_sample",
)  # fmt: skip


class ExploredPlan(NamedTuple):
    """A plan, device by device."""

    strategies: tuple[str, ...]
    """All strategies of the group that made this very plan."""
    text: str
    """How large it is, and where all of it lies."""
    devices: pd.DataFrame
    """A row for each of the fullest devices and hosts, and behind it one for each of its parts that are shown."""


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
    devices, in_all = devices_of(plan, planned, record.spec.precision, record.spec.optimizer, lookups)
    text = (
        f"Of {in_all} devices and hosts the {DEVICES} fullest at most; of each its biggest parts, then the hottest of "
        f"the rest. Rows are numbered in frequency order: 0 is the hottest of its table. Lookups are those that the "
        f"train split lets expect. All {len(plan.segments)} segments are in plans/{planned.plan_hash}.json."
    )
    return ExploredPlan(strategies, text, devices)


def _stored_lookups(path: Path, plan: Plan) -> Floats | None:
    """Return a sample's lookups in each segment of the plan, by the train split; None where not kept."""
    if not path.is_file():
        return None
    lookups = np.asarray(from_json(tuple[float, ...], path.read_bytes(), str(path)), dtype=np.float64)
    if lookups.shape != (len(plan.segments),):
        raise BadInput(f"{path} has lookups of {len(lookups)} segments, the plan has {len(plan.segments)}")
    return lookups


def devices_of(
    plan: Plan, planned: Planned, precision: Precision, optimizer: Optimizer, lookups: Floats | None
) -> tuple[pd.DataFrame, int]:
    """Return the fullest devices and hosts with their parts, and how many hold anything.

    Bytes are of weights and optimiser state; lookups are those of a sample, none where they are not kept.
    """
    nodes, tables = len(planned.host_memory_bytes), plan.by_table()
    held: dict[int, list[dict[str, Any]]] = {}
    for i, segment in enumerate(plan.segments):
        row_bytes = segment.columns * precision.bytes + optimizer.state_bytes(segment.columns)
        for place, rows, share in _shares(segment, plan, nodes):
            if not rows:
                continue
            part = _part(segment, tables[segment.table], plan.groups, on_host=place >= plan.world_size)
            own = None if lookups is None else float(lookups[i] * share)
            held.setdefault(place, []).append({**part, "held_bytes": float(rows * row_bytes), "lookups_a_sample": own})
    bytes_held = {place: sum(part["held_bytes"] for part in parts) for place, parts in held.items()}
    lines: list[dict[str, Any]] = []
    for place in sorted(held, key=lambda place: (-bytes_held[place], place))[:DEVICES]:
        name = f"rank {place}" if place < plan.world_size else f"host of node {place - plan.world_size}"
        asked = None if lookups is None else sum(part["lookups_a_sample"] for part in held[place])
        whole = {"part_of": f"all {len(held[place])} parts", "held_bytes": bytes_held[place], "lookups_a_sample": asked}
        lines += [{"device": name, **part} for part in (whole, *_first(held[place]))]
    return pd.DataFrame(lines, columns=list(COLUMNS)), len(held)


def _shares(segment: Segment, plan: Plan, nodes: int) -> Iterator[tuple[int, int, float]]:
    """Yield each holder's number (of hosts after the ranks), its rows and its share of the segment's lookups."""
    place, world = segment.placement, plan.world_size
    by_node = ShardingGroups(size=world // nodes, interleaved=False)
    groups = (plan.groups or by_node).ranks(world)
    if isinstance(place, OnRank):
        yield place.rank, segment.rows, 1.0
    elif isinstance(place, Host):
        yield world + place.node, segment.rows, 1.0
    elif isinstance(place, RowWise):
        rows = dealt(segment.table, segment.rows, len(place.ranks)).tolist()
        yield from ((rank, own, 1.0 / len(place.ranks)) for rank, own in zip(place.ranks, rows))
    elif isinstance(place, GroupSharded):
        rows = dealt(segment.table, segment.rows, groups.shape[1]).tolist()
        yield from ((rank, own, 1.0 / world) for group in groups.tolist() for rank, own in zip(group, rows))
    elif isinstance(place, OnLocalRank):
        yield from ((rank, segment.rows, 1.0 / len(groups)) for rank in groups[:, place.local_rank].tolist())
    else:
        yield from ((rank, segment.rows, 1.0 / world) for rank in place.ranks)
        if plan.schedule is not None and plan.schedule.has_cold and place.ranks[0] == 0:
            home = master_node(s for s in plan.segments if s.table == segment.table)
            # The master copy, which cold mini-batches use.
            yield world + home, segment.rows, 0.0


def _part(
    segment: Segment, of_table: Sequence[Segment], groups: ShardingGroups | None, *, on_host: bool
) -> dict[str, Any]:
    tier = getattr(segment.placement, "tier", Tier.HBM)
    table_columns = max(other.column_stop for other in of_table)
    return {
        "part_of": segment.table,
        "rows": f"{segment.row_start:,} to {segment.row_stop - 1:,}",
        "of_its_rows_pct": 100.0 * segment.rows / max(other.row_stop for other in of_table),
        "columns": f"{segment.columns} of {table_columns}",
        "placed": _words(segment.placement, groups),
        "memory": "host" if on_host else str(tier).upper(),
    }


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


def _first(parts: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the biggest parts, then the hottest of the rest."""
    biggest = sorted(parts, key=lambda part: -part["held_bytes"])
    hottest = sorted(biggest[BIGGEST:], key=lambda part: -(part["lookups_a_sample"] or 0.0))
    return (*biggest[:BIGGEST], *(part for part in hottest[:HOTTEST] if part["lookups_a_sample"]))
