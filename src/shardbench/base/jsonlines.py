"""Files of JSON lines: appended whole under a lock, removed whole, never edited.

Every line states its number and the digest of the line before it, and ends in a digest of all that, so that a line
which is gone, moved or there twice is noticed. Beside the file ``<name>.end`` states number and digest of the last
line, for lines that are gone from the end; it is written after a line, and may be behind. Lines of older versions state
their own digest alone. Nothing of this stops who computes the digests anew.
"""

import errno
import fcntl
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Generic, TypeVar

from shardbench.base.atomic import no_room, whole_file, write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash, from_json, to_json

T = TypeVar("T")

TORN = "torn"
"""Middle of the name of a file that holds what was set aside."""
LONGEST_LINE = 1 << 24
"""Most bytes of a line; the longest of ours have a thousandth of it."""
END = ".end"
"""Suffix of the file beside, which states number and digest of the last line."""
HELD_BYTES = 1 << 18
"""Room that is held on the disk for what is to be appended next, and for what is kept beside it."""
_DIGEST = re.compile(rb',"digest":"([0-9a-f]{16})"}$')
_PLACE = re.compile(rb',"line":([1-9][0-9]{0,15}),"after":"([0-9a-f]{16}|)"}$')
_STATED_END = re.compile(rb"([1-9][0-9]{0,15}) ([0-9a-f]{16})\n")
_TAIL_BYTES = 1 << 16


def digested(line: bytes) -> bytes:
    """Return a JSON object's line with the digest of its bytes as the last key."""
    return line[:-1] + b',"digest":"' + _digest(line) + b'"}'


def undigested(line: bytes, where: str) -> bytes:
    """Return the line without its digest; raises BadInput where it has none, or is not what the digest was made of."""
    found = _DIGEST.search(line)
    if found is None:
        raise BadInput(f"{where}: has no digest at its end: the line was edited, or written by an older version")
    whole = line[: found.start()] + b"}"
    if _digest(whole) != found.group(1):
        raise BadInput(f"{where}: is not what its digest was made of: the line was edited or damaged")
    return whole


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest()[:16].encode()


@dataclass(frozen=True)
class _Place:
    """The place of a line in its file."""

    number: int
    """1 for the first."""
    digest: str
    """The digest that the line ends in; empty where there is no line yet."""

    @property
    def text(self) -> str:
        """The content of the file beside, where this is the last line."""
        return f"{self.number} {self.digest}\n"

    def next_line(self, content: bytes) -> tuple[bytes, "_Place"]:
        """Return the line of a JSON object after this place, with its end, and its place."""
        line = digested(content[:-1] + f',"line":{self.number + 1},"after":"{self.digest}"}}'.encode())
        return self.next_as_it_is(line)

    def next_as_it_is(self, line: bytes) -> tuple[bytes, "_Place"]:
        """Return a line that is digested already, with its end, and its place after this one."""
        return line + b"\n", _Place(self.number + 1, _stated_digest(line))


_START = _Place(0, "")


def _fault(number: int, before: _Place, stated: int, after: str) -> str:
    """Say what is wrong where the line of this number states another place; an empty string if nothing is."""
    if stated > number:
        gone = stated - number
        return f"was written as line {stated}: {gone} before it {'is' if gone == 1 else 'are'} gone"
    if stated < number:
        return f"was written as line {stated}: lines were moved, or are there twice"
    return "" if after == before.digest else "was written after another line than the one before it"


def _stated_digest(line: bytes) -> str:
    found = _DIGEST.search(line)
    return found.group(1).decode() if found is not None else ""


class JsonLines(Generic[T]):
    """A file of values of one kind, one a line.

    ``read`` raises BadInput for a truncated, damaged or edited line, and where lines are gone, moved or there twice. It
    loses nothing: the file is never repaired behind the user's back. ``unit`` is what a line holds, in words.
    """

    def __init__(self, path: Path, kind: type[T], unit: str) -> None:
        self.path = path
        self._kind = kind
        self._unit = unit
        self._end = path.with_name(path.name + END)
        self._held: IO[bytes] | None = None

    def read(self) -> list[T]:
        """Return all values in the order they were written; an absent file has none."""
        # Before the lines, which may become more meanwhile.
        stated = self._stated_end()
        if not self.path.exists():
            self._check_end(stated, [])
            return []
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            line = data.count(b"\n") + 1
            raise BadInput(
                f"{self.path}: line {line} is truncated (no line end): what wrote it was stopped; "
                f"the next run sets it aside and repeats its {self._unit}"
            )
        lines = data.splitlines()
        found = [
            from_json(self._kind, content, f"{self.path}: line {i}")
            for i, (content, _) in enumerate(self._contents(lines), 1)
        ]
        self._check_end(stated, lines)
        return found

    def _contents(self, lines: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
        """Yield the object of every line, and whether it states its place; raises BadInput where one is not right."""
        before, placed = _START, False
        for i, text in enumerate(lines, 1):
            where = f"{self.path}: line {i}"
            if len(text) > LONGEST_LINE:
                raise BadInput(f"{where}: has {len(text)} bytes; {LONGEST_LINE} is the most")
            content = undigested(text, where)
            place = _PLACE.search(content)
            if place is not None:
                fault = _fault(i, before, int(place.group(1)), place.group(2).decode())
                content, placed = content[: place.start()] + b"}", True
            else:
                fault = "states no place, as those before it do: it was moved or added" if placed else ""
            if fault:
                raise BadInput(f"{where}: {fault}; {self._restore}")
            before = _Place(i, _stated_digest(text))
            yield content, place is not None

    @property
    def _restore(self) -> str:
        return f"restore the file with {self._end.name} beside it, or remove both and run again"

    def _stated_end(self) -> _Place:
        """Return the last line that the file beside states; raises BadInput where it is damaged."""
        if not self._end.exists():
            return _START
        found = _STATED_END.fullmatch(self._end.read_bytes())
        if found is None:
            raise BadInput(f"{self._end}: does not state the last line of {self.path.name}; {self._restore}")
        return _Place(int(found.group(1)), found.group(2).decode())

    def _check_end(self, stated: _Place, lines: Sequence[bytes]) -> None:
        """Raise BadInput where the file lacks the line that is stated as its last."""
        if stated.number > len(lines):
            gone = stated.number - len(lines)
            raise BadInput(
                f"{self.path}: has {len(lines)} lines, {self._end.name} states {stated.number}: "
                f"{gone} at its end {'is' if gone == 1 else 'are'} gone; {self._restore}"
            )
        if stated.number and _stated_digest(lines[stated.number - 1]) != stated.digest:
            raise BadInput(
                f"{self.path}: line {stated.number}: is not the one that {self._end.name} states; {self._restore}"
            )

    def _write_end(self, last: _Place) -> None:
        write_atomically(self._end, last.text)

    @contextmanager
    def room(self) -> Iterator[Callable[[], None]]:
        """Give what holds room on the disk for the next value until ``append`` needs it, or the block ends.

        It raises BadInput where there is none. To be called before the work that a value is of.
        """

        def hold() -> None:
            if self._held is None:
                self._hold()

        try:
            yield hold
        finally:
            self._let_go()

    def _hold(self) -> None:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        # It has no name: nothing is left of it, however this process ends.
        held: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by _let_go
        try:
            if held.write(bytes(HELD_BYTES)) < HELD_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(held.fileno())
        except OSError as error:
            held.close()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                # No file may be so large, or the like: no matter of room.
                return
            raise BadInput(
                f"{folder}: {error.strerror}: no {self._unit} begins without {HELD_BYTES} bytes free for its record; "
                "all before are recorded: make room and run again"
            ) from error
        self._held = held

    def _let_go(self) -> bool:
        """Give up the room that is held; return whether some was."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
        return held is not None

    def append(self, value: T) -> None:
        """Add a value by one atomic write under a lock; nothing of it stays where there is no room for all.

        The room that is held is given up where there is no other.
        Raises BadInput after a truncated line, and where the system does not take the line.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked() as file:
            size = os.fstat(file.fileno()).st_size
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                raise BadInput(f"{self.path} ends in a truncated line; the next run sets it aside")
            line, place = self._last(file.fileno(), size).next_line(to_json(value).encode())
            try:
                self._write(file, line, size)
            except OSError as error:
                raise BadInput(
                    f"{self.path}: {error.strerror}: the {self._unit} just done is not recorded, all before it are; "
                    "make room and run again"
                ) from error
            try:
                self._write_end(place)
            except OSError as error:
                if not no_room(error) or not self._let_go():
                    raise
                self._write_end(place)

    def _write(self, file: io.FileIO, line: bytes, size: int) -> None:
        """Write a line after so many bytes, in the room that is held where need be; nothing of it stays otherwise."""
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError as error:
            # Shortening needs no room.
            os.ftruncate(file.fileno(), size)
            if not no_room(error) or not self._let_go():
                raise
            self._write(file, line, size)

    def _last(self, handle: int, size: int) -> _Place:
        """Return the place of the last line of an open file of ``size`` bytes; raises BadInput if it is not right."""
        stated = self._stated_end()
        if not size:
            self._check_end(stated, [])
            return _START
        tail, span = b"", _TAIL_BYTES
        while b"\n" not in tail[:-1] and len(tail) < size:
            span = min(2 * span, size)
            tail = os.pread(handle, span, size - span)
        line = tail.splitlines()[-1]
        found = _PLACE.search(undigested(line, f"{self.path}: the last line"))
        number = int(found.group(1)) if found is not None else self.path.read_bytes().count(b"\n")
        if stated.number > number:
            self._check_end(stated, self.path.read_bytes().splitlines())
        return _Place(number, _stated_digest(line))

    def set_aside(self) -> Path | None:
        """Move a truncated last line to a file beside and return its path; None where no line is truncated."""
        if not self.path.exists():
            return None
        with self._locked() as file:
            data = self.path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole == len(data):
                return None
            target = self.path.with_name(f"{self.path.name}.{TORN}-{content_hash(data[whole:])}")
            with whole_file(target) as aside:
                aside.write(data[whole:])
            lines = data[:whole].splitlines()
            if self._stated_end().number == len(lines) + 1:
                # It was whole once, and states where it stood.
                self._state_end_of(lines)
            os.ftruncate(file.fileno(), whole)
        return target

    def _state_end_of(self, lines: Sequence[bytes]) -> None:
        if lines:
            self._write_end(_Place(len(lines), _stated_digest(lines[-1])))
        else:
            self._end.unlink(missing_ok=True)

    def remove(self, chosen: Callable[[T], bool]) -> None:
        """Remove the lines whose value ``chosen`` picks; what the others hold stays, and a file without lines goes.

        Those that state their place state their new one. A truncated last line is set aside before.
        """
        self.set_aside()
        if not self.path.exists():
            return
        with self._locked():
            values = self.read()
            lines = self.path.read_bytes().splitlines()
            kept: list[bytes] = []
            last = _START
            for value, line, (content, placed) in zip(values, lines, self._contents(lines), strict=True):
                if not chosen(value):
                    whole, last = last.next_line(content) if placed else last.next_as_it_is(line)
                    kept.append(whole)
            if len(kept) == len(lines):
                return
            # It may be behind, and never ahead.
            self._end.unlink(missing_ok=True)
            if not kept:
                self.path.unlink()
                return
            with whole_file(self.path) as file:
                file.writelines(kept)
            self._write_end(last)

    @contextmanager
    def _locked(self) -> Iterator[io.FileIO]:
        while True:
            # Without a buffer, so that nothing is left to write when a write has failed.
            with self.path.open("a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Another process may have put another file in its place while this one waited.
                if self.path.exists() and os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    yield file
                    return
