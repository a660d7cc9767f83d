"""Tables as aligned lines, also of a given width: columns are left out by rule, no cell is ever cut."""

import csv
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pandas as pd
from rich.console import Console
from rich.text import Text

from shardbench.base.generated import ascii_text, say
from shardbench.report.tables.text import ALWAYS, TITLES, Columns, Section, column_words, sections

_GAP = "  "
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A table as lines of text."""

    heads: tuple[str, ...]
    rows: tuple[str, ...]
    """One a row of the table."""
    left_out: tuple[str, ...]
    """Headers of the columns for which there was no room, in the table's order."""


def csv_columns(text: str) -> Columns:
    """Return a CSV table as it is, but with words for the names of its columns."""
    names, *rows = csv.reader(text.splitlines())
    return Columns(
        headers=tuple(map(column_words, names)),
        rows=tuple(map(tuple, rows)),
        numeric=tuple(all(_is_number(row[column]) for row in rows) for column in range(len(names))),
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell or 0)
    except ValueError:
        return False
    return True


def lay_out(section: Columns, width: int | None = None) -> Layout:
    """The table in ASCII lines of at most ``width`` columns, of any length where None.

    Headers are wrapped first. Then the column that matters least is left out, of equal ones the last, until the rest
    fits; those that always stay are wider than the width where it is tiny.
    """
    section = replace(section, rows=tuple(tuple(map(ascii_text, row)) for row in section.rows))
    columns, left_out = section, [False] * len(section.headers)
    place = list(range(len(section.headers)))
    while width is not None and _total(columns) > width and min(columns.keep, default=ALWAYS) < ALWAYS:
        least = max(range(len(columns.keep)), key=lambda column: (-columns.keep[column], column))
        left_out[place.pop(least)] = True
        columns = _without(columns, least)
    wide = _total(columns, wrapped=False)
    wrapped = width is not None and wide > width
    return Layout(
        heads=_heads(columns, wrapped=wrapped),
        rows=tuple(_line(row, columns, wrapped=wrapped) for row in columns.rows),
        left_out=tuple(header for header, out in zip(section.headers, left_out) if out),
    )


def _without(section: Columns, column: int) -> Columns:
    return replace(
        section,
        headers=_cut(section.headers, column),
        rows=tuple(_cut(row, column) for row in section.rows),
        numeric=_cut(section.numeric, column),
        keep=_cut(section.keep, column),
    )


def _cut(cells: tuple[_T, ...], column: int) -> tuple[_T, ...]:
    return cells[:column] + cells[column + 1 :]


def _widths(section: Columns, *, wrapped: bool) -> list[int]:
    heads = [max(map(len, header.split())) if wrapped else len(header) for header in section.headers]
    return [max([head, *(len(row[i]) for row in section.rows)]) for i, head in enumerate(heads)]


def _total(section: Columns, *, wrapped: bool = True) -> int:
    return sum(_widths(section, wrapped=wrapped)) + len(_GAP) * (len(section.headers) - 1)


def _heads(section: Columns, *, wrapped: bool) -> tuple[str, ...]:
    widths = _widths(section, wrapped=wrapped)
    parts = [textwrap.wrap(header, width, break_on_hyphens=False) for header, width in zip(section.headers, widths)]
    height = max(map(len, parts))
    # Bottom up, so that the last word stands on its numbers.
    padded = [[""] * (height - len(part)) + part for part in parts]
    return tuple(_line(row, section, wrapped=wrapped) for row in zip(*padded))


def _line(row: tuple[str, ...], section: Columns, *, wrapped: bool) -> str:
    cells = zip(row, _widths(section, wrapped=wrapped), section.numeric)
    return _GAP.join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells).rstrip()


def print_tables(frames: dict[str, pd.DataFrame], console: Console, folder: Path) -> None:
    """Print the compact form of all tables; aligned ASCII without colour where ``console`` is no terminal.

    Columns for which a terminal has no room are named, with the CSV file in ``folder`` that has them. Why a row is not
    ok is said once, below its group in the first table.
    """
    for number, (name, frame) in enumerate(frames.items()):
        for section in sections(name, frame, compact=True):
            causes = section.causes if number == 0 else ()
            if console.is_terminal:
                _print_styled(TITLES[name], section, causes, console, folder / f"{name}.csv")
            else:
                say(plain_text(TITLES[name], section, causes), console.file)


def plain_text(title: str, section: Section, causes: tuple[str, ...] = ()) -> str:
    """A section as aligned ASCII lines, ending in an empty one."""
    table = lay_out(section)
    return "\n".join([f"{title}: {section.heading}", section.note, *table.heads, *table.rows, *causes, ""])


def _print_styled(title: str, section: Section, causes: tuple[str, ...], console: Console, csv: Path) -> None:
    console.print(Text(ascii_text(f"{title}: {section.heading}"), style="bold"))
    console.print(Text(ascii_text(section.note)))
    table = lay_out(section, console.width)
    for head in table.heads:
        console.print(Text(head, style="underline" if head == table.heads[-1] else ""), soft_wrap=True)
    outcome = section.headers.index("outcome")
    for line, row in zip(table.rows, section.rows):
        console.print(Text(line, style="" if row[outcome] == "ok" else "yellow"), soft_wrap=True)
    if table.left_out:
        console.print(Text(ascii_text(f"no room for {', '.join(table.left_out)}: {csv}")), soft_wrap=True)
    for cause in causes:
        console.print(Text(ascii_text(cause), style="yellow"))
    console.print()
