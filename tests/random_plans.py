"""Random plans over all placements, for property tests."""

from hypothesis import strategies as st
from problems import RandomWorkload, machine

from shardbench.model.plan import (
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    Tier,
)
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling, Table

WORLDS = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]
"""Nodes and devices a node."""


def placements(draw: st.DrawFn, nodes: int, devices: int, pooling: Pooling, group_size: int) -> object:
    """Any placement that the engine can run."""
    world = nodes * devices
    tier = draw(st.sampled_from([Tier.HBM, Tier.UVM]))
    choices = [
        OnRank(rank=draw(st.integers(0, world - 1)), tier=tier),
        RowWise(ranks=tuple(range(world)), tier=tier),
        Replicated(ranks=tuple(range(world))),
        GroupSharded(tier=tier),
        OnLocalRank(local_rank=draw(st.integers(0, group_size - 1)), tier=tier),
        Host(node=draw(st.integers(0, nodes - 1))),
    ]
    if nodes > 1 and pooling is Pooling.SUM:
        node = draw(st.integers(0, nodes - 1))
        choices.append(RowWise(ranks=tuple(range(node * devices, (node + 1) * devices)), tier=tier))
    return draw(st.sampled_from(choices))


def table_segments(draw: st.DrawFn, table: Table, nodes: int, devices: int, group_size: int) -> list[Segment]:
    """Up to three row ranges, each whole or in two column ranges; unpooled ones share their column cut."""
    cuts = sorted({0, table.rows, *draw(st.lists(st.integers(8, table.rows - 8), max_size=2))})
    ranges = [(a, b) for a, b in zip(cuts, cuts[1:])]
    if any(b - a < 8 for a, b in ranges):
        ranges = [(0, table.rows)]
    column_cut = draw(st.sampled_from([0, 4, 8][: 1 + table.dim // 8]))
    segments = []
    for start, stop in ranges:
        if table.pooling is Pooling.SUM:
            column_cut = draw(st.sampled_from([0, 4, 8][: 1 + table.dim // 8]))
        edges = [0, column_cut, table.dim] if 0 < column_cut < table.dim else [0, table.dim]
        for low, high in zip(edges, edges[1:]):
            segments.append(
                Segment(
                    table=table.name,
                    row_start=start,
                    row_stop=stop,
                    column_start=low,
                    column_stop=high,
                    placement=placements(draw, nodes, devices, table.pooling, group_size),
                )
            )
    return segments


@st.composite
def random_plans(draw: st.DrawFn) -> tuple[RandomWorkload, Problem, Plan]:
    """A small workload (pooled and unpooled tables, shared and not, widths 8 and 16), its problem, and a valid plan."""
    nodes, devices = draw(st.sampled_from(WORLDS))
    shapes = [(draw(st.integers(40, 120)), draw(st.sampled_from([8, 16]))) for _ in range(draw(st.integers(1, 4)))]
    unpooled = frozenset(i for i in range(len(shapes)) if draw(st.integers(0, 2)) == 0)
    shared = {i: draw(st.sampled_from([1, 1, 2, 3])) for i in range(len(shapes))}
    seed = draw(st.integers(0, 1000))
    distinct = draw(st.booleans())
    workload = RandomWorkload(shapes, 12, pooling=3, seed=seed, unpooled=unpooled, shared=shared, distinct=distinct)
    problem = workload.problem(machine(nodes, devices))
    world = nodes * devices
    sizes = [size for size in range(1, world + 1) if world % size == 0]
    layouts = [ShardingGroups(size=size, interleaved=interleaved) for size in sizes for interleaved in (False, True)]
    groups = draw(st.sampled_from([None, None, *layouts]))
    size = devices if groups is None else groups.size
    segments = [s for table in workload.tables for s in table_segments(draw, table, nodes, devices, size)]
    return workload, problem, Plan(world_size=world, segments=tuple(segments), groups=groups)
