"""What moves between two plans: by hand, and held against a count row by row."""

from collections.abc import Sequence

import numpy as np
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbench.cost.resharding import dealt_rows, resharding
from shardbench.model.plan import (
    BatchSchedule,
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    Tier,
    deal_start,
    row_ranges,
    whole_table,
)
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Optimizer, Table
from shardbench.workloads.trace import Ranking

ROWS, DIM = 10, 8
TABLE = Table(name="t", rows=ROWS, dim=DIM)


def problem(nodes: int = 1, devices: int = 2, rows: int = ROWS, optimizer: Optimizer = Optimizer.SGD) -> Problem:
    table = Table(name="t", rows=rows, dim=DIM)
    profile = AccessProfile(rows=rows, samples=1, present=0, counts=(), row_counts=())
    on = problems.machine(nodes, devices)
    return Problem.of("p", (table,), (profile,), on, batch_size=16, optimizer=optimizer)


def ranking(*hottest: int, rows: int = ROWS) -> Ranking:
    """These ids hottest first, all others never seen."""
    return Ranking(np.repeat(hottest, np.arange(len(hottest), 0, -1)).astype(np.int64), rows)


def moved(old: Plan, new: Plan, was: Ranking, now: Ranking, on: Problem | None = None):
    return resharding(old, new, on or problem(), lambda _: was, lambda _: now)


def plan(*segments: Segment, world: int = 2) -> Plan:
    return Plan(world_size=world, segments=segments)


HOT_COLD = plan(*row_ranges(TABLE, (2, OnRank(rank=0)), (ROWS, OnRank(rank=1))))


def test_rows_move_by_ids_though_the_plan_is_the_same() -> None:
    # Device 0 had rows 7 and 3; now it is to have 7 and 5: 3 goes to device 1 and 5 comes, 8 numbers of 4 bytes each.
    found = moved(HOT_COLD, HOT_COLD, ranking(7, 3), ranking(5, 7))
    assert found.flows[0, 1] == found.flows[1, 0] == DIM * 4
    assert found.moved_bytes == found.intra_bytes == 2 * DIM * 4
    assert found.inter_bytes == found.host_bytes == 0
    # Each rank sends and receives 32 bytes; links of CPUs carry their mean.
    assert found.seconds(problem().machine) == pytest.approx(32 / 1e11)


def test_optimiser_state_moves_with_its_row() -> None:
    adam = problem(optimizer=Optimizer.ADAM)
    assert moved(HOT_COLD, HOT_COLD, ranking(7, 3), ranking(5, 7), adam).moved_bytes == 2 * 3 * DIM * 4


def test_replicas_come_from_the_own_node_and_each_copy_counts() -> None:
    on = problem(nodes=2, devices=2)
    one = plan(whole_table(TABLE, OnRank(rank=0)), world=4)
    copies = plan(whole_table(TABLE, Replicated(ranks=(0, 1, 2, 3))), world=4)
    size = ROWS * DIM * 4
    found = moved(one, copies, ranking(), ranking(), on)
    assert (found.intra_bytes, found.inter_bytes) == (size, 2 * size)
    assert found.seconds(on.machine) == pytest.approx(2 * size / 2 / 1e10), "rank 0 sends two copies over its link"
    assert moved(copies, one, ranking(), ranking(), on).moved_bytes == 0


def test_of_equally_quick_senders_each_receiver_has_another() -> None:
    on = problem(devices=4)
    two, four = (plan(whole_table(TABLE, Replicated(ranks=ranks)), world=4) for ranks in ((0, 1), (0, 1, 2, 3)))
    found = moved(two, four, ranking(), ranking(), on)
    assert found.flows[0, 2] == found.flows[1, 3] == ROWS * DIM * 4


def test_host_memory_is_reached_over_its_own_link() -> None:
    uvm = plan(whole_table(TABLE, OnRank(rank=0, tier=Tier.UVM)))
    found = moved(uvm, plan(whole_table(TABLE, OnRank(rank=0))), ranking(), ranking())
    size = ROWS * DIM * 4
    assert (found.host_bytes, found.intra_bytes, found.moved_bytes) == (size, 0, size)
    assert found.seconds(problem().machine) == pytest.approx(size / 1e10)


def test_a_schedule_has_a_master_copy_of_hot_rows_on_the_host() -> None:
    host = plan(whole_table(TABLE, Host(node=0)))
    segments = row_ranges(TABLE, (2, Replicated(ranks=(0, 1))), (ROWS, Host(node=0)))
    phases = (Phase(kind=PhaseKind.HOT, batches=1), Phase(kind=PhaseKind.COLD, batches=1))
    phased = Plan(world_size=2, segments=segments, schedule=BatchSchedule(phases=phases))
    found = moved(host, phased, ranking(7, 3), ranking(7, 3))
    assert found.host_bytes == found.moved_bytes == 2 * 2 * DIM * 4, "two rows to two devices"
    assert moved(phased, host, ranking(7, 3), ranking(7, 3)).moved_bytes == 0, "the host has them all"


def test_copies_by_group_lie_where_the_plan_has_its_groups() -> None:
    order, on = ranking(7, 3), problem(nodes=2, devices=4)
    large = Plan(
        world_size=8,
        segments=(whole_table(TABLE, OnLocalRank(local_rank=3)),),
        groups=ShardingGroups(size=4, interleaved=True),
    )
    # The groups are 0 2 4 6 and 1 3 5 7.
    size = ROWS * DIM * 4
    for rank, moves, back in ((6, 0, size), (7, 0, size), (3, size, 2 * size)):
        one = plan(whole_table(TABLE, OnRank(rank=rank)), world=8)
        assert moved(large, one, order, order, on).moved_bytes == moves
        assert moved(one, large, order, order, on).moved_bytes == back
    beyond = Plan(
        world_size=4,
        segments=(whole_table(TABLE, OnLocalRank(local_rank=3)),),
        groups=ShardingGroups(size=4, interleaved=False),
    )
    there = plan(whole_table(TABLE, OnRank(rank=3)), world=4)
    assert moved(beyond, there, order, order, problem(nodes=2, devices=2)).moved_bytes == 0


def test_rows_behind_a_cache_are_in_host_memory() -> None:
    order = ranking(7, 3)
    cached = plan(whole_table(TABLE, OnRank(rank=1, tier=Tier.CACHED, cache_ratio=0.5)))
    assert moved(cached, plan(whole_table(TABLE, OnRank(rank=1, tier=Tier.UVM))), order, order).moved_bytes == 0
    found = moved(cached, plan(whole_table(TABLE, OnRank(rank=1))), order, order)
    assert found.moved_bytes == found.host_bytes == ROWS * DIM * 4


def test_billions_of_rows_that_nobody_saw_are_counted_without_going_through_them() -> None:
    rows = 1 << 40
    on = problem(rows=rows)
    wide = Table(name="t", rows=rows, dim=DIM)
    dealt = plan(whole_table(wide, RowWise(ranks=(0, 1))))
    whole = plan(whole_table(wide, OnRank(rank=1)))
    found = moved(whole, dealt, ranking(5, 9, rows=rows), ranking(rows - 1, rows=rows), on)
    assert found.moved_bytes == rows // 2 * DIM * 4


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_dealt_rows_are_those_counted_one_by_one(runs: list[tuple[int, int, int]], n: int, m: int) -> None:
    expected = np.zeros((n, m), dtype=np.int64)
    for first, second, length in runs:
        for step in range(length):
            expected[(first + step) % n, (second + step) % m] += 1
    first, second, lengths = (np.array(column) for column in zip(*runs))
    assert dealt_rows(first, second, lengths, (n, m)).tolist() == expected.tolist()


PLACEMENTS = (
    OnRank(rank=3), OnRank(rank=1, tier=Tier.UVM), RowWise(ranks=(0, 1, 2)), RowWise(ranks=(2, 3), tier=Tier.UVM),
    Replicated(ranks=(0, 1, 2, 3)), GroupSharded(), OnLocalRank(local_rank=1), Host(node=1),
)  # fmt: skip


def holders(segments: Sequence[Segment], row: int, column: int) -> set[int]:
    """Places of one number, by the definition of each placement: ranks, UVM of ranks from 4, hosts from 8."""
    found: set[int] = set()
    for segment in segments:
        inside = segment.row_start <= row < segment.row_stop and segment.column_start <= column < segment.column_stop
        if not inside:
            continue
        place, at = segment.placement, row - segment.row_start
        if isinstance(place, Host):
            found.add(8 + place.node)
            continue
        if isinstance(place, OnRank):
            ranks = [place.rank]
        elif isinstance(place, RowWise):
            ranks = [place.ranks[(at + deal_start("t", len(place.ranks))) % len(place.ranks)]]
        elif isinstance(place, Replicated):
            ranks = list(place.ranks)
        elif isinstance(place, GroupSharded):
            ranks = [2 * node + (at + deal_start("t", 2)) % 2 for node in range(2)]
        else:
            ranks = [place.local_rank, 2 + place.local_rank]
        found |= {rank + (4 if getattr(place, "tier", Tier.HBM) is Tier.UVM else 0) for rank in ranks}
    return found


@st.composite
def plans(draw: st.DrawFn, rows: int) -> Plan:
    segments = []
    for start, stop in draw(st.sampled_from([[(0, 8)], [(0, 4), (4, 8)]])):
        ends = sorted(draw(st.sets(st.integers(4, rows - 4).filter(lambda end: end % 4 == 0), max_size=2)))
        for begin, end in zip([0, *ends], [*ends, rows]):
            segments.append(
                Segment(
                    table="t",
                    row_start=begin,
                    row_stop=end,
                    column_start=start,
                    column_stop=stop,
                    placement=draw(st.sampled_from(PLACEMENTS)),
                )
            )
    return plan(*segments, world=4)


@given(st.data())
def test_flows_are_those_counted_row_by_row(data: st.DataObject) -> None:
    rows = 24
    on = problem(nodes=2, devices=2, rows=rows)
    old, new = data.draw(plans(rows)), data.draw(plans(rows))
    ids = st.lists(st.integers(0, rows - 1), unique=True, max_size=6)
    was, now = (ranking(*data.draw(ids), rows=rows) for _ in range(2))
    gets = np.zeros(10, dtype=np.int64)
    everyone = np.arange(rows)
    for row_was, row_now in zip(was(everyone).tolist(), now(everyone).tolist()):
        for column in range(DIM):
            gained = holders(new.segments, row_now, column) - holders(old.segments, row_was, column)
            gets[list(gained)] += 4
    flows = moved(old, new, was, now, on).flows
    assert flows.sum(axis=0).tolist() == gets.tolist()
    assert not flows.diagonal().any()
