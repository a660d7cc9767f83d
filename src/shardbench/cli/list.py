"""The command ``list``: what there is to choose from."""

from typing import Annotated, Literal

import typer

from shardbench.cli.names import say_left_out
from shardbench.cli.options import JsonOption, tell

ListedKind = Literal["strategies", "workloads", "machines", "suites", "papers"]
"""The kinds of things that ``list`` can list."""


def list_command(
    what: Annotated[ListedKind | None, typer.Argument(help="List only these; all five where left out.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List strategies, workloads, machines, suites and papers."""
    from shardbench.cli.listing import LISTS  # noqa: PLC0415

    entries_by_kind = {kind: LISTS[kind]() for kind in ([what] if what else LISTS)}
    say_left_out()
    lines: list[str] = []
    indent = "  " if what is None else ""
    for kind, entries in entries_by_kind.items():
        lines += [f"{kind}:"] if what is None else []
        width = max((len(entry["name"]) for entry in entries), default=0)
        lines += [f"{indent}{entry['name'].ljust(width)}  {entry['description']}" for entry in entries]
    tell(entries_by_kind, lines, as_json=as_json)
