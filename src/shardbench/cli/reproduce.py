"""The command ``reproduce``: a baseline's suite, its studies, and what they say about its paper's claims."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardbench.cli.names import completing, outcomes, papers, refuse_no_paper, strategy_names, suites
from shardbench.cli.options import (
    DEFAULT_DATA,
    DEFAULT_RESULTS,
    EXIT_FAILED,
    EXIT_OK,
    DataOption,
    ForceOption,
    JsonOption,
    PageOption,
    PaperArgument,
    ResultsOption,
    RetryOption,
    failure_lines,
)
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.cli.progress import PlainProgress
    from shardbench.records.base_record import BaseRecord
    from shardbench.records.record import Record
    from shardbench.runs.runner import RunOptions
    from shardbench.studies.reproduction import Reproduction


def reproduce_command(
    name: PaperArgument,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="The small part of it: minutes instead of an hour.")] = False,
    study: Annotated[list[str] | None, typer.Option("--study", help="Only this study; repeatable.")] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            help="Of the studies' cells, this strategy's alone; repeatable.",
            autocompletion=completing(strategy_names),
        ),
    ] = None,
    suite: Annotated[bool, typer.Option("--suite/--no-suite", help="Run the trials of the suite of that name.")] = True,
    force: ForceOption = False,
    retry: RetryOption = "",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes for studies; 0: one a core.")] = 0,
    cell_timeout: Annotated[
        float | None,
        typer.Option("--cell-timeout", min=1.0, help="Seconds for a study's cell; else its own."),
    ] = None,
    data: DataOption = DEFAULT_DATA,
    results: ResultsOption = DEFAULT_RESULTS,
    page: PageOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run what is open of a paper's reproduction, then write its tables and say what became of its claims."""
    from shardbench.cli.progress import progress  # noqa: PLC0415
    from shardbench.model.discovery import get_strategy  # noqa: PLC0415
    from shardbench.runs.runner import RunOptions  # noqa: PLC0415
    from shardbench.studies.files import write_reproduction_page, write_study_files  # noqa: PLC0415
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415
    from shardbench.studies.session import SessionOptions, run_studies  # noqa: PLC0415

    if name not in papers():
        refuse_no_paper(name)
    found = find_reproduction(name)
    for wanted in study or ():
        found.study(wanted)
    for wanted in strategy or ():
        get_strategy(wanted)
    again = outcomes(retry)
    with progress(as_json) as listener:
        trials: list[Record] = []
        written: list[Path] = []
        if suite and not study and not strategy and name in suites():
            options = RunOptions(results=results, data=data, quick=quick, force=force, retry=again)
            trials, written = _run_suite(name, options, listener)
        cells = run_studies(
            found,
            SessionOptions(
                results=results,
                quick=quick,
                studies=tuple(study or ()),
                strategies=tuple(strategy or ()),
                force=force,
                retry=again,
                cell_s=cell_timeout,
                workers=workers,
            ),
            listener,
        )
    written += write_study_files(found, results)
    if page:
        written.append(write_reproduction_page(found, results))
    _say(found, results, written, [*trials, *cells], listener)
    errors = any(record.outcome is Outcome.ERROR for record in trials)
    return EXIT_FAILED if errors or any(record.cause for record in cells) else EXIT_OK


def _run_suite(name: str, options: "RunOptions", listener: "PlainProgress") -> "tuple[list[Record], list[Path]]":
    """Runs the suite of that name and writes its tables."""
    from shardbench.report.tables.files import write_tables  # noqa: PLC0415
    from shardbench.runs.runner import run_suite  # noqa: PLC0415
    from shardbench.runs.suite import load_suite  # noqa: PLC0415

    records = run_suite(load_suite(name), options, listener)
    return records, write_tables(options.results, name) if records else []


def _say(
    found: "Reproduction",
    results: Path,
    written: list[Path],
    records: "list[BaseRecord]",
    listener: "PlainProgress",
) -> None:
    from shardbench.cli.claims import print_claims  # noqa: PLC0415
    from shardbench.cli.progress import JsonProgress  # noqa: PLC0415
    from shardbench.report.tables.files import json_rows  # noqa: PLC0415
    from shardbench.studies.files import study_code  # noqa: PLC0415
    from shardbench.studies.ledger import ledger  # noqa: PLC0415

    claims = ledger(results, found).claims
    failures = failure_lines(records, results)
    if isinstance(listener, JsonProgress):
        listener.write(
            {
                "event": "done",
                "claims": json_rows(claims),
                "failed": [record.key for record in records if record.cause],
                "files": [str(path) for path in written],
            }
        )
        return
    for path in written:
        print(f"written: {path}")
    print_claims(claims)
    for line in [*study_code(found, results).lines(), *failures]:
        print(line)
