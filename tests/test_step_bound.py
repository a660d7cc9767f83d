"""The proven lower bound on the step, by hand and by its parts."""

from dataclasses import replace

import numpy as np
import pytest
from bound_problems import BATCH, ids_bags, machine, of_tables, only

from shardbench.base.errors import BadInput
from shardbench.cost.bounds.demand import BatchRows, Demand, count_demand, expected_demand, grouped
from shardbench.cost.bounds.step import (
    DEVICE_MOVES,
    StepBound,
    dense_all_reduce_s,
    dense_step_ms,
    step_bound,
    whole_tables_ms,
)
from shardbench.cost.bounds.step_calls import COPIES, NODES, WORLD, least_with_roots
from shardbench.cost.bounds.step_relaxation import Prices, Relaxation
from shardbench.cost.costmodel import StepTime, step_time
from shardbench.cost.lookups import CountedLookups
from shardbench.cost.phases import StepPhase
from shardbench.cost.traffic import count
from shardbench.model.machine import Machine
from shardbench.model.plan import GroupSharded, Placement, Plan, Replicated, RowWise, Tier, whole_table, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Pooling, Precision, StepSchedule
from shardbench.workloads.trace import Bags

TABLE = frozenset({Move.TABLE})
DENSE = DenseShape(features=2, bottom=(4,), top=(4, 1))
SAMPLES = BATCH // 2
"""Of a device, of two."""


def linked(nodes: int = 1, devices: int = 2, **constants: float) -> Machine:
    """Two CPU ranks, which hide nothing, on which nothing takes time but what is named, and the dense model."""
    free = {"intra_bytes_per_s": 1e30, "inter_bytes_per_s": 1e30, "intra_latency_s": 0.0, "inter_latency_s": 0.0}
    return only(
        machine(np.random.default_rng(0), nodes, devices, device="cpu"), **(free | {"peer_latency_s": 0.0} | constants)
    )


def counted(problem: Problem, batch: list[Bags]) -> Demand:
    return count_demand(problem, lambda _, i: batch[i], 1)


def beside_dense(bound: StepBound) -> float:
    return bound.ms - bound.dense_ms


def simulated(problem: Problem, batch: list[Bags], plan: Plan) -> StepTime:
    traffic = count(plan, problem, batch.__getitem__, DENSE)
    return step_time(traffic, problem.machine, DENSE, problem.tables, problem.batch_size)


def beside_dense_ms(time: StepTime) -> float:
    """Of a plan without copies."""
    return time.step_ms - time.phases_ms[StepPhase.DENSE] - time.phases_ms[StepPhase.ALL_REDUCE]


def test_exchange_of_whole_tables_by_hand() -> None:
    # 1 ms a byte. Samples 0 to 3, all of the first device, ask once each: 32 bytes of indices, or none where it owns.
    problem = of_tables(2, linked(intra_bytes_per_s=1e3))
    batch = [ids_bags([1, 2, 3, 4])] * 2
    one_way = SAMPLES * 4 * 4
    vectors = 2.0 * one_way
    demand = counted(problem, batch)
    bound = step_bound(demand, problem, DENSE, TABLE)
    # A table a device: each sends its vectors, and lengths; the first sends indices to the second as well, which count
    # half, as links are not duplex. For the bound every table is on the device that asks.
    assert beside_dense(bound) == pytest.approx(SAMPLES * 4 + vectors, rel=1e-6)
    shared = simulated(problem, batch, Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1))))
    assert beside_dense_ms(shared) == pytest.approx(24 + SAMPLES * 4 + 32 / 2 + vectors)
    # Copies take an all-reduce of 10 rows of 16 bytes each, there and back, halved: dearer. With sums of two tables on
    # both devices nothing is saved either.
    assert beside_dense(step_bound(demand, problem, DENSE, TABLE | {Move.REPLICATE})) == pytest.approx(
        SAMPLES * 4 + vectors, rel=1e-6
    )


def test_conversions_of_whole_tables_by_hand() -> None:
    # 1 ms a byte sent, 1 ms a byte copied: all else takes no time.
    rates = {"intra_bytes_per_s": 1e3, "vector_copy_bytes_per_s": 1e3}
    made = replace(linked(**rates), device="cuda")  # whose links are duplex
    problem = replace(of_tables(2, made), exchange=Precision.FP16)
    batch = [ids_bags([1, 2, 3, 4])] * 2
    numbers = BATCH * 4
    # Each rank gives all samples' numbers of its table and gets its samples' of both: as many.
    converted = (7 + 3) * (numbers + numbers)
    sent, copied = 2 * SAMPLES * 4 * 2, 3 * numbers * 4
    shared = simulated(problem, batch, Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1))))
    assert beside_dense_ms(shared) == pytest.approx(24 + SAMPLES * 4 + 32 + sent + copied + converted)
    demand = counted(problem, batch)
    for moves in (TABLE, TABLE | {Move.COLUMNS, Move.ROWS}):
        assert beside_dense(step_bound(demand, problem, DENSE, moves)) == pytest.approx(
            SAMPLES * 4 + sent + copied + converted, rel=1e-6
        )
    # One table: its rank alone converts what it gives, and the pigeonhole principle sees it.
    one = replace(of_tables(1, problem.machine), exchange=Precision.FP16)
    alone = beside_dense(step_bound(counted(one, batch[:1]), one, DENSE, TABLE))
    assert alone == pytest.approx(SAMPLES * 4 + sent + copied + 10 * (numbers + numbers / 2), rel=1e-6)


def test_one_large_table_is_more_than_the_mean() -> None:
    made = replace(linked(intra_bytes_per_s=1e3), device="cuda")
    problem = of_tables(1, made)
    batch = [ids_bags([1] * BATCH)]
    demand = counted(problem, batch)
    plan = Plan(world_size=2, segments=whole_tables(problem.tables, (0,)))
    step = simulated(problem, batch, plan)
    splits = step.phases_ms[StepPhase.INPUT] - SAMPLES * (8 + 4)
    assert splits == pytest.approx(24)
    whole = whole_tables_ms(demand, problem, TABLE, 0.0)
    assert whole == pytest.approx(beside_dense_ms(step) - splits, rel=1e-6)
    columns = Relaxation(demand, problem, TABLE | {Move.COLUMNS})
    assert columns.value_ms(columns.first_prices()) == pytest.approx(whole / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("place", "calls"),
    [(None, 5), (RowWise(ranks=(0, 1)), 5), (Replicated(ranks=(0, 1)), 1)],
)
def test_latencies_of_the_cheapest_kinds_of_calls(place: Placement | None, calls: int) -> None:
    problem = of_tables(3, linked(intra_latency_s=1e-3))
    batch = [ids_bags([1, 2, 3])] * 3
    segments = whole_tables(problem.tables, (0, 1, 0))
    if place is not None:
        segments = tuple(whole_table(table, place) for table in problem.tables)
    time = simulated(problem, batch, Plan(world_size=2, segments=segments))
    dense_ms = dense_step_ms(counted(problem, batch), problem, DENSE)
    assert time.step_ms == pytest.approx(dense_ms + calls)
    moves = {5: DEVICE_MOVES - {Move.REPLICATE}, 1: DEVICE_MOVES}[calls]
    assert beside_dense(step_bound(counted(problem, batch), problem, DENSE, moves)) == pytest.approx(calls)


@pytest.mark.parametrize("scope", [WORLD, NODES, COPIES])
def test_what_is_put_in_place_by_hand(scope: int) -> None:
    # Of everything that takes time there are 4 lookups and 3 bags a device or rank, four owners or two in a node.
    rates = {"vector_copy_bytes_per_s": 16e3, "reduce_bytes_per_s": 16e3}
    made = linked(2, 2, lookup_copy_s=1e-3, length_copy_s=1e-4, bucketise_s=1e-2, **rates)
    problem = of_tables(1, made)
    samples = BATCH // 4
    bags = Bags(values=np.tile([0, 1, 2, 3], 4), offsets=np.cumsum([0, *[2, 1, 1] * 4]))
    everyone, owners, bags_there = tuple(range(4)), {WORLD: 4, NODES: 2, COPIES: 0}[scope], BATCH
    if scope == COPIES:
        place: Placement = Replicated(ranks=everyone)
        sent, bags_there, arrived = 0.0, samples, 0
    else:
        place = RowWise(ranks=everyone) if scope == WORLD else GroupSharded()
        sent = 4 * 1.0 + owners * samples * 0.1 + 4 * 10.0
        bags_there = BATCH if scope == WORLD else BATCH // 2
        # All vectors but those of the rank's own samples arrive as parts of sums: of all ranks or of the node's other.
        arrived = (owners - 1) * samples if scope == NODES else 2 * samples + samples
    expected = sent + 4 * 1.0 + bags_there * (0.1 + 3 * 1.0) + arrived * 1.0
    plan = Plan(world_size=4, segments=(whole_table(problem.tables[0], place),))
    assert beside_dense_ms(simulated(problem, [bags], plan)) == pytest.approx(expected)
    relaxation = Relaxation(counted(problem, [bags]), problem, DEVICE_MOVES)
    costs = relaxation._costs(relaxation.first_prices())[relaxation._sets.index(frozenset({scope}))]
    assert 1e3 * costs.sum() / 4 == pytest.approx(expected)


def test_placing_of_whole_tables_modules_and_the_floor_by_hand() -> None:
    rates = {"lookup_copy_s": 1e-3, "length_copy_s": 1e-4, "vector_copy_bytes_per_s": 16e3, "module_s": 1e-2}
    problem = of_tables(2, linked(bucketise_s=1.0, reduce_bytes_per_s=1.0, **rates))
    bags = Bags(values=np.array([0, 1, 2, 3]), offsets=np.repeat([0, 1, 2, 3, 4], [1, 3, 3, 3, 3]))
    plan = Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1)))
    step = beside_dense_ms(simulated(problem, [bags] * 2, plan))
    # Sent and arrived: 4 lookups and two tables' or one table's lengths; vectors once forward and twice backward.
    assert step == pytest.approx(10.0 + 2 * (4 * 1.0 + 12 * 0.1) + 3 * BATCH * 1.0)
    demand = counted(problem, [bags] * 2)
    for moves in (TABLE, TABLE | {Move.COLUMNS, Move.ROWS}):
        assert beside_dense(step_bound(demand, problem, DENSE, moves)) == pytest.approx(step, rel=1e-6)
    one = of_tables(1, problem.machine)
    alone = Plan(world_size=2, segments=whole_tables(one.tables, (0,)))
    whole = step_bound(counted(one, [bags]), one, DENSE, TABLE)
    assert beside_dense(whole) == pytest.approx(beside_dense_ms(simulated(one, [bags], alone)), rel=1e-6)
    slow = replace(problem.machine, constants=replace(problem.machine.constants, step_floor_s=1.0))
    floored = replace(problem, machine=slow)
    assert step_bound(demand, floored, DENSE, DEVICE_MOVES).ms == pytest.approx(1e3)
    assert simulated(floored, [bags] * 2, plan).step_ms == pytest.approx(1e3)


def test_two_kinds_of_calls_only_where_they_pay() -> None:
    # One table of few rows and many lookups: its copies save more than the call more.
    made = linked(intra_latency_s=1e-6, intra_bytes_per_s=1e3)
    hot, cold = of_tables(2, made, rows=10**6).tables
    profile = AccessProfile(rows=2, samples=1, present=1, counts=(100,), row_counts=(2,))
    other = AccessProfile(rows=10**6, samples=3, present=1, counts=(1,), row_counts=(1,))
    problem = Problem.of("p", (replace(hot, rows=2), cold), (profile, other), made, batch_size=BATCH)
    demand = expected_demand(problem)
    with_copies = beside_dense(step_bound(demand, problem, DENSE, DEVICE_MOVES))
    without = beside_dense(step_bound(demand, problem, DENSE, DEVICE_MOVES - {Move.REPLICATE}))
    # Of the hot table: its indices, lengths and vectors, less the all-reduce of its two rows.
    exchanged = (200 * BATCH * 8 / 2 + SAMPLES * 4 + 2 * SAMPLES * 16) / 2
    assert without - with_copies == pytest.approx(exchanged - 2 * 2 * 16 / 2 - 1e-3, rel=1e-6)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_dense_model_is_the_same_for_every_plan(pooling: Pooling) -> None:
    problem = of_tables(2, machine(np.random.default_rng(1), 1, 2), pooling)
    batch = [ids_bags([1, 2, 2, 5]), ids_bags([7])]
    for ranks in [(0, 1), (1, 1)]:
        time = simulated(problem, batch, Plan(world_size=2, segments=whole_tables(problem.tables, ranks)))
        expected = time.phases_ms[StepPhase.DENSE] + time.phases_ms[StepPhase.ALL_REDUCE]
        assert dense_step_ms(counted(problem, batch), problem, DENSE) == pytest.approx(expected)


def test_memory_has_a_price() -> None:
    # Only host memory takes time, 1 ms for 16 bytes; two of five rows fit (test_bounds.test_capacity_by_hand).
    made = linked(uvm_bytes_per_s=16e3)
    made = replace(made, topology=replace(made.topology, hbm_bytes=16))
    problem = of_tables(1, made)
    batches = [ids_bags([1, 1, 2, 4, 9]), ids_bags([1])]
    demand = count_demand(problem, lambda n, _: batches[n], 2)
    bound = step_bound(demand, problem, DENSE, DEVICE_MOVES)
    assert beside_dense(bound) == pytest.approx((5 - 3) * 2.0 / 2 / 2, rel=1e-3)
    assert bound.prices.hbm_byte > 0.0
    first = step_bound(demand, problem, DENSE, DEVICE_MOVES, ordered=True)
    assert beside_dense(first) == pytest.approx((5 - 2) * 2.0 / 2 / 2, rel=1e-3)


def test_any_prices_prove_less_than_the_best() -> None:
    problem = of_tables(3, machine(np.random.default_rng(5), 2, 2))
    demand = counted(problem, [ids_bags([1, 2, 3, 4, 4, 4]), ids_bags([5, 5]), ids_bags([0] * BATCH)])
    bound = step_bound(demand, problem, DENSE, DEVICE_MOVES)
    relaxation = Relaxation(demand, problem, DEVICE_MOVES, reduced_s=dense_all_reduce_s(problem, DENSE))
    assert bound.dense_ms + relaxation.value_ms(bound.prices) == pytest.approx(bound.ms)
    rng = np.random.default_rng(0)
    for _ in range(20):
        weights = dict(zip(("forward", "lookups", "vectors", "sums", "rows", "backward"), rng.random(6).tolist()))
        assert relaxation.value_ms(Prices(**weights)) <= relaxation.value_ms(bound.prices) * (1 + 1e-3)


def test_near_lookups_by_hand() -> None:
    # The two devices ask for rows 0, 2, 4 and 1, 3, 5: dealt over both every lookup is near, on one rank half of them.
    offsets = np.minimum(np.arange(BATCH + 1), 3) + np.clip(np.arange(BATCH + 1) - SAMPLES, 0, 3)
    bags = Bags(values=np.array([0, 2, 4, 1, 3, 5]), offsets=offsets.astype(np.int64))
    problem = of_tables(1, linked())
    assert counted(problem, [bags]).near.most.tolist() == [[6.0, 6.0, 6.0]]
    demand = counted(problem, [bags])
    assert demand.sources.tolist() == [[3.0, 3.0]]
    across = of_tables(1, linked(nodes=2, devices=1))
    assert counted(across, [bags]).near.most.tolist() == [[6.0, 6.0, 6.0]]


def test_rows_of_about_equal_lookups_are_two_entries() -> None:
    rng = np.random.default_rng(3)
    lookups, ranks = rng.geometric(0.01, 500).astype(np.float64), rng.integers(0, 8, 500).astype(np.float64)
    entries = grouped(lookups, np.ones(500), ranks, ranks)
    assert entries.shape[1] < 200
    assert entries[1].sum() == pytest.approx(500)
    assert (entries[0] * entries[1]).sum() == pytest.approx(lookups.sum())
    # Concave in the lookups and growing with the ranks, as the cheapest of several lines is.
    for slope, fixed in [(1.0, 50.0), (0.3, 10.0), (2.0, 500.0)]:
        exact = np.minimum(slope * lookups, fixed + 3.0 * ranks).sum()
        least = (entries[1] * np.minimum(slope * entries[0], fixed + 3.0 * entries[2])).sum()
        assert 0.6 * exact < least <= exact * (1 + 1e-12)


def test_ranks_and_nodes_that_ask_for_a_row() -> None:
    # Row 3 is asked for by all four ranks, row 1 by the two of the second node, row 0 twice by one.
    problem = of_tables(1, linked(nodes=2, devices=2))
    samples = BATCH // 4
    values = [3, 0, 0, 3, 3, 1, 3, 1]
    offsets = np.zeros(BATCH + 1, dtype=np.int64)
    for rank, asked in enumerate((3, 1, 2, 2)):
        offsets[rank * samples + 1 :] += asked
    asked_rows = BatchRows.of(CountedLookups(Bags(values=np.array(values), offsets=offsets), 10, 4))
    assert asked_rows.ids.tolist() == [0, 1, 3]
    ranks, nodes = asked_rows.spread(problem.topology)
    assert (ranks.tolist(), nodes.tolist()) == ([0, 1, 3], [0, 0, 1])


def test_counts_of_rows() -> None:
    problem = of_tables(1, linked())
    batches = [ids_bags([1, 1, 2, 4]), ids_bags([1, 9])]
    demand = count_demand(problem, lambda n, _: batches[n], 2)
    counts = demand.counts
    assert (counts.lookups @ counts.rows, counts.rows.sum()) == (3.0, 4.0)
    assert sorted(set(counts.lookups.tolist())) == [0.5, 1.5]


def test_nothing_is_proven_about_hosts_and_schedules() -> None:
    problem = of_tables(1, linked())
    demand = counted(problem, [ids_bags([1])])
    for move in (Move.HOST, Move.SCHEDULE):
        with pytest.raises(BadInput, match=f"nothing is proven about plans with {move}"):
            step_bound(demand, problem, DENSE, TABLE | {move})
    with pytest.raises(BadInput, match="no plan can be made with the moves uvm"):
        step_bound(demand, problem, DENSE, frozenset({Move.UVM}))


@pytest.mark.parametrize(("hbm_bytes", "tier", "ms"), [(160, Tier.HBM, 0.0), (159, Tier.UVM, 2 * 2.0)])
def test_tiers_of_whole_tables_are_counted(hbm_bytes: int, tier: Tier, ms: float) -> None:
    # Tables of 160 bytes: each fits into a device's HBM, or is in host memory, of which a row read and updated is 2 ms.
    made = linked(uvm_bytes_per_s=16e3)
    problem = of_tables(2, replace(made, topology=replace(made.topology, hbm_bytes=hbm_bytes)))
    batch = [ids_bags([1, 2]), ids_bags([3, 4])]
    plan = Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1), (tier, tier)))
    assert beside_dense_ms(simulated(problem, batch, plan)) == pytest.approx(ms, abs=1e-9)
    bound = step_bound(counted(problem, batch), problem, DENSE, TABLE | {Move.UVM})
    assert beside_dense(bound) == pytest.approx(ms, abs=1e-9, rel=1e-6)


def test_chunks_of_whole_tables_by_hand() -> None:
    # 1 ms a byte and a call, on GPUs. The first device's samples ask, so that all lookups may be near.
    made = replace(linked(intra_bytes_per_s=1e3, intra_latency_s=1e-3), device="cuda")
    problem = of_tables(2, made)
    batch = [ids_bags([1, 2, 3, 4])] * 2
    lengths, vectors = SAMPLES * 4.0, SAMPLES * 4 * 4.0
    # Beside no all-reduce of the dense model.
    tables = Relaxation(counted(problem, batch), problem, TABLE)
    bound = tables.value_ms(tables.first_prices())
    both_ways = 2.0 * (1.0 + vectors + np.sqrt(vectors))
    assert bound == pytest.approx(3.0 + lengths + np.sqrt(2.0 * lengths) + both_ways, rel=1e-3)
    shared = simulated(problem, batch, Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1))))
    splits, sent = 24.0 + np.sqrt(24.0), lengths + 32.0
    assert beside_dense_ms(shared) == pytest.approx(3.0 + splits + sent + np.sqrt(2.0 * sent) + both_ways)


def test_links_of_a_pipeline_by_hand() -> None:
    # Nothing takes time but calls, 1 ms each. Lookups are exchanged in 3 ms, when no other exchange goes on, vectors in
    # 1 ms forward and 1 ms beside an all-reduce of 4 ms.
    made = replace(linked(intra_latency_s=1e-3), device="cuda")
    problem = replace(of_tables(3, made), schedule=StepSchedule.PIPELINED)
    batch = [ids_bags([1, 2, 3])] * 3
    plan = Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1, 0)))
    traffic = count(plan, problem, batch.__getitem__, DENSE)
    time = step_time(traffic, made, DENSE, problem.tables, BATCH, schedule=StepSchedule.PIPELINED)
    bound = step_bound(counted(problem, batch), problem, DENSE, TABLE)
    assert time.step_ms == pytest.approx(3.0 + 1.0 + 4.0 + bound.dense_ms)
    assert bound.ms == pytest.approx(time.step_ms)


def test_roots_of_sums_are_no_more_than_the_best_choice() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        sets, tables = int(rng.integers(1, 4)), int(rng.integers(1, 6))
        costs, sent = rng.random((sets, tables)), 10 ** rng.uniform(-3, 1, (3, sets, tables))
        sent *= rng.random((3, sets, tables)) < 0.7
        roots = 10 ** rng.uniform(-2, 1, 3)
        choices = np.indices((sets,) * tables).reshape(tables, -1).T
        at = np.arange(tables)
        exact = costs[choices, at].sum(axis=1) + roots @ np.sqrt(sent[:, choices, at].sum(axis=2))
        found = least_with_roots(costs, sent, roots)
        assert exact.min() * 0.998 <= found <= exact.min() * (1.0 + 1e-12)
