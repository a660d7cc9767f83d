"""The command ``report``: tables and pages from the records of a suite, of a baseline's studies, or of both."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbench.base.errors import BadInput
from shardbench.base.generated import check_files, say, write_files
from shardbench.base.serialise import to_data
from shardbench.cli import options as shared
from shardbench.cli.claims import print_claims_of
from shardbench.cli.names import find_named

if TYPE_CHECKING:
    from shardbench.records.record import Record
    from shardbench.report.compare.on_record import OnRecord
    from shardbench.studies.reproduction import Reproduction
    from shardbench.trials.suite import Suite

PREDICTION = "prediction"
"""The word in place of a suite's name that compares predictions with measurements."""


def report_command(
    name: shared.NameArgument,
    *,
    page: shared.PageOption = False,
    check: Annotated[bool, typer.Option("--check", help="Only compare the tables on disk with the records.")] = False,
    latex: Annotated[
        Path | None,
        typer.Option("--latex", help="Also write tables (LaTeX, booktabs) and figures (PDF, SVG) for a paper here."),
    ] = None,
    results: shared.ResultsOption = shared.DEFAULT_RESULTS,
    as_json: shared.JsonOption = False,
) -> int:
    """Write tables and pages from the records.

    The records are those of a suite, or of a baseline's suite, studies and claims. "shardbench report prediction"
    compares what was predicted with what was measured, over all suites.
    """
    if latex is not None and (check or name == PREDICTION):
        raise BadInput("--latex is of the tables of a suite or a paper: leave out --check, and name no prediction")
    if name == PREDICTION:
        return _prediction(results, check=check, as_json=as_json)
    from shardbench.report.tables.files import check_tables, write_tables  # noqa: PLC0415
    from shardbench.studies.ledger import check_study_files, write_study_files  # noqa: PLC0415

    if page:
        from shardbench.studies.page import write_reproduction_page, write_suite_page  # noqa: PLC0415

    suite, reproduction = find_named(name)
    title = suite.name if suite else name
    if check:
        differences = check_tables(results, title) if suite else []
        differences += check_study_files(reproduction, results) if reproduction else []
        return shared.tell_differences(title, differences, as_json=as_json, suite=title)
    files = write_tables(results, title) if suite else []
    files += write_study_files(reproduction, results) if reproduction else []
    if page and reproduction:
        files.append(write_reproduction_page(reproduction, results))
    elif page:
        files.append(write_suite_page(results, title))
    paper = _write_paper(latex, suite, reproduction, results) if latex is not None else []
    files += paper
    if as_json:
        shared.print_json({"suite": title, "files": list(map(str, files)), **_as_data(suite, reproduction, results)})
        return shared.EXIT_OK
    if suite:
        print_report(results, title, tables=True)
    if reproduction:
        print_claims_of(reproduction, results)
    if page:
        say(f"page: {files[-len(paper) - 1]}")
    if paper:
        say(f"for a paper: {len(paper)} files in {latex}; {paper[-1].name} shows all")
    return shared.EXIT_OK


def print_report(
    results: Path,
    suite: str,
    *,
    tables: bool,
    of: "Iterable[Record] | None" = None,
    placed: Sequence[str] = (),
    beside: "OnRecord | None" = None,
) -> None:
    """Print what a suite's records answer, after its tables where wanted, and where all of it lies.

    It answers for the groups of the records ``of``, and for all groups where that is None. It says which place the
    strategies ``placed`` have, also ``beside`` what is on record elsewhere.
    """
    from rich.console import Console  # noqa: PLC0415

    from shardbench.records.store import trial_store  # noqa: PLC0415
    from shardbench.report.compare.versions import other_versions  # noqa: PLC0415
    from shardbench.report.rows import current  # noqa: PLC0415
    from shardbench.report.tables.answer import answers, lines  # noqa: PLC0415
    from shardbench.report.tables.files import suite_records  # noqa: PLC0415
    from shardbench.report.tables.layout import print_tables  # noqa: PLC0415
    from shardbench.report.tables.suite_tables import tables as suite_tables  # noqa: PLC0415
    from shardbench.trials.calibrating import read_drifts  # noqa: PLC0415

    records = suite_records(results, suite)
    options = "" if results == shared.DEFAULT_RESULTS else f" --results {results}"
    if tables:
        print_tables(suite_tables(records), Console(file=sys.stdout), results / "tables" / suite)
        for drift in read_drifts(results, suite, (record.spec.machine_hash for record in records)):
            say(drift.text)
    for answer in answers(records, results, of, placed=placed, beside=beside.records if beside else ()):
        for line in (*lines(answer, options, shared.line_width()), ""):
            say(line)
    for line in beside.lines if beside else ():
        say(line)
    for line in other_versions(current(records)).lines():
        say(line)
    say(f"records: {trial_store(results, suite).path}")
    say(f"tables: {results / 'tables' / suite}" + ("" if tables else f" (shardbench report {suite}{options})"))


def _as_data(suite: "Suite | None", reproduction: "Reproduction | None", results: Path) -> dict[str, Any]:
    from shardbench.report.compare.versions import other_versions  # noqa: PLC0415
    from shardbench.report.rows import current  # noqa: PLC0415
    from shardbench.report.tables.answer import answers  # noqa: PLC0415
    from shardbench.report.tables.files import json_rows, suite_records  # noqa: PLC0415
    from shardbench.report.tables.suite_tables import tables  # noqa: PLC0415
    from shardbench.studies.ledger import frames  # noqa: PLC0415
    from shardbench.studies.study_tables import study_versions  # noqa: PLC0415

    data: dict[str, Any] = {"tables": {}}
    if suite:
        records = suite_records(results, suite.name)
        data["tables"] |= {table: json_rows(frame) for table, frame in tables(records).items()}
        data["answers"] = [answer.data() for answer in answers(records, results)]
        data["other_versions"] = asdict(other_versions(current(records)))
    if reproduction:
        data["tables"] |= {table: json_rows(frame) for table, frame in frames(reproduction, results).items()}
        data["studies_other_versions"] = asdict(study_versions(reproduction, results))
    return data


def _write_paper(folder: Path, suite: "Suite | None", reproduction: "Reproduction | None", results: Path) -> list[Path]:
    from shardbench.report.paper.files import suite_paper, with_document, write_paper  # noqa: PLC0415
    from shardbench.report.paper.latex import slug  # noqa: PLC0415
    from shardbench.studies.paper import reproduction_paper  # noqa: PLC0415

    files = suite_paper(results, suite.name) if suite else {}
    files |= reproduction_paper(reproduction, results) if reproduction else {}
    name = suite.name if suite else reproduction.owner if reproduction else ""
    if not files:
        raise BadInput(f"{name}: nothing for a paper, neither records of a suite nor claims nor plots of studies")
    return write_paper(folder, with_document(files, slug(name), name))


def _prediction(results: Path, *, check: bool, as_json: bool) -> int:
    """Write the tables of predicted against measured over all records, and say how well they agree."""
    from shardbench.report.prediction.against_measured import read_measured  # noqa: PLC0415
    from shardbench.report.prediction.summary import expected_files, summaries, text_lines  # noqa: PLC0415

    rows = read_measured(results)
    files = expected_files(results, rows)
    if check:
        differences = check_files(files, "shardbench report prediction")
        return shared.tell_differences(PREDICTION, differences, as_json=as_json)
    paths = [str(path) for path in write_files(files)]
    lines = [*text_lines(rows), f"tables: {', '.join(paths)}"]
    shared.tell({"files": paths, "summaries": list(map(to_data, summaries(rows)))}, lines, as_json=as_json)
    return shared.EXIT_OK
