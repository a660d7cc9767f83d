"""The RNN baseline's hyper-parameters, and how long it trains in a fitting budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from shardbench.learned.settings import Count, NotNegative, Positive, Share, TrainingSettings, affordable_updates
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget

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
