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

    verdict = check_submission(
        folder, again=again, seed=seed, committed=others_folder(folder), tell=(lambda line: None) if as_json else say
    )
    cells = verdict.made_again + verdict.not_made_again
    repeat = (
        f", drawn with seed {verdict.seed} (again: --again {again} --seed {verdict.seed})" if verdict.made_again else ""
    )
    lines = [
        f"checked: {verdict.bounds_on_record} bounds by those on record here, {verdict.bounds_proven} by proving them, "
        f"{verdict.plans} plans that give the submitted rows",
        f"made again: {verdict.made_again} of {cells} cells{repeat}",
        f"not made again: {verdict.not_made_again} of {cells} cells; that the strategy made their plans, and in the "
        "stated time, is as submitted",
        *(verdict.faults or ["nothing to object to"]),
        f"{verdict.cells} records of {', '.join(verdict.strategies)}: {len(verdict.faults)} faults",
    ]
    tell(vars(verdict), lines, as_json=as_json)
    return EXIT_FAILED if verdict.faults else EXIT_OK
