"""Limits of the search, and how much of it a planning budget affords."""

from dataclasses import dataclass

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
