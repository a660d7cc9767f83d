"""AutoShard: V-trace, rewards, unrolls, acting against learning, the cost network's shards."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from autoshard_tasks import SMALL, TASKS, make_task
from hypothesis import given
from hypothesis import strategies as st

from shardbench.baselines.autoshard.actor_critic import (
    Episode,
    Evaluated,
    Streams,
    actor_critic_loss,
    batch_of,
    evaluate,
    held_before,
    vtrace,
)
from shardbench.baselines.autoshard.networks import AutoShardNetworks, AutoShardPolicy, play, progress_of
from shardbench.baselines.autoshard.training import (
    AutoShardTraining,
    MeasuredShards,
    balance,
    learn_costs,
    overfull,
    rewards,
)
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.features import Scaling
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.training import Catalogue, on_arrays


def reference(log_ratios, discounts, rewards, values, bootstrap):
    """V-trace of one unroll by its definition (IMPALA, equation 1), sum by sum."""
    steps = len(values)
    rho = [min(1.0, np.exp(x)) for x in log_ratios]
    after = [*values[1:], bootstrap]
    delta = [rho[t] * (rewards[t] + discounts[t] * after[t] - values[t]) for t in range(steps)]
    targets = []
    for s in range(steps):
        total, weight = values[s], 1.0
        for t in range(s, steps):
            total += weight * delta[t]
            weight *= discounts[t] * rho[t]
        targets.append(total)
    following = [*targets[1:], bootstrap]
    return targets, [rho[t] * (rewards[t] + discounts[t] * following[t] - values[t]) for t in range(steps)]


@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 10**6))
def test_vtrace_is_its_definition(steps, unrolls, seed):
    rng = np.random.default_rng(seed)
    ratios, given_rewards, values = (rng.normal(size=(steps, unrolls)) for _ in range(3))
    discounts = rng.choice([0.0, 0.9, 1.0], (steps, unrolls))
    bootstrap = rng.normal(size=unrolls)
    targets, advantages = vtrace(ratios, discounts, given_rewards, values, bootstrap)
    for i in range(unrolls):
        expected = reference(ratios[:, i], discounts[:, i], given_rewards[:, i], values[:, i], bootstrap[i])
        assert targets[:, i] == pytest.approx(expected[0])
        assert advantages[:, i] == pytest.approx(expected[1])


def test_the_balance_is_smallest_over_largest():
    assert balance(np.array([[2.0, 4.0], [3.0, 3.0], [0.0, 5.0], [0.0, 0.0]])).tolist() == [0.5, 1.0, 0.0, 1.0]


def test_an_overfull_placement_is_not_measured_and_costs_its_excess():
    total = int(make_task(6, 3, 4).sizes_bytes.sum())
    capacity = int(total * 0.7)
    task = make_task(6, 3, 4, hbm=capacity)
    placing = Placing([task] * 2, [np.arange(6)] * 2, np.zeros((2, 6, 1), dtype=np.float32))
    for step in range(6):
        placing.put(np.array([0, step % 3]))
    oracle = SimulatedOracle()
    reward, fits, device_ms = rewards(placing, [task] * 2, oracle)
    assert fits.tolist() == [False, True]
    assert reward[0] == pytest.approx((capacity - total) / capacity)
    assert oracle.calls == 1
    costs = oracle.measure(task, np.arange(6)[None] % 3)
    ms = (costs.forward_ms + costs.backward_ms)[0]
    assert reward[1] == pytest.approx(ms.min() / ms.max())
    assert device_ms[1] == pytest.approx(ms)
    assert np.isnan(device_ms[0]).all()


def test_overfull_ignores_devices_that_only_pad():
    tasks = [make_task(4, 2), make_task(4, 3)]
    placing = Placing(tasks, [np.arange(4)] * 2, np.zeros((2, 4, 1), dtype=np.float32))
    assert overfull(placing, tasks).tolist() == [1.0, 1.0]


def test_rewards_of_unequal_devices_are_those_of_each_task_alone():
    tasks, oracle = [make_task(6, 2, 1), make_task(6, 4, 2), make_task(6, 2, 1)], SimulatedOracle()

    def placed(some):
        placing = Placing(some, [np.arange(6)] * len(some), np.zeros((len(some), 6, 1), dtype=np.float32))
        for step in range(6):
            placing.put(np.array([step % task.devices for task in some]))
        return rewards(placing, some, oracle)

    (reward, fits, device_ms), alone = placed(tasks), [placed([task]) for task in tasks]
    assert fits.all()
    assert reward.tolist() == [own_reward[0] for own_reward, _, _ in alone]
    assert 0.0 < reward[0] < 1.0
    for row, task, (_, _, own_ms) in zip(device_ms, tasks, alone):
        assert row[: task.devices].tolist() == own_ms[0].tolist()
        assert np.isnan(row[task.devices :]).all(), "a device that only pads has no time"


def test_the_cost_network_learns_from_no_device_that_only_pads():
    run = AutoShardTraining(TASKS, SimulatedOracle(), 0, SMALL)
    asked, measure = [], run.oracle.measure

    def watched(task, placements):
        asked.extend([task.devices] * len(placements))
        return measure(task, placements)

    run.oracle.measure = watched
    run.step()
    assert set(asked) == {2, 3}
    assert len(run.shards) == sum(asked)
    assert np.isfinite(run.shards.ms).all()
    assert all(e.chosen.max() < TASKS[e.task].devices for queue in run.streams.waiting for e in queue)


def test_states_of_whole_episodes_are_those_of_an_lstm_reset_where_episodes_end():
    networks = AutoShardNetworks(3)
    rng = np.random.default_rng(0)
    lengths = [4, 7, 2]
    vectors = [rng.random((n, 32)).astype(np.float32) for n in lengths]
    padded = np.zeros((3, 7, 32), dtype=np.float32)
    for row, vector in zip(padded, vectors):
        row[: len(vector)] = vector
    states = on_arrays(networks.states, padded, progress_of(7, np.array(lengths)))
    memory = None
    with torch.no_grad():
        for episode, vector in enumerate(vectors):
            for step, table in enumerate(vector):
                progress = networks.progress(torch.tensor([[step / len(vector)]]))
                read = torch.cat([torch.from_numpy(table)[None], progress], dim=1)
                out, memory = networks.lstm(read[None], memory)
                assert states[episode, step] == pytest.approx(out[0, 0].numpy(), abs=1e-5)
            memory = None


def episodes_of(placing, log_p, numbers, tasks):
    return [
        Episode(
            task=number, order=order, chosen=chosen[: task.tables], log_p=own[: task.tables], reward=float(number + 1)
        )
        for number, task, order, chosen, own in zip(numbers, tasks, placing.orders, placing.chosen, log_p)
    ]


@pytest.mark.parametrize("hbm", [10**9, 60_000])
def test_the_learner_sees_what_the_actors_saw(hbm):
    tasks = [make_task(7, 2, 1, hbm), make_task(12, 3, 2, hbm), make_task(5, 3, 3, hbm)]
    catalogue = Catalogue(tasks)
    networks, scaling = AutoShardNetworks(1), Scaling.fit(catalogue.features)
    policy = AutoShardPolicy(networks, scaling)
    numbers = [0, 1, 2, 0, 1, 2]
    played_tasks = [tasks[i] for i in numbers]
    encodings = [policy.encode(task.features) for task in played_tasks]
    played = play(policy, played_tasks, encodings, np.random.default_rng(5), masked=False)
    streams = Streams(2)
    for i, episode in enumerate(episodes_of(*played, numbers, played_tasks)):
        streams.add(i % 2, episode)
    tables = torch.from_numpy(np.concatenate([scaling(catalogue.features), np.zeros((1, 21), dtype=np.float32)]))
    for _ in range(2):
        unrolls = streams.cut(8)
        batch = batch_of(unrolls, tasks, catalogue.rows, len(catalogue))
        found = evaluate(networks, batch, tables)
        chosen = torch.from_numpy(batch.chosen[unrolls.episode, unrolls.step])
        log_p = found.log_p.gather(2, chosen[..., None]).squeeze(2).detach().numpy()
        assert log_p == pytest.approx(batch.acted_log_p, abs=1e-4)
        assert np.exp(found.log_p.detach().numpy()).sum(2) == pytest.approx(np.ones((8, 2)), abs=1e-5)
        loss = actor_critic_loss(found, batch, discount=1.0, baseline_weight=0.5, entropy_weight=0.001)
        networks.zero_grad()
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in networks.parameters() if p.grad is not None)
        # Nothing that the policy learns reaches the cost network but through the shared encoder.
        assert all(p.grad is None for p in networks.cost.parameters())


def test_samples_follow_the_policys_probabilities():
    task, many = make_task(2, 3, 4), 6000
    networks, scaling = AutoShardNetworks(1), Scaling.fit(task.features)
    with torch.no_grad():
        networks.policy[-1].weight *= 1000.0
    policy = AutoShardPolicy(networks, scaling)
    encodings = [policy.encode(task.features)] * many
    placing, log_p = play(policy, [task] * many, encodings, np.random.default_rng(0), masked=False)
    expected = np.exp(log_p.sum(1))
    pairs, first, counts = np.unique(placing.chosen, axis=0, return_index=True, return_counts=True)
    assert len(pairs) == 9
    assert np.ptp(expected[first]) > 0.05
    assert expected[first].sum() == pytest.approx(1.0, abs=1e-4)
    assert counts / many == pytest.approx(expected[first], abs=0.02)


def test_the_bootstrap_is_the_value_of_the_state_that_follows():
    task = TASKS[1]
    networks, scaling = AutoShardNetworks(2), Scaling.fit(task.features)
    policy = AutoShardPolicy(networks, scaling)
    played = play(policy, [task], [policy.encode(task.features)], np.random.default_rng(0), masked=False)
    streams = Streams(1)
    streams.add(0, episodes_of(*played, [0], [task])[0])
    catalogue = Catalogue([task])
    tables = torch.from_numpy(np.concatenate([scaling(catalogue.features), np.zeros((1, 21), dtype=np.float32)]))
    found = [
        evaluate(networks, batch_of(streams.cut(5), [task], catalogue.rows, len(catalogue)), tables) for _ in range(2)
    ]
    assert found[0].bootstrap[0].item() == pytest.approx(found[1].values[0, 0].item(), abs=1e-6)


def test_the_loss_by_hand():
    streams = Streams(1)
    streams.add(0, replace(episode(1, 0.5), log_p=np.log(np.array([0.5], dtype=np.float32))))
    streams.add(0, replace(episode(2, 0.0), log_p=np.log(np.array([1.0, 0.5], dtype=np.float32))))
    unrolls = streams.cut(2)
    batch = batch_of(unrolls, [make_task(2, 2)], [np.arange(2)], 2)
    # Two devices: an even choice, then one that was sure when it was made and is even now.
    found = Evaluated(
        log_p=torch.log(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])),
        values=torch.tensor([[0.1], [0.2]]),
        bootstrap=torch.tensor([0.6]),
    )
    loss = actor_critic_loss(found, batch, discount=1.0, baseline_weight=0.5, entropy_weight=0.01)
    # Step 1 ends its episode: target 0.5, advantage 0.4. Step 2 has weight 0.5: 0.5 (0.6 - 0.2) = 0.2.
    policy = np.log(2) * (0.4 + 0.2)
    baseline = 0.5 * (0.4**2 + 0.2**2)
    assert loss.item() == pytest.approx(policy + 0.5 * baseline - 0.01 * 2 * np.log(2))


def test_what_devices_hold_before_each_step():
    chosen = torch.tensor([[0, 1, 0]])
    values = torch.tensor([[1.0, 2.0, 4.0]])
    assert held_before(chosen, values, 2).tolist() == [[[0.0, 0.0], [1.0, 0.0], [1.0, 2.0]]]


def episode(length, reward):
    return Episode(
        task=0,
        order=np.arange(length),
        chosen=np.zeros(length, dtype=np.int64),
        log_p=np.zeros(length, dtype=np.float32),
        reward=reward,
    )


def test_unrolls_are_cut_off_streams_in_order():
    streams = Streams(2)
    for environment, length, reward in ((0, 3, 0.5), (0, 5, 0.25), (1, 4, 0.75), (1, 4, 1.0)):
        streams.add(environment, episode(length, reward))
    assert streams.short(9) == [0, 1]
    assert streams.short(8) == []
    first = streams.cut(4)
    assert first.step.T.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert first.episode.T.tolist() == [[0, 0, 0, 1], [2, 2, 2, 2]]
    assert first.ends.T.tolist() == [[False, False, True, False], [False, False, False, True]]
    assert first.rewards.T.tolist() == [[0.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.75]]
    assert first.after.tolist() == [1, 4]
    second = streams.cut(4)
    assert second.step.T.tolist() == [[1, 2, 3, 4], [0, 1, 2, 3]]
    assert [e.reward for e in second.episodes] == [0.25, 1.0]
    assert streams.waiting == [[], []]
    assert streams.used == [0, 0]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=20), st.integers(1, 9))
def test_no_step_is_lost_or_seen_twice(lengths, unroll):
    streams, seen = Streams(1), []
    given_episodes = [episode(length, 0.0) for length in lengths]
    for one in given_episodes:
        streams.add(0, one)
    while not streams.short(unroll):
        cut = streams.cut(unroll)
        seen += [(id(cut.episodes[e]), s) for e, s in zip(cut.episode[:, 0].tolist(), cut.step[:, 0].tolist())]
    everything = [(id(one), s) for one in given_episodes for s in range(len(one))]
    assert seen == everything[: len(seen)]
    assert len(everything) - len(seen) < unroll


def test_the_ring_keeps_the_last_shards():
    shards = MeasuredShards(3, 4)
    shards.add([np.array([0, 1, 1, 3])], [np.array([0, 1, 1, 0])], [np.array([1.0, 2.0])])
    assert shards.holds[:2].tolist() == [[1, 0, 0, 1], [0, 2, 0, 0]]
    assert len(shards) == 2
    shards.add([np.array([2]), np.array([0])], [np.array([0]), np.array([0])], [np.array([3.0]), np.array([4.0])])
    assert len(shards) == 3
    assert shards.ms.tolist() == [4.0, 2.0, 3.0]
    assert shards.holds[0].tolist() == [1, 0, 0, 0]
    shards.add([np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], [np.arange(5.0)])
    assert sorted(shards.ms.tolist()) == [2.0, 3.0, 4.0]


def test_hundreds_of_equal_tables_on_a_shard_are_counted():
    shards = MeasuredShards(1, 1)
    shards.add([np.zeros(300, dtype=np.int64)], [np.zeros(300, dtype=np.int64)], [np.array([1.0])])
    assert shards.holds.tolist() == [[300]]


def test_the_cost_network_learns_costs_that_it_can_express():
    rng = np.random.default_rng(0)
    tables = rng.random((10, 21), dtype=np.float32)
    shards = MeasuredShards(200, 10)
    shards.holds[:] = rng.integers(0, 2, (200, 10))
    shards.ms[:] = shards.holds @ tables[:, 0]
    shards.added = 200
    networks = AutoShardNetworks(0)
    adam = torch.optim.Adam(networks.parameters(), lr=1e-3)
    given_tables = torch.from_numpy(np.concatenate([tables, np.zeros((1, 21), dtype=np.float32)]))
    before = {name: value.detach().clone() for name, value in networks.named_parameters()}
    losses = learn_costs(networks, adam, shards, given_tables, shape=(150, 64), rng=rng)
    assert np.mean(losses[-10:]) < 0.05 * losses[0]
    moved = [name for name, value in networks.named_parameters() if not torch.equal(value, before[name])]
    changed = {name.split(".")[0] for name in moved}
    assert changed == {"encoder", "cost"}
