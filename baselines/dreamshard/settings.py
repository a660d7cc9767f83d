"""DreamShard's hyper-parameters, and how many updates it makes in a small fitting budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from shardbench.learned.settings import Count, NotNegative, Positive, TrainingSettings
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget

FULL_FIT_S = 60.0
"""Fitting budget from which training is the paper's; below, it has proportionally fewer updates (deviation 6)."""


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
