"""What makes a plan valid: coverage, no overlap, capacity, declared moves, the engine's limits."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import InvalidPlan
from shardbench.model.caching import (
    ROWWISE_STATE_BYTES,
    Kernel,
    cache_bytes,
    cached_parts,
    is_cached,
    kernel_of,
    ratio_of,
)
from shardbench.model.plan import (
    DenseHome,
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
    deal_start,
    homes,
    master_node,
    sharding_groups,
    tier_of,
)
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Table

COLUMN_MULTIPLE = 4
"""FBGEMM's kernels read rows in units of four numbers."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of weights and optimiser state: per rank int64 [world] by tier, per node int64 [nodes]."""

    hbm: Ints
    uvm: Ints
    host: Ints


def validate(plan: Plan, problem: Problem, moves: frozenset[Move]) -> Memory:
    """Return the memory that the plan needs; raises InvalidPlan with the first thing that is wrong."""
    if plan.world_size != problem.world_size:
        text = f"plan is for {plan.world_size} devices, the machine has {problem.world_size}"
        raise InvalidPlan(text, rule="world-size")
    group_size = sharding_groups(plan.groups, problem.topology).shape[1]
    by_table = plan.by_table()
    tables = {table.name: table for table in problem.tables}
    for name in by_table.keys() - tables.keys():
        raise InvalidPlan(f"plan places table '{name}', which the problem does not have")
    for name, table in tables.items():
        if name not in by_table:
            raise InvalidPlan(f"table '{name}' is not placed")
        for segment in by_table[name]:
            _check_segment(segment, table, problem, group_size)
        _check_tiling(by_table[name], table, problem.world_size)
    _check_schedule(plan)
    undeclared = used_moves(plan, problem) - moves
    if undeclared:
        text = f"plan uses moves its strategy does not declare: {', '.join(sorted(undeclared))}"
        raise InvalidPlan(text, rule="declared-moves")
    memory = memory_bytes(plan, problem)
    _check_capacity(memory, problem)
    return memory


def _check_segment(segment: Segment, table: Table, problem: Problem, group_size: int) -> None:
    where = f"table '{table.name}' rows {segment.row_start}..{segment.row_stop}"
    if segment.row_stop > table.rows:
        raise InvalidPlan(f"{where}: the table has {table.rows} rows")
    if segment.column_stop > table.dim:
        raise InvalidPlan(f"{where}: column {segment.column_stop} is beyond width {table.dim}")
    if segment.column_start % COLUMN_MULTIPLE or segment.columns % COLUMN_MULTIPLE:
        raise InvalidPlan(f"{where}: column ranges must be multiples of {COLUMN_MULTIPLE} for the kernels")
    topology = problem.topology
    place = segment.placement
    if isinstance(place, Host):
        if place.node >= topology.nodes:
            raise InvalidPlan(f"{where}: node {place.node} does not exist, there are {topology.nodes}")
        return
    if isinstance(place, OnLocalRank):
        if place.local_rank >= group_size:
            raise InvalidPlan(
                f"{where}: local rank {place.local_rank} does not exist, a sharding group has {group_size} ranks"
            )
        return
    ranks: Iterable[int] = (place.rank,) if isinstance(place, OnRank) else getattr(place, "ranks", ())
    beyond = [rank for rank in ranks if rank >= topology.world_size]
    if beyond:
        raise InvalidPlan(f"{where}: rank {beyond[0]} does not exist, there are {topology.world_size}")
    sharers = len(place.ranks) if isinstance(place, RowWise) else 1
    if isinstance(place, GroupSharded):
        sharers = group_size
    # An empty row-wise shard crashes the engine on that rank and hangs the others.
    if segment.rows < sharers:
        raise InvalidPlan(f"{where}: {segment.rows} rows dealt over {sharers} ranks leave a rank empty")


def _check_tiling(segments: list[Segment], table: Table, world_size: int) -> None:
    rectangles = _merge_replicas(segments, table, world_size)
    _check_overlap(rectangles, table)
    area = sum(segment.rows * segment.columns for segment in rectangles)
    if area != table.rows * table.dim:
        unplaced = table.rows * table.dim - area
        raise InvalidPlan(f"table '{table.name}': {unplaced} of {table.rows * table.dim} weights are not placed")


def _check_overlap(rectangles: list[Segment], table: Table) -> None:
    """Go down the rows: rectangles that share a row lie side by side, so that a new one meets its neighbours alone."""
    ending: list[tuple[int, int]] = []
    starts: list[int] = []
    there: dict[int, Segment] = {}
    for segment in sorted(rectangles, key=lambda s: (s.row_start, s.column_start)):
        while ending and ending[0][0] <= segment.row_start:
            _, column = heappop(ending)
            starts.pop(bisect_left(starts, column))
            del there[column]
        at = bisect_left(starts, segment.column_start)
        left, right = starts[max(at - 1, 0) : at], starts[at : at + 1]
        met = [there[start] for start in left if there[start].column_stop > segment.column_start]
        met += [there[start] for start in right if start < segment.column_stop]
        if met:
            one, other = met[0], segment
            text = f"rows {one.row_start}..{one.row_stop} and {other.row_start}..{other.row_stop} overlap"
            raise InvalidPlan(f"table '{table.name}': {text}")
        starts.insert(at, segment.column_start)
        there[segment.column_start] = segment
        heappush(ending, (segment.row_stop, segment.column_start))


def _merge_replicas(segments: list[Segment], table: Table, world_size: int) -> list[Segment]:
    # Replicas over disjoint groups are one rectangle; together they must serve every rank.
    merged: list[Segment] = []
    served: dict[tuple[int, int, int, int], set[int]] = {}
    for segment in segments:
        if not isinstance(segment.placement, Replicated):
            merged.append(segment)
            continue
        box = (segment.row_start, segment.row_stop, segment.column_start, segment.column_stop)
        group = set(segment.placement.ranks)
        if served.get(box, set()) & group:
            raise InvalidPlan(f"table '{table.name}': a rank holds rows {box[0]}..{box[1]} twice")
        if box not in served:
            merged.append(segment)
        served[box] = served.get(box, set()) | group
    for box, ranks in served.items():
        if len(ranks) != world_size:
            absent = min(set(range(world_size)) - ranks)
            raise InvalidPlan(f"table '{table.name}': rank {absent} has no replica of rows {box[0]}..{box[1]}")
    return merged


def _check_schedule(plan: Plan) -> None:
    elsewhere = [s.table for s in plan.segments if not isinstance(s.placement, Host)]
    if plan.dense is DenseHome.HOSTS and elsewhere:
        raise InvalidPlan(f"the dense model is on hosts but table '{elsewhere[0]}' is not")
    if plan.dense is DenseHome.HOSTS and plan.groups is not None:
        raise InvalidPlan("the dense model is on hosts, which have no sharding groups")
    if plan.schedule is None:
        return
    if plan.sync_every > 1:
        raise InvalidPlan(f"copies are averaged every {plan.sync_every} steps, which no batch schedule can have")
    kinds = {phase.kind for phase in plan.schedule.phases}
    hot = any(isinstance(s.placement, Replicated) for s in plan.segments)
    if PhaseKind.HOT in kinds and not hot:
        raise InvalidPlan("the schedule has hot phases but the plan replicates no rows")
    if not plan.schedule.has_cold and any(not isinstance(s.placement, Replicated) for s in plan.segments):
        raise InvalidPlan("the schedule has hot phases only but the plan does not replicate all rows")


def used_moves(plan: Plan, problem: Problem) -> frozenset[Move]:
    """Return the moves that a plan makes."""
    tables = {table.name: table for table in problem.tables}
    moves: set[Move] = set()
    for segment in plan.segments:
        place, table = segment.placement, tables[segment.table]
        if segment.columns < table.dim:
            moves.add(Move.COLUMNS)
        if segment.rows < table.rows or isinstance(place, RowWise | GroupSharded):
            moves.add(Move.ROWS)
        if isinstance(place, Replicated | GroupSharded | OnLocalRank):
            moves.add(Move.REPLICATE)
        if isinstance(place, Host):
            moves.add(Move.HOST)
        if tier_of(place) is not Tier.HBM:
            moves.add(Move.UVM)
        if tier_of(place) is Tier.CACHED:
            moves.add(Move.CACHE)
        if isinstance(place, OnRank) and segment.rows == table.rows:
            moves.add(Move.TABLE)
    if plan.schedule is not None:
        moves.add(Move.SCHEDULE)
    if plan.sync_every > 1:
        moves.add(Move.LOCAL_STEPS)
    return frozenset(moves)


def memory_bytes(plan: Plan, problem: Problem, *, padded: bool = False) -> Memory:
    """Return the bytes per rank and tier, and per node's host, weights and optimiser state together.

    Under a schedule with cold phases a host holds the master copy of replicated rows, too. ``padded`` counts as many
    rows for all ranks that a table is dealt over, as TorchRec holds them.
    """
    topology = problem.topology
    masters, groups = _master_nodes(plan), sharding_groups(plan.groups, topology)
    tiers = {tier: np.zeros(topology.world_size, dtype=np.int64) for tier in (Tier.HBM, Tier.UVM)}
    host = np.zeros(topology.nodes, dtype=np.int64)
    for segment in plan.segments:
        row_bytes = problem.row_bytes(segment.columns)
        place = segment.placement
        if is_cached(segment):
            continue
        if isinstance(place, Host):
            host[place.node] += segment.rows * row_bytes
        elif isinstance(place, OnRank):
            tiers[place.tier][place.rank] += segment.rows * row_bytes
        else:
            ranks = homes(place, groups)
            shares = dealt(segment.table, segment.rows, ranks.shape[1])
            tiers[tier_of(place)][ranks] += (shares.max() if padded else shares) * row_bytes
            if isinstance(place, Replicated) and segment.table in masters and place.ranks[0] == 0:
                host[masters[segment.table]] += segment.rows * row_bytes
    _add_cached(plan, problem, tiers)
    return Memory(hbm=tiers[Tier.HBM], uvm=tiers[Tier.UVM], host=host)


def has_room(problem: Problem, moves: frozenset[Move]) -> bool:
    """Tell whether all tables fit all memory together that plans of these moves use."""
    topology = problem.topology
    uvm_bytes = topology.uvm_bytes if moves & {Move.UVM, Move.CACHE} else 0
    host_bytes = topology.nodes * topology.host_bytes if Move.HOST in moves else 0
    room_bytes = topology.world_size * (topology.hbm_bytes + uvm_bytes) + host_bytes
    return sum(map(problem.weight_bytes, problem.tables)) <= room_bytes


def memory_text(problem: Problem) -> str:
    """Say what all tables need, weights and optimiser state together, and what there is, in bytes and in one line."""
    topology = problem.topology
    sizes = {table.name: problem.weight_bytes(table) for table in problem.tables}
    largest = max(sizes, key=lambda name: sizes[name])
    world, hbm = topology.world_size, topology.hbm_bytes
    others = ((world * topology.uvm_bytes, "UVM"), (topology.nodes * topology.host_bytes, "hosts' memory"))
    beside = "".join(f"; beside it {there} of {what}" for there, what in others if there)
    alone = "" if sizes[largest] <= hbm else ", which alone fits no device"
    return (
        f"tables need {sum(sizes.values())} bytes (weights and {problem.optimizer.value} state), {world} devices have "
        f"{world * hbm} of HBM ({hbm} each{beside}); "
        f"the largest is '{largest}' with {sizes[largest]}{alone}"
    )


def _add_cached(plan: Plan, problem: Problem, tiers: dict[Tier, Ints]) -> None:
    """Add the rows behind caches, which are in UVM, and the caches; small optimiser state stays in HBM (FBGEMM)."""
    tables = {table.name: table for table in problem.tables}
    shared: dict[tuple[int, Kernel], list[tuple[float, int, int]]] = {}
    for segment in filter(is_cached, plan.segments):
        kernel = kernel_of(segment, tables[segment.table], problem.topology)
        weights = segment.columns * problem.precision.bytes
        state = problem.optimizer.state_bytes(segment.columns)
        for part in cached_parts(segment, sharding_groups(plan.groups, problem.topology)):
            tiers[Tier.UVM][part.rank] += part.rows * weights
            tiers[Tier.HBM if state <= ROWWISE_STATE_BYTES else Tier.UVM][part.rank] += part.rows * state
            shared.setdefault((part.rank, kernel), []).append((part.rows * ratio_of(segment), part.rows, weights))
    for (rank, _), parts in shared.items():
        cached_rows, rows, weights_ = zip(*parts)
        tiers[Tier.HBM][rank] += cache_bytes(sum(cached_rows), sum(rows), max(weights_))


def _master_nodes(plan: Plan) -> dict[str, int]:
    if plan.schedule is None or not plan.schedule.has_cold:
        return {}
    return {name: master_node(segments) for name, segments in plan.by_table().items()}


def dealt(table: str, rows: int, ways: int) -> Ints:
    """Return the rows that each of ``ways`` ranks gets when rows of a table are dealt round-robin, int64 [ways]."""
    if ways == 1:
        return np.array([rows])
    shares = (rows + ways - 1 - np.arange(ways, dtype=np.int64)) // ways
    return np.roll(shares, deal_start(table, ways))


def _check_capacity(memory: Memory, problem: Problem) -> None:
    topology = problem.topology
    limits = (
        ("device", "HBM", memory.hbm, topology.hbm_bytes),
        ("device", "UVM", memory.uvm, topology.uvm_bytes),
        ("node", "host memory", memory.host, topology.host_bytes),
    )
    for unit, what, used_bytes, capacity in limits:
        worst = int(used_bytes.argmax())
        if used_bytes[worst] > capacity:
            raise InvalidPlan(
                f"{unit} {worst} needs {used_bytes[worst]} bytes of {what} but has {capacity} "
                f"({used_bytes[worst] / capacity if capacity else float('inf'):.2f}x over)"
            )
