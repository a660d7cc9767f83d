"""The command ``test``: the conformance checks of one strategy."""

import sys
from typing import Annotated

import typer

from shardbench.base.generated import say
from shardbench.cli.names import strategy_names
from shardbench.cli.options import EXIT_FAILED, EXIT_OK, JsonOption, print_json, tell


def test_command(
    strategy: Annotated[str, typer.Argument(help="Name of a strategy.", autocompletion=strategy_names)],
    as_json: JsonOption = False,
) -> int:
    """Run the checks that every strategy must pass."""
    from shardbench.conformance.checks import CHECKS, ConformanceError, check  # noqa: PLC0415
    from shardbench.trials.discovery import get_strategy  # noqa: PLC0415

    loaded_strategy = get_strategy(strategy)
    try:
        check(loaded_strategy)
    except ConformanceError as error:
        if as_json:
            print_json({"strategy": strategy, "passed": False, "check": error.check, "cause": str(error)})
        else:
            say(f"failed: {error}", sys.stderr)
        return EXIT_FAILED
    report = {"strategy": strategy, "passed": True, "checks": list(CHECKS)}
    tell(report, [f"{strategy}: passes all {len(CHECKS)} checks"], as_json=as_json)
    return EXIT_OK
