"""DreamShard's training: measure a few placements, fit the cost network, improve the policy on its estimates.

The policy's update is REINFORCE on estimated costs, all steps of all episodes at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Bools, Floats, Floats32, Ints
from shardbench.learned.episodes import Placing, place_or_by_size
from shardbench.learned.tasks.features import Scaling
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import TableSet, Task
from shardbench.learned.training import (
    AnyTrained,
    Count,
    NotNegative,
    Positive,
    Training,
    TrainingSettings,
    UpdateNumbers,
    one_thread,
)
from shardbench.model.strategy import Budget

from . import DreamShard
from .networks import DreamShardEpisodes, DreamShardNetworks, DreamShardPolicy, PolicyNetwork, play
from .regression import MeasuredPlacements, learn_costs

SCORED = ("rows", "pooling", "size_gib")
FULL_FIT_S = 60.0
"""Fitting budget from which training is the paper's; below, it has proportionally fewer updates (deviation 6)."""
IMPOSSIBLE = -1e9
"""Logit of an illegal device: its probability is zero in fp32, and zero times it is zero."""
SPREAD = 1e-6
"""Keeps equal returns from being divided by zero."""


@dataclass(frozen=True, kw_only=True)
class DreamShardSettings(TrainingSettings):
    """The defaults are the paper's."""

    iterations: Count = 10
    measured: Count = 10
    """Placements measured in an iteration."""
    cost_updates: Count = 300
    cost_batch: Count = 64
    policy_updates: Count = 10
    episodes: Count = 10
    """Episodes of a policy update, all of one task."""
    learning_rate: Positive = 5e-4
    """The first iteration's rate; it falls linearly, to a tenth in the last of ten."""
    entropy_weight: NotNegative = 1e-3
    mean_width: Positive | None = None
    """What widths are divided to have as their mean over the training tables, a variant; None: they are fed raw."""

    @property
    def updates(self) -> int:
        """Count an iteration as an update."""
        return self.iterations

    @classmethod
    def within(cls, budget: Budget, tasks: Sequence[Task]) -> Self:
        """Cut the paper's updates to what a small fitting budget affords; all ten iterations stay."""
        published, share = cls(), min(1.0, budget.fit_s / FULL_FIT_S)
        return replace(
            published,
            cost_updates=max(1, round(share * published.cost_updates)),
            policy_updates=max(1, round(share * published.policy_updates)),
        )


def states_before(chosen: Ints, devices: int) -> Ints:
    """Find the step after which each device last changed before each step, plus one (0: still empty), [E, T, D]."""
    episodes, steps = chosen.shape
    changed = np.zeros((episodes, steps, devices), dtype=np.int64)
    np.put_along_axis(changed, chosen[:, :, None], np.arange(1, steps + 1)[None, :, None], axis=2)
    before = np.zeros_like(changed)
    np.maximum.accumulate(changed[:, :-1], axis=1, out=before[:, 1:])
    return before


def advantages(overall_ms: Floats32, failed: Bools) -> Floats32:
    """Standardise returns of the episodes that found a place for every table, zero for the others, [E]."""
    returns = -overall_ms.astype(np.float64)
    good = ~failed
    if good.sum() < 2:
        return np.zeros(len(returns), dtype=np.float32)
    centred = (returns - returns[good].mean()) / (returns[good].std() + SPREAD)
    return np.where(good, centred, 0.0).astype(np.float32)


def policy_loss(
    policy: PolicyNetwork, tables: Tensor, episodes: DreamShardEpisodes, empty_ms: Floats32, entropy_weight: float
) -> Tensor:
    """Compute REINFORCE's loss of episodes of a task; ``tables`` float32 [T, 21] normalised, in the order of placing.

    Probabilities are over the legal devices only, at the update as when acting: deviation 1. All
    states of all steps are evaluated at once: after each step one device an episode is new.
    """
    placing = episodes.placing
    chosen = torch.from_numpy(placing.chosen)
    count, steps = chosen.shape
    same = (chosen[:, :, None] == chosen[:, None, :]).float().tril_()
    sums = same @ policy.encoder(tables)
    empty = policy.encoder(torch.zeros(1, tables.shape[1]))
    states = torch.cat([empty.expand(count, 1, -1), sums], dim=1)
    costs = torch.empty(count, steps + 1, episodes.costs_ms.shape[2])
    costs[:, 0], costs[:, 1:] = torch.from_numpy(empty_ms), torch.from_numpy(episodes.costs_ms)
    scores = policy(states, costs)
    before = torch.from_numpy(states_before(placing.chosen, placing.free.shape[1]))
    logits = scores.gather(1, before.flatten(1)).view_as(before)
    logits = logits.masked_fill(torch.from_numpy(~placing.legal_at), IMPOSSIBLE)
    log_p = logits.log_softmax(dim=2)
    action_log_p = log_p.gather(2, chosen[:, :, None]).squeeze(2)
    entropy = -(log_p.exp() * log_p).sum(2)
    weight = torch.from_numpy(advantages(episodes.overall_ms, placing.failed))
    is_used = torch.from_numpy(~placing.failed).float()
    gain: Tensor = (action_log_p * weight[:, None]).mean() + entropy_weight * (entropy * is_used[:, None]).mean()
    return -gain


class DreamShardTraining(Training[DreamShardNetworks, DreamShardSettings]):
    """An iteration is one update; where no sampled placement ever fits, the networks stay untrained."""

    strategy = DreamShard
    settings_type = DreamShardSettings

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: DreamShardSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        self.scaled: Floats32 = self.scaling(self.catalogue.features)  # deviations 2 and 3
        self.measured = MeasuredPlacements(self.catalogue, max(task.devices for task in tasks))

    @staticmethod
    @one_thread()
    def place(trained: AnyTrained, tasks: Sequence[TableSet]) -> list[Ints]:
        """Take the best device with room, tables in the order of predicted cost or else by size (deviation 4)."""
        policy = DreamShardPolicy(trained.networks, trained.scaling)

        def best(tasks: Sequence[TableSet], orders: Sequence[Ints] | None) -> Placing:
            encodings = [policy.encode(task.features) for task in tasks]
            return play(policy, tasks, encodings, orders or [*map(policy.order, encodings)], None).placing

        return place_or_by_size(tasks, best)

    def scaling_of(self, features: Floats) -> Scaling:
        """Leave the width raw, as published: where tables are alike it tells how many a device holds (deviation 2)."""
        scaling = Scaling.fit(features, SCORED)
        mean_width = self.settings.mean_width
        if mean_width is None:
            return scaling
        return replace(scaling, spread=(float(features[:, 0].mean()) / mean_width, *scaling.spread[1:]))

    def draw(self) -> DreamShardNetworks:
        """Draw the cost network and the policy."""
        return DreamShardNetworks(self.seed)

    def update(self) -> UpdateNumbers:
        """Make one iteration: measure, fit the cost network, improve the policy.

        It tells the mean cost of the placements that it measured, drawn from the policy before its updates, and the
        cost network's mean loss over the iteration's last tenth of updates, ms^2.
        """
        measured_ms = self._collect()
        losses: list[float] = []
        # Without any cost known, estimates mean nothing: the policy stays as it is until a placement fits.
        if len(self.measured):
            losses = self._fit()
            for _ in range(self.settings.policy_updates):
                self._improve()
        last = losses[-max(1, len(losses) // 10) :]
        return {"measured_ms": measured_ms, "cost_loss": float(np.mean(last)) if last else None}

    def _collect(self) -> float | None:
        """Measure sampled placements of random tasks; gives their mean cost, if any of them fits."""
        chosen = self.rng.integers(0, len(self.tasks), self.settings.measured)
        policy = DreamShardPolicy(self.networks, self.scaling)
        catalogue = policy.encode(self.catalogue.features)
        encodings = [catalogue[self.catalogue.rows[i]] for i in chosen]
        orders = [policy.order(encoded) for encoded in encodings]
        tasks = [self.tasks[i] for i in chosen]
        placing = play(policy, tasks, encodings, orders, self.rng).placing
        costs_ms = []
        for number, task, placement, failed in zip(chosen.tolist(), tasks, placing.placements(), placing.failed):
            if not failed:
                costs = self.oracle.measure(task, placement[None])
                self.measured.add(number, placement, costs)
                costs_ms.append(float(costs.overall_ms[0]))
        self.calls += len(costs_ms)
        return float(np.mean(costs_ms)) if costs_ms else None

    def _fit(self) -> list[float]:
        """Fit the cost network to everything that was measured; gives each update's loss."""
        shape = (self.settings.cost_updates, self.settings.cost_batch)
        return learn_costs(self.networks.cost, self.adam, self.measured, self.scaled, shape=shape, rng=self.rng)

    def _improve(self) -> None:
        """Update the policy on the estimated costs of one random task."""
        number = int(self.rng.integers(0, len(self.tasks)))
        task, rows = self.tasks[number], self.catalogue.rows[number]
        policy = DreamShardPolicy(self.networks, self.scaling)
        encoded = policy.encode(task.features)
        order = policy.order(encoded)
        count = self.settings.episodes
        episodes = play(policy, [task] * count, [encoded] * count, [order] * count, self.rng)
        empty_ms = policy.device_ms(policy.empty[None])[0]
        tables = torch.from_numpy(self.scaled[rows[order]])
        self.descend(policy_loss(self.networks.policy, tables, episodes, empty_ms, self.settings.entropy_weight))
