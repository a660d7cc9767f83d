"""AutoShard's training: batched environments act, the learner takes unrolls, the cost network follows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardbench.base.arrays import Bools, Floats, Floats32, Ints
from shardbench.learned.episodes import Placing, place_or_by_size
from shardbench.learned.tasks.features import FEATURES
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import TableSet, Task
from shardbench.learned.training import (
    AnyTrained,
    Count,
    CountOrNone,
    NotNegative,
    Positive,
    Share,
    Training,
    TrainingSettings,
    UpdateNumbers,
    affordable_updates,
    one_thread,
)
from shardbench.model.strategy import Budget

from . import AutoShard
from .actor_critic import Episode, Streams, actor_critic_loss, batch_of, evaluate
from .networks import AutoShardNetworks, AutoShardPolicy, play

UPDATE_S = 0.06
DEVICE_UPDATE_S = 0.008
TABLE_S = 0.00015
EPISODE_S = 0.0012
"""Seconds of an update, and what devices, tables and episodes add to it: measured on one core, rounded up."""


@dataclass(frozen=True, kw_only=True)
class AutoShardSettings(TrainingSettings):
    """The defaults are those of the published code."""

    total_steps: Count = 100_000
    """Environment steps (tables placed) in all."""
    unroll: Count = 100
    """Steps; shorter than a task, most of its steps never see a reward (deviation 8: ``fit`` sees to it)."""
    environments: Count = 8
    """Unrolls in a learner batch: one of each environment."""
    learning_rate: Positive = 1e-3
    discount: Share = 1.0
    baseline_weight: NotNegative = 0.5
    entropy_weight: NotNegative = 1e-3
    grad_norm: Positive = 40.0
    cost_updates: CountOrNone = 20
    """The cost network's, after every learner update; 0 leaves it untrained (the published ablation)."""
    cost_batch: Count = 512
    shards: Count = 5_000
    """Size of the ring buffer."""

    @property
    def update_steps(self) -> int:
        """Count the environment steps of a learner batch."""
        return self.unroll * self.environments

    @property
    def updates(self) -> int:
        """Count the learner updates: as many as ``total_steps`` has full batches, at least one."""
        return max(1, self.total_steps // self.update_steps)

    @classmethod
    def within(cls, budget: Budget, tasks: Sequence[Task]) -> Self:
        """Give the paper's settings for tasks as long as these, with fewer steps where the budget would hardly do.

        An unroll is never shorter than the longest task (deviation 8); an update has about as many steps as published,
        in fewer environments. Decided beforehand (deviation 7).
        """
        published, devices, tables = cls(), max(task.devices for task in tasks), max(task.tables for task in tasks)
        unroll = max(published.unroll, tables)
        settings = replace(published, unroll=unroll, environments=max(1, published.update_steps // unroll))
        # Most tasks are shorter than the longest: random parts of half to all of it where there is one problem.
        episodes = 4 * settings.update_steps / (3 * tables)
        update_s = UPDATE_S + DEVICE_UPDATE_S * devices + TABLE_S * tables + EPISODE_S * episodes
        total_steps = affordable_updates(budget, update_s, settings.updates) * settings.update_steps
        return replace(settings, total_steps=total_steps)


def balance(device_ms: Floats) -> Floats:
    """Divide smallest by largest time, [episodes, devices] -> [episodes]; 1 where nothing takes time (deviation 6)."""
    slowest = device_ms.max(axis=1)
    even = np.ones(len(device_ms))
    return np.asarray(np.divide(device_ms.min(axis=1), slowest, out=even, where=slowest > 0))


def overfull(placing: Placing, tasks: Sequence[Task]) -> Floats:
    """Give (cap - fullest device's bytes) / cap of every episode, [E]: negative where memory is exceeded."""
    capacity = np.array([task.capacity_bytes for task in tasks], dtype=np.float64)
    free_bytes = np.where(placing.real, placing.free, np.iinfo(np.int64).max).min(axis=1)
    return np.asarray(free_bytes / capacity)


def rewards(placing: Placing, tasks: Sequence[Task], oracle: Oracle) -> tuple[Floats, Bools, Floats]:
    """Reward finished episodes; only those that fit are measured, one call a different task.

    Gives rewards [E], which episodes fit, and kernel times of the devices of those that do, forward and backward
    without communication, [E, D] (NaN elsewhere).
    """
    reward = overfull(placing, tasks)
    fits: Bools = reward >= 0.0
    device_ms = np.full(placing.free.shape, np.nan)
    placements = placing.placements()
    groups: dict[int, list[int]] = {}
    for episode in np.flatnonzero(fits).tolist():
        groups.setdefault(id(tasks[episode]), []).append(episode)
    for members in groups.values():
        task = tasks[members[0]]
        costs = oracle.measure(task, np.stack([placements[e] for e in members]))
        device_ms[members, : task.devices] = kernels_ms = costs.forward_ms + costs.backward_ms
        reward[members] = balance(kernels_ms)
    return reward, fits, device_ms


class MeasuredShards:
    """A ring buffer: how often each table of the catalogue is on a shard [size, catalogue], and its ms [size]."""

    def __init__(self, size: int, catalogue: int) -> None:
        self.size = size
        self.holds: NDArray[np.int16] = np.zeros((size, catalogue), dtype=np.int16)
        self.ms: Floats32 = np.zeros(size, dtype=np.float32)
        self.added = 0

    def __len__(self) -> int:
        return min(self.added, self.size)

    def add(self, rows: Sequence[Ints], chosen: Sequence[Ints], device_ms: Sequence[Floats]) -> None:
        """Append all devices of some episodes: catalogue rows [tables], their devices [tables] and ms [devices]."""
        if not rows:
            return
        starts = np.cumsum([0, *(len(ms) for ms in device_ms)])
        shard = np.concatenate([start + devices for start, devices in zip(starts, chosen)])
        new = np.zeros((int(starts[-1]), self.holds.shape[1]), dtype=np.int16)
        np.add.at(new, (shard, np.concatenate(rows)), 1)
        # More than a whole ring at once: only the last ones stay.
        new, ms = new[-self.size :], np.concatenate(device_ms)[-self.size :]
        at = (self.added + np.arange(len(new))) % self.size
        self.holds[at], self.ms[at] = new, ms
        self.added += len(new)

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw uniformly with replacement: float32 [updates, batch, catalogue] and [updates, batch]."""
        at = rng.integers(0, len(self), shape)
        return torch.from_numpy(self.holds[at]), torch.from_numpy(self.ms[at])


def learn_costs(
    networks: AutoShardNetworks,
    optimizer: torch.optim.Optimizer,
    shards: MeasuredShards,
    tables: Tensor,
    *,
    shape: tuple[int, int],
    rng: np.random.Generator,
) -> list[float]:
    """Fit the cost network to shards, ``shape`` = (updates, batch); gives each update's loss, ms^2, if there are any.

    ``tables`` float32 [catalogue + 1, 21] normalised; its last row, of zeros, is added to every shard.
    """
    if not len(shards):
        return []
    holds, ms = shards.draw(shape, rng)
    losses = []
    for batch, batch_ms in zip(holds, ms):
        encoded = networks.encoder(tables)
        predicted = networks.device_ms(batch.float() @ encoded[:-1] + encoded[-1])  # deviation 10
        loss = (predicted - batch_ms).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # deviation 9
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


class AutoShardTraining(Training[AutoShardNetworks, AutoShardSettings]):
    """Unrolls of all environments make an update of the policy, the shards that they measured several of the costs."""

    strategy = AutoShard
    settings_type = AutoShardSettings

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: AutoShardSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        # deviation 5
        scaled = self.scaling(self.catalogue.features)
        self.tables = torch.from_numpy(np.concatenate([scaled, np.zeros((1, len(FEATURES)), dtype=np.float32)]))
        self.shards = MeasuredShards(settings.shards, len(self.catalogue))
        self.streams = Streams(settings.environments)

    @staticmethod
    @one_thread()
    def place(trained: AnyTrained, tasks: Sequence[TableSet]) -> list[Ints]:
        """Take the best device with room, tables in the order of predicted cost or else by size (deviation 2)."""
        policy = AutoShardPolicy(trained.networks, trained.scaling)

        def best(tasks: Sequence[TableSet], orders: Sequence[Ints] | None) -> Placing:
            encodings = [policy.encode(task.features) for task in tasks]
            return play(policy, tasks, encodings, None, masked=True, orders=orders)[0]

        return place_or_by_size(tasks, best)

    def draw(self) -> AutoShardNetworks:
        """Draw encoder, cost network, policy and value function."""
        return AutoShardNetworks(self.seed)

    def update(self) -> UpdateNumbers:
        """Act until there is a batch, then learn from it.

        It tells the mean reward of its episodes, if any began, and the cost network's mean squared error, ms^2.
        """
        settings = self.settings
        episode_rewards: list[float] = []
        while short := self.streams.short(settings.unroll):
            episode_rewards += self._act(short)
        batch = batch_of(self.streams.cut(settings.unroll), self.tasks, self.catalogue.rows, len(self.catalogue))
        loss = actor_critic_loss(
            evaluate(self.networks, batch, self.tables),
            batch,
            discount=settings.discount,
            baseline_weight=settings.baseline_weight,
            entropy_weight=settings.entropy_weight,
        )
        self.adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.networks.parameters(), settings.grad_norm)
        self.adam.step()
        losses: list[float] = []
        if settings.cost_updates:
            shape = (settings.cost_updates, settings.cost_batch)
            losses = learn_costs(self.networks, self.adam, self.shards, self.tables, shape=shape, rng=self.rng)
        return {"reward": _mean(episode_rewards), "cost_loss": _mean(losses)}

    def _act(self, environments: Sequence[int]) -> list[float]:
        """Play one whole episode of a random task in each of these environments (deviation 1); gives their rewards."""
        numbers = self.rng.integers(0, len(self.tasks), len(environments)).tolist()
        tasks = [self.tasks[i] for i in numbers]
        policy = AutoShardPolicy(self.networks, self.scaling)
        catalogue = policy.encode(self.catalogue.features)
        encodings = [catalogue[self.catalogue.rows[i]] for i in numbers]
        placing, log_p = play(policy, tasks, encodings, self.rng, masked=False)
        reward_of, fits, device_ms = rewards(placing, tasks, self.oracle)
        episode_rewards: list[float] = reward_of.tolist()
        chosen = [row[: task.tables] for row, task in zip(placing.chosen, tasks)]
        for environment, number, order, devices, own_log_p, reward in zip(
            environments, numbers, placing.orders, chosen, log_p, episode_rewards
        ):
            episode = Episode(task=number, order=order, chosen=devices, log_p=own_log_p[: len(order)], reward=reward)
            self.streams.add(environment, episode)
        fitting = np.flatnonzero(fits).tolist()
        self.shards.add(
            [self.catalogue.rows[numbers[i]][placing.orders[i]] for i in fitting],
            [chosen[i] for i in fitting],
            # Empty devices too: deviation 6.
            [device_ms[i, : tasks[i].devices] for i in fitting],
        )
        self.calls += len(fitting)
        return episode_rewards


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
