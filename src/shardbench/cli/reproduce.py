"""The command ``reproduce``: a baseline's suite, its studies, and what they say about its paper's claims."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardbench.cli.options import (
    DEFAULT_DATA,
    DEFAULT_RESULTS,
    EXIT_FAILED,
    EXIT_OK,
    DataOption,
    PageOption,
    ResultsOption,
    failure_lines,
)
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.records.record import Record


def reproduce_command(
    name: Annotated[str, typer.Argument(help="A baseline with studies or claims (see: shardbench list).")],
    *,
    quick: Annotated[bool, typer.Option("--quick", help="The small part of it: minutes instead of an hour.")] = False,
    study: Annotated[list[str] | None, typer.Option("--study", help="Only this study; repeatable.")] = None,
    suite: Annotated[bool, typer.Option("--suite/--no-suite", help="Run the trials of the suite of that name.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Run cells and trials on record again.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed cells and trials again.")] = False,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes for studies; 0: one a core.")] = 0,
    data: DataOption = DEFAULT_DATA,
    results: ResultsOption = DEFAULT_RESULTS,
    page: PageOption = False,
) -> int:
    """Run what is open of a paper's reproduction, then write its tables and say what became of its claims."""
    from shardbench.cli.claims import print_claims  # noqa: PLC0415
    from shardbench.cli.progress import progress  # noqa: PLC0415
    from shardbench.studies.files import study_code, write_reproduction_page, write_study_files  # noqa: PLC0415
    from shardbench.studies.ledger import ledger  # noqa: PLC0415
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415
    from shardbench.studies.session import SessionOptions, run_studies  # noqa: PLC0415

    found = find_reproduction(name)
    for wanted in study or ():
        found.study(wanted)
    trials: list[Record] = []
    if suite and not study:
        trials = _run_suite(name, results, data, quick=quick, force=force, retry=retry)
    options = SessionOptions(
        results=results, quick=quick, studies=tuple(study or ()), force=force, retry=retry, workers=workers
    )
    with progress() as listener:
        cells = run_studies(found, options, listener)
    for path in write_study_files(found, results):
        print(f"table: {path}")
    if page:
        print(f"page: {write_reproduction_page(found, results)}")
    print_claims(ledger(results, found).claims)
    failures = [*failure_lines(trials, results), *failure_lines(cells, results)]
    for line in [*study_code(found, results).lines(), *failures]:
        print(line)
    errors = any(record.outcome is Outcome.ERROR for record in trials)
    return EXIT_FAILED if errors or any(record.cause for record in cells) else EXIT_OK


def _run_suite(name: str, results: Path, data: Path, *, quick: bool, force: bool, retry: bool) -> "list[Record]":
    """Run the suite of that name, if there is one, and write its tables."""
    from shardbench.cli.progress import progress  # noqa: PLC0415
    from shardbench.report.files import write_tables  # noqa: PLC0415
    from shardbench.runs.runner import RunOptions, run_suite  # noqa: PLC0415
    from shardbench.runs.suite import load_suite, suite_names  # noqa: PLC0415

    if name not in suite_names():
        return []
    again = frozenset(Outcome) - {Outcome.OK} if retry else frozenset[Outcome]()
    options = RunOptions(results=results, data=data, quick=quick, force=force, retry=again)
    with progress() as listener:
        records = run_suite(load_suite(name), options, listener)
    if records:
        for path in write_tables(results, name):
            print(f"table: {path}")
    return records
