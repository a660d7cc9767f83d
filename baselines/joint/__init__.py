"""Joint planner: all device moves at once, for the shortest predicted step."""

from collections.abc import Iterable

from shardbench.model.strategy import Strategy

from .strategy import VARIANTS, Joint


def strategies() -> Iterable[Strategy]:
    """Return the planner, and the planner without some of its parts."""
    return (Joint(), *(variant() for variant in VARIANTS))
