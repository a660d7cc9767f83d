"""The command ``compare``: two results folders, such as a run of one's own and the committed one."""

from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.errors import BadInput
from shardbench.base.generated import check_files, write_files
from shardbench.cli.options import EXIT_OK, JsonOption, tell, tell_differences


def compare_command(
    results: Annotated[Path, typer.Argument(help="Results folder of a run, such as runs.")],
    *,
    committed: Annotated[
        Path | None,
        typer.Option("--with", help="Results folder to compare with; in a clone of ShardBench its results."),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", help="Compare only the order of this suite's measured strategies; write its table."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --order: only compare the table on disk with the records.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Compare two runs. It says which numbers and answers are equal, and how far off the others are.

    Where measured trials were repeated, it says whether pairs of strategies that the first run tells apart come in the
    same order in the second; --order SUITE writes that as <results>/tables/SUITE/agreement.csv.
    """
    from shardbench.report.compare.comparison import compare_results, text_lines  # noqa: PLC0415
    from shardbench.report.tables.files import json_rows  # noqa: PLC0415

    if not results.is_dir():
        raise BadInput(f"no folder {results}: name the results of a run, such as runs (shardbench run NAME)")
    reference = committed or committed_folder()
    if reference is None:
        raise BadInput(
            f"{Path.cwd()} is in no clone of ShardBench, and the committed results are not in the package: "
            "name the folder to compare with by --with"
        )
    if order is not None:
        return _order(order, results, reference, check=check, as_json=as_json)
    if check:
        raise BadInput("--check is of the table that --order SUITE writes: name the suite, or leave it out")
    comparison = compare_results(results, reference)
    data = {
        "results": str(comparison.folder),
        "committed": str(comparison.committed),
        "differences": json_rows(comparison.differences),
        "order": {suite: [vars(one) for one in agreements] for suite, agreements in comparison.order.items()},
    }
    tell(data, text_lines(comparison), as_json=as_json)
    return EXIT_OK


def _order(suite: str, results: Path, again: Path, *, check: bool, as_json: bool) -> int:
    """Compare the order of a suite's measured strategies in both runs; write or check the table."""
    from shardbench.report.compare.order import agreement, expected_file, text_line  # noqa: PLC0415
    from shardbench.report.tables.files import suite_records  # noqa: PLC0415

    pairs = agreement(suite_records(results, suite), suite_records(again, suite))
    files = expected_file(results, suite, pairs)
    if check:
        differences = check_files(files, f"shardbench compare {results} --with {again} --order {suite}")
        return tell_differences(suite, differences, as_json=as_json, suite=suite)
    (path,) = write_files(files)
    data = {"suite": suite, "file": str(path), "agreement": [vars(one) for one in pairs]}
    tell(data, [*map(text_line, pairs), f"table: {path}"], as_json=as_json)
    return EXIT_OK


def committed_folder() -> Path | None:
    """Find ``results`` of the clone of ShardBench that the command runs in, or else that the program lies in."""
    here, program = Path.cwd(), Path(__file__).resolve()
    for folder in (here, *here.parents, *program.parents):
        if (folder / "src" / "shardbench").is_dir() and (folder / "results" / "records").is_dir():
            return folder / "results"
    return None


def others_folder(results: Path) -> Path | None:
    """Find committed results to hold a strategy beside; None where there are none, or where they are ``results``."""
    folder = committed_folder()
    return None if folder is None or folder.resolve() == results.resolve() else folder


NOTHING_COMMITTED = (
    "compared with no committed results: they are not in the package, and this is no clone of ShardBench; run in one, "
    "or run other strategies beside yours (--strategy NAME, repeatable)"
)
"""What a run of one strategy says where no others' rows can be found."""
