"""Joint planner: all device moves at once, for the shortest predicted step."""

from collections.abc import Iterable

from shardbench.model.strategy import Strategy

from .strategy import RATINGS, VARIANTS, Joint


def strategies() -> Iterable[Strategy]:
    """Return the planner, the planner without some of its parts, and the planner that chooses in other ways."""
    return (Joint(), *(variant() for variant in (*VARIANTS, *RATINGS)))
