"""The tables on a terminal of any width, or as plain aligned text where there is none."""

from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from shardbench.base.generated import ascii_text, say
from shardbench.report.tables.layout import lay_out
from shardbench.report.tables.text import TITLES, Section, sections


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
