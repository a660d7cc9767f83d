"""AutoShard's training: batched environments act, the learner takes unrolls, the cost network follows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.learning.settings import Count, CountOrNone, NotNegative, Positive, Share, check_settings
from shardbench.learning.training import Catalogue, CpuClock
from shardbench.tasks.features import FEATURES, Scaling
from shardbench.tasks.oracle import Oracle
from shardbench.tasks.task import Task

from .acting import Policy, play
from .learning import actor_critic_loss, batch_of, evaluate
from .networks import Networks
from .rewards import rewards
from .shards import Shards, learn_costs
from .unrolls import Episode, Streams

VERSION = 2
"""Of the checkpoints; raise it where weights, features or the loop change their meaning."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyper-parameters; the defaults are those of the published code."""

    total_steps: Count = 100_000
    """Environment steps (tables placed) in all."""
    unroll: Count = 100
    """Steps; shorter than a task, most of its steps never see a reward (deviation 8: ``fit`` sees to it)."""
    environments: Count = 8
    """Unrolls in a learner batch: one of each environment."""
    learning_rate: Positive = 1e-3
    """Of the first update; it falls linearly to zero over ``total_steps``."""
    discount: Share = 1.0
    baseline_weight: NotNegative = 0.5
    entropy_weight: NotNegative = 1e-3
    grad_norm: Positive = 40.0
    cost_updates: CountOrNone = 20
    """After every learner update; 0 leaves the cost network untrained (the published ablation)."""
    cost_batch: Count = 512
    shards: Count = 5_000
    """Size of the ring buffer."""
    masked: bool = False
    """Whether training, too, chooses among devices with room only (deviation 2)."""
    stages: Count = 10
    """How often the state is kept, and progress told, in a training."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def updates(self) -> int:
        """Learner updates in all: as many as ``total_steps`` has full batches, at least one."""
        return max(1, self.total_steps // (self.unroll * self.environments))


@dataclass(frozen=True, kw_only=True)
class Stage:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Networks, the scaling of their inputs, and how they came about."""

    networks: Networks
    scaling: Scaling
    history: tuple[Stage, ...]
    oracle_calls: int
    steps: int
    """Environment steps that were learned from."""
    complete: bool
    """Whether the training came to its end; not where it ran out of time."""
    earlier_cpu_s: float = 0.0
    """CPU seconds of the training that earlier processes spent: it was taken up from a folder."""


def untrained(tasks: Sequence[Task], seed: int) -> Trained:
    """The networks that training would start from: a control."""
    scaling = Scaling.fit(Catalogue(tasks).features)
    return Trained(networks=Networks(seed), scaling=scaling, history=(), oracle_calls=0, steps=0, complete=True)


def training_key(tasks: Sequence[Task], oracle: Oracle, seed: int, settings: Settings) -> str:
    """Hash of everything that training depends on."""
    return content_hash(VERSION, [task.key for task in tasks], oracle.identity, seed, asdict(settings))


class Run:
    """The state of one training; ``update`` advances it."""

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: Settings) -> None:
        if not tasks:
            raise BadInput("training needs at least one task")
        self.tasks, self.oracle, self.settings = tuple(tasks), oracle, settings
        self.key = training_key(tasks, oracle, seed, settings)
        self.catalogue = Catalogue(tasks)
        # deviation 5
        self.scaling = Scaling.fit(self.catalogue.features)
        scaled = self.scaling(self.catalogue.features)
        self.tables = torch.from_numpy(np.concatenate([scaled, np.zeros((1, len(FEATURES)), dtype=np.float32)]))
        self.networks = Networks(seed)
        # One Adam for all, as published; what has no gradient in an update is left as it is.
        self.adam = torch.optim.Adam(self.networks.parameters(), lr=settings.learning_rate, fused=True)
        self.shards = Shards(settings.shards, len(self.catalogue))
        self.streams = Streams(settings.environments)
        self.rng = np.random.default_rng([seed, 1])
        self.history: list[Stage] = []
        self.updates = self.calls = 0
        self._since = _Since()
        self.clock = CpuClock()

    @property
    def done(self) -> bool:
        """Whether every update was made."""
        return self.updates >= self.settings.updates

    def result(self) -> Trained:
        """What was learned so far."""
        return Trained(
            networks=self.networks,
            scaling=self.scaling,
            history=tuple(self.history),
            oracle_calls=self.calls,
            steps=self.updates * self.settings.unroll * self.settings.environments,
            complete=self.done,
            earlier_cpu_s=self.clock.earlier_s,
        )

    def update(self) -> Stage | None:
        """Act until there is a batch, learn from it; gives the stage that ends with this update, if one does."""
        settings = self.settings
        while short := self.streams.short(settings.unroll):
            self._act(short)
        self.adam.param_groups[0]["lr"] = settings.learning_rate * (1.0 - self.updates / settings.updates)
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
        self.updates += 1
        return self._stage()

    def _act(self, environments: Sequence[int]) -> None:
        """One whole episode of a random task in each of these environments (deviation 1)."""
        numbers = self.rng.integers(0, len(self.tasks), len(environments)).tolist()
        tasks = [self.tasks[i] for i in numbers]
        policy = Policy(self.networks, self.scaling)
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

    def _stage(self) -> Stage | None:
        settings, since = self.settings, self._since
        before, now = ((n * settings.stages) // settings.updates for n in (self.updates - 1, self.updates))
        if before == now:
            return None
        self.history.append(
            Stage(
                updates=self.updates,
                episodes=len(since.rewards),
                reward=_mean(since.rewards),
                balance=_mean(since.balances),
                overfull=len(since.rewards) - len(since.balances),
                cost_loss=_mean(since.cost),
            )
        )
        self._since = _Since()
        return self.history[-1]


class _Since:
    """Sums since the last stage."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.balances: list[float] = []
        self.cost: list[float] = []


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
