"""The command ``check-submission``: whether records of the leaderboard can stand in it."""

from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.generated import say
from shardbench.cli.options import EXIT_FAILED, EXIT_OK, JsonOption, tell


def check_submission_command(
    folder: Annotated[
        Path, typer.Argument(help="Results folder with the records: --results of shardbench reproduce leaderboard.")
    ],
    *,
    again: Annotated[
        int, typer.Option("--again", min=0, help="Make this many cells again, drawn by the records, on fresh lookups.")
    ] = 0,
    as_json: JsonOption = False,
) -> int:
    """Check a submission to the leaderboard. Exits with 1 where its records break a rule of docs/rules.md."""
    from shardbench.studies.submission import check_submission  # noqa: PLC0415

    def told(line: str) -> None:
        say(line)

    found = check_submission(folder, again=again, told=None if as_json else told)
    lines = [
        *(found.faults or ["nothing to object to"]),
        f"{found.cells} records of {', '.join(found.strategies)}: {len(found.faults)} faults",
    ]
    tell(vars(found), lines, as_json=as_json)
    return EXIT_FAILED if found.faults else EXIT_OK
