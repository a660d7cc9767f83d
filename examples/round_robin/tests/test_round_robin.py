"""The strategy passes the checks that every strategy must pass."""

from shardbench.runs.conformance import check
from shardbench.runs.discovery import get_strategy


def test_it_conforms() -> None:
    check(get_strategy("round-robin"))
