"""The proven bound against every enumerated plan, and against the search that stands above it."""

import importlib
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.base.arrays import Floats
from shardbench.base.errors import Infeasible
from shardbench.cost.bounds import expected_table_loads, lower_bound_ms, pigeonhole_ms, table_loads
from shardbench.cost.costmodel import embedding_ms
from shardbench.cost.load import Load, in_uvm
from shardbench.cost.traffic import count, expect
from shardbench.model.discovery import get_strategy
from shardbench.model.machine import Constants, Machine, Topology
from shardbench.model.plan import NodeSharded, OnRank, Placement, Plan, Replicated, RowWise, Segment, Tier, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget, Move, Role
from shardbench.model.table import DenseShape, Optimizer, Pooling, Table
from shardbench.model.validate import used_moves, validate
from shardbench.workloads.trace import Bags

search = importlib.import_module("shardbench.baselines.search.local_search")
searcher = get_strategy("search")

WORLD = 3
BATCH = 12


def machine(rng: np.random.Generator, world: int = WORLD, hbm: int = 1 << 40) -> Machine:
    """Random constants: caches from useless to huge, host memory slower and faster than HBM."""
    return Machine(
        name="m",
        description="",
        device="cuda",
        topology=Topology(nodes=1, devices_per_node=world, hbm_bytes=hbm, uvm_bytes=1 << 40, host_bytes=0),
        constants=Constants(
            hbm_bytes_per_s=1e9,
            cache_bytes_per_s=float(10 ** rng.uniform(8, 11)),
            cache_bytes=float(10 ** rng.uniform(1, 5)),
            cache_reach_ratio=float(rng.uniform(0.5, 4.0)),
            uvm_bytes_per_s=float(10 ** rng.uniform(7, 10)),
            host_bytes_per_s=1e9,
            gather_efficiency_ratio=float(rng.uniform(0.1, 1.0)),
            access_overhead_bytes=float(rng.choice([0.0, 32.0])),
            sort_bytes=float(rng.choice([0.0, 128.0])),
            launch_s=float(rng.choice([0.0, 1e-6])),
            dispatch_s=float(rng.choice([0.0, 1e-6, 1e-4])),
            bag_step_s=float(rng.choice([0.0, 1e-7, 1e-5])),
            table_s=float(rng.choice([0.0, 1e-6])),
            bag_s=float(rng.choice([0.0, 1e-7])),
            page_s=float(rng.choice([0.0, 1e-6])),
            sequence_row_s=float(rng.choice([0.0, 1e-7])),
            host_launch_s=0.0,
            host_table_s=0.0,
            intra_bytes_per_s=1e9,
            inter_bytes_per_s=1e9,
            intra_latency_s=0.0,
            inter_latency_s=0.0,
            peer_latency_s=0.0,
            dense_flop_per_s=1e9,
            dense_step_s=0.0,
            dense_layer_s=0.0,
        ),
        sources={},
    )


def random_problem(seed: int, tables: int, hbm: int = 1 << 40) -> tuple[Problem, list[Bags]]:
    """A problem with one counted batch; lengths may sit on few samples, rows on few ids."""
    rng = np.random.default_rng(seed)
    shapes = tuple(
        Table(name=f"t{i}", rows=int(rng.integers(WORLD, 60)), dim=4 * int(rng.integers(2, 9))) for i in range(tables)
    )
    bags, profiles = [], []
    for table in shapes:
        lengths = rng.integers(0, 6, BATCH) * (rng.random(BATCH) < rng.choice([0.2, 1.0]))
        values = np.minimum((rng.random(int(lengths.sum())) ** 3 * table.rows).astype(np.int64), table.rows - 1)
        bags.append(Bags(values=values, offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)))
        counts = np.bincount(values, minlength=1)
        profiles.append(AccessProfile.from_counts(counts, rows=table.rows, samples=BATCH, present=BATCH))
    optimizer = list(Optimizer)[seed % 3]
    problem = Problem.of("p", shapes, tuple(profiles), machine(rng, hbm=hbm), batch_size=BATCH, optimizer=optimizer)
    return problem, bags


def unpooled(problem: Problem) -> Problem:
    """The same problem with every other table a sequence."""
    kinds = [Pooling.NONE if i % 2 else Pooling.SUM for i in range(len(problem.tables))]
    return replace(problem, tables=tuple(replace(t, pooling=k) for t, k in zip(problem.tables, kinds)))


def enumerated_ms(load: Load, constants: Constants, world: int, uvm: bool) -> Floats:
    """Slowest device of every placement of whole tables (and tiers, if ``uvm``)."""
    tiers = (load, in_uvm(load)) if uvm else (load,)
    places = list(itertools.product(range(world), range(len(tiers))))
    chosen = np.array(list(itertools.product(range(len(places)), repeat=len(load.bags))))
    rank, tier = np.array(places)[chosen].transpose(2, 0, 1)
    loads = np.array([x.values for x in tiers])[tier, np.arange(len(load.bags))]
    held = np.stack([loads * (rank == device)[..., None] for device in range(world)], axis=1)
    together = Load(held.sum(axis=2))
    together.longest_bag[...] = Load(held).longest_bag.max(axis=2)
    return embedding_ms(together, constants).max(axis=1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 6))
def test_bound_is_below_every_whole_table_plan(seed: int, tables: int) -> None:
    problem, bags = random_problem(seed, tables)
    problem = unpooled(problem) if seed % 2 else problem
    for load in (table_loads(problem, lambda i: bags[i]), expected_table_loads(problem)):
        bound = lower_bound_ms(load, problem.machine, frozenset({Move.TABLE}))
        optimum = enumerated_ms(load, problem.machine.constants, WORLD, uvm=False).min()
        assert 0.0 <= bound <= optimum


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 4))
def test_bound_is_below_every_plan_with_host_memory(seed: int, tables: int) -> None:
    problem, bags = random_problem(seed, tables)
    load = table_loads(problem, lambda i: bags[i])
    bound = lower_bound_ms(load, problem.machine, frozenset({Move.TABLE, Move.UVM}))
    assert bound <= enumerated_ms(load, problem.machine.constants, WORLD, uvm=True).min()


def split_plan(problem: Problem, rng: np.random.Generator) -> Plan:
    """Every table cut at random into rows and columns, each piece placed at random."""
    everyone = tuple(range(WORLD))
    segments = []
    for table in problem.tables:
        rows = sorted({0, table.rows, *rng.integers(0, table.rows, 2).tolist()})
        columns = sorted({0, table.dim, *(4 * rng.integers(0, table.dim // 4, 2)).tolist()})
        for (row, row_stop), (column, column_stop) in itertools.product(
            itertools.pairwise(rows), itertools.pairwise(columns)
        ):
            tier = Tier(str(rng.choice(["hbm", "uvm"])))
            choices: list[Placement] = [OnRank(rank=int(rng.integers(WORLD)), tier=tier), Replicated(ranks=everyone)]
            if row_stop - row >= WORLD:
                choices += [RowWise(ranks=everyone, tier=tier), NodeSharded(tier=tier)]
            segments.append(
                Segment(
                    table=table.name,
                    row_start=row,
                    row_stop=row_stop,
                    column_start=column,
                    column_stop=column_stop,
                    placement=choices[int(rng.integers(len(choices)))],
                )
            )
    return Plan(world_size=WORLD, segments=tuple(segments))


def test_the_tail_of_one_table_and_the_hosts_dispatch_are_in_the_bound() -> None:
    problem, bags = random_problem(4, 3)
    loads = table_loads(problem, lambda i: bags[i])
    for name, floor_s in (("bag_step_s", 2.0 * loads.longest_bag.max()), ("dispatch_s", 2.0)):
        constants = replace(problem.machine.constants, **{name: 2.0})
        slow = replace(problem.machine, constants=constants)
        whole = lower_bound_ms(loads, slow, frozenset({Move.TABLE}))
        assert 1e3 * floor_s * (1 - 1e-6) <= whole <= embedding_ms(loads, constants).max()
        split = lower_bound_ms(loads, slow, frozenset({Move.TABLE, Move.ROWS}))
        assert split <= whole
        assert (split > 1e3) == (name == "dispatch_s")  # the parts of a long bag may be short


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 4))
def test_bound_is_below_random_splits(seed: int, tables: int) -> None:
    problem, bags = random_problem(seed, tables)
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM})
    plan = split_plan(problem, np.random.default_rng(seed))
    validate(plan, problem, moves)
    for load, traffic in (
        (table_loads(problem, lambda i: bags[i]), count(plan, problem, lambda i: bags[i], DenseShape())),
        (expected_table_loads(problem), expect(plan, problem)),
    ):
        bound = lower_bound_ms(load, problem.machine, moves)
        assert 0.0 <= bound <= embedding_ms(traffic.load, problem.machine.constants).max()


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
    made = machine(np.random.default_rng(0))
    plain = {"access_overhead_bytes": 0.0, "sort_bytes": 0.0, "launch_s": 0.0, "hbm_bytes_per_s": 1e15}
    plain |= {"dispatch_s": 0.0, "bag_step_s": 0.0}
    made = replace(made, constants=replace(made.constants, **plain, **rates))
    problem = Problem.of("p", tables, (profile,) * len(tables), made, batch_size=BATCH)
    segments = tuple(
        Segment(table=t.name, row_stop=t.rows, column_stop=t.dim, placement=place) for t, place in zip(tables, places)
    )
    plan = Plan(world_size=WORLD, segments=segments)
    load = count(plan, problem, lambda i: bags[i], DenseShape()).load
    moves = used_moves(plan, problem) | {Move.TABLE, Move.ROWS}
    bound = lower_bound_ms(table_loads(problem, lambda i: bags[i]), made, moves)
    return float(embedding_ms(load, made.constants).max()), bound


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
    made = machine(np.random.default_rng(0), world)
    constants = replace(
        made.constants,
        hbm_bytes_per_s=1e3,
        gather_efficiency_ratio=1.0,
        cache_bytes_per_s=1.0,
        table_s=0.0,
        bag_s=0.0,
        page_s=0.0,
        launch_s=0.0,
        dispatch_s=0.0,
        bag_step_s=0.0,
    )
    return replace(made, constants=constants)


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
    bound = lower_bound_ms(load, linear_machine(world), frozenset({Move.TABLE}))
    assert bound == pytest.approx(expected, rel=1e-6)


def test_pigeonhole_by_hand() -> None:
    # Three devices: 9; or one of them holds two of 9, 8, 7, 6: 6 + 7; or three of seven: 4 + 4 + 4.
    assert pigeonhole_ms(np.array([9.0, 8.0, 7.0, 6.0]), 3) == 13.0
    assert pigeonhole_ms(np.array([9.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0]), 3) == 12.0


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
    assert lower_bound_ms(loads, problem.machine, frozenset({Move.TABLE, move})) == 0.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 5))
def test_bound_search_and_start_are_ordered(seed: int, tables: int) -> None:
    problem, _ = random_problem(seed, tables)
    plan = searcher.plan(problem, Budget(), 0)
    load = expected_table_loads(problem)
    found = float(embedding_ms(expect(plan, problem).load, problem.machine.constants).max())
    optimum = enumerated_ms(load, problem.machine.constants, WORLD, uvm=tables < 5).min()
    assert found == pytest.approx(plan.notes["slowest_ms"], rel=1e-9)
    assert plan.notes["lower_bound_ms"] <= optimum
    assert found <= float(plan.notes["start_ms"]) * (1 + 1e-9)
    if tables < 5:
        assert optimum <= found * (1 + 1e-9)


def test_search_beats_its_greedy_start_and_every_greedy_strategy() -> None:
    problem, _ = random_problem(3, 30)
    slowest = {}
    for name in ("search", "greedy-size", "greedy-lookup", "greedy-size-lookup", "shuffle"):
        plan = get_strategy(name).plan(problem, Budget(), 0)
        slowest[name] = float(embedding_ms(expect(plan, problem).load, problem.machine.constants).max())
    assert slowest["search"] == min(slowest.values())


def test_search_keeps_to_the_capacity_and_swaps_tiers() -> None:
    problem, _ = random_problem(8, 12)
    sizes = [problem.weight_bytes(t) for t in problem.tables]
    tight = replace(problem.topology, hbm_bytes=max(*sizes, sum(sizes) // 6))
    constants = replace(problem.machine.constants, uvm_bytes_per_s=1e6)
    slow_host = replace(problem.machine, topology=tight, constants=constants)
    problem = replace(problem, topology=tight, machine=slow_host)
    plan = searcher.plan(problem, Budget(), 0)
    memory = validate(plan, problem, searcher.moves)
    assert memory.uvm.sum() > 0
    tables = search.Tables(expected_table_loads(problem), problem, constants)
    begun = search.start(tables, np.arange(12))
    assert begun is not None
    before = begun.slowest_ms
    after = search.improve(begun, search.Effort(candidates=10**6, deadline=float("inf")))
    assert after.slowest_ms < before
    assert float(plan.notes["slowest_ms"]) <= after.slowest_ms * (1 + 1e-9)


def test_local_optimum_has_no_better_neighbour() -> None:
    problem, _ = random_problem(11, 7)
    tables = search.Tables(expected_table_loads(problem), problem, problem.machine.constants)
    begun = search.start(tables, np.arange(7))
    assert begun is not None
    best = search.improve(begun, search.Effort(candidates=10**6, deadline=float("inf")))
    for table, rank, tier in itertools.product(range(7), range(WORLD), range(2)):
        moved = search.State(tables, best.rank.copy(), best.tier.copy())
        moved.put(table, rank, tier)
        assert moved.refresh().slowest_ms >= best.slowest_ms * (1 - 1e-9)


def test_search_does_not_compete_and_declines_what_fits_nowhere() -> None:
    assert searcher.role is Role.SEARCH
    problem, _ = random_problem(2, 4)
    nothing = replace(problem.topology, hbm_bytes=8, uvm_bytes=8)
    problem = replace(problem, topology=nothing, machine=replace(problem.machine, topology=nothing))
    with pytest.raises(Infeasible, match="none of"):
        searcher.plan(problem, Budget(), 0)
