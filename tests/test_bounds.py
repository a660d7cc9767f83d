"""The proven bounds against every enumerated plan, and by hand."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from bound_problems import BATCH, WORLD, enumerated_ms, ids_bags, machine, of_tables, only, random_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import table_loads

from shardbench.base.errors import BadInput
from shardbench.cost.bounds.capacity import Curve, any_rows, hottest_first, largest_saving, upper_hull
from shardbench.cost.bounds.demand import count_demand
from shardbench.cost.bounds.embedding import (
    expected_table_loads,
    keeps_order,
    pigeonhole_ms,
    split_bound,
    whole_table_bound_ms,
)
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.cost.costmodel import embedding_ms
from shardbench.cost.load import Load, in_uvm
from shardbench.cost.traffic import count, expect
from shardbench.model.machine import Machine
from shardbench.model.plan import (
    OnRank,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
    whole_table,
    whole_tables,
)
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Pooling, Table
from shardbench.model.validate import used_moves
from shardbench.workloads.trace import Bags


def unpooled(problem: Problem) -> Problem:
    """The same problem with every other table a sequence."""
    kinds = [Pooling.NONE if i % 2 else Pooling.SUM for i in range(len(problem.tables))]
    return replace(problem, tables=tuple(replace(t, pooling=k) for t, k in zip(problem.tables, kinds)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 6))
def test_bound_is_below_every_whole_table_plan(seed: int, tables: int) -> None:
    problem, bags = random_problem(seed, tables)
    problem = unpooled(problem) if seed % 2 else problem
    for load in (table_loads(problem, lambda i: bags[i]), expected_table_loads(problem)):
        bound = whole_table_bound_ms(load, problem, frozenset({Move.TABLE}))
        optimum = enumerated_ms(load, problem.machine.constants, WORLD, uvm=False).min()
        assert 0.0 <= bound <= optimum


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 4))
def test_bound_is_below_every_plan_with_host_memory(seed: int, tables: int) -> None:
    problem, bags = random_problem(seed, tables)
    load = table_loads(problem, lambda i: bags[i])
    bound = whole_table_bound_ms(load, problem, frozenset({Move.TABLE, Move.UVM}))
    assert bound <= enumerated_ms(load, problem.machine.constants, WORLD, uvm=True).min()


def test_the_tail_of_one_table_and_the_hosts_dispatch_are_in_the_bound() -> None:
    problem, bags = random_problem(4, 3)
    loads = table_loads(problem, lambda i: bags[i])
    for name, floor_s in (("bag_step_s", 2.0 * loads.chain.max()), ("dispatch_s", 2.0)):
        constants = replace(problem.machine.constants, **{name: 2.0})
        slow = replace(problem, machine=replace(problem.machine, constants=constants))
        whole = whole_table_bound_ms(loads, slow, frozenset({Move.TABLE}))
        assert 1e3 * floor_s * (1 - 1e-6) <= whole <= embedding_ms(loads, constants).max()
        split = split_bound(loads, slow, frozenset({Move.TABLE, Move.ROWS})).ms
        assert split <= whole
        assert (split > 1e3) == (name == "dispatch_s")  # the parts of a long bag may be short


EVERYONE = (0, 1, 2)


def same_row_bags(lengths: list[int]) -> Bags:
    """Bags of these lengths that ask for row 0 only."""
    return Bags(values=np.zeros(sum(lengths), dtype=np.int64), offsets=np.concatenate([[0], np.cumsum(lengths)]))


def slowest_and_bound(
    dims: list[int], bags: list[Bags], places: list[OnRank | Replicated | RowWise], rates: dict[str, float]
) -> tuple[float, float]:
    """Slowest device of whole-table placements, and the bound for the moves they use."""
    tables = tuple(Table(name=f"t{i}", rows=BATCH, dim=dim) for i, dim in enumerate(dims))
    profile = AccessProfile(rows=BATCH, samples=BATCH, present=0, counts=(), row_counts=())
    made = machine(np.random.default_rng(0), 1, WORLD)
    plain = {"access_overhead_bytes": 0.0, "sort_bytes": 0.0, "launch_s": 0.0, "hbm_bytes_per_s": 1e15}
    plain |= {"dispatch_s": 0.0, "bag_step_s": 0.0}
    made = replace(made, constants=replace(made.constants, **plain, **rates))
    problem = Problem.of("p", tables, (profile,) * len(tables), made, batch_size=BATCH)
    plan = Plan(world_size=WORLD, segments=tuple(map(whole_table, tables, places)))
    load = count(plan, problem, lambda i: bags[i], DenseShape()).load
    moves = used_moves(plan, problem) | {Move.TABLE, Move.ROWS}
    bound = split_bound(table_loads(problem, lambda i: bags[i]), problem, moves)
    return float(embedding_ms(load, made.constants).max()), bound.ms


CACHED = {
    "table_s": 0.0,
    "bag_s": 0.0,
    "page_s": 0.0,
    "gather_efficiency_ratio": 1e-9,
    "cache_bytes": 1e30,
    "cache_bytes_per_s": 1e12,
    "uvm_bytes_per_s": 1.0,
}


@pytest.mark.parametrize("place", [Replicated(ranks=EVERYONE), RowWise(ranks=EVERYONE)])
def test_split_bound_is_reached_where_rows_never_repeat(place: Replicated | RowWise) -> None:
    once = Bags(values=np.arange(BATCH), offsets=np.arange(BATCH + 1))
    slowest, bound = slowest_and_bound([16], [once], [place], CACHED)
    # Gradients count at cache rate where replicas are allowed, so that bound is 3/4 of the time.
    expected = slowest * (0.75 if isinstance(place, Replicated) else 1.0)
    assert bound <= slowest
    assert bound == pytest.approx(expected, rel=1e-3)


def test_split_bound_lets_the_cache_serve_repeats() -> None:
    # Four lookups of every row; each rank pools its rows into all bags, which the bound does not count.
    repeated = Bags(values=np.tile(np.arange(BATCH), 4), offsets=np.arange(0, 4 * BATCH + 1, 4))
    slowest, bound = slowest_and_bound([16], [repeated], [RowWise(ranks=EVERYONE)], CACHED)
    assert bound == pytest.approx(slowest * 2 / 3, rel=1e-3)


def test_split_bound_allows_host_memory_faster_than_gathering() -> None:
    once = Bags(values=np.arange(BATCH), offsets=np.arange(BATCH + 1))
    place = RowWise(ranks=EVERYONE, tier=Tier.UVM)
    slowest, bound = slowest_and_bound([16], [once], [place], {**CACHED, "uvm_bytes_per_s": 1e8})
    assert bound <= slowest


def test_split_bound_holds_for_a_replica_that_one_rank_uses_alone() -> None:
    # t0's lookups all come from rank 0, so ranks 1 and 2 read none of its gradients although they
    # hold its empty bags; their time goes to t1 and t2 instead.
    alone = same_row_bags([100] * 4 + [0] * 8)
    single = same_row_bags([1] * BATCH)
    places: list[OnRank | Replicated | RowWise] = [Replicated(ranks=EVERYONE), OnRank(rank=1), OnRank(rank=2)]
    slowest, bound = slowest_and_bound([24, 8, 8], [alone, single, single], places, CACHED)
    assert bound <= slowest


@pytest.mark.parametrize("kind", [lambda problem: problem, unpooled], ids=["pooled", "unpooled"])
def test_table_loads_equal_the_accounting_of_one_table_a_rank(kind: Callable[[Problem], Problem]) -> None:
    problem, bags = random_problem(5, WORLD)
    problem = kind(problem)
    plan = Plan(world_size=WORLD, segments=whole_tables(problem.tables, range(WORLD)))
    counted = count(plan, problem, lambda i: bags[i], DenseShape()).load
    np.testing.assert_allclose(counted.values, table_loads(problem, lambda i: bags[i]).values)
    spilled = Plan(world_size=WORLD, segments=whole_tables(problem.tables, range(WORLD), [Tier.UVM] * WORLD))
    np.testing.assert_allclose(expect(spilled, problem).load.values, in_uvm(expected_table_loads(problem)).values)


def linear_machine(world: int) -> Machine:
    """A device whose time is exactly the gradient bytes read, in milliseconds per byte."""
    return only(machine(np.random.default_rng(0), 1, world), hbm_bytes_per_s=1e3, cache_bytes_per_s=1.0)


@pytest.mark.parametrize(
    ("weights", "world", "expected"),
    [
        ([9.0, 1.0, 1.0], 3, 9.0),  # the largest table
        ([4.0, 4.0, 4.0], 2, 8.0),  # two of the three largest meet: 4 + 4
        ([5.0, 5.0, 4.0, 3.0, 3.0], 2, 10.0),  # mean over devices 10; three of five: 4 + 3 + 3 = 10
        ([3.0, 3.0, 3.0, 3.0, 3.0], 2, 9.0),  # three of five: k = 2
    ],
)
def test_hand_computed_bounds(weights: list[float], world: int, expected: float) -> None:
    load = Load.zeros(len(weights))
    load.gradient_bytes[:] = weights
    load.bags[:] = 1.0
    bound = whole_table_bound_ms(load, of_tables(len(weights), linear_machine(world)), frozenset({Move.TABLE}))
    assert bound == pytest.approx(expected, rel=1e-6)


@given(weights=st.lists(st.integers(0, 9), min_size=1, max_size=7), world=st.integers(1, 3))
def test_the_pigeonhole_bound_is_below_every_way_to_hand_out(weights: list[int], world: int) -> None:
    def least(given: list[int]) -> int:
        """Slowest device of the best way, by enumeration."""
        ways = itertools.product(range(world), repeat=len(given))
        return min(max(np.bincount(way, weights=given, minlength=world)) for way in ways)

    bound = pigeonhole_ms(np.array(weights, dtype=np.float64), world)
    assert max(weights) <= bound <= least(weights)
    # Weights that are all alike reach it.
    assert pigeonhole_ms(np.ones(len(weights)), world) == least([1] * len(weights))


@pytest.mark.parametrize("move", [Move.HOST, Move.SCHEDULE])
def test_no_bound_where_the_device_may_do_nothing(move: Move) -> None:
    problem, bags = random_problem(1, 3)
    loads = table_loads(problem, lambda i: bags[i])
    with pytest.raises(BadInput, match=f"nothing is proven about plans with {move}"):
        split_bound(loads, problem, frozenset({Move.TABLE, move}))


def test_launch_and_dispatch_count_in_batches_in_which_a_rank_has_work() -> None:
    # Two sequences, each silent in one of two batches: a rank that holds one of them has 0.31 ms in every other batch.
    made = only(machine(np.random.default_rng(0), 1, 2), launch_s=20e-6, dispatch_s=290e-6)
    problem = of_tables(2, made, Pooling.NONE)
    bags = [[ids_bags([1]), ids_bags([])], [ids_bags([]), ids_bags([1])]]
    plan = Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1)))
    times = [
        embedding_ms(count(plan, problem, lambda i, b=batch: b[i], DenseShape()).load, made.constants)  # type: ignore[misc]
        for batch in bags
    ]
    assert np.mean(times, axis=0) == pytest.approx([0.155, 0.155])
    loads = count_demand(problem, lambda n, i: bags[n][i], 2).loads
    for bound_ms in (split_bound(loads, problem, DEVICE_MOVES).ms, whole_table_bound_ms(loads, problem, DEVICE_MOVES)):
        assert bound_ms == pytest.approx(0.155, rel=1e-6)
    # Pooled, they have a bag in every batch, asked for or not.
    pooled = of_tables(2, made)
    loads = count_demand(pooled, lambda n, i: bags[n][i], 2).loads
    bound = split_bound(loads, pooled, DEVICE_MOVES)
    assert bound.ms == pytest.approx(0.31, rel=1e-6)
    assert bound.fixed_ms == pytest.approx(0.31, rel=1e-6)


def test_work_that_does_not_fit_into_one_batch_pays_for_two_launches() -> None:
    # Three equal batches, two devices: half of the work is more than one batch has.
    made = only(machine(np.random.default_rng(0), 1, 2), launch_s=30e-6, hbm_bytes_per_s=16e3)
    problem = of_tables(1, made, Pooling.NONE)
    loads = count_demand(problem, lambda n, i: ids_bags([1]), 3).loads
    # A lookup reads and updates a row of 16 bytes, 3 ms, and reads its index and writes its vector, 1.5 ms;
    # its gradient may come from the cache where there are replicas.
    bound = split_bound(loads, problem, DEVICE_MOVES - {Move.UVM})
    assert bound.fixed_ms == pytest.approx(0.06 * 2 / 3, rel=1e-6)
    assert bound.ms == pytest.approx(0.06 * 2 / 3 + 4.5 / 2, rel=1e-6)


def small_memory(hbm: int, world: int = 2, uvm: int = 1 << 40) -> Machine:
    """Only host memory takes time: 1 ms for 16 bytes, one device's HBM as given."""
    made = only(machine(np.random.default_rng(0), 1, world), uvm_bytes_per_s=16e3)
    return replace(made, topology=replace(made.topology, hbm_bytes=hbm, uvm_bytes=uvm))


def test_capacity_by_hand() -> None:
    # Rows 1, 2, 4, 9 of ten in the first batch, row 1 in both; every access to one in UVM is read and updated: 2 ms.
    batches = [ids_bags([1, 1, 2, 4, 9]), ids_bags([1])]
    problem = of_tables(1, small_memory(hbm=16))
    counted = count_demand(problem, lambda n, i: batches[n], 2)
    # Two rows fit, all devices together: row 1 and another, so that 2 of 5 accesses of two batches stay in UVM.
    anyhow = split_bound(counted.loads, problem, DEVICE_MOVES, counted.any_rows)
    assert anyhow.ms == pytest.approx((5 - 3) * 2.0 / 2 / 2, rel=1e-6)
    # The first two rows are 0 and 1.
    first = split_bound(counted.loads, problem, DEVICE_MOVES, counted.hottest_first)
    assert first.ms == pytest.approx((5 - 2) * 2.0 / 2 / 2, rel=1e-6)
    assert split_bound(counted.loads, problem, DEVICE_MOVES).ms == pytest.approx(0.0, abs=1e-9)
    # Whole, the table does not fit into a device.
    assert whole_table_bound_ms(counted.loads, problem, DEVICE_MOVES) == pytest.approx(5 * 2.0 / 2, rel=1e-6)
    # Nor is there host memory: capacity says nothing.
    alone = of_tables(1, small_memory(hbm=16, uvm=0))
    assert split_bound(counted.loads, alone, DEVICE_MOVES, counted.any_rows).ms == pytest.approx(0.0, abs=1e-9)


def test_whole_tables_share_all_memory_in_parts() -> None:
    # Three tables of 160 bytes, one, two and four accesses, and HBM for one and a half.
    problem = of_tables(3, small_memory(hbm=240, world=1))
    asked = [[1], [1, 2], [1, 2, 3, 4]]
    loads = table_loads(problem, lambda i: ids_bags(asked[i]))
    assert whole_table_bound_ms(loads, problem, DEVICE_MOVES) == pytest.approx(2.0 * (7 - 4 - 2 / 2), rel=1e-6)


@given(
    points=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    prices=st.lists(st.floats(0, 2), min_size=1, max_size=5),
)
def test_the_hull_has_the_best_point_at_every_price(points: list[int], prices: list[float]) -> None:
    x, y = np.arange(len(points), dtype=np.float64), np.cumsum(points) / max(1, sum(points))
    corners = upper_hull(x, y)
    for price in prices:
        value = y - price * x / len(x)
        assert value[corners].max() == pytest.approx(value.max(), abs=1e-12)
    slopes = np.diff(y[corners]) / np.diff(x[corners])
    assert (np.diff(slopes) <= 1e-12).all()


@given(
    gains=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 9), min_size=5, max_size=5),
    capacity=st.integers(0, 30),
)
def test_what_memory_saves_is_the_optimum_over_parts_of_tables(
    gains: list[int], sizes: list[int], capacity: int
) -> None:
    lines = [Curve.line(size) for size in sizes[: len(gains)]]
    saved = largest_saving(np.array(gains, dtype=np.float64), lines, np.ones(len(gains)), float(capacity))
    left, best = float(capacity), 0.0
    for gain, size in sorted(zip(gains, sizes), key=lambda pair: -pair[0] / pair[1]):
        best += gain * min(1.0, left / size)
        left = max(0.0, left - size)
    assert saved == pytest.approx(best, abs=1e-9)


def test_a_row_never_seen_is_never_on_a_curve() -> None:
    curve = hottest_first(np.array([0, 3]), np.array([1, 2]), 100)
    assert (curve.rows.tolist(), curve.share.tolist()) == ([0, 1, 4], [0, pytest.approx(1 / 3), 1])
    silent = any_rows(np.zeros(0, dtype=np.int64), 100)
    assert silent.rows.tolist() == [0, 100]


@pytest.mark.parametrize(
    ("tiers", "columns", "kept"),
    [("hu", ((0, 4), (0, 4)), True), ("uh", ((0, 4), (0, 4)), False), ("uh", ((0, 4), (4, 8)), True)],
)
def test_which_plans_keep_the_order(tiers: str, columns: tuple[tuple[int, int], ...], kept: bool) -> None:
    segments = tuple(
        Segment(
            table="t", row_start=10 * i, row_stop=10 * i + 10, column_start=start, column_stop=stop,
            placement=OnRank(rank=i, tier=Tier.UVM if tier == "u" else Tier.HBM),
        )
        for i, (tier, (start, stop)) in enumerate(zip(tiers, columns))
    )  # fmt: skip
    assert keeps_order(Plan(world_size=2, segments=segments)) is kept
