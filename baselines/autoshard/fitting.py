"""How long AutoShard trains: what a fitting budget affords, decided before the clock starts."""

from dataclasses import replace

from shardbench.model.strategy import Budget

from .training import Settings

SUBSETS = 49
"""Training tasks drawn from a single problem's tables, besides the problem itself."""
BUDGET_SHARE = 0.8
"""Share of the fitting budget, in CPU seconds, after which training stops where it is."""
PLANNED_SHARE = 0.25
"""Share of the fitting budget that training is planned for: machines may be slower than ours, and busy."""
UPDATE_S = 0.06
DEVICE_UPDATE_S = 0.008
TABLE_S = 0.00015
EPISODE_S = 0.0012
"""Seconds of an update, and what devices, tables and episodes add to it: measured on one core, rounded up."""


def settings_for(budget: Budget, devices: int, tables: int) -> Settings:
    """The paper's settings for tasks of up to so many tables, with fewer steps where the budget would hardly do.

    An unroll is never shorter than the longest task (deviation 8); an update has about as many steps as published,
    in fewer environments. Decided beforehand and not by the clock, so that the same budget gives the same networks
    (deviation 7).
    """
    published = Settings()
    unroll = max(published.unroll, tables)
    environments = max(1, published.unroll * published.environments // unroll)
    settings = replace(published, unroll=unroll, environments=environments)
    # Most tasks are shorter than the longest: random parts of half to all of it where there is one problem.
    episodes = 4 * settings.unroll * settings.environments / (3 * tables)
    update_s = UPDATE_S + DEVICE_UPDATE_S * devices + TABLE_S * tables + EPISODE_S * episodes
    affordable = int(PLANNED_SHARE * budget.fit_s / update_s)
    updates = max(1, min(settings.updates, affordable))
    return replace(settings, total_steps=updates * settings.unroll * settings.environments)
