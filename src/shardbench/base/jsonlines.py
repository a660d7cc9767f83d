"""Files of JSON lines: appended whole under a lock, removed whole, never edited.

Every line ends in a digest of its content, so that one that was damaged or edited is refused. Which lines were there is
for version control to say.
"""

import errno
import fcntl
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from shardbench.base.atomic import whole_file
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash, from_json, to_json

T = TypeVar("T")

TORN = "torn"
"""Middle of the name of a file that holds what was set aside."""
LONGEST_LINE = 1 << 24
"""Most bytes of a line; the longest of ours have a thousandth of it."""
_DIGEST = re.compile(rb',"digest":"([0-9a-f]{8})"}$')


def digested(line: bytes) -> bytes:
    """Return a JSON object's line with the digest of its bytes as the last key."""
    return line[:-1] + b',"digest":"' + _digest(line) + b'"}'


def undigested(line: bytes, where: str) -> bytes:
    """Return the line without its digest; raises BadInput where it has none, or is not what the digest was made of."""
    match = _DIGEST.search(line)
    if match is None:
        raise BadInput(f"{where}: has no digest at its end: the line was edited, or written by an older version")
    whole = line[: match.start()] + b"}"
    if _digest(whole) != match.group(1):
        raise BadInput(f"{where}: is not what its digest was made of: the line was edited or damaged")
    return whole


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest()[:8].encode()


class JsonLines(Generic[T]):
    """A file of values of one kind, one a line.

    ``read`` raises BadInput for a truncated, damaged or edited line. It loses nothing: the file is never repaired
    behind the user's back. ``unit`` is what a line holds, in words.
    """

    def __init__(self, path: Path, kind: type[T], unit: str) -> None:
        self.path = path
        self._kind = kind
        self._unit = unit

    def read(self) -> list[T]:
        """Return all values in the order they were written; an absent file has none."""
        return [value for _, value in self._lines()]

    def _lines(self) -> list[tuple[bytes, T]]:
        if self.path.exists() and not self.path.is_file():
            raise BadInput(f"{self.path} is a folder, a pipe or a device: lines are read of a file")
        data = self.path.read_bytes() if self.path.exists() else b""
        if data and not data.endswith(b"\n"):
            line = data.count(b"\n") + 1
            raise BadInput(
                f"{self.path}: line {line} is truncated (no line end): what wrote it was stopped; "
                f"the next run sets it aside and repeats its {self._unit}"
            )
        return [(line, self._value(line, f"{self.path}: line {i}")) for i, line in enumerate(data.splitlines(True), 1)]

    def _value(self, line: bytes, where: str) -> T:
        if len(line) > LONGEST_LINE:
            raise BadInput(f"{where}: has {len(line)} bytes; {LONGEST_LINE} is the most")
        try:
            content = undigested(line.rstrip(b"\n"), where)
        except BadInput as error:
            raise BadInput(f"{error}; restore it, or remove it, and the next run repeats its {self._unit}") from error
        return from_json(self._kind, content, where)

    def append(self, value: T) -> None:
        """Add a value by one atomic write under a lock; nothing of it stays where there is no room for all.

        Raises BadInput after a truncated line, and where the system does not take the line.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock() as file:
            size = os.fstat(file.fileno()).st_size
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                raise BadInput(f"{self.path} ends in a truncated line; the next run sets it aside")
            line = digested(to_json(value, exclude_none=True).encode()) + b"\n"
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError as error:
                # Shortening needs no room.
                os.ftruncate(file.fileno(), size)
                raise BadInput(
                    f"{self.path}: {error.strerror}: the {self._unit} just done is not recorded, all before it are; "
                    "make room and run again"
                ) from error

    def set_aside(self) -> Path | None:
        """Move a truncated last line to a file beside and return its path; None where no line is truncated."""
        if not self.path.exists():
            return None
        with self._lock() as file:
            data = self.path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole == len(data):
                return None
            target = self.path.with_name(f"{self.path.name}.{TORN}-{content_hash(data[whole:])}")
            with whole_file(target) as aside:
                aside.write(data[whole:])
            os.ftruncate(file.fileno(), whole)
        return target

    def remove(self, is_removed: Callable[[T], bool]) -> None:
        """Remove the lines whose value ``is_removed`` picks; the others stay, and a file without lines goes.

        A truncated last line is set aside before.
        """
        self.set_aside()
        if not self.path.exists():
            return
        with self._lock():
            lines = self._lines()
            rest = [line for line, value in lines if not is_removed(value)]
            if not rest:
                self.path.unlink()
            elif len(rest) < len(lines):
                with whole_file(self.path) as file:
                    file.writelines(rest)

    @contextmanager
    def _lock(self) -> Iterator[io.FileIO]:
        while True:
            # Without a buffer, so that nothing is left to write when a write has failed.
            with self.path.open("a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Another process may have put another file in its place while this one waited.
                if self.path.exists() and os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    yield file
                    return
