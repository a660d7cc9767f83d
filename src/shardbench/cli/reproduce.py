"""The command ``reproduce``: a baseline's suite, its studies, and what became of its paper's claims."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardbench.base.atomic import sole_writer
from shardbench.base.errors import BadInput
from shardbench.cli import options as shared
from shardbench.cli.claims import print_claims_of
from shardbench.cli.names import completing, outcomes, papers, refuse_no_paper, strategy_names, suites
from shardbench.cli.run import second_judge
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.cli.progress import PlainProgress
    from shardbench.records.base_record import BaseRecord
    from shardbench.records.record import Record
    from shardbench.studies.reproduction import Reproduction


def reproduce_command(
    name: shared.PaperArgument,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Run the small part of it: minutes, not an hour.")] = False,
    study: Annotated[list[str] | None, typer.Option("--study", help="Run this study and no suite; repeatable.")] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            help="Run the studies' cells of this strategy and no suite; repeatable.",
            autocompletion=completing(strategy_names),
        ),
    ] = None,
    force: shared.ForceOption = False,
    fresh: shared.FreshOption = False,
    retry: shared.RetryOption = "",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes for the studies; 0: one a core.")] = 0,
    cell_timeout: Annotated[
        float | None,
        typer.Option(
            "--cell-timeout", min=1.0, help="Seconds for a cell of a study; the study's own limit if left out."
        ),
    ] = None,
    data: shared.DataOption = shared.DEFAULT_DATA,
    results: shared.ResultsOption = shared.DEFAULT_RESULTS,
    page: shared.PageOption = False,
    as_json: shared.JsonOption = False,
) -> int:
    """Reproduce a paper and judge its claims.

    Only trials and cells without a valid record run. The tables are written, and claims are told with their evidence.
    """
    from shardbench.cli.progress import progress  # noqa: PLC0415
    from shardbench.model.discovery import get_strategy  # noqa: PLC0415
    from shardbench.report.tables.files import write_tables  # noqa: PLC0415
    from shardbench.runs.runner import RunOptions, run_suite  # noqa: PLC0415
    from shardbench.runs.suite import load_suite  # noqa: PLC0415
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
    if fresh:
        if quick or study or strategy:
            raise BadInput(
                "--fresh makes all of a paper again: leave out --quick, --study and --strategy, or use --force"
            )
        _delete_records(found, results)
    with progress(as_json) as listener:
        trials: list[Record] = []
        written: list[Path] = []
        if not study and not strategy and name in suites():
            options = RunOptions(
                results=results, data=data, quick=quick, force=force, retry=again, second_judge=second_judge()
            )
            trials = run_suite(load_suite(name), options, listener)
            written = write_tables(results, name) if trials else []
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
    return shared.EXIT_FAILED if errors or any(record.cause for record in cells) else shared.EXIT_OK


def _delete_records(found: "Reproduction", results: Path) -> None:
    """Delete the records of the paper's suite and of all its studies, also of those that it no longer has."""
    from shardbench.records.store import cell_store, trial_store  # noqa: PLC0415

    with sole_writer(results):
        trial_store(results, found.owner).remove(lambda record: True)
        for path in sorted((results / "studies" / found.owner).glob("*.jsonl")):
            cell_store(results, found.owner, path.stem).remove(lambda record: True)


def _say(
    found: "Reproduction",
    results: Path,
    written: list[Path],
    records: "list[BaseRecord]",
    listener: "PlainProgress",
) -> None:
    from shardbench.cli.progress import JsonProgress  # noqa: PLC0415
    from shardbench.report.tables.files import json_rows  # noqa: PLC0415
    from shardbench.studies.ledger import ledger  # noqa: PLC0415

    if isinstance(listener, JsonProgress):
        listener.write(
            {
                "event": "done",
                "claims": json_rows(ledger(results, found).claims),
                "failed": [record.key for record in records if record.cause],
                "files": [str(path) for path in written],
            }
        )
        return
    for path in written:
        print(f"written: {path}")
    print_claims_of(found, results)
    for line in shared.failure_lines(records, results):
        print(line)
