"""The command ``claims``: the ledger of the statements of all papers."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardbench.base.errors import BadInput
from shardbench.base.generated import ascii_text, say
from shardbench.cli import options as shared
from shardbench.cli.names import papers

if TYPE_CHECKING:
    import pandas as pd

    from shardbench.studies.reproduction import Reproduction


def claims_command(
    paper: Annotated[
        str | None,
        typer.Argument(help="Print the claims of this paper only.", autocompletion=papers),
    ] = None,
    *,
    check: Annotated[bool, typer.Option("--check", help="Only compare the files on disk with the records.")] = False,
    define: Annotated[
        bool, typer.Option("--define", help="Note which commit first had each definition of a committed claims.toml.")
    ] = False,
    results: shared.ResultsOption = shared.DEFAULT_RESULTS,
    as_json: shared.JsonOption = False,
) -> int:
    """Judge the claims of all papers. It reads a results folder and writes tables and pictures."""
    from shardbench.report.tables.files import json_rows  # noqa: PLC0415
    from shardbench.studies.ledger import check_ledger, ledger, write_ledger  # noqa: PLC0415
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415

    only = find_reproduction(paper) if paper else None
    if define:
        _define([only.owner] if only else papers(), as_json=as_json)
        return shared.EXIT_OK
    if check:
        return shared.tell_differences("claims", check_ledger(results), as_json=as_json)
    papers_ledger = ledger(results, only)
    if not len(papers_ledger.claims):
        raise BadInput(f"{results} has no records of any paper; run: shardbench reproduce NAME --results {results}")
    files = write_ledger(results)
    if as_json:
        tables = {"claims": json_rows(papers_ledger.claims), "readings": json_rows(papers_ledger.readings)}
        shared.print_json({**tables, "files": list(map(str, files))})
        return shared.EXIT_OK
    print_claims(papers_ledger.rows)
    for path in files:
        say(f"written: {path}")
    return shared.EXIT_OK


def print_claims(frame: "pd.DataFrame") -> None:
    """Print the ledger's rows as ASCII lines, paper by paper."""
    from shardbench.studies.claim_text import below_statements, claim_text  # noqa: PLC0415

    if not len(frame):
        return
    width = shared.line_width(118)
    say("Claims: direction and magnitude of what each paper states, our number, and the evidence")
    for paper, rows in frame.groupby("paper", sort=False):
        say(f"{paper}:")
        claims = [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]
        for row, below in below_statements(claims):
            text = ascii_text(claim_text(row).replace("**", ""))
            at = "    " if below else "  "
            say(textwrap.fill(text, width, initial_indent=at, subsequent_indent=f"{at}  ", break_on_hyphens=False))


def print_claims_of(reproduction: "Reproduction", results: Path) -> None:
    """Print the ledger's rows of one paper, and which of its records are of other versions."""
    from shardbench.studies.ledger import ledger  # noqa: PLC0415
    from shardbench.studies.study_tables import study_versions  # noqa: PLC0415

    print_claims(ledger(results, reproduction).rows)
    for line in study_versions(reproduction, results).lines():
        say(line)


def _define(names: list[str], *, as_json: bool) -> None:
    from shardbench.studies.definitions import define  # noqa: PLC0415
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415
    from shardbench.trials.discovery import reproduction_home  # noqa: PLC0415

    definitions = {name: list(define(reproduction_home(name), find_reproduction(name).claims)) for name in names}
    lines = [
        f"{name}: {', '.join(changed)} defined anew" if changed else f"{name}: nothing new"
        for name, changed in definitions.items()
    ]
    shared.tell({"defined": definitions}, lines, as_json=as_json)
