"""The RNN baseline: acting against learning, REINFORCE, what its training does, placing."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput, Infeasible
from shardbench.baselines.rnn_placer.networks import RnnNetworks, play
from shardbench.baselines.rnn_placer.reproduction import studies
from shardbench.baselines.rnn_placer.training import RnnSettings, RnnTraining, reinforce_loss
from shardbench.learned.tasks.features import Scaling
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget

SMALL = RnnSettings(updates=8, episodes=6)


def make_task(tables, devices, seed=0, share=None, slow=False):
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(100, 1000)), int(rng.choice([8, 16, 32]))) for _ in range(tables)]
    on = machine(devices=devices)
    if share is not None:
        on = machine(devices=devices, hbm=int(share * sum(4 * rows * dim for rows, dim in shapes)))
    if slow:
        # On the fast machine the launch hides the tables.
        on = replace(on, constants=replace(on.constants, hbm_bytes_per_s=1e8, cache_bytes_per_s=1e8))
    return Task.of(RandomWorkload(shapes, batch_size=64, pooling=int(rng.integers(2, 9)), seed=seed).problem(on))


TASKS = (make_task(7, 2, 1), make_task(12, 3, 2), make_task(5, 3, 3))


def networks_of(task, seed=0):
    return RnnNetworks((task.devices,), seed), Scaling.fit(task.features)(task.features)


def log_probabilities(networks, scaled, played):
    """Of every choice, by the learner's forward pass over whole sequences, [E, T]."""
    chosen = torch.from_numpy(played.chosen)
    encoded = networks.encode(torch.from_numpy(scaled)[None])
    logits = networks.logits(encoded, chosen, played.legal_at.shape[2])
    logits = logits.masked_fill(torch.from_numpy(~played.legal_at), -torch.inf)
    return logits.log_softmax(2).gather(2, chosen[..., None])[..., 0].detach().numpy()


@pytest.mark.parametrize("share", [None, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_the_learner_scores_devices_as_the_decoder_did(share, seed):
    task = make_task(12, 3, 4, share)
    networks, scaled = networks_of(task, seed)
    with torch.no_grad():
        # As they are drawn, one device is the best whatever came before.
        for weights in networks.parameters():
            weights.mul_(10.0)
    best = play(networks, task, scaled, np.arange(12), episodes=2, rng=None)
    assert not best.failed[0]
    assert len(set(best.chosen[0].tolist())) > 1
    encoded = networks.encode(torch.from_numpy(scaled)[None])
    logits = networks.logits(encoded, torch.from_numpy(best.chosen), 3).detach().numpy()
    assert np.where(best.legal_at, logits, -np.inf).argmax(2).tolist() == best.chosen.tolist()


def test_samples_follow_the_learners_probabilities():
    task = make_task(2, 3, 4)
    networks, scaled = networks_of(task, 1)
    played = play(networks, task, scaled, np.arange(2), episodes=6000, rng=np.random.default_rng(0))
    expected = np.exp(log_probabilities(networks, scaled, played).sum(1))
    pairs, first, counts = np.unique(played.chosen, axis=0, return_index=True, return_counts=True)
    assert len(pairs) == 9
    assert counts / 6000 == pytest.approx(expected[first], abs=0.02)
    assert expected[first].sum() == pytest.approx(1.0, abs=1e-4)


def test_the_loss_by_hand():
    task = make_task(4, 2, 0)
    networks, scaled = networks_of(task)
    played = play(networks, task, scaled, np.arange(4), episodes=3, rng=np.random.default_rng(0))
    played.failed[2] = True
    log_p = log_probabilities(networks, scaled, played).sum(1)
    found = reinforce_loss(networks, torch.from_numpy(scaled), played, np.array([2.0, -1.0, 9.0]), 0.0)
    assert found.item() == pytest.approx(-(2.0 * log_p[0] - log_p[1]) / 3, rel=1e-4)
    entropic = reinforce_loss(networks, torch.from_numpy(scaled), played, np.zeros(3), 1.0).item()
    # Two episodes of four nearly even choices between two devices.
    assert entropic == pytest.approx(-(2 / 3) * 4 * np.log(2), rel=0.05)


def test_illegal_devices_have_no_probability_at_the_update():
    task = make_task(9, 2, 4, share=0.52)
    networks, scaled = networks_of(task)
    played = play(networks, task, scaled, np.arange(9), episodes=4, rng=np.random.default_rng(0))
    assert not played.legal_at.all()
    log_p = log_probabilities(networks, scaled, played).sum(1)
    used = ~played.failed
    found = reinforce_loss(networks, torch.from_numpy(scaled), played, np.ones(4), 0.0)
    assert found.item() == pytest.approx(-log_p[used].sum() / 4, rel=1e-4)


def test_the_baseline_is_a_moving_average_of_each_tasks_returns():
    run = RnnTraining(TASKS, SimulatedOracle(), 0, SMALL)
    placing = play(run.networks, TASKS[0], run.scaling(TASKS[0].features), np.arange(7), episodes=2, rng=run.rng)
    costs = SimulatedOracle().measure(TASKS[0], np.stack(placing.placements())).overall_ms
    returns = -np.sqrt(costs)
    advantages, measured_ms = run.measure(0, placing)
    assert advantages == pytest.approx(returns - returns.mean())
    assert measured_ms == pytest.approx(costs.mean())
    run.average[0] = -1.0
    assert run.measure(0, placing)[0] == pytest.approx(returns + 1.0)
    assert run.average[0] == pytest.approx(0.9 * -1.0 + 0.1 * returns.mean())
    assert np.isnan(run.average[1:]).all()


def test_training_lowers_the_measured_cost():
    task = make_task(8, 2, 5, slow=True)
    trained = RnnTraining([task], SimulatedOracle(), 0, RnnSettings(updates=150, learning_rate=3e-3)).train()
    measured_ms = [numbers["measured_ms"] for numbers in trained.history]
    assert np.mean(measured_ms[-15:]) < 0.97 * np.mean(measured_ms[:15])


def test_placements_fit_or_are_declined():
    fits = 0
    for seed in range(12):
        task = make_task(9, 2, seed, share=0.5002 if seed % 2 else 0.6)
        trained = RnnTraining([task], SimulatedOracle(), seed, replace(SMALL, updates=1)).train()
        try:
            (placement,) = RnnTraining.place(trained, [task])
        except Infeasible as error:
            assert "no device with room" in str(error)
        else:
            task.check(placement[None])
            fits += 1
    assert 0 < fits < 12


def test_other_numbers_of_devices_are_refused():
    trained = RnnTraining(TASKS[:1], SimulatedOracle(), 0, SMALL).train()
    with pytest.raises(BadInput, match="layers for 2 devices, not for 3"):
        RnnTraining.place(trained, TASKS[1:2])


def test_a_short_budget_means_fewer_updates():
    tasks = [SimpleNamespace(tables=80)]
    assert RnnSettings.within(Budget(fit_s=600), tasks) == RnnSettings()
    assert RnnSettings.within(Budget(fit_s=5), tasks).updates == 22
    assert RnnSettings.within(Budget(fit_s=1e-3), tasks).updates == 1


def test_tables_by_cost_are_the_same_task_in_another_order():
    task = make_task(9, 3, 4)
    ordered = studies.by_cost(task)
    costs = ordered.features[:, studies.DIM] * ordered.features[:, studies.POOLING]
    assert (np.diff(costs) <= 0).all()
    assert costs[0] > costs[-1]
    names = [table.name for table in task.problem.tables]
    back = [names.index(table.name) for table in ordered.problem.tables]
    assert sorted(back) == list(range(9))
    placement = np.arange(9) % 3
    (before,), (after,) = (
        SimulatedOracle().measure(t, p[None]).overall_ms for t, p in ((task, placement), (ordered, placement[back]))
    )
    assert after == pytest.approx(before)


def test_dealing_out_is_round_robin_past_full_devices():
    roomy = make_task(8, 3, 4)
    assert studies.deal(roomy).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert studies.in_turn_pct(roomy, studies.deal(roomy)) == 100.0
    assert studies.in_turn_pct(roomy, np.array([0, 1, 2, 2, 1, 0, 0, 0])) == pytest.approx(100 * 2 / 6)
    tight = make_task(9, 2, 4, share=0.6)
    placement = studies.deal(tight)
    tight.check(placement[None])
    assert placement.tolist() != (np.arange(9) % 2).tolist()


def test_the_cheapest_sample_is_the_one_that_the_oracle_prefers():
    tasks = [make_task(8, 2, seed, share=0.6, slow=True) for seed in range(3)]
    trained = RnnTraining(tasks, SimulatedOracle(), 0, replace(SMALL, updates=1)).train()
    draws = studies.sample(trained, tasks, 16, np.random.default_rng(0))
    for task, drawn, best in zip(tasks, draws, studies.cheapest_of(tasks, draws), strict=True):
        assert 1 < len(drawn) <= 16
        costs_ms = SimulatedOracle().measure(task, drawn).overall_ms
        assert SimulatedOracle().measure(task, best[None]).overall_ms[0] == costs_ms.min() < costs_ms.max()


def test_no_sample_that_fits_is_said():
    task = make_task(9, 2, 4, share=0.45)
    trained = RnnTraining([task], SimulatedOracle(), 0, replace(SMALL, updates=1)).train()
    with pytest.raises(BadInput, match="none of 4 sampled placements fits"):
        studies.sample(trained, [task], 4, np.random.default_rng(0))


def test_the_study_tells_ways_of_acting_apart():
    tasks = [make_task(8, 2, seed) for seed in range(3)]
    trained = RnnTraining(tasks, SimulatedOracle(), 0, SMALL).train()
    counted = [replace(task, counted=task.expected) for task in tasks]
    rows = studies.act(trained, counted, 0)
    assert rows["dealt out"]["in_turn_pct"] == 100.0
    assert rows["dealt out"]["different_plans"] == 1
    assert rows["best of 64 samples"]["cost_ms"] <= rows["one sample"]["cost_ms"]
    assert rows["best of 64 random placements"]["oracle_calls_a_task"] == 64
    assert rows["best device"]["cost_ms"] == pytest.approx(
        np.mean(
            [
                SimulatedOracle().measure(t, p[None]).overall_ms[0]
                for t, p in zip(tasks, RnnTraining.place(trained, tasks))
            ]
        )
    )
