"""Column shards of tasks: the counts of a real plan's, widened tables, sets, the bound."""

from dataclasses import replace

import numpy as np
import pytest
from learned_tasks import random_task
from problems import RandomWorkload, machine, table_loads

from shardbench.base.errors import BadInput
from shardbench.baselines.neuroshard.shards import augmented, shard_loads
from shardbench.cost.load import Load
from shardbench.cost.traffic import count, expect
from shardbench.learned.tasks.bound import placement_bound_ms, shards_bound_ms
from shardbench.learned.tasks.oracle import NO_TABLE, SimulatedOracle, costs_of
from shardbench.learned.tasks.task import Task
from shardbench.model.plan import OnRank, Plan, Segment
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Optimizer, Table
from shardbench.workloads.trace import Split

TABLES, COLUMNS, RANKS = np.array([0, 0, 1, 2, 2, 2, 3]), np.array([8, 8, 32, 4, 4, 8, 64]), np.array(
    [0, 1, 2, 2, 0, 1, 1]
)  # fmt: skip


def counted_task(optimizer=Optimizer.SGD, unpooled=frozenset()):
    workload = RandomWorkload([(500, 16), (90, 32), (4000, 16), (64, 64)], batch_size=60, unpooled=unpooled)
    problem = replace(workload.problem(machine(devices=3)), optimizer=optimizer)
    counted = table_loads(problem, lambda i: workload.bags(Split.TEST, 0, i))
    return workload, replace(Task.of(problem), counted=counted)


def plan_of(problem):
    starts, segments = dict.fromkeys(range(4), 0), []
    for table, columns, rank in zip(TABLES.tolist(), COLUMNS.tolist(), RANKS.tolist()):
        start = starts[table]
        starts[table] += columns
        segments.append(
            Segment(
                table=problem.tables[table].name, row_stop=problem.tables[table].rows, column_start=start,
                column_stop=start + columns, placement=OnRank(rank=rank),
            )
        )  # fmt: skip
    return Plan(world_size=3, segments=tuple(segments))


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("optimizer", list(Optimizer))
@pytest.mark.parametrize("unpooled", [frozenset(), frozenset({2})])
def test_shards_load_what_a_plan_of_them_does(counted, optimizer, unpooled):
    workload, task = counted_task(optimizer, unpooled)
    problem, plan = task.problem, plan_of(task.problem)
    traffic = (
        count(plan, problem, lambda i: workload.bags(Split.TEST, 0, i), workload.dense)
        if counted
        else expect(plan, problem)
    )
    loads = shard_loads(task, TABLES, COLUMNS, counted=counted)
    sums = np.stack([loads.values[rank == RANKS].sum(axis=0) for rank in range(3)])
    longest = [loads.chain[rank == RANKS].max() for rank in range(3)]
    np.testing.assert_allclose(sums[:, :-1], traffic.load.values[:, :-1], rtol=1e-9)
    np.testing.assert_allclose(longest, traffic.load.chain)


def shard_costs(task, tables, columns, ranks):
    """Of a placement of shards under the training profiles."""
    held = Load.zeros(1, task.devices)
    Load(held.values[0]).add_at(ranks, shard_loads(task, tables, columns, counted=False))
    return costs_of(held, task.problem.machine)


def test_whole_tables_are_shards_of_all_columns():
    _, task = counted_task()
    dims = np.array([t.dim for t in task.problem.tables])
    np.testing.assert_allclose(shard_loads(task, np.arange(4), dims, counted=True).values, task.counted.values)
    with pytest.raises(BadInput, match="no counted test batch"):
        shard_loads(random_task(4), np.arange(4), dims, counted=True)


@pytest.mark.parametrize("seed", range(20))
def test_no_placement_of_shards_is_cheaper_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    task = random_task(6, seed, on=machine(nodes=1 + seed % 2, devices=2 + seed % 3), batch_size=24_000)
    bound = shards_bound_ms(task, counted=False)
    assert 0.0 < bound <= placement_bound_ms(task, counted=False) * (1.0 + 1e-6)
    for _ in range(50):
        tables, columns = [], []
        for number, table in enumerate(task.problem.tables):
            ways = int(rng.choice([1, 2, 4]))
            tables += [number] * ways
            columns += [table.dim // ways] * ways
        ranks = rng.integers(0, task.devices, len(tables))
        costs = shard_costs(task, np.array(tables), np.array(columns), ranks)
        assert costs.overall_ms[0] >= bound


def test_the_bound_is_nearly_met_by_an_even_split_of_a_table_whose_rows_nobody_reads_twice():
    rows = 4_000_000
    once = AccessProfile.from_counts(np.ones(rows, dtype=np.int64), rows=rows, samples=rows, present=rows)
    tables = (Table(name="t", rows=rows, dim=64),)
    task = Task.of(Problem.of("once", tables, (once,), machine(devices=2), batch_size=24_000))
    even = shard_costs(task, np.zeros(2, dtype=int), np.full(2, 32), np.arange(2)).overall_ms[0]
    whole = shard_costs(task, np.zeros(1, dtype=int), np.array([64]), np.zeros(1, dtype=int)).overall_ms[0]
    assert 0.97 * even < shards_bound_ms(task, counted=False) <= even < 0.7 * whole


def test_every_different_table_is_widened_once():
    one, other = random_task(5, 0), random_task(4, 1)
    both = augmented([one, other, one], (4, 16, 128))
    assert both.tables == 9 * 3
    assert {t.dim for t in both.problem.tables} == {4, 16, 128}
    for number, table in enumerate(one.problem.tables):
        alike = [
            i
            for i, wide in enumerate(both.problem.tables)
            if wide.rows == table.rows and both.problem.profiles[i] == one.problem.profiles[number]
        ]
        assert len(alike) == 3
        expected = shard_loads(one, np.full(3, number), np.array([4, 16, 128]), counted=False)
        np.testing.assert_allclose(both.expected.values[alike], expected.values)
        assert both.features[alike, 0].tolist() == [4.0, 16.0, 128.0]


def test_sets_take_what_devices_with_them_take():
    task, oracle = random_task(6, on=machine(devices=3)), SimulatedOracle()
    placement = np.array([0, 0, 1, 1, 1, 2])
    sets = np.array([[0, 1, NO_TABLE], [4, 3, 2], [5, NO_TABLE, NO_TABLE], [NO_TABLE] * 3])
    forward_ms, backward_ms = oracle.measure_sets(task, sets)
    costs = oracle.measure(task, placement[None])
    np.testing.assert_allclose(forward_ms[:3], costs.forward_ms[0])
    np.testing.assert_allclose(backward_ms[:3], costs.backward_ms[0])
    assert (forward_ms[3], backward_ms[3]) == (0.0, 0.0)
    assert oracle.calls == 5
    again = np.array([[NO_TABLE, 1, 0]])
    np.testing.assert_allclose(oracle.measure_sets(task, again)[0], forward_ms[:1])
    assert oracle.calls == 6
    for wrong in (np.array([[6]]), np.array([[-2]]), np.array([0])):
        with pytest.raises(BadInput, match="sets must be"):
            oracle.measure_sets(task, wrong)
