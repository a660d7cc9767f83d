"""NeuroShard's tasks and their judge; contests, whose trainings are kept and whose cheapest is named."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from problems import RandomWorkload, machine, table_loads

from shardbench.base.errors import BadInput, Unsupported
from shardbench.baselines.neuroshard.reproduction.tasks import CAP_BYTES, MOST_BYTES, WIDTHS, draw_split_tasks
from shardbench.cost.traffic import count
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.pools import Pool, load_pool
from shardbench.learned.tasks.task import Task
from shardbench.model.plan import Host, OnRank, Plan, Replicated, RowWise, Segment, Tier, whole_table, whole_tables
from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import cheapest, fit_strategy, judge, judge_tasks, learner_of, place_all
from shardbench.studies.contests.contest_tasks import best_of, over_rows, ratios, task_table
from shardbench.studies.contests.split_contest import SplitQuestion, UncutLookups, costs_of_traffic, judged_rows
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import answer_of
from shardbench.workloads.trace import Split

WORKLOAD = RandomWorkload([(500, 16), (90, 32), (4000, 16), (64, 64)], batch_size=60)


def task_of(devices=3):
    problem = WORKLOAD.problem(machine(devices=devices))
    return replace(Task.of(problem), counted=table_loads(problem, lambda i: WORKLOAD.bags(Split.TEST, 0, i)))


def bags(table):
    return WORKLOAD.bags(Split.TEST, 0, WORKLOAD.tables.index(table))


def never(table):
    raise AssertionError(f"{table.name} was drawn")


def plan(task, *segments):
    return Plan(world_size=task.devices, segments=segments)


def test_whole_tables_cost_what_the_oracle_says():
    task = task_of()
    ranks = [2, 0, 1, 1]
    costs = SplitQuestion(task, never).judge(plan(task, *whole_tables(task.problem.tables, ranks)))
    oracle = SimulatedOracle(counted=True).measure(task, np.array([ranks]))
    for name in ("forward_ms", "forward_comm_ms", "backward_comm_ms", "backward_ms"):
        np.testing.assert_allclose(getattr(costs, name), getattr(oracle, name), rtol=1e-12)


def test_any_plan_in_device_memory_is_counted():
    """Column shards by totals alone, row-wise and copied tables by their rows: as if all of them were counted."""
    task = task_of()
    one, two, three, four = task.problem.tables
    mixed = plan(
        task,
        Segment(table=one.name, row_stop=500, column_stop=8, placement=OnRank(rank=2)),
        Segment(table=one.name, row_stop=500, column_start=8, column_stop=16, placement=OnRank(rank=0)),
        whole_table(two, Replicated(ranks=(0, 1, 2))),
        whole_table(three, RowWise(ranks=(0, 1, 2))),
        whole_table(four, OnRank(rank=1)),
    )
    drawn = []

    def asked(table):
        drawn.append(table.name)
        return bags(table)

    costs = SplitQuestion(task, asked).judge(mixed)
    assert drawn == [two.name, three.name]
    traffic = count(mixed, task.problem, lambda i: bags(task.problem.tables[i]), WORKLOAD.dense)
    exact = costs_of_traffic(traffic, task.problem.machine)
    np.testing.assert_allclose(costs.device_ms, exact.device_ms, rtol=1e-12)
    no_copies = plan(task, *(whole_table(t, OnRank(rank=0)) for t in task.problem.tables))
    assert costs.backward_comm_ms.min() > SplitQuestion(task, never).judge(no_copies).backward_comm_ms[0, 1]


def test_other_memory_cannot_be_judged():
    task = task_of()
    for place in (OnRank(rank=0, tier=Tier.UVM), Host(node=0)):
        other = plan(task, *(whole_table(t, place) for t in task.problem.tables))
        with pytest.raises(Unsupported, match="device memory"):
            SplitQuestion(task, never).judge(other)


def test_uncut_lookups_know_no_rows():
    known = UncutLookups(task_of(), 0)
    for ask in (
        lambda: known.dealt(0, 9, 3),
        lambda: known.distinct(0, 9, 3),
        lambda: known.distinct_by_group(0, 9, np.array([[0]]), 1),
        lambda: known.longest_bag(0, 9, 2, 1),
    ):
        with pytest.raises(BadInput, match="only totals"):
            ask()


def test_rows_hold_every_task_and_what_was_declined():
    strategy, tasks = get_strategy("greedy-size"), [task_of(), task_of(2)]
    crowded = replace(tasks[0].problem.topology, hbm_bytes=4000 * 16 * 4, uvm_bytes=0)
    problem = replace(tasks[0].problem, topology=crowded)
    full = replace(tasks[0], problem=problem)
    small = replace(crowded, hbm_bytes=1000)
    (row,) = judged_rows(strategy, [*tasks, full], never, Budget(), 0, fit_cpu_s=2.0)
    expected = [SplitQuestion(t, never) for t in tasks]
    for ms, question in zip(row["task_cost_ms"], expected):
        assert ms == pytest.approx(answer_of(question, strategy).judged.overall_ms[0], abs=1e-6)
    assert (row["tasks"], row["infeasible"], row["fit_cpu_s"], row["segments_a_table"]) == (3, 0, 2.0, 1.0)
    none = replace(full, problem=replace(problem, topology=small))
    (row,) = judged_rows(strategy, [tasks[0], none], never, Budget(), 0)
    assert (row["tasks"], row["infeasible"], row["task_cost_ms"][1]) == (1, 1, None)
    with pytest.raises(BadInput, match="no task was placed: all are infeasible"):
        judged_rows(strategy, [none], never, Budget(), 0)


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Pool:
    # As many rows as in the full pools, few lookups.
    return load_pool("test", tmp_path_factory.mktemp("pools"), tables=70, batch_size=64)


def test_tasks_are_as_published(pool):
    tasks = draw_split_tasks(pool, 30, seed=0)
    sizes = [task.sizes_bytes for task in tasks]
    assert all(10 <= task.tables <= 59 and task.devices == 4 for task in tasks)
    assert max(size.sum() for size in sizes) <= MOST_BYTES
    assert max(size.max() for size in sizes) > CAP_BYTES
    assert {table.dim for task in tasks for table in task.problem.tables} == set(WIDTHS)
    assert all(task.capacity_bytes == CAP_BYTES for task in tasks)
    assert len({task.tables for task in tasks}) > 10
    whole = draw_split_tasks(pool, 30, seed=0, whole=True)
    assert max(task.sizes_bytes.max() for task in whole) <= CAP_BYTES
    assert [task.key for task in draw_split_tasks(pool, 3, seed=0)] == [task.key for task in tasks[:3]]
    assert draw_split_tasks(pool, 1, seed=1)[0].key != tasks[0].key


def test_a_tasks_loads_are_its_problems(pool):
    """Expected loads of the task are those of its problem, though the pool's are of another width and precision."""
    for task in draw_split_tasks(pool, 3, seed=0):
        direct = Task.of(task.problem)
        np.testing.assert_allclose(task.expected.values, direct.expected.values, rtol=1e-9, atol=1e-9)
        assert task.key != direct.key, "and a counted batch"
        np.testing.assert_allclose(task.counted.bag_bytes, direct.expected.bag_bytes)


def tasks(count):
    shapes = [(1000, 8), (400, 16), (3000, 32), (50, 8), (700, 16)]
    on = machine(devices=2)
    return tuple(Task.of(RandomWorkload(shapes, batch_size=64, pooling=4, seed=i).problem(on)) for i in range(count))


def counted(some):
    """The same tasks with their expected loads as the counted ones, which a contest judges by."""
    return tuple(Task(problem=t.problem, features=t.features, expected=t.expected, counted=t.expected) for t in some)


def test_a_training_is_kept_with_what_it_took(tmp_path):
    some, budget = tasks(2), Budget(fit_s=30.0)
    # What a first training imports would count as its seconds.
    fit_strategy("dreamshard", some, budget, 0, tmp_path / "imports")
    strategy, cpu_s = fit_strategy("dreamshard", some, budget, 0, tmp_path)
    assert len(list((tmp_path / "training").glob("dreamshard-*.pt"))) == 1
    again, of_that = fit_strategy("dreamshard", some, budget, 0, tmp_path)
    assert of_that > 0.5 * cpu_s, "what a training took does not vanish when it is taken up"
    mine, theirs = (place_all(s, some, budget, 0).judged for s in (strategy, again))
    assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))


def test_who_learns_nothing_keeps_nothing(tmp_path):
    fit_strategy("greedy-size", (), Budget(fit_s=0.5), 0, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="greedy-size does not learn"):
        learner_of("greedy-size")


def test_the_cheapest_is_named_with_its_mean():
    some, names = counted(tasks(3)), ("greedy-size", "greedy-dim", "greedy-lookup")
    budget = Budget(fit_s=1.0)
    of_each = {}
    for name in names:
        strategy, _ = fit_strategy(name, (), budget, 0, None)
        of_each[name] = judge(place_all(strategy, some, budget, 0).judged, some)["kernel_ms"]
    best, best_ms = cheapest(names, some, "kernel_ms")
    assert best_ms == of_each[best] == min(of_each.values())


def test_a_contest_keeps_the_cost_of_every_task():
    some = counted(tasks(3))
    every = place_all(get_strategy("greedy-dim"), some, Budget(fit_s=1.0), 0)
    two_of_three = (*every.judged[:2], None)
    judged = judge_tasks(two_of_three, some)
    row = judged.of_tasks()
    assert row["task_cost_ms"][2] is None
    assert judged.means() == judge(two_of_three, some)
    assert np.mean(row["task_cost_ms"][:2]) == pytest.approx(judged.means()["cost_ms"], abs=1e-6)
    assert np.mean(row["task_kernel_ms"][:2]) == pytest.approx(judged.means()["kernel_ms"], abs=1e-6)
    assert (judged.means()["tasks"], judged.means()["infeasible"]) == (2, 1)
    with pytest.raises(BadInput, match="no task was placed"):
        judge_tasks((None,) * 3, some)


def test_tasks_are_paired_with_seeds_averaged_and_rows_weighted_alike():
    def rows(task, **of_strategies):
        return [
            {"task": task, "split": "test", "strategy": name, "seed": seed, "task_cost_ms": costs}
            for name, seeds in of_strategies.items()
            for seed, costs in enumerate(seeds)
        ]

    table = task_table(
        pd.DataFrame(
            [
                *rows("a", ours=[(1.0, 2.0, 4.0), (3.0, 2.0, None)], dim=[(4.0, 1.0, 8.0)], size=[(9.0, 9.0, 9.0)]),
                *rows("b", ours=[(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)], dim=[(8.0, 2.0, 1.0)]),
            ]
        )
    )
    assert table.columns.tolist() == ["task", "split", "number", "ours", "dim", "size"]
    a, b = (table[table["task"] == name] for name in "ab")
    assert a["ours"].tolist()[:2] == [2.0, 2.0]
    assert (best_of(a, ("size", "dim")), best_of(b, ("size", "dim")), best_of(b, ("size",))) == ("dim", "dim", None)
    assert ratios(a, "dim", "ours").tolist() == [2.0, 0.5], "a task that one seed did not place is no pair"
    # Task 0: 2 on row a and 8 on row b; task 1: a half and 2.
    assert over_rows(table, {"a": "dim", "b": "dim"}, "ours") == pytest.approx([4.0, 1.0])
    assert over_rows(table, {"a": "dim", "c": "dim"}, "ours") == []
