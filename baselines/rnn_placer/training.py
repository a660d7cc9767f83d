"""REINFORCE on the oracle's costs of placements, one task an update, with a moving average as baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Floats, Ints
from shardbench.learned.episodes import Placing, place_or_by_size
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import TableSet, Task
from shardbench.learned.training import (
    AnyTrained,
    Count,
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

from . import RnnPlacer
from .networks import RnnNetworks, play

UPDATE_S = 0.015
TABLE_UPDATE_S = 5e-4
"""Seconds of an update, and what each of the task's tables adds: measured on one core, rounded up."""


@dataclass(frozen=True, kw_only=True)
class RnnSettings(TrainingSettings):
    """DreamShard's policy updates, each with the oracle's costs in place of estimated ones.

    The baseline's own were never published (deviation 1). The oracle is asked about ``updates`` x
    ``episodes`` placements.
    """

    updates: Count = 1000
    episodes: Count = 10
    """Placements that the oracle is asked about in an update, all of one random task."""
    learning_rate: Positive = 2e-3
    entropy_weight: NotNegative = 1e-3
    decay: Share = 0.9
    """The share that the moving average of a task's returns keeps in an update."""

    @classmethod
    def within(cls, budget: Budget, tasks: Sequence[Task]) -> Self:
        """Give the default settings for tasks as long as these, with no more updates than surely fit the budget."""
        settings, tables = cls(), max(task.tables for task in tasks)
        updates = affordable_updates(budget, UPDATE_S + TABLE_UPDATE_S * tables, settings.updates)
        return replace(settings, updates=updates)


def reinforce_loss(
    networks: RnnNetworks, scaled: Tensor, placing: Placing, advantages: Floats, entropy_weight: float
) -> Tensor:
    """Compute REINFORCE's loss of episodes of a task: mean of episodes, sum of steps; ``scaled`` [tables, 21] in order.

    Probabilities are over the devices with room, as when acting. Episodes of no advantage that
    failed count neither way.
    """
    chosen = torch.from_numpy(placing.chosen)
    logits = networks.logits(networks.encode(scaled[None]), chosen, placing.legal_at.shape[2])
    legal = torch.from_numpy(placing.legal_at)
    log_p = logits.masked_fill(~legal, -torch.inf).log_softmax(dim=2)
    placement_log_p = log_p.gather(2, chosen[:, :, None]).squeeze(2).sum(1)
    # Probability zero times its infinite logarithm would be no number.
    entropy = -(log_p.exp() * log_p.masked_fill(~legal, 0.0)).sum((1, 2))
    is_used = torch.from_numpy(~placing.failed).float()
    weight = torch.from_numpy(advantages).float()
    return -((placement_log_p * weight + entropy_weight * entropy) * is_used).mean()


class RnnTraining(Training[RnnNetworks, RnnSettings]):
    """Every update samples placements of one task and has them all measured."""

    strategy = RnnPlacer
    settings_type = RnnSettings

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: RnnSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        self.average: Floats = np.full(len(tasks), np.nan)
        """Moving average of each task's returns; NaN before the first."""

    @staticmethod
    @one_thread()
    def place(trained: AnyTrained, tasks: Sequence[TableSet]) -> list[Ints]:
        """Take the decoder's best devices with room, tables as they come or else by size.

        Raises BadInput for a number of devices that was not trained.
        """

        def best(tasks: Sequence[TableSet], orders: Sequence[Ints] | None) -> Placing:
            (task,) = tasks
            order = np.arange(task.tables) if orders is None else orders[0]
            return play(trained.networks, task, trained.scaling(task.features), order, episodes=1, rng=None)

        return [place_or_by_size([task], best)[0] for task in tasks]

    def draw(self) -> RnnNetworks:
        """Draw encoder and decoder, with output layers for the tasks' numbers of devices."""
        return RnnNetworks((task.devices for task in self.tasks), self.seed)

    def update(self) -> UpdateNumbers:
        """Sample placements of a random task, have them measured, and learn from that; tells their mean cost."""
        number = int(self.rng.integers(0, len(self.tasks)))
        task = self.tasks[number]
        scaled, order = self.scaling(task.features), np.arange(task.tables)
        placing = play(self.networks, task, scaled, order, episodes=self.settings.episodes, rng=self.rng)
        if placing.failed.all():
            return {"measured_ms": None}
        advantages, measured_ms = self.measure(number, placing)
        tables = torch.from_numpy(scaled[order])
        self.descend(reinforce_loss(self.networks, tables, placing, advantages, self.settings.entropy_weight))
        return {"measured_ms": measured_ms}

    def measure(self, number: int, placing: Placing) -> tuple[Floats, float]:
        """Measure episodes of a task, some of which did not fail; gives their advantages [E] and mean cost, ms.

        An advantage is minus the cost's root, over the task's average, and 0 of an episode that failed.
        """
        failed = placing.failed
        placements = np.stack(placing.placements())[~failed]
        costs_ms = self.oracle.measure(self.tasks[number], placements).overall_ms  # deviation 2
        self.calls += len(placements)
        # The root of the running time is what device placement by REINFORCE used (ICML 2017).
        returns = -np.sqrt(costs_ms)
        if np.isnan(self.average[number]):
            self.average[number] = returns.mean()
        advantages = np.zeros(len(failed))
        advantages[~failed] = returns - self.average[number]
        decay = self.settings.decay
        self.average[number] = decay * self.average[number] + (1.0 - decay) * returns.mean()
        return advantages, float(costs_ms.mean())
