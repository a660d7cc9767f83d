"""FlexShard's plans: tiers and homes, its budget, what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from flexshard_problems import problem_of, quick_machine, tiers, zipf
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.base.errors import BadInput, Infeasible
from shardbench.baselines.flexshard import ComparedPlan, FlexShard, fullest_device_bytes
from shardbench.baselines.flexshard.rule import is_split
from shardbench.baselines.flexshard.shape import Room, find_homes, least_bytes, make_plan, runnable
from shardbench.model.plan import GroupSharded, OnRank, Plan, Replicated, RowWise
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.model.table import Optimizer, Pooling, Table
from shardbench.model.validate import memory_bytes
from shardbench.trials.discovery import get_strategy


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(3, 60), st.integers(0, 60), st.integers(0, 60), st.booleans()), min_size=1),
    st.sampled_from([(2, 2), (2, 3), (1, 4), (3, 1)]),
    st.booleans(),
)
def test_room_is_what_the_harness_counts(
    shapes: list[tuple[int, int, int, bool]], shape: tuple[int, int], over_all: bool
) -> None:
    problem = problem_of([[1] * rows for rows, *_ in shapes], on=quick_machine(*shape), batch=24)
    pooled = (Pooling.SUM if bag else Pooling.NONE for *_, bag in shapes)
    problem = replace(problem, tables=tuple(replace(t, pooling=p) for t, p in zip(problem.tables, pooled)))
    homes = find_homes(problem, over_all=over_all)
    hot, warm = [min(hot, rows) for rows, hot, *_ in shapes], [warm for *_, warm, _ in shapes]
    split = [is_split(table, problem.world_size) for table in problem.tables]
    moved = tiers(
        [h if cut else rows * (h > 5) for h, cut, (rows, *_) in zip(hot, split, shapes)],
        [min(w, rows - h) * cut for h, w, cut, (rows, *_) in zip(hot, warm, split, shapes)],
    )
    moved = runnable(moved, problem)
    counted = memory_bytes(make_plan(problem, homes, moved), problem).hbm
    assert Room(problem, homes).rank_bytes(moved).tolist() == counted.tolist()


def test_where_memory_is_short_lukewarm_rows_are_kept_once_a_node() -> None:
    counts = [4000] * 10 + [40] * 200 + [0] * 790
    problem = problem_of([counts], on=quick_machine(2, 4), batch=512, samples=512)
    # 125 rows a device without copies; 20 rows more are 20 / (1/4 - 1/8) = 160 warm rows, or 22 hot ones.
    plan = FlexShard(budget_bytes=64 * 147).plan(problem, Budget(), 0)
    kinds = [type(s.placement) for s in plan.by_table()["s0"]]
    assert kinds in ([Replicated, GroupSharded, RowWise], [GroupSharded, RowWise])
    assert plan.notes["warm_rows"] >= 80
    without = FlexShard(budget_bytes=64 * 147, warm_tier=False).plan(problem, Budget(), 0)
    assert plan.notes["expected_communication_ms"] < without.notes["expected_communication_ms"]
    roomy = FlexShard(budget_bytes=64 * 1000).plan(problem, Budget(), 0)
    assert roomy.notes["expected_communication_ms"] <= plan.notes["expected_communication_ms"]
    assert roomy.notes["hot_rows"] > 0


@pytest.mark.parametrize(
    ("compared", "name"),
    [
        (ComparedPlan.TABLE_ROW_WISE, "table-row-wise"),
        (ComparedPlan.WHOLE_TABLE, "greedy-size"),
    ],
)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_the_budget_is_the_compared_plans_fullest_device(compared: ComparedPlan, name: str, rows: list[int]) -> None:
    problem = problem_of([[1] * n for n in rows])
    plan = get_strategy(name).plan(problem, Budget(), 0)
    assert fullest_device_bytes(problem, compared) == memory_bytes(plan, problem).hbm.max()


def test_bad_budgets_are_answered_with_one_line() -> None:
    problem = problem_of([zipf(40, 60)])
    with pytest.raises(Infeasible, match=r"a budget of 63 bytes a device is smaller than one row \(64 bytes\)"):
        FlexShard(budget_bytes=63).plan(problem, Budget(), 0)
    with pytest.raises(Infeasible, match=r"a budget of 100 bytes a device is too small: .* the tables need 640"):
        FlexShard(budget_bytes=100).plan(problem, Budget(), 0)
    with pytest.raises(Infeasible, match=r"a budget of 639 bytes a device is too small"):
        FlexShard(budget_bytes=639).plan(problem, Budget(), 0)
    with pytest.raises(Infeasible, match="row-wise without any copy needs 640 bytes of HBM on one device, it has 600"):
        FlexShard().plan(problem_of([zipf(40, 60)], on=quick_machine(hbm=600)), Budget(), 0)
    plan = FlexShard(budget_bytes=640).plan(problem, Budget(), 0)
    assert plan.notes["budget_bytes"] == 640
    assert [type(s.placement) for s in plan.segments] == [RowWise]


def test_one_device_alone_has_no_use_for_copies() -> None:
    plan = FlexShard().plan(problem_of([zipf(40, 60)], on=quick_machine(1, 1)), Budget(), 0)
    assert (plan.notes["hot_rows"], plan.notes["warm_rows"]) == (0, 0)


def test_a_plan_that_it_is_not_compared_with_is_refused() -> None:
    with pytest.raises(BadInput, match="is compared with one of table-row-wise, whole-table, not 'nonsense'"):
        FlexShard(compared="nonsense")


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), -float("inf"), "1000", 10**400])
def test_a_budget_is_positive_and_finite(bad: int) -> None:
    with pytest.raises(BadInput, match=r"needs a positive, finite budget, got .* bytes"):
        FlexShard(budget_bytes=bad)
    huge = FlexShard(budget_bytes=10**300)
    assert huge.limit_bytes(problem_of([zipf(40, 60)])) == 10**9


def test_no_copies_are_kept_where_they_exceed_the_compared_plan_by_rounding() -> None:
    # Four ranks hold 2 rows of each where a node's two devices, one table on each node, hold 3 at most.
    problem = problem_of([[9] * 5, [9] * 5])
    assert fullest_device_bytes(problem, ComparedPlan.TABLE_ROW_WISE) == 3 * 64
    assert least_bytes(problem) <= 4 * 64
    plan = FlexShard().plan(problem, Budget(), 0)
    assert [type(s.placement) for s in plan.segments] == [RowWise, RowWise]


def test_other_optimisers_have_no_warm_tier() -> None:
    problem = problem_of([[4000] * 4 + [900] * 40 + [0] * 56] * 3, batch=512, optimizer=Optimizer.ROWWISE_ADAGRAD)
    plan = FlexShard(budget_bytes=3 * FlexShard().limit_bytes(problem)).plan(problem, Budget(), 0)
    assert not any(isinstance(s.placement, GroupSharded) for s in plan.segments)
    assert plan.notes["warm_tier"] == "left out: averaging is exact for sgd only"
    assert plan.notes["hot_rows"] > 0


def test_pooled_and_tiny_tables_stay_whole() -> None:
    sequence = problem_of([zipf(400, 900), [50] * 3])
    tables = (*sequence.tables, *(Table(name=f"bag{i}", rows=r, dim=16) for i, r in enumerate((500, 20, 10))))
    bags = tuple(AccessProfile.from_counts(np.full(t.rows, 3), rows=t.rows, samples=64, present=64) for t in tables[2:])
    problem = replace(sequence, tables=tables, profiles=(*sequence.profiles, *bags))
    by_table = FlexShard().plan(problem, Budget(), 0).by_table()
    for name in ("s1", "bag0", "bag1", "bag2"):
        assert len(by_table[name]) == 1
    # 500 rows are more than a device's mean share of the whole tables' bytes: dealt over one node.
    homes = find_homes(problem, over_all=False)
    assert homes[2] == RowWise(ranks=(0, 1))
    assert isinstance(homes[4], OnRank)


@pytest.mark.parametrize(
    ("hot", "warm", "expected"),
    [
        (0, 0, (0, 0)),
        (5, 1, (5, 0)),  # one warm row cannot be dealt over two devices
        (37, 0, (36, 0)),  # three cold rows cannot be dealt over four ranks
        (30, 8, (30, 6)),
        (38, 1, (36, 0)),
        (40, 0, (40, 0)),
        (0, 40, (0, 40)),
        (39, 1, (36, 0)),
    ],
)
def test_tiers_that_cannot_be_dealt_move_to_the_colder_one(hot: int, warm: int, expected: tuple[int, int]) -> None:
    made = runnable(tiers([hot], [warm]), problem_of([zipf(40, 60)]))
    assert (int(made.hot[0]), int(made.warm[0])) == expected


def test_a_plan_does_not_depend_on_the_seed_or_undeclared_information() -> None:
    problem = problem_of([zipf(200, 900), zipf(300, 500)], batch=512)
    one: Plan = FlexShard().plan(problem, Budget(), 0)
    other = FlexShard().plan(problem.restricted_to(FlexShard.sees), Budget(), 1)
    assert one == other
