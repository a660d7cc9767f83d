"""DreamShard's search under its cost network: exact in the network's words, never above the policy, repeatable."""

import importlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from learned_tasks import random_problem, random_task
from problems import machine

from shardbench.base.errors import Infeasible
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import random_placements
from shardbench.model.strategy import Budget, Role
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

networks = importlib.import_module("shardbench.baselines.dreamshard.networks")
searches = importlib.import_module("shardbench.baselines.dreamshard.network_search")
training = importlib.import_module("shardbench.baselines.dreamshard.training")


def trained(some, seed=0):
    """Networks after a short training: costs that tell placements apart."""
    short = training.DreamShardSettings(iterations=3, cost_updates=60, policy_updates=2)
    return training.DreamShardTraining(some, SimulatedOracle(), seed, short).train()


@pytest.fixture(scope="module")
def learned():
    return trained([random_task(10 + i, i) for i in range(3)])


def predicted(learned, task, placement):
    """The policy's own word for the cost of a placement."""
    policy = networks.DreamShardPolicy(learned.networks, learned.scaling)
    encoded = policy.encode(task.features)
    sums = np.zeros((1, task.devices, encoded.shape[1]), dtype=np.float32)
    np.add.at(sums[0], placement, encoded)
    held = np.bincount(placement, minlength=task.devices)[None]
    return float(policy.overall_ms(sums, held, np.ones(held.shape, dtype=bool))[0])


@pytest.mark.parametrize("devices", [2, 4])
def test_changes_cost_what_the_network_says_of_the_placements_that_come_of_them(learned, devices):
    task = random_task(7, 3, on=machine(devices=devices))
    search = searches.NetworkSearch(learned, task)
    # Device 1 has a single table, and with four devices the last one has none.
    placement = np.array([0, 0, 1, 0, 0, 0, 0]) if devices == 2 else np.array([0, 0, 1, 2, 2, 0, 2])
    assert search.cost_ms(placement) == pytest.approx(predicted(learned, task, placement), rel=1e-5)
    for giver in range(devices):
        mine, others = np.flatnonzero(placement == giver), np.flatnonzero(placement != giver)
        elsewhere = np.flatnonzero(np.arange(devices) != giver)
        back = np.concatenate([np.full(len(elsewhere), -1), others])
        to = np.concatenate([elsewhere, placement[others]])
        rated = search._rate(placement, giver, mine, back, to)
        for i, at in itertools.product(range(len(mine)), range(len(to))):
            changed = placement.copy()
            changed[mine[i]] = to[at]
            if back[at] >= 0:
                changed[back[at]] = giver
            assert rated[i, at] == pytest.approx(predicted(learned, task, changed), rel=1e-4)
    assert search.rated == sum((placement == d).sum() * (devices - 1 + (placement != d).sum()) for d in range(devices))


def test_a_descent_ends_where_no_move_and_no_swap_is_predicted_to_help(learned):
    task = random_task(9, 5)
    (begun,) = random_placements(task, 1, np.random.default_rng(0))
    search = searches.NetworkSearch(learned, task)
    found = search.descend(begun)
    least = search.cost_ms(found)
    assert least < search.cost_ms(begun)
    assert np.array_equal(found, searches.NetworkSearch(learned, task).descend(begun))
    around = [(table, device) for table in range(9) for device in range(task.devices)]
    for table, device in around:
        changed = found.copy()
        changed[table] = device
        assert search.cost_ms(changed) >= least * (1 - 2 * searches.GAIN)
    for one, two in itertools.combinations(range(9), 2):
        changed = found.copy()
        changed[[one, two]] = changed[[two, one]]
        assert search.cost_ms(changed) >= least * (1 - 2 * searches.GAIN)


def test_the_network_packs_each_table_where_it_predicts_least_and_says_what_has_no_room(learned):
    task = random_task(9, 5)
    search = searches.NetworkSearch(learned, task)
    found = search.pack()
    assert search.rated == 9 * task.devices
    assert np.bincount(found, weights=task.sizes_bytes, minlength=task.devices).max() <= task.capacity_bytes
    # The last one to be placed was the cheapest of all, beside devices without tables.
    alone = search._predict(np.maximum(search._encoded, search._empty))
    last = int(np.argsort(-alone, kind="stable")[-1])
    for device in range(task.devices):
        changed = found.copy()
        changed[last] = device
        assert search.cost_ms(changed) >= search.cost_ms(found) * (1 - 2 * searches.GAIN)
    small = replace(task.problem.topology, hbm_bytes=int(task.sizes_bytes.max()) - 1)
    with pytest.raises(Infeasible, match="has no room"):
        searches.NetworkSearch(learned, replace(task, problem=replace(task.problem, topology=small))).pack()


def test_a_limit_of_ratings_ends_a_descent_early(learned):
    task = random_task(12, 6)
    (begun,) = random_placements(task, 1, np.random.default_rng(1))
    whole, short = searches.NetworkSearch(learned, task), searches.NetworkSearch(learned, task, limit=20)
    assert whole.cost_ms(whole.descend(begun)) < short.cost_ms(short.descend(begun)) <= short.cost_ms(begun)
    assert short.rated < whole.rated


@pytest.mark.parametrize("seed", range(4))
def test_plans_fit_and_are_never_predicted_to_cost_more_than_the_policys(learned, seed):
    problem = random_problem(14, 20 + seed)
    sizes = [problem.weight_bytes(t) for t in problem.tables]
    tight = replace(problem.topology, hbm_bytes=int(1.15 * sum(sizes) / problem.world_size) + max(sizes) // 3)
    problem = replace(problem, topology=tight, machine=replace(problem.machine, topology=tight))
    policy, search = get_strategy("dreamshard"), get_strategy("dreamshard-search")
    policy.trained = search.trained = learned
    plans = {s.name: s.plan(problem, Budget(), 0) for s in (policy, search)}
    task = searches.TableSet(problem=problem, features=random_task(14, 20 + seed).features)
    costs = {}
    for name, plan in plans.items():
        validate(plan, problem, search.moves)
        home = {s.table: s.placement.rank for s in plan.segments}
        costs[name] = predicted(learned, task, np.array([home[t.name] for t in problem.tables]))
    assert costs["dreamshard-search"] <= costs["dreamshard"] * (1 + 1e-6)
    again = search.plan(problem, Budget(), 1)
    assert again == plans["dreamshard-search"]
    assert int(again.notes["network_rated"]) > 0
    assert again.notes["oracle_calls"] == plans["dreamshard"].notes["oracle_calls"]


def test_it_is_a_variant_that_trains_as_dreamshard_does():
    problems = [random_problem(8, seed) for seed in range(3)]
    policy, search = get_strategy("dreamshard"), get_strategy("dreamshard-search")
    assert search.role is Role.VARIANT
    for strategy in (policy, search):
        strategy.fit(problems, Budget(fit_s=1.0), 0)
    theirs, ours = policy.trained.networks.state_dict(), search.trained.networks.state_dict()
    assert all(np.array_equal(theirs[name].numpy(), ours[name].numpy()) for name in theirs)
