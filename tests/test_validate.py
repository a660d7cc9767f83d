"""Plans: what is valid, what is refused and with which words; JSON round trips."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.model.plan import (
    BatchSchedule,
    Host,
    NodeSharded,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
    deal_start,
    whole_table,
    whole_tables,
)  # fmt: skip
from shardbench.model.strategy import Move
from shardbench.model.table import Optimizer
from shardbench.model.validate import dealt, memory_bytes, used_moves, validate

EVERY = frozenset(Move)
WORKLOAD = RandomWorkload([(100, 8), (30, 16)], 8)
PROBLEM = WORKLOAD.problem(machine(2, 2))
TABLES = PROBLEM.tables


def plan(*segments, world=4, **rest):
    return Plan(world_size=world, segments=segments, **rest)


WHOLE = whole_tables(TABLES, [0, 3])
SECOND = whole_table(TABLES[1], OnRank(rank=1))


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
    "no such rank": (plan(part(0, 100, OnRank(rank=4)), SECOND), "rank 4 does not exist, there are 4"),
    "no such node": (plan(part(0, 100, Host(node=2)), SECOND), "node 2 does not exist, there are 2"),
    "empty row-wise shard": (
        plan(part(0, 97, OnRank(rank=0)), part(97, 100, RowWise(ranks=(0, 1, 2, 3))), SECOND),
        "3 rows dealt over 4 ranks leave a rank empty",
    ),
    "replica missing": (plan(part(0, 100, Replicated(ranks=(0, 1, 2))), SECOND), "rank 3 has no replica"),
    "replica twice": (
        plan(part(0, 100, Replicated(ranks=(0, 1, 2, 3))), part(0, 100, Replicated(ranks=(0,))), SECOND),
        "a rank holds rows 0..100 twice",
    ),
    "hot phase without replicas": (
        plan(*WHOLE, schedule=BatchSchedule(phases=(Phase(kind=PhaseKind.HOT, batches=3),))),
        "hot phases but the plan replicates no rows",
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
        part(50, 100, OnRank(rank=2), (0, 4)), part(20, 100, NodeSharded(), (4, 8)), SECOND,
    ),
    "groups": plan(part(0, 100, Replicated(ranks=(0, 1))), part(0, 100, Replicated(ranks=(2, 3))), SECOND),
    "tiers": plan(part(0, 10, OnRank(rank=0)), part(10, 100, OnRank(rank=0, tier=Tier.UVM)), SECOND),
    "host": plan(
        part(0, 10, Replicated(ranks=(0, 1, 2, 3))), part(10, 100, Host(node=1)), SECOND,
        schedule=BatchSchedule(phases=(Phase(kind=PhaseKind.COLD, batches=2), Phase(kind=PhaseKind.HOT, batches=1))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VALID)
def test_valid_plans_pass_and_round_trip(case):
    good = VALID[case]
    memory = validate(good, PROBLEM, EVERY)
    assert Plan.from_json(good.to_json()) == good
    # Hot rows of a schedule have a master copy on a host besides the replicas.
    copies = {"rows": 40 * 3, "groups": 100 * 3, "host": 10 * 4, "grid": 80}
    weights = 100 * 8 + 30 * 16 + copies.get(case, 0) * (4 if case == "grid" else 8)
    assert memory.hbm.sum() + memory.uvm.sum() + memory.host.sum() == 4 * weights


def test_moves_are_told_apart():
    expected = {
        "whole": {Move.TABLE},
        "rows": {Move.ROWS, Move.REPLICATE, Move.TABLE},
        "columns": {Move.COLUMNS, Move.TABLE},
        "tiers": {Move.ROWS, Move.UVM, Move.TABLE},
        "host": {Move.ROWS, Move.REPLICATE, Move.HOST, Move.SCHEDULE, Move.TABLE},
    }
    for case, moves in expected.items():
        assert used_moves(VALID[case], PROBLEM) == moves, case
    with pytest.raises(InvalidPlan, match="moves its strategy does not declare: uvm"):
        validate(VALID["tiers"], PROBLEM, frozenset({Move.TABLE, Move.ROWS}))


def test_capacity_is_exact():
    need = 100 * 8 * 4
    fits = WORKLOAD.problem(machine(2, 2, hbm=need))
    validate(plan(*WHOLE), fits, EVERY)
    with pytest.raises(InvalidPlan, match=r"device 0 needs 3200 bytes of HBM but has 3199 \(1.00x over\)"):
        validate(plan(*WHOLE), WORKLOAD.problem(machine(2, 2, hbm=need - 1)), EVERY)


def test_memory_counts_optimizer_state_and_dealt_rows():
    on = replace(PROBLEM, optimizer=Optimizer.ROWWISE_ADAGRAD)
    spread = plan(part(0, 100, RowWise(ranks=(0, 1, 2), tier=Tier.UVM)), SECOND)
    memory = memory_bytes(spread, on)
    assert memory.uvm.tolist() == [33 * 36, 33 * 36, 34 * 36, 0]
    assert memory.hbm.tolist() == [0, 30 * (64 + 4), 0, 0]
    adam = memory_bytes(plan(part(0, 100, NodeSharded()), SECOND), replace(PROBLEM, optimizer=Optimizer.ADAM))
    assert adam.hbm.tolist() == [50 * 96, 50 * 96 + 30 * 192, 50 * 96, 50 * 96]


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


def test_large_plans_validate_in_a_moment():
    many = RandomWorkload([(1000, 64)] * 400, 128)
    on = many.problem(machine(16, 8))
    columns = np.arange(0, 65, 4)
    segments = [
        Segment(
            table=t.name, row_stop=1000, column_start=int(a), column_stop=int(b), placement=OnRank(rank=int(a) % 128)
        )
        for t in on.tables
        for a, b in zip(columns, columns[1:])
    ]
    assert validate(plan(*segments, world=128), on, EVERY).hbm.sum() == 400 * 1000 * 64 * 4
