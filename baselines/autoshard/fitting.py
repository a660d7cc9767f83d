"""How long AutoShard trains: what a fitting budget affords, decided before the clock starts."""

from dataclasses import replace

from shardbench.strategy import Budget

from .training import Settings

SUBSETS = 49
"""Training tasks drawn from a single problem's tables, besides the problem itself."""
BUDGET_SHARE = 0.8
"""Share of the fitting budget, in CPU seconds, after which training stops where it is."""
PLANNED_SHARE = 0.25
"""Share of the fitting budget that training is planned for: machines may be slower than ours, and busy."""
UPDATE_S = 0.06
DEVICE_UPDATE_S = 0.008
"""Seconds of an update with its episodes, and what each device adds: measured on one core, rounded up."""


def settings_for(budget: Budget, devices: int) -> Settings:
    """The paper's settings, with fewer environment steps where the budget would hardly do (deviation 7).

    Decided beforehand and not by the clock, so that the same budget gives the same networks.
    """
    settings = Settings()
    affordable = int(PLANNED_SHARE * budget.fit_s / (UPDATE_S + DEVICE_UPDATE_S * devices))
    updates = max(1, min(settings.updates, affordable))
    return replace(settings, total_steps=updates * settings.unroll * settings.environments)
