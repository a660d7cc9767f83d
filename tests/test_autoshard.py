"""AutoShard: what its training does, its budget and settings, placing."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from autoshard_tasks import SMALL, TASKS, make_task

from shardbench.base.errors import Infeasible
from shardbench.baselines.autoshard.networks import AutoShardNetworks, AutoShardPolicy, play
from shardbench.baselines.autoshard.training import AutoShardSettings, AutoShardTraining
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget


def test_training_evens_out_the_devices():
    problem = make_task(12, 3, 5).problem
    # On the fast machine the launch hides the rest; a slower memory shows the tables.
    slow = replace(problem.machine.constants, hbm_bytes_per_s=1e8, cache_bytes_per_s=1e8)
    tasks = [Task.of(replace(problem, machine=replace(problem.machine, constants=slow)))]
    settings = AutoShardSettings(total_steps=9600, unroll=24, environments=8, cost_batch=64)
    trained = AutoShardTraining(tasks, SimulatedOracle(), 0, settings).train()
    first, last = (pd.DataFrame(part).mean() for part in (trained.history[:5], trained.history[-5:]))
    assert last["reward"] > first["reward"] + 0.1
    assert last["cost_loss"] < first["cost_loss"]


def test_without_cost_updates_the_cost_network_stays():
    run = AutoShardTraining(TASKS, SimulatedOracle(), 0, replace(SMALL, cost_updates=0))
    trained, fresh = run.train(), run.untrained()
    for learned, drawn in zip(trained.networks.cost.parameters(), fresh.networks.cost.parameters()):
        assert torch.equal(learned, drawn)
    assert trained.history[-1]["cost_loss"] is None


def test_placements_fit_and_many_tasks_are_as_one_by_one():
    trained = AutoShardTraining(TASKS, SimulatedOracle(), 1, SMALL).untrained()
    together = AutoShardTraining.place(trained, TASKS)
    for task, placement in zip(TASKS, together):
        task.check(placement[None])
        # Empty devices are alike: rounding may decide which of them comes first.
        alone = AutoShardTraining.place(trained, [task])[0]
        assert (np.equal.outer(placement, placement) == np.equal.outer(alone, alone)).all()


def test_a_table_without_room_gets_a_second_order_and_then_none():
    found = {"first": 0, "second": 0, "none": 0}
    for seed in range(30):
        needed = make_task(9, 2, seed).sizes_bytes.sum()
        task = make_task(9, 2, seed, hbm=int(needed / 2 * (1.06 if seed % 2 else 1.003)))
        trained = AutoShardTraining([task], SimulatedOracle(), seed, SMALL).untrained()
        policy = AutoShardPolicy(trained.networks, trained.scaling)
        first = play(policy, [task], [policy.encode(task.features)], None, masked=True)[0]
        try:
            (placement,) = AutoShardTraining.place(trained, [task])
        except Infeasible as error:
            assert "no device with room" in str(error)
            assert first.failed[0]
            found["none"] += 1
        else:
            assert not task.over_capacity(placement[None]).any()
            found["second" if first.failed[0] else "first"] += 1
    assert all(found.values()), found


def within(fit_s, **longest):
    return AutoShardSettings.within(Budget(fit_s=fit_s), [SimpleNamespace(**longest)])


def test_a_short_budget_means_fewer_steps_and_a_long_one_the_papers():
    assert within(600, devices=8, tables=100) == AutoShardSettings()
    assert within(5, devices=8, tables=100).total_steps < 20_000
    assert within(1e-3, devices=128, tables=100).updates == 1


@pytest.mark.parametrize(
    ("tables", "unroll", "environments", "updates"),
    [(7, 100, 8, 125), (101, 101, 7, 141), (160, 160, 5, 125), (200, 200, 4, 125), (856, 856, 1, 116)],
)
def test_an_unroll_is_no_shorter_than_a_task(tables, unroll, environments, updates):
    settings = within(3600, devices=8, tables=tables)
    assert (settings.unroll, settings.environments, settings.updates) == (unroll, environments, updates)
    assert settings.total_steps <= AutoShardSettings().total_steps


def rewarded(settings, task):
    """Steps of a task that ever had its reward in the unroll that they were learned in."""
    run, found = AutoShardTraining([task], SimulatedOracle(), 0, settings), set()
    cut = run.streams.cut

    def watched(steps):
        unrolls = cut(steps)
        ended = {int(e) for e in unrolls.episode[unrolls.ends]}
        found.update(int(t) for e, t in zip(unrolls.episode.ravel(), unrolls.step.ravel()) if int(e) in ended)
        return unrolls

    run.streams.cut = watched
    while not run.done:
        run.step()
    return found


def test_every_step_of_a_long_task_gets_a_reward_in_its_unroll():
    task = make_task(110, 2)
    fitted = replace(within(3600, devices=2, tables=110), total_steps=4 * 110 * 7, cost_updates=0)
    assert rewarded(fitted, task) == set(range(110))
    # The published unroll of 100 never lets the first ten steps see one.
    short = replace(fitted, unroll=100, environments=8, total_steps=12 * 800)
    assert rewarded(short, task) == set(range(10, 110))


def test_the_defaults_are_the_papers():
    settings = AutoShardSettings()
    assert (settings.updates, settings.unroll, settings.environments) == (125, 100, 8)
    sizes = {
        name: sum(p.numel() for p in module.parameters()) for name, module in AutoShardNetworks(0).named_children()
    }
    assert sizes["encoder"] == 21 * 128 + 128 + 128 * 32 + 32
    assert sizes["cost"] == 32 * 64 + 64 + 64 + 1
    assert sizes["policy"] == 192 * 128 + 128 + 128 * 128 + 128 + 128 * 64 + 64 + 64 + 1
    assert sizes["lstm"] == 2 * (2 * 4 * 64 * 64 + 2 * 4 * 64)
