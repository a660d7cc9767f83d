"""AutoShard's training: batched environments act, the learner takes unrolls, the cost network follows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from shardbench.base.arrays import Floats
from shardbench.learning.checkpoint import adam_tensors, put_adam
from shardbench.learning.training import Training
from shardbench.tasks.features import FEATURES, SCALARS, Scaling
from shardbench.tasks.oracle import Oracle
from shardbench.tasks.task import Task

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
    version = 3
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

    @cached_property
    def adam(self) -> torch.optim.Adam:
        """Give one Adam for all, as published; what has no gradient in an update is left as it is."""
        return torch.optim.Adam(self.networks.parameters(), lr=self.settings.learning_rate, fused=True)

    def scaling_of(self, features: Floats) -> Scaling:
        """Z-score the scalars; a table's GiB as the settings say."""
        return Scaling.fit(features, SCALARS if self.settings.size_scored else SCALARS[:-1])

    def draw(self, seed: int) -> AutoShardNetworks:
        """Draw encoder, cost network, policy and value function."""
        return AutoShardNetworks(seed)

    def update(self) -> None:
        """Act until there is a batch, then learn from it."""
        settings = self.settings
        while short := self.streams.short(settings.unroll):
            self._act(short)
        self.adam.param_groups[0]["lr"] = self.rate
        batch = batch_of(self.streams.cut(settings.unroll), self.tasks, self.catalogue.rows, len(self.catalogue))
        loss = actor_critic_loss(
            evaluate(self.networks, batch, self.tables, settings.masked),
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
        everything = policy.encode(self.catalogue.features)
        encodings = [everything[self.catalogue.rows[i]] for i in numbers]
        played = play(policy, tasks, encodings, self.rng, masked=self.settings.masked)
        earned = rewards(played.placing, tasks, self.oracle)
        chosen = [row[: task.tables] for row, task in zip(played.placing.chosen, tasks)]
        for environment, number, order, devices, log_p, reward in zip(
            environments, numbers, played.orders, chosen, played.log_p, earned.reward.tolist()
        ):
            episode = Episode(task=number, order=order, chosen=devices, log_p=log_p[: len(order)], reward=reward)
            self.streams.add(environment, episode)
        fits = np.flatnonzero(earned.fits).tolist()
        self.shards.add(
            [self.catalogue.rows[numbers[i]][played.orders[i]] for i in fits],
            [chosen[i] for i in fits],
            # Empty devices too: deviation 6.
            [earned.device_ms[i, : tasks[i].devices] for i in fits],
        )
        self.calls += len(fits)
        self._since.rewards += earned.reward.tolist()
        self._since.balances += earned.reward[earned.fits].tolist()

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

    def state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Give the optimiser's state, the measured shards, and the episodes that are not yet learned from."""
        stored, streams = len(self.shards), self.streams
        facts = {
            "added": self.shards.added,
            "used": streams.used,
            "waiting": [[(e.task, e.reward) for e in queue] for queue in streams.waiting],
        }
        tensors = adam_tensors(self.adam)
        tensors["shards.holds"] = torch.from_numpy(self.shards.holds[:stored])
        tensors["shards.ms"] = torch.from_numpy(self.shards.ms[:stored])
        waiting = [episode for queue in streams.waiting for episode in queue]
        for name in ("order", "chosen", "log_p"):
            parts = [getattr(episode, name) for episode in waiting]
            tensors[f"waiting.{name}"] = torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0))
        return facts, tensors

    def put_state(self, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Set what ``state`` gave."""
        put_adam(self.adam, tensors)
        self.shards.added = int(facts["added"])
        stored = len(self.shards)
        self.shards.holds[:stored] = tensors["shards.holds"].numpy()
        self.shards.ms[:stored] = tensors["shards.ms"].numpy()
        self.streams.used = [int(used) for used in facts["used"]]
        start = 0
        for queue, kept in zip(self.streams.waiting, facts["waiting"]):
            for task, reward in kept:
                at = slice(start, start + self.tasks[task].tables)
                order, chosen, log_p = (tensors[f"waiting.{name}"][at].numpy() for name in ("order", "chosen", "log_p"))
                queue.append(Episode(task=int(task), order=order, chosen=chosen, log_p=log_p, reward=float(reward)))
                start = at.stop


@dataclass
class _Since:
    """Numbers of the episodes and updates since the stage before."""

    rewards: list[float] = field(default_factory=list)
    balances: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
