"""AutoShard's hyper-parameters, and how long it trains in a fitting budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from shardbench.learned.settings import (
    Count,
    CountOrNone,
    NotNegative,
    Positive,
    Share,
    TrainingSettings,
    affordable_updates,
)
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget

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
