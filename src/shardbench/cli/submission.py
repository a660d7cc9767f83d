"""The command ``check-submission``: whether records of the leaderboard can stand in it."""

from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.generated import ascii_text
from shardbench.cli.options import EXIT_FAILED, EXIT_OK, JsonOption, print_json


def check_submission_command(
    folder: Annotated[Path, typer.Argument(help="Results folder with the records (reproduce leaderboard --results).")],
    *,
    again: Annotated[
        int, typer.Option("--again", min=0, help="Cells to make anew and judge on fresh lookups, drawn by the records.")
    ] = 0,
    as_json: JsonOption = False,
) -> int:
    """Hold records of the leaderboard against its rules (docs/rules.md); exits with 1 where one is broken."""
    from shardbench.studies.submission import check_submission  # noqa: PLC0415

    def told(line: str) -> None:
        print(ascii_text(line), flush=True)

    found = check_submission(folder, again=again, told=None if as_json else told)
    if as_json:
        print_json({"strategies": found.strategies, "cells": found.cells, "again": found.again, "faults": found.faults})
    else:
        print("\n".join(map(ascii_text, found.faults)) or "nothing to object to")
        print(ascii_text(f"{found.cells} records of {', '.join(found.strategies)}: {len(found.faults)} faults"))
    return EXIT_FAILED if found.faults else EXIT_OK
