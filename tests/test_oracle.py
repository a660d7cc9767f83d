"""The simulated oracle against a real plan's traffic; the bound and best_found against every placement."""

import itertools
from dataclasses import replace

import bound_problems
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_tasks import random_problem, random_task
from problems import RandomWorkload, machine, table_loads

from shardbench.base.errors import BadInput, Infeasible
from shardbench.cost.collectives import collective_s, latencies_s, vectors_exchange_s
from shardbench.cost.costmodel import backward_s, forward_s
from shardbench.cost.load import Load
from shardbench.cost.traffic import count, expect
from shardbench.learned.tasks.best_found import best_found
from shardbench.learned.tasks.bound import least_exchange_ms, placement_bound_ms
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task, part, training_tasks
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.table import DenseShape
from shardbench.workloads.trace import Split


@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (2, 3), (1, 1)])
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_costs_are_the_cost_models(shape, seed):
    on = machine(nodes=shape[0], devices=shape[1])
    problem = random_problem(7, seed, on=on)
    placement = np.random.default_rng(seed).integers(0, problem.world_size, 7)
    costs = SimulatedOracle().measure(Task.of(problem), placement[None])
    plan = Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, placement.tolist()))
    _same(costs, expect(plan, problem), on)


def test_counted_costs_are_the_cost_models():
    workload = RandomWorkload([(500, 16), (90, 32), (4000, 16), (64, 64), (700, 16)], batch_size=60)
    on = machine(devices=3)
    # So slow a bag that the longest one decides the forward pass.
    on = replace(on, constants=replace(on.constants, bag_step_s=1e-3))
    problem = workload.problem(on)
    task = Task(
        problem=problem,
        features=Task.of(problem).features,
        expected=Task.of(problem).expected,
        counted=table_loads(problem, lambda i: workload.bags(Split.TEST, 0, i)),
    )
    placement = np.array([0, 1, 0, 0, 1])
    costs = SimulatedOracle(counted=True).measure(task, placement[None])
    plan = Plan(world_size=3, segments=whole_tables(problem.tables, placement.tolist()))
    traffic = count(plan, problem, lambda i: workload.bags(Split.TEST, 0, i), DenseShape())
    assert traffic.load.chain[0] == max(task.counted.chain[[0, 2, 3]])
    _same(costs, traffic, problem.machine)


def _same(costs, traffic, on):
    np.testing.assert_allclose(costs.forward_ms[0], 1e3 * forward_s(traffic.load, on.constants), rtol=1e-9)
    np.testing.assert_allclose(costs.backward_ms[0], 1e3 * backward_s(traffic.load, on.constants), rtol=1e-9)
    for own, name in (
        (costs.forward_comm_ms, "output_all_to_all"),
        (costs.backward_comm_ms, "backward_all_to_all"),
    ):
        # A device's exchange ends with its own bytes; the collective with the slowest device.
        assert own[0].max() == pytest.approx(1e3 * collective_s(traffic.collectives[name], on), rel=1e-9)
    rows = costs.forward_ms + costs.forward_comm_ms + costs.backward_comm_ms + costs.backward_ms
    assert costs.overall_ms[0] == rows[0].max()


def test_each_device_pays_for_its_own_bytes():
    on = machine(devices=2)
    task = random_task(3, on=on)
    costs = SimulatedOracle().measure(task, np.array([[0, 0, 1]]))
    sent = task.expected.bag_bytes
    fixed = on.constants.intra_latency_s + on.constants.peer_latency_s
    # What one of two devices sends, the other receives.
    bytes_ = max(sent[0] + sent[1], sent[2]) / 2
    expected = 1e3 * (fixed + bytes_ / on.constants.intra_bytes_per_s)
    np.testing.assert_allclose(costs.forward_comm_ms[0], expected)


def test_episodes_are_independent_and_counted():
    task, oracle = random_task(9), SimulatedOracle()
    placements = np.random.default_rng(0).integers(0, 4, (50, 9))
    placements[7] = placements[3]
    together = oracle.measure(task, placements)
    for i in (0, 3, 49):
        alone = SimulatedOracle().measure(task, placements[i : i + 1])
        np.testing.assert_allclose(alone.device_ms[0], together.device_ms[i], rtol=1e-12)
    oracle.measure(task, placements[:5])
    assert oracle.calls == 55


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        (np.zeros((1, 3), dtype=int), r"\[episodes, 4\], got int64 \[1, 3\]"),
        (np.zeros((1, 4)), "must be integers"),
        (np.full((1, 4), 2), "outside 0..1"),
        (np.array([[0, 1, 0, 1], [0, 0, 0, 0]]), "placement 1 puts more than"),
    ],
)
def test_bad_placements_are_refused(placements, message):
    sizes = random_task(4).sizes_bytes
    task = random_task(4, on=machine(devices=2, hbm=int(sizes.sum()) - 1))
    with pytest.raises(BadInput, match=message):
        SimulatedOracle().measure(task, placements)


def test_counted_costs_need_a_counted_batch():
    with pytest.raises(BadInput, match="no counted test batch"):
        SimulatedOracle(counted=True).measure(random_task(2), np.zeros((1, 2), dtype=int))


def any_machine(rng, nodes, devices):
    """Of random constants, links included."""
    base = bound_problems.machine(rng, nodes, devices)
    links = {f"{link}_bytes_per_s": float(10 ** rng.uniform(6, 11)) for link in ("intra", "inter")}
    latencies = {f"{link}_latency_s": float(rng.choice([0.0, 1e-5])) for link in ("intra", "inter", "peer")}
    return replace(base, constants=replace(base.constants, **links, **latencies))


@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (4, 1), (1, 1)])
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_no_placement_beats_the_bound(shape, seed):
    """On machines where kernels, launches or either link may decide, with tables of very unlike vectors and lookups."""
    rng = np.random.default_rng(seed)
    on = any_machine(rng, *shape)
    task = random_task(5, seed, on=on)
    load = Load(task.expected.values.copy())
    load.bag_bytes[:] *= 10.0 ** rng.uniform(-2, 2, 5)
    task = replace(task, expected=load)
    every = np.array(list(itertools.product(range(task.devices), repeat=5)))
    best = float(SimulatedOracle().measure(task, every).overall_ms.min())
    bound = placement_bound_ms(task, counted=False)
    assert 0.0 < bound <= best


@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (4, 1), (3, 2)])
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_no_device_exchanges_in_less_than_the_floor(shape, seed):
    rng = np.random.default_rng(seed)
    on, world = any_machine(rng, *shape), shape[0] * shape[1]
    # Some hold nothing at all, and one may hold nearly everything.
    shares = 10.0 ** rng.uniform(-6, 0, (50, world)) * (rng.random((50, world)) < 0.7)
    shares[:, 0] += 1e-3
    held = 1e9 * shares / shares.sum(axis=1, keepdims=True)
    took_ms = 1e3 * (vectors_exchange_s(held, on) - latencies_s(on).world)
    floor_ms = least_exchange_ms(1e9, on)
    assert floor_ms > 0
    assert took_ms.min() >= floor_ms * (1 - 1e-6)


def test_an_empty_device_waits_for_the_vectors_of_the_others():
    # One table of very many lookups on its own device: the others' vectors still come to it.
    on = machine(devices=4)
    task = random_task(9, 1, on=on)
    load = Load(task.expected.values.copy())
    load.values[0] *= 1e4
    load.bag_bytes[:] = 1e9
    load.bag_bytes[0] = 1.0
    dear = replace(task, expected=load)
    alone = np.array([0, 1, 1, 1, 2, 2, 2, 3, 3])
    cost = SimulatedOracle().measure(dear, alone[None]).overall_ms[0]
    assert placement_bound_ms(dear, counted=False) >= 0.7 * cost


def test_the_bound_is_reached_by_equal_tables():
    # As many equal tables as devices, one each: the largest single table is the optimum.
    one = random_problem(1, 3, on=machine(devices=3))
    tables = tuple(type(one.tables[0])(name=f"t{i}", rows=one.tables[0].rows, dim=one.tables[0].dim) for i in range(3))
    problem = type(one).of("equal", tables, one.profiles * 3, one.machine, batch_size=240, precision=one.precision)
    cost = SimulatedOracle().measure(Task.of(problem), np.array([[0, 1, 2]])).overall_ms[0]
    assert placement_bound_ms(Task.of(problem), counted=False) == pytest.approx(cost, rel=1e-8)


def test_a_part_is_the_task_of_its_tables():
    whole = random_task(6)
    some = np.array([1, 4, 5])
    cut = part(whole, some)
    again = Task.of(cut.problem)
    assert cut.key == again.key
    np.testing.assert_array_equal(cut.sizes_bytes, whole.sizes_bytes[some])


def test_a_single_problem_becomes_many_training_tasks():
    problem = random_problem(9)
    tasks = training_tasks((problem,), 0)
    assert len(tasks) == 50
    assert tasks[0].problem is problem
    assert {task.tables for task in tasks} <= set(range(5, 10))
    assert [t.key for t in tasks] == [t.key for t in training_tasks((problem,), 0)]
    assert [t.key for t in tasks[1:]] != [t.key for t in training_tasks((problem,), 1)[1:]]
    assert len(training_tasks((problem, random_problem(4, 1)), 0)) == 2
    with pytest.raises(BadInput, match="at least one problem"):
        training_tasks((), 0)


def _with_bags(task: Task, seed: int) -> Task:
    longest = np.random.default_rng(seed).integers(0, 4000, task.tables).astype(np.float64)
    counted = Load(task.expected.values.copy())
    counted.chain[:] = longest
    return replace(task, counted=counted)


@pytest.mark.parametrize("seed", range(6))
def test_no_single_move_or_swap_improves_it(seed: int) -> None:
    task = _with_bags(random_task(9, seed, on=machine(devices=3)), seed)
    found, oracle = best_found(task, counted=True), SimulatedOracle(counted=True)
    cost = oracle.measure(task, found[None]).overall_ms[0]
    neighbours = []
    for table, device in itertools.product(range(9), range(3)):
        neighbours.append(np.where(np.arange(9) == table, device, found))
    for a, b in itertools.combinations(range(9), 2):
        swapped = found.copy()
        swapped[[a, b]] = found[[b, a]]
        neighbours.append(swapped)
    costs = oracle.measure(task, np.array(neighbours)).overall_ms
    assert costs.min() >= cost * (1 - 1e-9)
    assert cost >= placement_bound_ms(task, counted=True)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_near_the_best_of_all_placements(seed: int) -> None:
    task = _with_bags(random_task(7, seed, on=machine(devices=2)), seed)
    oracle = SimulatedOracle(counted=True)
    every = np.array(list(itertools.product(range(2), repeat=7)))
    best = oracle.measure(task, every).overall_ms.min()
    assert oracle.measure(task, best_found(task, counted=True)[None]).overall_ms[0] <= 1.05 * best


def test_memory_is_kept_to() -> None:
    task = random_task(8, 1)
    largest = int(task.sizes_bytes.max())
    tight = machine(devices=4, hbm=max(largest, int(1.15 * task.sizes_bytes.sum() / 4)))
    squeezed = Task.of(replace(task.problem, machine=tight, topology=tight.topology))
    assert not squeezed.over_capacity(best_found(squeezed, counted=False)[None]).any()
    none = machine(devices=4, hbm=largest - 1)
    with pytest.raises(Infeasible, match="greedy starts"):
        best_found(Task.of(replace(task.problem, machine=none, topology=none.topology)), counted=False)
