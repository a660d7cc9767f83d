"""Command line of tools that write tables: ``python tools/TOOL.py FOLDER [NAME ...]`` writes all, or those named."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shardbench.base.atomic import write_atomically
from shardbench.base.generated import csv_text

Makers = Mapping[str, Callable[[Path], str]]
"""What makes the text of a file, by its name; it is given the file's path, where an earlier text may lie."""


def write_tables(makers: Makers, *, when_named: Iterable[str] = ()) -> None:
    """Write and print the files that the command line names without endings: none means all but ``when_named``."""
    stems = {Path(name).stem: name for name in makers}
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(stems))
    given = parser.parse_args()
    if unknown := set(given.names) - stems.keys():
        parser.error(f"there is no {' and no '.join(sorted(unknown))}: name some of {', '.join(stems)}, or nothing")
    for stem in given.names or [stem for stem in stems if stem not in when_named]:
        path = given.folder / stems[stem]
        text = makers[stems[stem]](path)
        write_atomically(path, text)
        print(text, end="", flush=True)


def rows_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as CSV with all columns that any of them has; a cell that a row lacks is empty."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text(columns, ([row.get(name) for name in columns] for row in rows))
