"""The strategy passes the checks that every strategy must pass."""

from shardbench.conformance.checks import check
from shardbench.trials.discovery import get_strategy


def test_it_conforms() -> None:
    check(get_strategy("round-robin"))
