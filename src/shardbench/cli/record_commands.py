"""The commands ``status`` and ``report``: what is on record of a suite, of a baseline's studies, or of both."""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.generated import ascii_text
from shardbench.cli import tools
from shardbench.cli.names import papers, suites, suites_and_papers
from shardbench.cli.options import (
    DEFAULT_DATA,
    DEFAULT_RESULTS,
    EXIT_FAILED,
    EXIT_OK,
    BackendOption,
    DataOption,
    JsonOption,
    NameArgument,
    PageOption,
    ResultsOption,
    SeedsOption,
    StrategiesOption,
    print_json,
)
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.records.record import Record
    from shardbench.report.compare.code_differences import OtherCode
    from shardbench.runs.runner import SuiteWork
    from shardbench.runs.session import Work
    from shardbench.runs.suite import Suite
    from shardbench.studies.reproduction import Reproduction


def status_command(
    name: NameArgument,
    *,
    backend: BackendOption = None,
    strategy: StrategiesOption = None,
    seed: SeedsOption = None,
    data: DataOption = DEFAULT_DATA,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Say how many trials and cells are settled, how they ended, how many are open, and what other code made."""
    from shardbench.runs.runner import RunOptions, SuiteWork  # noqa: PLC0415

    suite, reproduction = _named(name)
    state: dict[str, Any] = {}
    lines: list[str] = []
    if suite is not None:
        options = RunOptions(
            results=results,
            data=data,
            backend=backend,
            strategies=tuple(strategy or ()),
            seeds=tuple(seed or ()),
        )
        _add_suite(suite.name, SuiteWork(suite, options), state, lines)
    if reproduction is not None:
        _add_studies(reproduction, results, state, lines)
    if as_json:
        print_json(state)
    else:
        print("\n".join(lines))


def _add_suite(name: str, work: "SuiteWork", state: dict[str, Any], lines: list[str]) -> None:
    from shardbench.report.compare.code_differences import other_code  # noqa: PLC0415

    known, settled = work.store.latest(), _settled(work)
    counts = outcome_counts(known[trial.key] for trial in settled)
    others = len(known.keys() - {trial.key for trial in work.pieces})
    code = other_code(known[trial.key] for trial in work.pieces if trial.key in known)
    state |= {"suite": name, "trials": len(work.pieces), "settled": len(settled)}
    state |= {"open": len(work.pieces) - len(settled), "outcomes": counts, "other_records": others}
    state["other_code"] = asdict(code)
    lines += [_count_line(name, work, len(settled)), *(f"  {outcome:<10} {n}" for outcome, n in counts.items())]
    if others:
        lines.append(f"  {others} more records are of other selections or of earlier versions of the suite")
    lines += [f"  {line}" for line in code.lines()]


def _add_studies(reproduction: "Reproduction", results: Path, state: dict[str, Any], lines: list[str]) -> None:
    from shardbench.studies.files import study_code  # noqa: PLC0415
    from shardbench.studies.session import SessionOptions, StudyWork  # noqa: PLC0415

    code = study_code(reproduction, results)
    state["studies"], state["studies_other_code"] = {}, asdict(code)
    for study in reproduction.studies:
        work = StudyWork(reproduction.owner, study, SessionOptions(results=results))
        settled = len(_settled(work))
        state["studies"][study.name] = {"cells": len(work.pieces), "settled": settled}
        lines.append(_count_line(work.title, work, settled))
    lines += [f"  {line}" for line in code.lines()]


def report_command(
    name: NameArgument,
    *,
    page: PageOption = False,
    check: Annotated[bool, typer.Option("--check", help="Only compare the tables on disk with the records.")] = False,
    against: Annotated[
        Path | None, typer.Option("--against", help="Results folder of a second run: does it order strategies alike?")
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option("--latex", help="Also write tables (LaTeX, booktabs) and figures (PDF, SVG) for a paper here."),
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> int:
    """Write the tables (and the page) of a suite, or of a baseline's suite, studies and claims, from the records.

    ``report prediction`` compares what was predicted with what was measured, over all suites.
    """
    if against is not None and (page or name == tools.PREDICTION):
        raise BadInput("--against compares two runs of one suite: it makes no page, and prediction is no suite")
    if latex is not None and (check or against is not None or name == tools.PREDICTION):
        raise BadInput("--latex is of the tables of a suite or a paper: not with --check, --against or prediction")
    if name == tools.PREDICTION:
        return tools.report_prediction(results, check=check, as_json=as_json)
    if against is not None:
        return tools.report_agreement(name, results, against, check=check, as_json=as_json)
    from shardbench.report.tables.files import check_tables, write_tables  # noqa: PLC0415
    from shardbench.studies.files import (  # noqa: PLC0415
        check_study_files,
        write_reproduction_page,
        write_study_files,
        write_suite_page,
    )

    suite, reproduction = _named(name)
    title = suite.name if suite else name
    if check:
        differences = check_tables(results, title) if suite else []
        differences += check_study_files(reproduction, results) if reproduction else []
        if as_json:
            print_json({"suite": title, "differences": differences})
        else:
            print("\n".join(map(ascii_text, differences)) or f"{title}: tables and records agree")
        return EXIT_FAILED if differences else EXIT_OK
    written = write_tables(results, title) if suite else []
    written += write_study_files(reproduction, results) if reproduction else []
    if page and reproduction:
        written.append(write_reproduction_page(reproduction, results))
    elif page:
        written.append(write_suite_page(results, title))
    paper = _write_paper(latex, suite, reproduction, results) if latex is not None else []
    written += paper
    if as_json:
        print_json({"suite": title, "files": list(map(str, written)), **_as_data(suite, reproduction, results)})
        return EXIT_OK
    if suite:
        print_report(results, title, tables=True)
    if reproduction:
        _print_claims(reproduction, results)
    if page:
        print(f"page: {written[-len(paper) - 1]}")
    if paper:
        print(f"for a paper: {len(paper)} files in {latex}; {paper[-1].name} shows all")
    return EXIT_OK


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


def print_report(results: Path, suite: str, *, tables: bool, of: "Iterable[Record] | None" = None) -> None:
    """What a suite's records answer, in the groups of the records ``of`` (all where None), and where all of it lies.

    The tables come before it, if wanted.
    """
    from shardbench.records.store import trial_store  # noqa: PLC0415
    from shardbench.report.tables.answer import answers, lines  # noqa: PLC0415
    from shardbench.report.tables.files import suite_records  # noqa: PLC0415

    records, options = suite_records(results, suite), "" if results == DEFAULT_RESULTS else f" --results {results}"
    if tables:
        _print_tables(results, suite, records)
    for answer in answers(records, results, of):
        print("\n".join(lines(answer, options)), end="\n\n")
    for line in _code_of(records).lines():
        print(ascii_text(line))
    print(f"records: {trial_store(results, suite).path}")
    print(f"tables: {results / 'tables' / suite}" + ("" if tables else f" (shardbench report {suite}{options})"))


def _print_tables(results: Path, suite: str, records: "list[Record]") -> None:
    from rich.console import Console  # noqa: PLC0415

    from shardbench.report.tables.suite_tables import tables  # noqa: PLC0415
    from shardbench.report.tables.terminal import print_tables  # noqa: PLC0415

    print_tables(tables(records), Console(file=sys.stdout), results / "tables" / suite)


def outcome_counts(records: "Iterable[Record]") -> dict[str, int]:
    """How many records ended how; only the outcomes that occur."""
    outcomes = [record.outcome for record in records]
    return {outcome.value: outcomes.count(outcome) for outcome in Outcome if outcome in outcomes}


def _named(name: str) -> "tuple[Suite | None, Reproduction | None]":
    """The suite and the reproduction of a name; raises BadInput where there is neither."""
    from shardbench.runs.suite import load_suite  # noqa: PLC0415
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415

    if not name.endswith(".toml") and name not in suites_and_papers():
        raise BadInput(unknown("suite or paper", name, suites_and_papers(), "shardbench list, or give a .toml file"))
    reproduction = find_reproduction(name) if name in papers() else None
    suite = load_suite(name) if reproduction is None or name in suites() else None
    return suite, reproduction


def _settled(work: "Work[Any, Any]") -> list[Any]:
    from shardbench.base.host import Environment  # noqa: PLC0415
    from shardbench.processes.server import set_rank_variables  # noqa: PLC0415

    # They are part of the environment in which a run would be.
    set_rank_variables()
    return work.settled(work.store.latest(), Environment.here().hash)


def _count_line(title: str, work: "Work[Any, Any]", settled: int) -> str:
    total = len(work.pieces)
    return f"{title}: {total} {work.unit}s, {settled} settled, {total - settled} open"


def _code_of(records: "list[Record]") -> "OtherCode":
    from shardbench.report.compare.code_differences import other_code  # noqa: PLC0415
    from shardbench.report.groups import current  # noqa: PLC0415

    return other_code(current(records))


def _as_data(suite: "Suite | None", reproduction: "Reproduction | None", results: Path) -> dict[str, Any]:
    from shardbench.report.tables.answer import answers  # noqa: PLC0415
    from shardbench.report.tables.files import json_rows, suite_records  # noqa: PLC0415
    from shardbench.report.tables.suite_tables import tables  # noqa: PLC0415
    from shardbench.studies.files import frames, study_code  # noqa: PLC0415

    data: dict[str, Any] = {"tables": {}}
    if suite:
        records = suite_records(results, suite.name)
        data["tables"] |= {table: json_rows(frame) for table, frame in tables(records).items()}
        data["answers"] = [answer.data() for answer in answers(records, results)]
        data["other_code"] = asdict(_code_of(records))
    if reproduction:
        data["tables"] |= {table: json_rows(frame) for table, frame in frames(reproduction, results).items()}
        data["studies_other_code"] = asdict(study_code(reproduction, results))
    return data


def _print_claims(reproduction: "Reproduction", results: Path) -> None:
    from shardbench.cli.claims import print_claims  # noqa: PLC0415
    from shardbench.studies.files import study_code  # noqa: PLC0415
    from shardbench.studies.ledger import ledger  # noqa: PLC0415

    print_claims(ledger(results, reproduction).claims)
    for line in study_code(reproduction, results).lines():
        print(line)
