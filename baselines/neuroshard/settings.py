"""NeuroShard's hyper-parameters of pre-training, and how much of it a fitting budget affords."""

from dataclasses import dataclass, replace

from shardbench.learning import settings
from shardbench.learning.settings import Count, Positive, Share, affordable_updates
from shardbench.model.strategy import Budget

UPDATE_S = 0.012
"""CPU seconds of an update of the three networks on 512 samples: measured on one core, rounded up."""


@dataclass(frozen=True, kw_only=True)
class Settings(settings.Settings):
    """The defaults are the published ones."""

    samples: Count = 100_000
    """Of each of the three networks: table sets, and exchanges."""
    epochs: Count = 1000
    batch: Count = 512
    learning_rate: Positive = 1e-3
    held_out: Share = 0.2
    """Share of the samples that is not learned from: the first half chooses the epoch, the second is for tests."""

    @property
    def updates(self) -> int:
        """An epoch is an update, in the skeleton's words."""
        return self.epochs

    @property
    def stages(self) -> int:
        """How often the state is kept."""
        return min(10, self.epochs)

    @property
    def learned_from(self) -> int:
        """Samples of each network that its weights are fitted to."""
        return self.samples - 2 * max(1, round(0.5 * self.held_out * self.samples))


RUN_HERE = Settings(epochs=60)
"""What is run here (deviation 2): study ``networks`` shows what more samples and epochs would change."""


def settings_for(budget: Budget) -> Settings:
    """What is run here, with fewer samples where the budget has no room for so many updates; epochs stay."""
    wanted = RUN_HERE
    updates = -(-wanted.learned_from // wanted.batch) * wanted.epochs
    share = affordable_updates(budget, UPDATE_S, updates) / updates
    return replace(wanted, samples=max(100, round(share * wanted.samples)))
