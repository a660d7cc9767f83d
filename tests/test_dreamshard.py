"""DreamShard: hand-written gradients, the estimated MDP, the policy's loss, placing."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_tasks import random_problem, random_task
from problems import machine

from shardbench.base.errors import Infeasible
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task, table_set
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget, Move, Role
from shardbench.model.table import Table
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

networks = importlib.import_module("shardbench.baselines.dreamshard.networks")
regression = importlib.import_module("shardbench.baselines.dreamshard.regression")
training = importlib.import_module("shardbench.baselines.dreamshard.training")


def tasks(count=3, tables=6):
    return [random_task(tables + i, i) for i in range(count)]


def untrained(some, seed):
    return training.DreamShardTraining(some, SimulatedOracle(), seed, training.DreamShardSettings()).untrained()


def started(some):
    """Networks before training, and their policy."""
    begun = untrained(some, 0)
    return begun, networks.DreamShardPolicy(begun.networks, begun.scaling)


@pytest.mark.parametrize("padded", [False, True])
def test_gradients_by_hand_are_autograds(padded):
    """Each draw by itself, as a mean over 64 of them, gives what distinct ones give by their shares."""
    rng = np.random.default_rng(0)
    network = networks.DreamShardNetworks(1).cost
    tables = rng.normal(size=(30, 21)).astype(np.float32)
    placements, devices, draws = 7, 3, 64
    holds = (rng.random((placements, devices, 30)) < 0.2).astype(np.float32)
    overall = rng.random(placements).astype(np.float32) * 9
    costs = rng.random((placements, devices, 3)).astype(np.float32) * 5
    real = np.ones((placements, devices), dtype=bool)
    if padded:
        real[:, 1:] = rng.random((placements, devices - 1)) < 0.7
    # Placement 4 and device 5 are never drawn.
    some = rng.choice([0, 1, 2, 3, 5, 6], draws)
    single = rng.choice(np.setdiff1d(np.flatnonzero(real), [5]), draws)
    (of_some,), (of_single,) = (
        regression.shares(drawn[None], kinds) for drawn, kinds in ((some, placements), (single, real.size))
    )
    assert np.count_nonzero(of_some) == 6
    loss = regression.Regression(
        network, tables, holds=holds, overall_ms=overall, device_ms=costs, real=real
    ).gradients(of_some, of_single)
    by_hand = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad()
    sums = torch.from_numpy(holds) @ network.encoder(torch.from_numpy(tables))
    whole = sums.masked_fill(torch.from_numpy(~real)[:, :, None], -torch.inf)[some]
    errors = network.device_ms(sums.flatten(0, 1)[single]) - torch.from_numpy(costs).flatten(0, 1)[single]
    of_whole = network.overall_ms(whole) - torch.from_numpy(overall)[some]
    expected = of_whole.square().mean() + errors.square().sum(1).mean()
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(by_hand[name], parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_the_buffer_keeps_sets_and_targets():
    some = tasks(2)
    catalogue = regression.Catalogue(some)
    np.testing.assert_array_equal(catalogue.features[catalogue.rows[1]], some[1].features)
    buffer = regression.MeasuredPlacements(catalogue, 4)
    placement = np.array([0, 0, 1, 1, 1, 0])
    costs = SimulatedOracle().measure(some[0], placement[None])
    buffer.add(0, placement, costs)
    for device in range(2):
        held = np.zeros(len(catalogue) + 1)
        np.add.at(held, catalogue.rows[0][placement == device], 1)
        assert buffer.holds[0, device].tolist() == held.tolist()
    # Devices 2 and 3 are empty: they hold the row of zeros.
    assert buffer.holds[0, 2:].sum(axis=1).tolist() == [1.0, 1.0] == buffer.holds[0, 2:, -1].tolist()
    columns = np.stack([costs.forward_ms[0], costs.backward_comm_ms[0], costs.backward_ms[0]], axis=-1)
    np.testing.assert_allclose(buffer.device_ms[0], columns, rtol=1e-6)
    assert buffer.overall_ms[0] == pytest.approx(costs.overall_ms[0])


def test_the_policy_says_of_arrays_what_the_networks_say_of_tensors():
    some = tasks()
    begun, policy = started(some)
    encoded = policy.encode(some[0].features)
    rows = torch.from_numpy(begun.scaling(some[0].features))
    nets = begun.networks
    with torch.no_grad():
        sums, costs = nets.policy.encoder(rows), nets.cost.device_ms(nets.cost.encoder(rows))
        np.testing.assert_allclose(encoded[:, :32], sums, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(policy.device_ms(encoded), costs, rtol=1e-4, atol=1e-5)
        scores = nets.policy(sums, costs)
    np.testing.assert_allclose(policy.logits(encoded, costs.numpy()), scores, rtol=1e-4, atol=1e-5)
    assert policy.order(encoded).tolist() == np.argsort(-costs.sum(1).numpy(), kind="stable").tolist()


def assert_placed_by_score(policy, task, order, placement):
    """One table after the other, every device scored anew: the best legal one was taken, to single precision."""
    encoded, placed = policy.encode(task.features), np.full(task.tables, -1)
    for table in order:
        scores = np.full(task.devices, -np.inf)
        for device in range(task.devices):
            mine = placed == device
            if task.sizes_bytes[mine].sum() + task.sizes_bytes[table] > task.capacity_bytes:
                continue
            sums = (encoded[mine].sum(axis=0) if mine.any() else policy.empty)[None]
            scores[device] = policy.logits(sums, policy.device_ms(sums))[0]
        taken = placement[table]
        assert scores[taken] >= scores.max() - 1e-5
        # Of devices that are exactly alike the first.
        empty = [device for device in range(task.devices) if not (placed == device).any()]
        assert taken not in empty or taken == empty[0]
        placed[table] = taken


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), room=st.floats(0.9, 3.0))
def test_placing_in_a_batch_is_placing_one_by_one(seed, room):
    rng = np.random.default_rng(seed)
    some = []
    for i in range(3):
        tables, devices = int(rng.integers(2, 9)), int(rng.integers(1, 5))
        need = int(random_task(tables, seed + i).sizes_bytes.sum())
        on = machine(devices=devices, hbm=int(room * need / devices) + 1)
        some.append(random_task(tables, seed + i, on=on))
    _, policy = started(some)
    encodings = [policy.encode(task.features) for task in some]
    orders = [policy.order(encoded) for encoded in encodings]
    episodes = networks.play(policy, some, encodings, orders, None)
    for task, order, found, failed in zip(some, orders, episodes.placing.placements(), episodes.placing.failed):
        if not failed:
            assert_placed_by_score(policy, task, order, found)
            assert not task.over_capacity(found[None])[0]


def test_sampling_follows_the_softmax():
    # Two tables, three devices: the first table's are alike, the second's are not.
    task = random_task(2, on=machine(devices=3))
    begun, _ = started([task])
    with torch.no_grad():
        begun.networks.policy.logit.weight *= 30.0
    policy = networks.DreamShardPolicy(begun.networks, begun.scaling)
    encoded, many = policy.encode(task.features), 6000
    args = ([task] * many, [encoded] * many, [np.arange(2)] * many, np.random.default_rng(0))
    drawn = networks.play(policy, *args).placing.chosen
    sums = np.stack([encoded[0], policy.empty])
    taken, free = policy.logits(sums, policy.device_ms(sums)).tolist()
    same = 1.0 / (1.0 + 2.0 * np.exp(free - taken))
    assert abs(same - 1 / 3) > 0.1
    assert np.bincount(drawn[:, 0], minlength=3) / many == pytest.approx(1 / 3, abs=0.03)
    assert (drawn[:, 0] == drawn[:, 1]).mean() == pytest.approx(same, abs=0.03)


def test_the_loss_is_reinforce_over_legal_devices():
    need = random_task(7, 5).sizes_bytes.sum()
    task = random_task(7, 5, on=machine(devices=3, hbm=int(0.55 * need)))
    begun, policy = started([task])
    encoded = policy.encode(task.features)
    order, count = policy.order(encoded), 5
    episodes = networks.play(policy, [task] * count, [encoded] * count, [order] * count, np.random.default_rng(1))
    assert not episodes.placing.legal_at.all()
    rows = torch.from_numpy(begun.scaling(task.features)[order])
    empty_ms = policy.device_ms(policy.empty[None])[0]
    found = training.policy_loss(begun.networks.policy, rows, episodes, empty_ms, 0.1).item()

    returns = -episodes.overall_ms
    good = ~episodes.placing.failed
    weight = np.where(good, (returns - returns[good].mean()) / (returns[good].std() + 1e-6), 0.0)
    total = 0.0
    for e, placement in enumerate(episodes.placing.placements()):
        done = np.full(task.tables, -1)
        for step, table in enumerate(order):
            scores = []
            for device in range(3):
                mine = done == device
                sums = (encoded[mine].sum(axis=0) if mine.any() else policy.empty)[None]
                scores.append(float(policy.logits(sums, policy.device_ms(sums))[0]))
            legal = episodes.placing.legal_at[e, step]
            p = np.exp(np.where(legal, scores, -np.inf))
            p /= p.sum()
            done[table] = placement[table]
            log_p = np.log(p[placement[table]]) if good[e] else 0.0
            entropy = -(p[p > 0] * np.log(p[p > 0])).sum() if good[e] else 0.0
            total += log_p * weight[e] + 0.1 * entropy
    assert found == pytest.approx(-total / (count * task.tables), rel=1e-3, abs=1e-5)


def test_failed_episodes_teach_nothing():
    weights = training.advantages(np.array([3.0, 1.0, 9.0], dtype=np.float32), np.array([False, False, True]))
    np.testing.assert_allclose(weights, [-1.0, 1.0, 0.0], atol=1e-5)
    assert not training.advantages(np.ones(2, dtype=np.float32), np.array([False, True])).any()


def test_each_network_learns_by_itself():
    run = training.DreamShardTraining(tasks(), SimulatedOracle(), 0, training.DreamShardSettings(cost_updates=2))
    run.step()  # Both have moments, which would move them without a gradient.
    cost, policy = run.networks.cost, run.networks.policy

    def weights(network):
        return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])

    for learn, learning, resting in ((run._fit, cost, policy), (run._improve, policy, cost)):
        before, untouched = weights(learning), weights(resting)
        learn()
        assert not torch.equal(weights(learning), before)
        assert torch.equal(weights(resting), untouched)


def test_training_beats_its_start_and_random_placement():
    # Batches large enough that the launches are no longer most of the cost.
    some = [random_task(16, i, batch_size=240_000) for i in range(8)]
    trained = training.DreamShardTraining(some, SimulatedOracle(), 0, training.DreamShardSettings()).train()
    rng, judge = np.random.default_rng(0), SimulatedOracle()

    def mean_ms(placements):
        return float(np.mean([judge.measure(t, p[None]).overall_ms[0] for t, p in zip(some, placements)]))

    random_ms = mean_ms([rng.integers(0, 4, 16) for _ in some])
    assert mean_ms(training.DreamShardTraining.place(trained, some)) < 0.95 * random_ms
    starts = [mean_ms(training.DreamShardTraining.place(untrained(some, seed), some)) for seed in range(3)]
    assert mean_ms(training.DreamShardTraining.place(trained, some)) < np.mean(starts)
    assert trained.history[-1]["cost_loss"] < trained.history[0]["cost_loss"]


def test_a_second_try_places_the_largest_first():
    # The large table only fits an empty device: it must come first, and then everything fits.
    base = random_problem(5, 2, on=machine(devices=2))
    tables = (Table(name="large", rows=100_000, dim=16), *base.tables[1:])
    rare = AccessProfile(rows=100_000, samples=1000, present=1, counts=(1,), row_counts=(1,))
    size = 100_000 * 16 * base.precision.bytes
    problem = replace(base, tables=tables, profiles=(rare, *base.profiles[1:]))
    on = machine(devices=2, hbm=size + 10, uvm=0)
    tight = replace(problem, machine=on, topology=on.topology)
    assert sum(tight.weight_bytes(t) for t in tables[1:]) < size
    strategy, late = get_strategy("dreamshard-untrained"), 0
    for seed in range(8):
        strategy.fit((problem,), Budget(), seed)
        validate(strategy.plan(tight, Budget(), seed), tight, strategy.moves)
        begun = untrained([Task.of(tight)], seed)
        policy = networks.DreamShardPolicy(begun.networks, begun.scaling)
        encoded = policy.encode(table_set(tight).features)
        first = networks.play(policy, [table_set(tight)], [encoded], [policy.order(encoded)], None)
        late += bool(first.placing.failed[0])
    assert late > 0


def test_what_fits_nowhere_is_declined_by_name():
    problem = random_problem(4, 2, on=machine(devices=2))
    need = max(problem.weight_bytes(t) for t in problem.tables)
    on = machine(devices=2, hbm=need - 1, uvm=0)
    strategy = get_strategy("dreamshard-untrained")
    strategy.fit((problem,), Budget(), 0)
    with pytest.raises(Infeasible, match=rf"table 't\d' \({need} bytes\) has no device with room"):
        strategy.plan(replace(problem, machine=on, topology=on.topology), Budget(), 0)


def test_the_strategy_states_what_it_is():
    ours, control = get_strategy("dreamshard"), get_strategy("dreamshard-untrained")
    assert (ours.role, control.role) == (Role.COMPETITOR, Role.VARIANT)
    assert ours.moves == {Move.TABLE}


def test_a_small_budget_means_fewer_updates():
    cut = training.DreamShardSettings.within(Budget(fit_s=6), [])
    assert (cut.iterations, cut.cost_updates, cut.policy_updates) == (10, 30, 1)
    assert training.DreamShardSettings.within(Budget(fit_s=600), []) == training.DreamShardSettings()


def different_features(some):
    """Those of all different tables, raw."""
    return np.unique(np.concatenate([task.features for task in some]), axis=0)


def test_widths_are_fed_as_they_are():
    problem = random_problem(6, 3)
    alike = replace(problem, tables=tuple(replace(table, dim=16) for table in problem.tables))
    some = [Task.of(alike), Task.of(problem)]
    begun = untrained(some, 0)
    for task in some:
        scaled = begun.scaling(task.features)
        assert scaled[:, 0].tolist() == [table.dim for table in task.problem.tables]
    np.testing.assert_allclose(begun.scaling(different_features(some))[:, 1:4].std(axis=0), 1.0, rtol=1e-4)


def test_widths_may_be_fed_as_multiples_of_their_mean():
    relative = training.DreamShardSettings(mean_width=4.0)
    some = tasks()
    begun = training.DreamShardTraining(some, SimulatedOracle(), 0, relative)
    assert begun.scaled[:, 0].mean() == pytest.approx(4.0)
    assert begun.key != training.DreamShardTraining(some, SimulatedOracle(), 0, training.DreamShardSettings()).key
