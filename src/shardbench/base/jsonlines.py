"""Append-only files of JSON lines: written whole under a lock, never rewritten."""

import fcntl
import os
from pathlib import Path
from typing import Generic, TypeVar

from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_json, to_json

T = TypeVar("T")


class JsonLines(Generic[T]):
    """Values of one kind, one a line.

    ``read`` raises BadInput for a truncated or edited line and loses nothing: the file is
    never repaired behind the user's back. ``unit`` is what a line holds, in words.
    """

    def __init__(self, path: Path, kind: type[T], unit: str) -> None:
        self.path = path
        self._kind = kind
        self._unit = unit

    def read(self) -> list[T]:
        """All values in the order they were written; an absent file is none."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            line = data.count(b"\n") + 1
            raise BadInput(
                f"{self.path}: line {line} is truncated (no line end); "
                f"delete that line (sed -i '{line}d' {self.path}) and run again: its {self._unit} is repeated"
            )
        return [from_json(self._kind, line, f"{self.path}: line {i}") for i, line in enumerate(data.splitlines(), 1)]

    def append(self, value: T) -> None:
        """One atomic write under a lock; refuses to write after a truncated line."""
        line = to_json(value).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if size and _last_byte(self.path, size) != b"\n":
                raise BadInput(f"{self.path} ends in a truncated line; delete it before anything is added")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def _last_byte(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1)
