"""Plans: what is valid, what is refused and with which words; JSON round trips."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.model import validate as validate_module
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
    Tier,
    deal_start,
    master_node,
    whole_table,
    whole_tables,
)  # fmt: skip
from shardbench.model.strategy import Move
from shardbench.model.table import Optimizer, Table
from shardbench.model.validate import dealt, memory_bytes, used_moves, validate

EVERY = frozenset(Move)
WORKLOAD = RandomWorkload([(100, 8), (30, 16)], 8)
PROBLEM = WORKLOAD.problem(machine(2, 2))
TABLES = PROBLEM.tables


def plan(*segments, world=4, **rest):
    return Plan(world_size=world, segments=segments, **rest)


EVERYONE = (0, 1, 2, 3)
WHOLE = whole_tables(TABLES, [0, 3])
SECOND = whole_table(TABLES[1], OnRank(rank=1))


def phases(**batches):
    """A schedule of one phase of each kind named, in that order."""
    return BatchSchedule(phases=tuple(Phase(kind=PhaseKind(kind), batches=n) for kind, n in batches.items()))


def part(row_start, row_stop, placement, columns=(0, 8)):
    return Segment(
        table="table0", row_start=row_start, row_stop=row_stop, column_start=columns[0], column_stop=columns[1],
        placement=placement,
    )  # fmt: skip


REFUSED = {
    "another machine": (plan(*whole_tables(TABLES, [0, 1]), world=2), "plan is for 2 devices, the machine has 4"),
    "missing table": (plan(WHOLE[0]), "table 'table1' is not placed"),
    "unknown table": (
        plan(*WHOLE, Segment(table="zz", row_stop=1, column_stop=4, placement=OnRank(rank=0))),
        "table 'zz', which the problem does not have",
    ),
    "missing rows": (plan(part(0, 60, OnRank(rank=0)), SECOND), "320 of 800 weights are not placed"),
    "missing columns": (plan(part(0, 100, OnRank(rank=0), (0, 4)), SECOND), "400 of 800 weights are not placed"),
    "overlap": (
        plan(part(0, 60, OnRank(rank=0)), part(40, 100, OnRank(rank=1)), SECOND),
        "rows 0..60 and 40..100 overlap",
    ),
    "rows beyond": (plan(part(0, 101, OnRank(rank=0)), SECOND), "the table has 100 rows"),
    "columns beyond": (plan(part(0, 100, OnRank(rank=0), (0, 12)), SECOND), "column 12 is beyond width 8"),
    "odd columns": (
        plan(part(0, 100, OnRank(rank=0), (0, 2)), part(0, 100, OnRank(rank=0), (2, 8)), SECOND),
        "multiples of 4",
    ),
    "odd width": (plan(part(0, 100, OnRank(rank=0), (0, 6)), SECOND), "multiples of 4"),
    "odd start": (plan(part(0, 100, OnRank(rank=0), (2, 6)), SECOND), "multiples of 4"),
    "no such rank": (plan(part(0, 100, OnRank(rank=4)), SECOND), "rank 4 does not exist, there are 4"),
    "no such node": (plan(part(0, 100, Host(node=2)), SECOND), "node 2 does not exist, there are 2"),
    "empty row-wise shard": (
        plan(part(0, 97, OnRank(rank=0)), part(97, 100, RowWise(ranks=(0, 1, 2, 3))), SECOND),
        "3 rows dealt over 4 ranks leave a rank empty",
    ),
    "empty share of a node copy": (
        plan(part(0, 99, OnRank(rank=0)), part(99, 100, GroupSharded()), SECOND),
        "rows 99..100: 1 rows dealt over 2 ranks leave a rank empty",
    ),
    "no such local rank": (
        plan(part(0, 100, OnLocalRank(local_rank=2)), SECOND),
        "local rank 2 does not exist, a sharding group has 2 ranks",
    ),
    "replica missing": (plan(part(0, 100, Replicated(ranks=(0, 1, 2))), SECOND), "rank 3 has no replica"),
    "replica twice": (
        plan(part(0, 100, Replicated(ranks=(0, 1, 2, 3))), part(0, 100, Replicated(ranks=(0,))), SECOND),
        "a rank holds rows 0..100 twice",
    ),
    "hot phase without replicas": (
        plan(*WHOLE, schedule=phases(hot=3)),
        "hot phases but the plan replicates no rows",
    ),
    "rows that no phase can reach": (
        plan(part(0, 10, Replicated(ranks=EVERYONE)), part(10, 100, Host(node=1)), SECOND, schedule=phases(hot=3)),
        "hot phases only but the plan does not replicate all rows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_one_line(case):
    bad, words = REFUSED[case]
    with pytest.raises(InvalidPlan) as caught:
        validate(bad, PROBLEM, EVERY)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


VALID = {
    "whole": plan(*WHOLE),
    "rows": plan(part(0, 40, Replicated(ranks=(0, 1, 2, 3))), part(40, 100, RowWise(ranks=(0, 2))), SECOND),
    "columns": plan(part(0, 100, OnRank(rank=0), (0, 4)), part(0, 100, OnRank(rank=1), (4, 8)), SECOND),
    "grid": plan(
        part(0, 50, OnRank(rank=0), (0, 4)), part(0, 20, OnRank(rank=1), (4, 8)),
        part(50, 100, OnRank(rank=2), (0, 4)), part(20, 100, GroupSharded(), (4, 8)), SECOND,
    ),
    "columns above a whole row": plan(
        part(0, 50, OnRank(rank=0), (0, 4)), part(0, 50, OnRank(rank=1), (4, 8)), part(50, 100, OnRank(rank=2)), SECOND,
    ),
    "groups": plan(part(0, 100, Replicated(ranks=(0, 1))), part(0, 100, Replicated(ranks=(2, 3))), SECOND),
    "tiers": plan(part(0, 10, OnRank(rank=0)), part(10, 100, OnRank(rank=0, tier=Tier.UVM)), SECOND),
    "host": plan(
        part(0, 10, Replicated(ranks=(0, 1, 2, 3))), part(10, 100, Host(node=1)), SECOND,
        schedule=phases(cold=2, hot=1),
    ),
    "all hot": plan(*(whole_table(table, Replicated(ranks=EVERYONE)) for table in TABLES), schedule=phases(hot=3)),
    "dealt": plan(part(0, 100, RowWise(ranks=EVERYONE)), whole_table(TABLES[1], RowWise(ranks=(0, 1)))),
    "node copies": plan(part(0, 98, OnRank(rank=0)), part(98, 100, GroupSharded()), SECOND),
    "whole copies": plan(whole_table(TABLES[0], OnLocalRank(local_rank=1, tier=Tier.UVM)), SECOND),
}  # fmt: skip


@pytest.mark.parametrize("case", VALID)
def test_valid_plans_pass_and_round_trip(case):
    good = VALID[case]
    memory = validate(good, PROBLEM, EVERY)
    assert Plan.from_json(good.to_json()) == good
    # Hot rows of a schedule have a master copy on a host besides the replicas.
    copies = {
        "rows": 40 * 3 * 8, "groups": 100 * 3 * 8, "host": 10 * 4 * 8, "grid": 80 * 4, "node copies": 2 * 8,
        "whole copies": 100 * 8, "all hot": 3 * (100 * 8 + 30 * 16),
    }  # fmt: skip
    weights = 100 * 8 + 30 * 16 + copies.get(case, 0)
    assert memory.hbm.sum() + memory.uvm.sum() + memory.host.sum() == 4 * weights


def test_moves_are_told_apart():
    expected = {
        "whole": {Move.TABLE},
        "rows": {Move.ROWS, Move.REPLICATE, Move.TABLE},
        "columns": {Move.COLUMNS, Move.TABLE},
        "tiers": {Move.ROWS, Move.UVM, Move.TABLE},
        "host": {Move.ROWS, Move.REPLICATE, Move.HOST, Move.SCHEDULE, Move.TABLE},
        "all hot": {Move.REPLICATE, Move.SCHEDULE},
        "dealt": {Move.ROWS},
        "node copies": {Move.ROWS, Move.REPLICATE, Move.TABLE},
        "whole copies": {Move.REPLICATE, Move.UVM, Move.TABLE},
    }
    for case, moves in expected.items():
        assert used_moves(VALID[case], PROBLEM) == moves, case
    copied = plan(*(whole_table(table, GroupSharded()) for table in TABLES))
    assert used_moves(copied, PROBLEM) == {Move.ROWS, Move.REPLICATE}
    with pytest.raises(InvalidPlan, match="moves its strategy does not declare: uvm"):
        validate(VALID["tiers"], PROBLEM, frozenset({Move.TABLE, Move.ROWS}))


@pytest.mark.parametrize(
    ("place", "limit", "words"),
    [
        (OnRank(rank=1), "hbm_bytes", r"device 1 needs 3200 bytes of HBM but has 3199 \(1.00x over\)"),
        (OnRank(rank=1, tier=Tier.UVM), "uvm_bytes", "device 1 needs 3200 bytes of UVM but has 3199"),
        (Host(node=1), "host_bytes", "node 1 needs 3200 bytes of host memory but has 3199"),
    ],
)
def test_capacity_is_exact(place, limit, words):
    # The other table is smaller, and on the other side of the machine.
    tight = plan(part(0, 100, place), whole_table(TABLES[1], OnRank(rank=0)))

    def on(capacity):
        topology = replace(PROBLEM.topology, **{limit: capacity})
        return WORKLOAD.problem(replace(PROBLEM.machine, topology=topology))

    validate(tight, on(100 * 8 * 4), EVERY)
    with pytest.raises(InvalidPlan, match=words):
        validate(tight, on(100 * 8 * 4 - 1), EVERY)
    if limit != "hbm_bytes":  # a machine may have none of the others
        with pytest.raises(InvalidPlan, match="but has 0 "):
            validate(tight, on(0), EVERY)


def test_masters_of_hot_rows_are_where_their_cold_rows_are():
    placed = VALID["host"].by_table()
    assert (master_node(placed["table0"]), master_node(placed["table1"])) == (1, 0)
    # Rows of 32 bytes: 10 hot ones on every rank and 90 cold ones; every one of the 100 has its home on node 1.
    memory = memory_bytes(VALID["host"], PROBLEM)
    assert memory.hbm.tolist() == [320, 320 + 30 * 64, 320, 320]
    assert memory.host.tolist() == [0, 100 * 32]
    # Wholly hot, and in two groups: one master on the first node; none without a cold phase.
    groups = plan(*VALID["groups"].segments, schedule=phases(cold=1, hot=1))
    assert memory_bytes(groups, PROBLEM).host.tolist() == [100 * 32, 0]
    assert memory_bytes(VALID["all hot"], PROBLEM).host.tolist() == [0, 0]


def test_memory_counts_optimizer_state_and_dealt_rows():
    on = replace(PROBLEM, optimizer=Optimizer.ROWWISE_ADAGRAD)
    spread = plan(part(0, 100, RowWise(ranks=(0, 1, 2), tier=Tier.UVM)), SECOND)
    memory = memory_bytes(spread, on)
    assert memory.uvm.tolist() == [33 * 36, 33 * 36, 34 * 36, 0]
    assert memory.hbm.tolist() == [0, 30 * (64 + 4), 0, 0]
    adam = memory_bytes(plan(part(0, 100, GroupSharded()), SECOND), replace(PROBLEM, optimizer=Optimizer.ADAM))
    assert adam.hbm.tolist() == [50 * 96, 50 * 96 + 30 * 192, 50 * 96, 50 * 96]
    copied = memory_bytes(VALID["whole copies"], on)
    assert (copied.hbm.tolist(), copied.uvm.tolist()) == ([0, 30 * 68, 0, 0], [0, 100 * 36, 0, 100 * 36])


@given(st.text(max_size=4), st.integers(0, 1000), st.integers(1, 17))
def test_dealt_rows_add_up(name, rows, ways):
    shares, start = dealt(name, rows, ways), deal_start(name, ways)
    assert 0 <= start < ways
    assert shares.sum() == rows
    assert shares.tolist() == [len(range((w - start) % ways, rows, ways)) for w in range(ways)]


def test_first_rows_of_tables_are_spread_over_the_sharers():
    first = np.bincount([deal_start(f"t{i}", 16) for i in range(856)], minlength=16)
    # 53.5 expected, with a standard deviation of 7.
    assert first.min() > 25
    assert first.max() < 82


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_tilings_are_valid_and_any_hole_or_overlap_is_not(data):
    rows, dim = TABLES[0].rows, TABLES[0].dim
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(1, rows - 1), max_size=4))})
    pieces = []
    for start, stop in zip(cuts, cuts[1:]):
        if data.draw(st.booleans()):
            pieces += [(start, stop, 0, 4), (start, stop, 4, dim)]
        else:
            pieces.append((start, stop, 0, dim))
    segments = [part(a, b, OnRank(rank=data.draw(st.integers(0, 3))), (c, d)) for a, b, c, d in pieces]
    validate(plan(*segments, SECOND), PROBLEM, EVERY)
    victim = data.draw(st.integers(0, len(segments) - 1))
    with pytest.raises(InvalidPlan, match="not placed"):
        validate(plan(*(s for i, s in enumerate(segments) if i != victim), SECOND), PROBLEM, EVERY)
    with pytest.raises(InvalidPlan, match="overlap"):
        validate(plan(*segments, segments[victim], SECOND), PROBLEM, EVERY)


@settings(max_examples=300)
@given(st.lists(st.tuples(*[st.integers(0, 6)] * 4), max_size=7))
def test_rectangles_overlap_where_any_two_do(corners):
    boxes = [(min(a, b), max(a, b) + 1, min(c, d), max(c, d) + 1) for a, b, c, d in corners]
    pairs = combinations(boxes, 2)
    meet = any(a < f and e < b and c < h and g < d for (a, b, c, d), (e, f, g, h) in pairs)
    segments = [
        Segment(
            table="t", row_start=a, row_stop=b, column_start=c, column_stop=d, placement=OnRank(rank=0),
        )
        for a, b, c, d in boxes
    ]  # fmt: skip
    try:
        validate_module._check_overlap(segments, Table(name="t", rows=7, dim=8))
        assert not meet
    except InvalidPlan:
        assert meet


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "plan: "),
        ('{"world_size": 2}', "segments: Field required"),
        ('{"world_size": 0, "segments": []}', "world_size"),
        ('{"world_size": 2, "segments": [], "extra": 1}', "(and 1 more)"),
        (
            '{"world_size":1,"segments":[{"table":"a","row_start":5,"row_stop":5,"column_stop":4,'
            '"placement":{"kind":"on_rank","rank":0}}]}',
            "segment of a has no rows (5..5)",
        ),
        (
            '{"world_size":1,"segments":[{"table":"a","row_stop":5,"column_stop":4,'
            '"placement":{"kind":"row_wise","ranks":[1,0]}}]}',
            "ranks must be strictly ascending",
        ),
    ],
)
def test_bad_json_is_one_line(text, words):
    with pytest.raises(BadInput) as caught:
        Plan.from_json(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
