"""Files of JSON lines: appended whole under a lock, archived, never edited."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from shardbench.base.atomic import whole_file
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash, from_json, to_json

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
        with self._locked() as file:
            size = os.fstat(file.fileno()).st_size
            if size and _last_byte(self.path, size) != b"\n":
                raise BadInput(f"{self.path} ends in a truncated line; delete it before anything is added")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def archive(self, folder: Path, moved: Callable[[T], bool]) -> Path | None:
        """Move the lines whose value ``moved`` picks to ``<folder>/<stem>-<hash of these lines>.jsonl``.

        Gives its path, or None where nothing is picked. Lines stay as they are, byte for byte, and
        are in the archive before they leave the file; a file without lines goes.
        """
        if not self.path.exists():
            return None
        with self._locked():
            values = self.read()
            lines = self.path.read_bytes().splitlines(keepends=True)
            picked = [moved(value) for value in values]
            taken = b"".join(line for line, goes in zip(lines, picked, strict=True) if goes)
            if not taken:
                return None
            target = folder / f"{self.path.stem}-{content_hash(taken)}{self.path.suffix}"
            with whole_file(target) as file:
                file.write(taken)
            if all(picked):
                self.path.unlink()
            else:
                with whole_file(self.path) as file:
                    file.writelines(line for line, goes in zip(lines, picked, strict=True) if not goes)
        return target

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        while True:
            with self.path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Another process may have put another file in its place while this one waited.
                if self.path.exists() and os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    yield file
                    return


def _last_byte(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1)
