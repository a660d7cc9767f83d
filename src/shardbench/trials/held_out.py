"""A suspicion: a plan is better on the test lookups that everyone can draw than on others of the same kind."""

from collections.abc import Sequence

MARGIN = 0.95
"""Share of the shortest step on other lookups, below which chance does not make a step on the known ones."""


def too_good(known_ms: float, held_out_ms: Sequence[float]) -> str:
    """Say what is suspicious of a mean step on known test lookups beside held-out ones, or give an empty string."""
    if known_ms >= MARGIN * min(held_out_ms):
        return ""
    return (
        f"{known_ms:.4g} ms a step on the test lookups that its author could draw, at least {min(held_out_ms):.4g} ms "
        f"on {len(held_out_ms)} other draws of them: it was made for those"
    )
