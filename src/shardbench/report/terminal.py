"""The tables on a terminal (rich), or as plain aligned text where there is none."""

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardbench.report.view import TITLES, Section, sections


def print_tables(frames: dict[str, pd.DataFrame], console: Console) -> None:
    """Print the compact form of all tables; aligned ASCII without colour where ``console`` is no terminal.

    Why a row is not ok is said once, below its group in the first table.
    """
    for number, (name, frame) in enumerate(frames.items()):
        for section in sections(name, frame, compact=True):
            causes = section.causes if number == 0 else ()
            if console.is_terminal:
                _print_rich(TITLES[name], section, causes, console)
            else:
                print(plain_text(TITLES[name], section, causes), file=console.file)


def plain_text(title: str, section: Section, causes: tuple[str, ...] = ()) -> str:
    """A section as aligned ASCII lines, ending in an empty one."""
    cells = [section.headers, *section.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(section.headers))]
    lines = [f"{title}: {section.heading}", section.note]
    for row in cells:
        texts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, section.numeric)
        ]
        lines.append("  ".join(texts).rstrip())
    return "\n".join([*lines, *causes, ""])


def _print_rich(title: str, section: Section, causes: tuple[str, ...], console: Console) -> None:
    console.print(Text(f"{title}: {section.heading}", style="bold"))
    console.print(Text(section.note))
    table = Table(box=None, header_style="underline", pad_edge=False, padding=(0, 2, 0, 0))
    for header, right in zip(section.headers, section.numeric):
        table.add_column(Text(header), justify="right" if right else "left", no_wrap=header == "strategy")
    for row in section.rows:
        outcome = row[section.headers.index("outcome")]
        table.add_row(*(Text(cell) for cell in row), style="" if outcome == "ok" else "yellow")
    console.print(table)
    for cause in causes:
        console.print(Text(cause, style="yellow"))
    console.print()
