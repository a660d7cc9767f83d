"""The command ``check-submission``: whether records of the leaderboard can stand in it."""

from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.generated import say
from shardbench.cli.compare import others_folder
from shardbench.cli.options import EXIT_FAILED, EXIT_OK, JsonOption, tell


def check_submission_command(
    folder: Annotated[
        Path, typer.Argument(help="Results folder with the records: --results of shardbench reproduce leaderboard.")
    ],
    *,
    again: Annotated[
        int, typer.Option("--again", min=0, help="Make so many cells of each strategy again, on fresh lookups, too.")
    ] = 3,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Draw the cells of an earlier check; a new seed if left out.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check a submission to the leaderboard: judge its plans, and make some cells again.

    Exits with 1 where its records break a rule of docs/rules.md.
    """
    from shardbench.conformance.submission import check_submission  # noqa: PLC0415

    def told(line: str) -> None:
        if not as_json:
            say(line)

    found = check_submission(folder, again=again, seed=seed, committed=others_folder(folder), told=told)
    asked = found.made_again + found.not_made_again
    repeat = f", drawn with seed {found.seed} (again: --again {again} --seed {found.seed})" if found.made_again else ""
    lines = [
        f"checked: {found.bounds_on_record} bounds by those on record here, {found.bounds_proven} by proving them, "
        f"{found.plans} plans that give the submitted rows",
        f"made again: {found.made_again} of {asked} cells{repeat}",
        f"not made again: {found.not_made_again} of {asked} cells; that the strategy made their plans, and in the "
        "stated time, is as submitted",
        *(found.faults or ["nothing to object to"]),
        f"{found.cells} records of {', '.join(found.strategies)}: {len(found.faults)} faults",
    ]
    tell(vars(found), lines, as_json=as_json)
    return EXIT_FAILED if found.faults else EXIT_OK
