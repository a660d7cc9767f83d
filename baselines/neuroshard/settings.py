"""NeuroShard's hyper-parameters of pre-training and limits of its search, and how much of both a budget affords."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from shardbench.learned.settings import Count, Positive, Share, TrainingSettings, affordable_updates
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget

EPOCHS_HERE = 60
"""Epochs of what is run here (deviation 2): study ``networks`` shows what more samples and epochs would change."""
UPDATE_S = 0.012
"""CPU seconds of an update of the three networks on 512 samples: measured on one core, rounded up."""
CAPS = tuple(1.0 + 0.05 * step for step in range(11))
"""Most that a device's width may be, over the devices' mean."""
EVALUATIONS_A_SECOND = 1_500_000
"""Devices that one core rates in a second, at the least."""


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """The defaults are the published ones."""

    beams: int = 3
    """Column plans that are kept after each halving."""
    candidates: int = 10
    """Shards to halve: as many of the largest, and as many of those with the longest predicted kernels."""
    splits: int = 10
    """Halvings at the most."""
    caps: tuple[float, ...] = CAPS


@dataclass(frozen=True, kw_only=True)
class NeuroShardSettings(TrainingSettings):
    """The defaults are the published ones."""

    samples: Count = 100_000
    """Samples for each of the three networks: table sets, and exchanges."""
    epochs: Count = 1000
    batch: Count = 512
    learning_rate: Positive = 1e-3
    held_out: Share = 0.2
    """Share of the samples that is not learned from: the first half chooses the epoch, the second is for tests."""

    @property
    def updates(self) -> int:
        """Count an epoch as an update."""
        return self.epochs

    @property
    def learned_from(self) -> int:
        """Count the samples of each network that its weights are fitted to."""
        return self.samples - 2 * max(1, round(0.5 * self.held_out * self.samples))

    @classmethod
    def within(cls, budget: Budget, tasks: Sequence[Task]) -> Self:
        """Give what is run here, with fewer samples where the budget has no room for so many updates; epochs stay."""
        settings = cls(epochs=EPOCHS_HERE)
        updates = -(-settings.learned_from // settings.batch) * settings.epochs
        share = affordable_updates(budget, UPDATE_S, updates) / updates
        return replace(settings, samples=max(100, round(share * settings.samples)))
