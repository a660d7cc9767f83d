"""The cost model: formulas as arithmetic, monotonicity, what fusing tables costs, the longest bag."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import CONSTANTS, RandomWorkload, machine
from random_plans import random_plans

from shardbench.cost.collectives import (
    Calls,
    Collective,
    all_reduce_s,
    calls_latency_s,
    captured,
    collective_s,
    group_reduction,
    pairwise,
    switched_ratio,
)
from shardbench.cost.costmodel import (
    backward_s,
    backward_work_s,
    bound_by,
    embedding_ms,
    estimate,
    forward_s,
    forward_work_s,
    hit_share,
    host_backward_s,
    host_forward_s,
    step_time,
    synchronisation_s,
    work_ms,
)
from shardbench.cost.load import Load, in_uvm, longest_lookups, segment_load
from shardbench.cost.lookups import CountedLookups
from shardbench.cost.phases import StepPhase
from shardbench.cost.published.gpus import shared
from shardbench.cost.traffic import Synchronisation, count
from shardbench.model.machine import Constants, Machine, NcclConstants
from shardbench.model.plan import Host, Plan, Tier, whole_tables
from shardbench.model.table import DenseShape, Optimizer, Precision
from shardbench.workloads.trace import Bags, Split

# Memory 1000 B/s, gathering at half of it, the cache at 4000 B/s with a reach of 2 x 100 B.
PLAIN = replace(
    CONSTANTS, hbm_bytes_per_s=1e3, cache_bytes_per_s=4e3, cache_bytes=100, cache_reach_ratio=2, uvm_bytes_per_s=100,
    gather_efficiency_ratio=0.5, access_overhead_bytes=10, sort_bytes=20, launch_s=3, dispatch_s=0, bag_step_s=0,
    table_s=0, bag_s=0, page_s=0, sequence_row_s=0, sequence_half_rows=0, host_launch_s=0, host_table_s=0,
)  # fmt: skip


def one_table(
    lookups: float, distinct: float, bags: float, dim: int, *, tier: Tier = Tier.HBM,
    optimizer: Optimizer = Optimizer.SGD, longest: float = 0.0, rows: float = 1e6, unpooled: bool = False,
) -> Load:  # fmt: skip
    """A rank with one fp32 table."""
    load = Load.zeros(1)
    alone = segment_load(
        lookups=lookups, distinct=distinct, bags=bags, longest_bag=longest, rows=rows, columns=dim,
        unpooled=unpooled, tier=tier, precision=Precision.FP32, state=optimizer.state_bytes(dim),
    )  # fmt: skip
    load.add_at(0, alone)
    return load


def together(*loads: Load) -> Load:
    """One rank with the tables of all loads."""
    whole = Load.zeros(1)
    for load in loads:
        whole.add_at([0], load)
    return whole


def test_loads_of_one_device_add_up_but_for_the_longest_bag() -> None:
    tables = Load.joined([one_table(10, 4, 5, 5, longest=7), one_table(6, 6, 2, 5, longest=3), one_table(1, 1, 1, 5)])
    devices = Load.zeros(2)
    devices.add_at(np.array([1, 1, 0]), tables)
    devices.add_at(0, one_table(2, 2, 2, 5, tier=Tier.UVM, longest=9)[np.array(0)])
    assert devices.lookups.tolist() == [1, 16]
    assert devices.uvm.lookups.tolist() == [2, 0]
    assert devices.all_lookups.tolist() == [3, 16]
    assert devices.bag_bytes.tolist() == [(1 + 2) * 20, (5 + 2) * 20]
    assert longest_lookups(devices.chain, 5).tolist() == [9, 7]
    assert devices[np.array([1])].values.tolist() == devices.values[1:].tolist()


def test_forward_by_hand() -> None:
    # 10 lookups of 4 rows of 20 bytes in 5 bags: 80 bytes first, 120 again, working set 80 of a reach of 200.
    load = one_table(10, 4, 5, 5)
    hit = 200 / 280
    assert hit_share(np.array([120.0]), load.repeat_set_bytes2, PLAIN)[0] == pytest.approx(hit)
    gather = (80 + 4 * 10) / 500 + 120 * (hit / 4000 + (1 - hit) / 500) + 6 * 10 / 4000
    streams = (10 * 8 + 5 * 20) / 1000
    assert forward_work_s(load, PLAIN)[0] == pytest.approx(gather + streams)
    assert forward_s(load, PLAIN)[0] == pytest.approx(3 + gather + streams)


def test_forward_from_host_memory_by_hand() -> None:
    load = one_table(10, 4, 5, 5, tier=Tier.UVM)
    hit = 200 / 280
    gather = (80 + 4 * 10) / 100 + 120 * (hit / 4000 + (1 - hit) / 100) + 6 * 10 / 4000
    assert forward_work_s(load, PLAIN)[0] == pytest.approx(gather + (10 * 8 + 5 * 20) / 1000)


@pytest.mark.parametrize(
    ("optimizer", "state"), [(Optimizer.SGD, 0), (Optimizer.ROWWISE_ADAGRAD, 4), (Optimizer.ADAM, 40)]
)
def test_backward_by_hand(optimizer: Optimizer, state: int) -> None:
    # 200 gradient bytes, of which the 5 bags' 100 are read first; the other 100 compete with those 100.
    hit = 200 / 300
    gradients = 100 / 500 + 100 * (hit / 4000 + (1 - hit) / 500)
    sort = 20 * 10 / 1000
    hbm = backward_s(one_table(10, 4, 5, 5, optimizer=optimizer), PLAIN)[0]
    assert hbm == pytest.approx(3 + gradients + sort + 2 * (80 + 4 * 10 + 4 * state) / 500)
    # In host memory rows are read and written at once; a row-wise state stays on the device.
    uvm = backward_s(one_table(10, 4, 5, 5, tier=Tier.UVM, optimizer=optimizer), PLAIN)[0]
    moved = 4 * state if state > 4 else 0
    assert uvm == pytest.approx(3 + gradients + sort + (120 + moved) / 100 + 2 * (4 * state - moved) / 500)


def test_in_uvm_moves_what_the_counter_moves() -> None:
    for optimizer in Optimizer:
        moved = in_uvm(one_table(10, 4, 5, 5, optimizer=optimizer))
        counted = one_table(10, 4, 5, 5, tier=Tier.UVM, optimizer=optimizer)
        np.testing.assert_array_equal(moved.values, counted.values)


def test_floors_by_hand() -> None:
    load = one_table(10, 4, 5, 5, longest=7)
    work = forward_work_s(load, PLAIN)[0]
    assert forward_s(load, replace(PLAIN, dispatch_s=50))[0] == 50  # the host is slower than the device
    # A warp waits for each of 7 lookups, and reads 5 columns of each in a thirty-fourth of that time.
    assert forward_s(load, replace(PLAIN, bag_step_s=2))[0] == pytest.approx(3 + work + 7 * 2 * 35 / 34)
    assert backward_s(load, replace(PLAIN, dispatch_s=50, bag_step_s=2))[0] == backward_s(load, PLAIN)[0]
    assert embedding_ms(Load.zeros(2), replace(PLAIN, dispatch_s=50)).tolist() == [0, 0]


def test_what_only_a_gpu_pays_by_hand() -> None:
    # Two launches of the sort, three seconds a bag, gradients at half the rate, a third of UVM's repeats for nothing.
    gpu = replace(
        PLAIN, sort_launch_s=2, warp_s=3, gradient_ratio=0.5, uvm_hit_ratio=1 / 3, uvm_update_ratio=1.5,
        cache_bytes_per_s=1e12,
    )  # fmt: skip
    plain = replace(PLAIN, cache_bytes_per_s=1e12)
    hbm, uvm = one_table(10, 4, 5, 5), one_table(10, 4, 5, 5, tier=Tier.UVM)
    assert forward_s(hbm, gpu)[0] == pytest.approx(forward_s(hbm, plain)[0] + 3 * 5)
    gradients = 100 / 250 + 100 / 3 / 250
    assert backward_s(hbm, gpu)[0] == pytest.approx(3 + 2 + gradients + 200 / 1000 + 2 * (80 + 4 * 10) / 500)
    # 4 rows and two thirds of 6 more, of 20 bytes and 10 wasted ones.
    assert forward_s(uvm, gpu)[0] == pytest.approx(3 + 8 * 30 / 100 + (80 + 100) / 1000 + 3 * 5)
    assert backward_s(uvm, gpu)[0] == pytest.approx(3 + 2 + gradients + 200 / 1000 + 1.5 * (80 + 4 * 10) / 100)


def test_host_lookups_and_copies_by_hand() -> None:
    rates = replace(PLAIN, host_bytes_per_s=200)
    load = one_table(10, 4, 5, 5, optimizer=Optimizer.ADAM)
    assert host_forward_s(load, rates, 100.0)[0] == pytest.approx((200 + 10 * 10 + 80 + 100) / 200 + 100 / 100)
    update = 2 * (80 + 4 * 10 + 4 * 40)
    assert host_backward_s(load, rates, 100.0)[0] == pytest.approx((200 + 20 * 10 + update) / 200 + 100 / 100)
    toy = replace(machine(devices=4), constants=rates)
    copies = Synchronisation(to_device_bytes=80, to_host_bytes=30)
    assert synchronisation_s(copies, toy) == pytest.approx((80 / 4 + 30) / 100)


def test_host_lookups_slow_the_first_rank_of_their_node() -> None:
    workload = RandomWorkload([(50, 8), (90, 8)], 16)
    problem = workload.problem(machine(nodes=2, devices=2))
    at_rank = whole_tables(workload.tables, (3, 3))
    on_host = (at_rank[0], replace(at_rank[1], placement=Host(node=1)))
    times = []
    for segments in (at_rank, on_host):
        plan = Plan(world_size=4, segments=tuple(segments))
        traffic = count(plan, problem, lambda i: workload.bags(Split.TEST, 0, i), DenseShape())
        times.append(step_time(traffic, problem.machine, DenseShape(), workload.tables, 16))
    # One kind of module, whose call every rank makes.
    called_ms = 1e3 * problem.machine.constants.module_s
    assert (times[0].embedding_ms > called_ms).tolist() == [False, False, False, True]
    assert (times[1].embedding_ms > called_ms).tolist() == [False, False, True, True]
    assert times[1].phases_ms["lookup"] == times[1].forward_ms.max()
    assert "synchronise" not in times[1].phases_ms
    copied = replace(traffic, synchronisation=Synchronisation(to_host_bytes=1e10))
    slower = step_time(copied, problem.machine, DenseShape(), workload.tables, 16)
    assert slower.step_ms == pytest.approx(times[1].step_ms + 1e3 * 1e10 / problem.machine.constants.uvm_bytes_per_s)


def test_collective_by_hand() -> None:
    toy = machine(nodes=2, devices=2)
    constants = replace(
        toy.constants,
        intra_bytes_per_s=100,
        inter_bytes_per_s=10,
        inter_latency_s=7,
        intra_latency_s=5,
        peer_latency_s=1,
    )
    toy = replace(toy, constants=constants)
    sent = np.full((4, 4), 20.0)
    # Each of 3 peers costs 1 s; 40 bytes leave the node at 10 B/s, 20 stay in it at 100 B/s.
    assert collective_s(pairwise(sent, toy.topology), toy) == pytest.approx(7 + 3 + 40 / 10)
    assert collective_s(pairwise(np.zeros((4, 4)), toy.topology), toy) == 0
    # Two calls over four ranks, three inside nodes of two, five between two nodes: 2 (7 + 3) + 3 (5 + 1) + 5 (7 + 1).
    calls = Calls(world=2, node=3, cross=5)
    waited = 2 * 10 + 3 * 6 + 5 * 8
    assert collective_s(pairwise(sent, toy.topology).called(calls), toy) == pytest.approx(waited + 40 / 10)
    one_node = replace(toy, topology=replace(toy.topology, nodes=1, devices_per_node=4))
    assert collective_s(pairwise(sent, one_node.topology), one_node) == pytest.approx(5 + 3 + 60 / 100)


def gpus(nodes: int, devices: int, switch_ratio: float | None = None, **latencies: float) -> Machine:
    """GPUs whose links move 100 bytes a second inside a node and 10 across, and wait for nothing but what is named."""
    made = replace(machine(nodes, devices), device="cuda")
    free = dict.fromkeys(("intra_latency_s", "inter_latency_s", "peer_latency_s"), 0.0)
    rates = {"intra_bytes_per_s": 100, "inter_bytes_per_s": 10}
    nccl = None if switch_ratio is None else NcclConstants(call_s=2.0, switch_ratio=switch_ratio)
    return replace(made, constants=replace(made.constants, **(free | rates | latencies)), nccl=nccl)


def test_an_all_reduce_of_gpus_by_hand() -> None:
    latencies = {"intra_latency_s": 5.0, "inter_latency_s": 7.0, "peer_latency_s": 1.0}
    # A ring of two waits for four exchanges of 5 + 1, a tree of four nodes for two levels up and down: 24 + 4 x 7.
    four = gpus(4, 2, **latencies)
    waited, moving = 24 + 28, 2 * 80 / 2 * (3 / 4) / 10
    assert all_reduce_s(80.0, four) == pytest.approx(waited + moving + (waited * moving) ** 0.5)
    assert calls_latency_s(Calls(world=1, node=2, cross=3), four, all_reduce=True) == 52 + 2 * 24 + 3 * 28
    # Other groups of three ranks: rings of a first and two more exchanges; those that span nodes go along the tree.
    assert calls_latency_s(Calls(inner=1, peers=2), four, all_reduce=True) == 4 * (5 + 2)
    assert calls_latency_s(Calls(outer=1, peers=2), four, all_reduce=True) == 4 * (5 + 2) + 28
    # Eight nodes are one level more; nodes of one GPU have no ring, and one node has no tree.
    assert all_reduce_s(0.0, four) == 0.0
    assert calls_latency_s(Calls(world=1), gpus(8, 2, **latencies), all_reduce=True) == 24 + 6 * 7
    assert calls_latency_s(Calls(world=1), gpus(8, 1, **latencies), all_reduce=True) == 6 * 7
    assert calls_latency_s(Calls(world=1), gpus(1, 2, **latencies), all_reduce=True) == 24
    # CPU ranks wait as for any collective: 7 and 1 for each of seven peers.
    assert all_reduce_s(80.0, replace(four, device="cpu")) == pytest.approx(14 + moving)


def test_switches_add_up_what_a_ring_passes_on() -> None:
    # Eight GPUs: 1 + 1 / 8 of the bytes each way, at half of the rate, where a ring takes 2 x 7 / 8.
    assert all_reduce_s(800.0, gpus(1, 8, switch_ratio=0.0)) == pytest.approx(2 * 700 / 100)
    assert all_reduce_s(800.0, gpus(1, 8, switch_ratio=0.8)) == pytest.approx(900 / 80)
    # Of two GPUs a ring takes less, and so it does with slow switches.
    assert switched_ratio(gpus(1, 2, switch_ratio=0.8)) == switched_ratio(gpus(1, 8, switch_ratio=0.1)) == 1.0
    # An exchange adds nothing up.
    sent = np.full((8, 8), 10.0)
    exchange = pairwise(sent, gpus(1, 8).topology)
    assert collective_s(exchange, gpus(1, 8, switch_ratio=0.8)) == collective_s(exchange, gpus(1, 8))
    # Groups of a part of a node go round a ring.
    halves = gpus(1, 8, switch_ratio=0.8)
    reduction: Collective = group_reduction(np.full(8, 800.0), 2.0, np.arange(8).reshape(2, 4), halves.topology)
    in_halves = reduction.called(Calls(inner=1, peers=3))
    assert collective_s(in_halves, halves, all_reduce=True) == pytest.approx(2 * 600 / 100)


def test_a_recorded_graph_waits_for_no_call_of_the_host() -> None:
    eager = gpus(2, 2, switch_ratio=0.0, intra_latency_s=5.0, inter_latency_s=7.0, peer_latency_s=1.0)
    calls = Calls(world=1, node=1)
    assert calls_latency_s(calls, eager) == (7 + 3) + (5 + 1)
    assert calls_latency_s(calls, captured(eager)) == (5 + 3) + (3 + 1)
    assert captured(gpus(1, 2, switch_ratio=0.0, intra_latency_s=1.0)).constants.intra_latency_s == 0.0
    unstated = gpus(1, 2, intra_latency_s=1.0)
    assert captured(unstated) is unstated


def test_a_step_takes_the_slowest_rank_of_every_phase() -> None:
    workload = RandomWorkload([(50, 8), (90, 16), (70, 8)], 16)
    problem = workload.problem(machine())
    plan = Plan(world_size=2, segments=whole_tables(workload.tables, (0, 1, 1)))
    dense = DenseShape(features=4, bottom=(8,), top=(4, 1))
    traffic = count(plan, problem, lambda i: workload.bags(Split.TEST, 0, i), dense)
    time = step_time(traffic, problem.machine, dense, workload.tables, 16)
    assert time.phases_ms["lookup"] == time.forward_ms.max()
    assert time.phases_ms["lookup_backward"] == time.backward_ms.max()
    assert time.step_ms == pytest.approx(sum(time.phases_ms.values()))
    constants = problem.machine.constants
    np.testing.assert_allclose(time.embedding_ms, embedding_ms(traffic.load, constants) + 1e3 * constants.module_s)


tables = st.builds(
    lambda distinct, times, bags, dim, tier, optimizer, more, unpooled: one_table(
        distinct * times, distinct, distinct * times if unpooled else bags, 4 * dim, tier=tier, optimizer=optimizer,
        longest=min(distinct * times, 9), rows=float(distinct + more), unpooled=unpooled,
    ),
    distinct=st.integers(1, 10**6), times=st.floats(1, 100), bags=st.integers(1, 10**6), dim=st.integers(1, 256),
    tier=st.sampled_from([Tier.HBM, Tier.UVM]), optimizer=st.sampled_from(Optimizer),
    more=st.integers(0, 10**7), unpooled=st.booleans(),
)  # fmt: skip
GPU = {
    "sort_launch_s": 1e-4, "warp_s": 3e-10, "gradient_ratio": 0.7, "uvm_hit_ratio": 0.5, "uvm_update_ratio": 1.3,
}  # fmt: skip
constants = st.builds(
    lambda cache, rate, uvm, dispatch, step, cpu: replace(
        CONSTANTS, cache_bytes=cache, cache_bytes_per_s=rate, uvm_bytes_per_s=uvm, dispatch_s=dispatch, bag_step_s=step,
        table_s=cpu * 5e-6, bag_s=cpu * 2e-8, page_s=cpu * 5e-8, sequence_row_s=cpu * 2e-6,
        sequence_half_rows=1e4 * cpu, **(GPU if cpu == 0.0 else {}),
    ),
    cache=st.floats(1e3, 1e9), rate=st.floats(1e9, 1e13), uvm=st.floats(1e9, 2e12),
    dispatch=st.sampled_from([0.0, 1e-4]), step=st.sampled_from([0.0, 1e-6]), cpu=st.sampled_from([0.0, 1.0, 100.0]),
)  # fmt: skip
ROUNDING = 1 + 1e-9


@given(st.lists(tables, min_size=1, max_size=6), constants)
def test_fused_work_is_at_least_the_sum_of_the_single_tables(loads: list[Load], rates: Constants) -> None:
    fused, single = together(*loads), sum(work_ms(load, rates)[0] for load in loads)
    assert work_ms(fused, rates)[0] * ROUNDING >= single
    # With launches: one forward and one backward for all, dispatched once.
    floors = 1e3 * (len(loads) - 1) * (max(rates.launch_s, rates.dispatch_s) + rates.backward_launch_s)
    tails = sum(1e3 * rates.bag_step_s * load.chain[0] for load in loads)
    assert embedding_ms(fused, rates)[0] * ROUNDING >= sum(embedding_ms(x, rates)[0] for x in loads) - floors - tails
    assert embedding_ms(fused, rates)[0] * ROUNDING >= max(embedding_ms(x, rates)[0] for x in loads)


def test_fusing_is_not_additive_either_way() -> None:
    small, large = one_table(8e5, 1e2, 1e3, 16), one_table(8e5, 2e5, 1e3, 128)
    rates = replace(CONSTANTS, launch_s=0.0, dispatch_s=0.0)
    assert work_ms(together(small, large), rates)[0] > 1.01 * (work_ms(small, rates)[0] + work_ms(large, rates)[0])
    tiny = one_table(10, 10, 10, 16)
    assert embedding_ms(together(tiny, tiny), CONSTANTS)[0] < 1.01 * embedding_ms(tiny, CONSTANTS)[0]


@given(
    st.integers(1, 10**5),
    st.integers(0, 10**5),
    st.integers(0, 10**5),
    st.integers(1, 10**5),
    st.integers(1, 128),
    constants,
)
def test_more_lookups_and_more_distinct_rows_never_cost_less(
    distinct: int, repeats: int, more: int, bags: int, dim: int, rates: Constants
) -> None:
    for tier in (Tier.HBM, Tier.UVM):
        less = embedding_ms(one_table(distinct + repeats, distinct, bags, dim, tier=tier, longest=1), rates)[0]
        again = embedding_ms(one_table(distinct + repeats + more, distinct, bags, dim, tier=tier, longest=2), rates)[0]
        assert again * ROUNDING >= less
    lookups = distinct + repeats + more
    narrow = embedding_ms(one_table(lookups, distinct, bags, dim), rates)[0]
    assert embedding_ms(one_table(lookups, min(lookups, distinct + more), bags, dim), rates)[0] * ROUNDING >= narrow


@given(st.integers(1, 10**5), st.floats(1, 50), st.integers(1, 10**5), st.integers(1, 128), constants)
def test_wider_rows_cost_more_but_less_than_in_proportion(
    distinct: int, times: float, bags: int, dim: int, rates: Constants
) -> None:
    plain = replace(rates, launch_s=0.0, sort_launch_s=0.0, dispatch_s=0.0, bag_step_s=0.0, cache_bytes=1e15)
    for tier in (Tier.HBM, Tier.UVM):
        one, two = (one_table(distinct * times, distinct, bags, width, tier=tier) for width in (dim, 2 * dim))
        assert embedding_ms(two, rates)[0] * ROUNDING >= embedding_ms(one, rates)[0]
        assert embedding_ms(two, plain)[0] <= 2 * embedding_ms(one, plain)[0] * ROUNDING


BETTER: dict[str, Callable[[float], float]] = {
    "hbm_bytes_per_s": lambda x: 2 * x, "cache_bytes_per_s": lambda x: 2 * x, "uvm_bytes_per_s": lambda x: 2 * x,
    "gather_efficiency_ratio": lambda x: min(1.0, 2 * x), "cache_bytes": lambda x: 2 * x,
    "cache_reach_ratio": lambda x: 2 * x, "launch_s": lambda x: x / 2, "dispatch_s": lambda x: x / 2,
    "table_s": lambda x: x / 2, "bag_s": lambda x: x / 2, "page_s": lambda x: x / 2, "sequence_row_s": lambda x: x / 2,
    "sequence_half_rows": lambda x: 2 * x,
    "bag_step_s": lambda x: x / 2, "sort_bytes": lambda x: x / 2, "access_overhead_bytes": lambda x: x / 2,
    "sort_launch_s": lambda x: x / 2, "warp_s": lambda x: x / 2, "gradient_ratio": lambda x: min(1.0, 2 * x),
    "uvm_hit_ratio": lambda x: x and (1.0 + x) / 2, "uvm_update_ratio": lambda x: (1.0 + x) / 2,
}  # fmt: skip


@given(tables, tables, constants, st.sampled_from(sorted(BETTER)))
def test_a_better_machine_is_never_slower(one: Load, two: Load, rates: Constants, name: str) -> None:
    better = replace(rates, **{name: BETTER[name](getattr(rates, name))})
    load = together(one, two)
    assert embedding_ms(load, better)[0] <= embedding_ms(load, rates)[0] * ROUNDING


@given(st.lists(tables, min_size=2, max_size=4), constants)
def test_arrays_of_any_shape_are_rated_like_single_devices(loads: list[Load], rates: Constants) -> None:
    stacked = Load(np.array([[x.values[0] for x in loads]] * 2))
    rated = embedding_ms(stacked, rates)
    assert rated.shape == (2, len(loads))
    np.testing.assert_array_equal(rated[1], [embedding_ms(x, rates)[0] for x in loads])
    assert (forward_work_s(stacked, rates) >= 0).all()
    assert (backward_work_s(stacked, rates) >= 0).all()


def test_what_a_cpu_pays_a_table_a_bag_a_page_and_a_sequences_row_by_hand() -> None:
    # 40 of 1,000 rows of 5 fp32 columns: 20,000 bytes are five pages, of which forty rows touch all but 0.002.
    loads = one_table(60, 40, 60, 5, rows=1000, unpooled=True), one_table(60, 40, 10, 5, rows=1000)
    load, pages = together(*loads), 2 * (20_000 / 4096) * (1 - np.exp(-40 * 4096 / 20_000))
    assert (load.tables[0], load.bags[0], load.sequence_rows[0]) == (2, 70, 40)
    assert load.pages[0] == pytest.approx(pages)
    costs = replace(PLAIN, table_s=7, bag_s=11, page_s=13, sequence_row_s=17, sequence_half_rows=60)
    forward, backward = (f(load, costs)[0] - f(load, PLAIN)[0] for f in (forward_s, backward_s))
    assert forward == pytest.approx(2 * 7 + 70 * 11 + pages * 13)
    assert backward == pytest.approx(2 * 7 + 70 * 11 + 2 * pages * 13 + 40 * 17 * 0.4)
    # Bags of no lookup are gone through; an unpooled table without lookups is not.
    assert one_table(0, 0, 4, 5).tables[0] == 1
    assert one_table(0, 0, 0, 5, unpooled=True).tables[0] == 0


def test_longest_bag_by_hand() -> None:
    # Four samples of two ranks ask for [0 1 2], [5 5], [] and [4 4 4 4 1].
    bags = Bags(values=np.array([0, 1, 2, 5, 5, 4, 4, 4, 4, 1]), offsets=np.array([0, 3, 5, 5, 10]))
    lookups = CountedLookups(bags, 6, 2)
    assert lookups.longest_bag(0, 6, 1, 1).tolist() == [[5]]
    assert lookups.longest_bag(0, 6, 2, 1).tolist() == [[3], [5]]
    assert lookups.longest_bag(0, 6, 1, 2).tolist() == [[3, 3]]  # dealt: an even share, rounded up
    assert lookups.longest_bag(1, 3, 2, 1).tolist() == [[2], [1]]
    assert lookups.longest_bag(1, 6, 1, 2).tolist() == [[3, 3]]


def test_what_binds_a_step_by_hand() -> None:
    phases = dict.fromkeys(StepPhase, 0.0)
    phases |= {StepPhase.LOOKUP: 2.0, StepPhase.LOOKUP_BACKWARD: 2.0, StepPhase.OUTPUT: 3.0, StepPhase.DENSE: 1.0}
    assert bound_by(phases, 7.9) == "kernels"
    assert bound_by(phases, 8.1) == "host"
    assert bound_by(phases | {StepPhase.OUTPUT_BACKWARD: 1.5}, 0.0) == "exchange"
    assert bound_by(phases | {StepPhase.DENSE: 5.0}, 0.0) == "dense"


@pytest.mark.parametrize(("devices", "calls"), [(1, 0), (2, 6)])
def test_a_host_starts_every_collective_of_an_eager_step(devices: int, calls: int) -> None:
    workload = RandomWorkload([(50, 8), (90, 8)], 16, pooling=4)
    plan = Plan(world_size=devices, segments=whole_tables(workload.tables, (0, devices - 1)))
    # Splits, lengths, lookups, vectors, gradients, and the dense model's all-reduce.
    expected_ms = 1e3 * (shared()["host_step_s"] + calls * shared()["host_call_s"])
    on = replace(machine(1, devices), device="cuda")
    assert estimate(plan, workload.problem(on)).host_ms == pytest.approx(expected_ms)
    assert estimate(plan, workload.problem(replace(on, device="cpu"))).host_ms == 0


def test_the_longest_bag_is_counted_and_not_expected() -> None:
    workload = RandomWorkload([(50, 8), (90, 8)], 16, pooling=4)
    problem = workload.problem(machine())
    bags = [workload.bags(Split.TEST, 0, i) for i in range(2)]
    plan = Plan(world_size=2, segments=whole_tables(workload.tables, (0, 1)))
    counted = count(plan, problem, lambda i: bags[i], DenseShape()).load
    assert longest_lookups(counted.chain, 8).tolist() == [b.lengths.max() for b in bags]
    fused = Plan(world_size=2, segments=whole_tables(workload.tables, (1, 1)))
    counted = count(fused, problem, lambda i: bags[i], DenseShape()).load
    assert longest_lookups(counted.chain, 8).tolist() == [0, max(b.lengths.max() for b in bags)]
    assert estimate(plan, problem).forward_ms.min() > 0


@given(random_plans())
def test_no_rank_sees_a_longer_bag_than_there_is(case: tuple[RandomWorkload, object, Plan]) -> None:
    workload, problem, plan = case
    bags = [workload.bags(Split.TEST, 0, i) for i in range(len(workload.tables))]
    load = count(plan, problem, lambda i: bags[i], DenseShape()).load  # type: ignore[arg-type]
    widest = max(table.dim for table in workload.tables)
    assert longest_lookups(load.chain, widest).max() <= max(b.lengths.max() for b in bags)
    assert (load.gradient_first_bytes <= load.gradient_bytes).all()
