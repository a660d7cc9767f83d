"""The command ``reproduce``: a baseline's suite, its studies, and what they say about its paper's claims."""

from pathlib import Path
from typing import Annotated

import typer

from shardbench.cli.options import (
    DEFAULT_DATA,
    DEFAULT_RESULTS,
    EXIT_FAILED,
    EXIT_OK,
    DataOption,
    PageOption,
    ResultsOption,
    ascii_text,
)
from shardbench.records.trial import Outcome


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
    from shardbench.cli.study_progress import claims_text, studies_listener  # noqa: PLC0415
    from shardbench.studies.files import claims_table, write_files  # noqa: PLC0415
    from shardbench.studies.page import write_reproduction_page  # noqa: PLC0415
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415
    from shardbench.studies.session import SessionOptions, run_studies  # noqa: PLC0415

    found = find_reproduction(name)
    for wanted in study or ():
        found.study(wanted)
    errors = 0
    if suite and not study:
        errors += _run_suite(name, results, data, quick=quick, force=force, retry=retry)
    listener = studies_listener()
    options = SessionOptions(
        results=results, quick=quick, studies=tuple(study or ()), force=force, retry=retry, workers=workers
    )
    try:
        records = run_studies(found, options, listener)
    finally:
        listener.stop()
    failed = [record for record in records if record.failure is not None]
    written = write_files(found, results)
    if page:
        print(f"page: {write_reproduction_page(found, results)}")
    for path in written:
        print(f"table: {path}")
    claims = claims_table(found, results)
    if claims is not None:
        print(ascii_text(claims_text(claims)))
    for record in failed:
        print(ascii_text(f"failed: {record.study} {record.cell}: {record.failure}"))
    return EXIT_FAILED if failed or errors else EXIT_OK


def _run_suite(name: str, results: Path, data: Path, *, quick: bool, force: bool, retry: bool) -> int:
    """Run the suite of that name, if there is one; gives its trials that ended in ``error``."""
    from shardbench.cli.progress import BarProgress, progress  # noqa: PLC0415
    from shardbench.report.files import write_tables  # noqa: PLC0415
    from shardbench.runs.runner import RunOptions, run_suite  # noqa: PLC0415
    from shardbench.runs.suite import load_suite, suite_names  # noqa: PLC0415

    if name not in suite_names():
        return 0
    again = frozenset(Outcome) - {Outcome.OK} if retry else frozenset[Outcome]()
    listener = progress(False)
    try:
        records = run_suite(
            load_suite(name), RunOptions(results=results, data=data, quick=quick, force=force, retry=again), listener
        )
    finally:
        if isinstance(listener, BarProgress):
            listener.stop()
    if records:
        for path in write_tables(results, name):
            print(f"table: {path}")
    return sum(record.outcome is Outcome.ERROR for record in records)
