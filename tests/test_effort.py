"""The study of equal effort: calls are what was asked for, placements fit, strategies are compared in pairs."""

import importlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from learned_tasks import random_task
from problems import machine

from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import random_placements

FOLDER = "shardbench.baselines.dreamshard.reproduction"
effort = importlib.import_module(f"{FOLDER}.effort")


@pytest.mark.parametrize("calls", [1, 7, 60])
def test_a_search_asks_as_often_as_it_may_and_never_ends_above_its_start(calls):
    task, costs = random_task(10, 1), SimulatedOracle()
    (start,) = random_placements(task, 1, np.random.default_rng(0))
    oracle = SimulatedOracle()
    found = effort.oracle_search(task, start, oracle, calls, 3)
    assert oracle.calls == calls
    assert not task.over_capacity(found[None])[0]
    before, after = costs.measure(task, np.stack([start, found])).overall_ms
    assert after <= before if calls < 60 else after < before
    assert np.array_equal(found, effort.oracle_search(task, start, SimulatedOracle(), calls, 3))


def test_a_search_gives_up_where_no_change_fits():
    # One device is full of the largest table, the other holds both others: with any of them it has no room for that.
    task = random_task(3, 0, on=machine(devices=2))
    sizes = task.sizes_bytes
    assert sizes.argmax() == 0
    full = replace(task.problem.topology, hbm_bytes=int(max(sizes[0], sizes[1] + sizes[2])))
    tight = replace(task, problem=replace(task.problem, topology=full))
    start, oracle = np.array([0, 1, 1]), SimulatedOracle()
    assert np.array_equal(effort.oracle_search(tight, start, oracle, 50, 0), start)
    assert oracle.calls == 1
    roomy = SimulatedOracle()
    effort.oracle_search(task, start, roomy, 50, 0)
    assert roomy.calls == 50


@pytest.fixture(scope="module")
def spent(tmp_path_factory):
    """What each contender does of one small effort."""
    train, test = (tuple(random_task(6, 10 * side + i) for i in range(3)) for side in (1, 2))
    exercise = effort.Exercise(train=train, test=test, calls=20, seed=0, folder=tmp_path_factory.mktemp("training"))
    return test, {name: place(exercise) for name, place in effort.CONTENDERS.items()}


def test_contenders_place_every_task_and_keep_to_the_calls(spent):
    test, found = spent
    assert set(found) == {*effort.FIXED, *effort.BUDGETED}
    for name, answer in found.items():
        for task, placement in zip(test, answer.placements, strict=True):
            task.check(placement[None])
        if name in ("dreamshard", "dreamshard-search", "joint-network"):
            assert (answer.learning_calls, answer.task_calls) == (20, 0)
    assert found["search-a-task"].task_calls == 20
    assert found["search-in-all"].task_calls == 20 // len(test)
    assert found["greedy-cost"].task_calls == 6
    assert found["search-unlimited"].task_calls is None and found["joint-whole-tables"].task_calls is None


def test_the_network_is_asked_only_where_it_searches(spent):
    _, found = spent
    rated = {name for name, answer in found.items() if answer.network_rated}
    assert rated == {"dreamshard-search", "joint-network"}


def row(contender, calls, seed, task, costs):
    """A record's row of a contender that placed some tasks at these costs."""
    return {
        "task": task,
        "contender": contender,
        "calls": calls,
        "seed": seed,
        "backend": "simulated",
        "cost_ms": float(np.mean(costs)),
        "bound_ms": 5.0,
        "task_cost_ms": costs,
        "learning_calls": calls,
        "task_calls": 0.0,
        "network_rated": 0.0,
    }


def test_costs_are_compared_by_task_with_seeds_averaged_first():
    rows = [
        row(name, calls, seed, task, [factor * scale * ms for ms in (10.0, 20.0, 40.0)])
        for task, scale in (("A", 1.0), ("B", 7.0))
        for name, calls, seed, factor in (
            ("greedy-lookup", 0, 0, 1.1),
            ("dreamshard", 100, 0, 0.9),
            ("dreamshard", 100, 1, 1.1),
            ("dreamshard-search", 100, 0, 0.8),
        )
    ]
    (table,) = effort.EQUAL_EFFORT.tables(pd.DataFrame(rows)).values()
    over = table.set_index(["task", "contender"])["over_policy_pct"]
    for task in ("A", "B", effort.ALL_ROWS):
        assert over[task, "dreamshard"] == pytest.approx(0.0)
        assert over[task, "greedy-lookup"] == pytest.approx(10.0)
        assert over[task, "dreamshard-search"] == pytest.approx(-20.0)
    assert set(table["calls"]) == {100}, "of the other budget nothing is on record"
    assert table.set_index(["task", "contender"]).loc[("A", "dreamshard"), "seeds"] == 2
    assert table["cost_ms"][table["task"] == "B"].notna().all()
    assert table["cost_ms"][table["task"] == effort.ALL_ROWS].isna().all()


def test_each_budget_stands_beside_what_has_none():
    cells = effort.EQUAL_EFFORT.cells(False)
    fixed = [cell for cell in cells if cell["calls"] == 0]
    assert {cell["contender"] for cell in fixed} == set(effort.FIXED)
    assert len(fixed) == len(effort.EFFORT_ROWS) * len(effort.FIXED)
    assert {cell["calls"] for cell in cells} == {0, *effort.CALLS}
