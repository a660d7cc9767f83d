"""Files that somebody else may have written, read whole: none longer than it can be, every fault one line."""

import os
import tomllib
from pathlib import Path
from typing import Any

from shardbench.base.errors import BadInput, one_line

TEXT_BYTES = 1 << 22
"""Most bytes of a file that a person writes."""
JSON_BYTES = 1 << 28
"""Most bytes of a file that a program writes: profiles of a thousand tables take some of it."""

_UNSTATED_BYTES = 1 << 20
_SHORT = 200
"""Most characters of what a parser says."""


def file_bytes(path: Path, what: str = "", most: int = JSON_BYTES) -> bytes:
    """Read a file whole; raises BadInput where there is none, it cannot be read, or is longer than ``most``.

    ``what`` is a word or two for the file, before its path in all that is said of it.
    """
    path_of = f"{what} {path}".strip()
    if not path.is_file():
        raise BadInput(f"{path_of} is no file" if path.exists() else f"{path_of} does not exist")
    try:
        with path.open("rb") as file:
            # No more is asked for than is there, as memory is taken for all of it; files of the system state no size.
            data = file.read(min(os.fstat(file.fileno()).st_size + _UNSTATED_BYTES, most + 1))
    except OSError as error:
        raise BadInput(f"{path_of} cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise BadInput(f"{path_of} is longer than {most} bytes, the most that is read")
    return data


def file_text(path: Path, what: str = "", most: int = TEXT_BYTES) -> str:
    """Read a file whole as ``file_bytes`` does, as UTF-8 text; raises BadInput where it is none."""
    try:
        return file_bytes(path, what, most).decode()
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8 text: {error.reason} at byte {error.start}"
        raise BadInput(f"{what} {path} {fault}".strip()) from error


def line_of(path: Path, name: str) -> str | None:
    """Return what follows ``name`` in the first line of a system's file that begins with it; None where none does."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((line.removeprefix(name).strip() for line in lines if line.startswith(name)), None)


def toml_data(text: str, what: str) -> dict[str, Any]:
    """Parse TOML to plain data; raises BadInput where it is none, or deeper than anybody writes."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise BadInput(f"{what}: not TOML that can be read: it is nested too deeply") from error
    except ValueError as error:
        # The base of the parser's own errors, and what numbers of thousands of digits raise.
        raise BadInput(f"{what}: not TOML: {one_line(str(error), _SHORT)}") from error


def toml_file(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain data; raises BadInput where it cannot be."""
    return toml_data(file_text(path), str(path))
