"""AutoShard's training: batched environments act, the learner takes unrolls, the cost network follows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shardbench.learned.tasks.features import FEATURES
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import Task
from shardbench.learned.training import Training

from .actor_critic import actor_critic_loss, batch_of, evaluate
from .networks import AutoShardNetworks
from .policy import AutoShardPolicy, play
from .policy import place as place_tables
from .rewards import rewards
from .settings import AutoShardSettings
from .shards import MeasuredShards, learn_costs
from .unrolls import Episode, Streams


@dataclass(frozen=True, kw_only=True)
class AutoShardStage:
    """What happened since the stage before."""

    updates: int
    """Learner updates so far."""
    episodes: int
    reward: float | None
    """Mean over the stage's episodes; None if all its steps were of earlier ones."""
    balance: float | None
    """Mean smallest over largest kernel time of the episodes that fit; None if none did."""
    overfull: int
    """Episodes that exceeded a device's memory."""
    cost_loss: float | None
    """Mean squared error of the cost network, ms^2; None where it learned nothing."""


class AutoShardTraining(Training[AutoShardNetworks, AutoShardSettings, AutoShardStage]):
    """Unrolls of all environments make an update of the policy, the shards that they measured several of the costs."""

    kind = "autoshard"
    version = 4
    settings_type = AutoShardSettings
    stage_type = AutoShardStage
    place = staticmethod(place_tables)

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: AutoShardSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        # deviation 5
        scaled = self.scaling(self.catalogue.features)
        self.tables = torch.from_numpy(np.concatenate([scaled, np.zeros((1, len(FEATURES)), dtype=np.float32)]))
        self.shards = MeasuredShards(settings.shards, len(self.catalogue))
        self.streams = Streams(settings.environments)
        self._since = _Since()

    def draw(self, seed: int) -> AutoShardNetworks:
        """Draw encoder, cost network, policy and value function."""
        return AutoShardNetworks(seed)

    def update(self) -> None:
        """Act until there is a batch, then learn from it."""
        settings = self.settings
        while short := self.streams.short(settings.unroll):
            self._act(short)
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
        if settings.cost_updates:
            shape = (settings.cost_updates, settings.cost_batch)
            self._since.cost += learn_costs(
                self.networks, self.adam, self.shards, self.tables, shape=shape, rng=self.rng
            )

    def _act(self, environments: Sequence[int]) -> None:
        """Play one whole episode of a random task in each of these environments (deviation 1)."""
        numbers = self.rng.integers(0, len(self.tasks), len(environments)).tolist()
        tasks = [self.tasks[i] for i in numbers]
        policy = AutoShardPolicy(self.networks, self.scaling)
        catalogue = policy.encode(self.catalogue.features)
        encodings = [catalogue[self.catalogue.rows[i]] for i in numbers]
        episodes = play(policy, tasks, encodings, self.rng, masked=False)
        judgement = rewards(episodes.placing, tasks, self.oracle)
        chosen = [row[: task.tables] for row, task in zip(episodes.placing.chosen, tasks)]
        for environment, number, order, devices, log_p, reward in zip(
            environments, numbers, episodes.orders, chosen, episodes.log_p, judgement.reward.tolist()
        ):
            episode = Episode(task=number, order=order, chosen=devices, log_p=log_p[: len(order)], reward=reward)
            self.streams.add(environment, episode)
        fitting = np.flatnonzero(judgement.fits).tolist()
        self.shards.add(
            [self.catalogue.rows[numbers[i]][episodes.orders[i]] for i in fitting],
            [chosen[i] for i in fitting],
            # Empty devices too: deviation 6.
            [judgement.device_ms[i, : tasks[i].devices] for i in fitting],
        )
        self.calls += len(fitting)
        self._since.rewards += judgement.reward.tolist()
        self._since.balances += judgement.reward[judgement.fits].tolist()

    def stage(self) -> AutoShardStage:
        """Average what happened since the stage before."""
        since, self._since = self._since, _Since()
        return AutoShardStage(
            updates=self.updates,
            episodes=len(since.rewards),
            reward=_mean(since.rewards),
            balance=_mean(since.balances),
            overfull=len(since.rewards) - len(since.balances),
            cost_loss=_mean(since.cost),
        )

    def state(self) -> dict[str, Any]:
        """Give the measured shards, and the episodes that are not yet learned from."""
        stored = len(self.shards)
        return {
            "added": self.shards.added,
            "holds": torch.from_numpy(self.shards.holds[:stored]),
            "ms": torch.from_numpy(self.shards.ms[:stored]),
            "used": self.streams.used,
            "waiting": [
                [(e.task, e.reward, *map(torch.from_numpy, (e.order, e.chosen, e.log_p))) for e in queue]
                for queue in self.streams.waiting
            ],
        }

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Set what ``state`` gave."""
        self.shards.added = state["added"]
        stored = len(self.shards)
        self.shards.holds[:stored] = state["holds"].numpy()
        self.shards.ms[:stored] = state["ms"].numpy()
        self.streams.used = state["used"]
        for queue, episodes in zip(self.streams.waiting, state["waiting"], strict=True):
            for task, reward, *arrays in episodes:
                order, chosen, log_p = (array.numpy() for array in arrays)
                queue.append(Episode(task=task, order=order, chosen=chosen, log_p=log_p, reward=reward))


@dataclass
class _Since:
    """Numbers of the episodes and updates since the stage before."""

    rewards: list[float] = field(default_factory=list)
    balances: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
