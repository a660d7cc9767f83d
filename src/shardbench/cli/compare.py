"""The command ``compare``: a run of one's own against the committed results."""

from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.errors import BadInput
from shardbench.base.generated import ascii_text
from shardbench.cli.options import JsonOption, print_json


def compare_command(
    results: Annotated[Path, typer.Argument(help="Results folder of your own run, such as runs.")],
    *,
    committed: Annotated[
        Path | None,
        typer.Option("--with", help="Results folder to compare with; in a clone of ShardBench its results."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how a run of your own differs from the committed results: trials, studies and claims."""
    from shardbench.report.compare.comparison import compare_results  # noqa: PLC0415
    from shardbench.report.compare.comparison_text import text_lines  # noqa: PLC0415
    from shardbench.report.tables.files import json_rows  # noqa: PLC0415

    found = compare_results(results, committed_results() if committed is None else committed)
    if not as_json:
        for line in text_lines(found):
            print(ascii_text(line))
        return
    frames = {name: json_rows(getattr(found, name)) for name in ("simulated", "measured", "cells", "claims")}
    order = {suite: [vars(one) for one in agreements] for suite, agreements in found.order.items()}
    print_json({"results": str(found.folder), "committed": str(found.committed), **frames, "order": order})


def committed_results() -> Path:
    """``results`` of the clone of ShardBench that the command runs in; raises BadInput where it runs in none."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "src" / "shardbench").is_dir() and (folder / "results" / "records").is_dir():
            return folder / "results"
    raise BadInput(
        f"{here} is in no clone of ShardBench, and the committed results are not in the package: "
        "name the folder to compare with by --with"
    )
