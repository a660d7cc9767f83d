"""Generated text: files, written whole and compared with what is on disk, and lines for a terminal."""

import csv
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shardbench.base.atomic import write_atomically

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""Characters that cannot be seen, or that a terminal or browser obeys (controls, directions), but for tabs and line
ends."""


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Write one header line, then one line a row, in ASCII."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return ascii_text(out.getvalue())


def write_files(files: Mapping[Path, str]) -> list[Path]:
    """Write texts by path, each whole or not at all; return the paths."""
    for path, text in files.items():
        write_atomically(path, text)
    return list(files)


def check_files(files: Mapping[Path, str], again: str, existing: Iterable[Path] = ()) -> list[str]:
    """List files that differ from what they should be, a line each; ``again`` is the command that writes them.

    A path of ``existing`` is stale where it exists and is none of ``files``.
    """
    differences = [f"{path}: there are no records for it" for path in existing if path not in files and path.exists()]
    for path, text in files.items():
        if not path.is_file():
            differences.append(f"{path}: missing; run: {again}")
            continue
        difference = _first_difference(path.read_text(encoding="ascii", errors="replace"), text)
        if difference:
            differences.append(f"{path}: {difference}; run: {again}")
    return differences


def ascii_text(text: str) -> str:
    """Escape whatever is not ASCII, and what a terminal would obey."""
    return visible(text).encode("ascii", "backslashreplace").decode("ascii")


def visible(text: str) -> str:
    """Escape what cannot be seen, and what a terminal or browser would obey."""
    return _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)


def say(line: str = "", file: IO[str] | None = None) -> None:
    """Print a line as ASCII on stdout, or another file: whatever a record, a plan or a file says, it is only shown."""
    print(ascii_text(line), file=file or sys.stdout, flush=True)


@contextmanager
def silence() -> Iterator[None]:
    """Close this process's output, that of libraries too, to what is said or starts meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    copies = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        for descriptor, copy in enumerate(copies, 1):
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)


def _first_difference(on_disk: str, expected: str) -> str:
    if on_disk == expected:
        return ""
    old, new = on_disk.split("\n"), expected.split("\n")
    for number, (a, b) in enumerate(zip(old, new), 1):
        if a != b:
            return f"line {number} is '{_short(a)}', the records give '{_short(b)}'"
    return f"has {len(old)} lines, the records give {len(new)}"


def _short(line: str) -> str:
    return line if len(line) <= 100 else line[:97] + "..."
