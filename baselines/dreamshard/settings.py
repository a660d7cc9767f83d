"""DreamShard's hyper-parameters, and how many updates it makes in a small fitting budget."""

from dataclasses import dataclass, replace

from shardbench.learning import settings
from shardbench.learning.settings import Count, NotNegative, Positive
from shardbench.model.strategy import Budget

FULL_FIT_S = 60.0
"""Fitting budget from which training is the paper's; below, it has proportionally fewer updates (deviation 6)."""


@dataclass(frozen=True, kw_only=True)
class Settings(settings.Settings):
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
    """Of the first iteration; it falls linearly, to a tenth in the last of ten."""
    entropy_weight: NotNegative = 1e-3
    mean_width: Positive | None = None
    """What widths are divided to have as their mean over the training tables, a variant; None: they are fed raw."""

    @property
    def updates(self) -> int:
        """An iteration is an update, in the skeleton's words."""
        return self.iterations

    @property
    def stages(self) -> int:
        """The state is kept after every iteration."""
        return self.iterations


def settings_for(budget: Budget) -> Settings:
    """The paper's settings, with updates cut to what a small fitting budget affords; all ten iterations stay."""
    published, share = Settings(), min(1.0, budget.fit_s / FULL_FIT_S)
    return replace(
        published,
        cost_updates=max(1, round(share * published.cost_updates)),
        policy_updates=max(1, round(share * published.policy_updates)),
    )
