"""The command ``collect``: makes records of what ranks left in folders of ``run --work``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbench.base.generated import say
from shardbench.cli.options import DEFAULT_RESULTS, EXIT_FAILED, EXIT_OK, JsonOption, ResultsOption, print_json, tell
from shardbench.cli.report import print_report
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.records.record import Record


def collect_command(
    work: Annotated[Path, typer.Argument(help="The folder of shardbench run --work, or a job's or a trial's in it.")],
    *,
    results: ResultsOption = DEFAULT_RESULTS,
    list_open: Annotated[
        bool, typer.Option("--open", help="Only print the trial folders that have still to run, one a line.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Record what ranks left in kept folders.

    What they left is checked, the tables of its suites are written, and the best strategies told. Exits with 1 where a
    folder is no trial's or is unfinished, or where its trial ended in error.
    """
    from shardbench.trials.measured_trial import FolderState, collect, open_folders  # noqa: PLC0415

    if list_open:
        folders = [str(folder) for folder in open_folders(work)]
        tell({"open": folders}, folders, as_json=as_json)
        return EXIT_OK

    records_by_suite: dict[str, list[Record]] = {}
    entries: list[dict[str, Any]] = []
    bad = False
    counts = dict.fromkeys(FolderState, 0)
    for one in collect(work, results):
        counts[one.state] += 1
        outcome = one.record.outcome if one.record is not None else None
        bad |= one.state in (FolderState.BAD, FolderState.UNFINISHED) or outcome is Outcome.ERROR
        if one.record is not None:
            records_by_suite.setdefault(one.record.spec.suite, []).append(one.record)
        entries.append({"folder": str(one.folder), "state": one.state.value, "text": one.text, "outcome": outcome})
        if not as_json:
            say(f"{one.state.value}: {one.folder}: {one.text}")

    from shardbench.report.tables.files import write_tables  # noqa: PLC0415

    table_files = [str(path) for suite in sorted(records_by_suite) for path in write_tables(results, suite)]
    if as_json:
        print_json(
            {"folders": entries, "states": {state.value: n for state, n in counts.items() if n}, "tables": table_files}
        )
    else:
        for suite, records in sorted(records_by_suite.items()):
            say()
            print_report(results, suite, tables=False, of=records)
        say(f"{sum(counts.values())} folders: " + ", ".join(f"{n} {state.value}" for state, n in counts.items() if n))
    return EXIT_FAILED if bad else EXIT_OK
