"""AutoShard's training: batched environments act, the learner takes unrolls, the cost network follows."""

from collections.abc import Sequence

import numpy as np
import torch

from shardbench.learned.tasks.features import FEATURES
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import Task
from shardbench.learned.training import Training, UpdateNumbers

from . import AutoShard
from .actor_critic import actor_critic_loss, batch_of, evaluate
from .networks import AutoShardNetworks
from .policy import AutoShardPolicy, play
from .policy import place as place_tables
from .rewards import rewards
from .settings import AutoShardSettings
from .shards import MeasuredShards, learn_costs
from .unrolls import Episode, Streams


class AutoShardTraining(Training[AutoShardNetworks, AutoShardSettings]):
    """Unrolls of all environments make an update of the policy, the shards that they measured several of the costs."""

    strategy = AutoShard
    settings_type = AutoShardSettings
    place = staticmethod(place_tables)

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: AutoShardSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        # deviation 5
        scaled = self.scaling(self.catalogue.features)
        self.tables = torch.from_numpy(np.concatenate([scaled, np.zeros((1, len(FEATURES)), dtype=np.float32)]))
        self.shards = MeasuredShards(settings.shards, len(self.catalogue))
        self.streams = Streams(settings.environments)

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
        judgement = rewards(placing, tasks, self.oracle)
        episode_rewards: list[float] = judgement.reward.tolist()
        chosen = [row[: task.tables] for row, task in zip(placing.chosen, tasks)]
        for environment, number, order, devices, own_log_p, reward in zip(
            environments, numbers, placing.orders, chosen, log_p, episode_rewards
        ):
            episode = Episode(task=number, order=order, chosen=devices, log_p=own_log_p[: len(order)], reward=reward)
            self.streams.add(environment, episode)
        fitting = np.flatnonzero(judgement.fits).tolist()
        self.shards.add(
            [self.catalogue.rows[numbers[i]][placing.orders[i]] for i in fitting],
            [chosen[i] for i in fitting],
            # Empty devices too: deviation 6.
            [judgement.device_ms[i, : tasks[i].devices] for i in fitting],
        )
        self.calls += len(fitting)
        return episode_rewards


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
