"""Tables as aligned lines, also of a given width: columns are left out by rule, no cell is ever cut."""

import csv
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from shardbench.base.generated import ascii_text, say
from shardbench.report.tables.text import ALWAYS, TITLES, Columns, Section, column_words, sections

_GAP = "  "


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
    rows = [tuple(map(ascii_text, row)) for row in section.rows]
    keep = section.keep or (ALWAYS,) * len(section.headers)
    shown = list(range(len(section.headers)))

    def widths(heads: Iterable[int]) -> list[int]:
        return [max([head, *(len(row[i]) for row in rows)]) for i, head in enumerate(heads)]

    def total(of: Sequence[int]) -> int:
        return sum(of[i] for i in shown) + len(_GAP) * (len(shown) - 1)

    whole = widths(map(len, section.headers))
    wrapped = widths(max(map(len, header.split()), default=0) for header in section.headers)
    while width is not None and total(wrapped) > width and min((keep[i] for i in shown), default=ALWAYS) < ALWAYS:
        shown.remove(max(shown, key=lambda i: (-keep[i], i)))
    of = whole if width is None or total(whole) <= width else wrapped
    parts = [textwrap.wrap(section.headers[i], of[i], break_on_hyphens=False) for i in shown]
    height = max(map(len, parts))

    def line(cells: Iterable[str]) -> str:
        texts = (cell.rjust(of[i]) if section.numeric[i] else cell.ljust(of[i]) for i, cell in zip(shown, cells))
        return _GAP.join(texts).rstrip()

    return Layout(
        # Bottom up, so that the last word stands on its numbers.
        heads=tuple(map(line, zip(*([""] * (height - len(part)) + part for part in parts)))),
        rows=tuple(line(row[i] for i in shown) for row in rows),
        left_out=tuple(header for i, header in enumerate(section.headers) if i not in shown),
    )


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
