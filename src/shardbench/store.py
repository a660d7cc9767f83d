"""Append-only record files: JSON lines, failures included, never rewritten."""

import fcntl
import os
from pathlib import Path

from shardbench.errors import BadInput
from shardbench.record import Record
from shardbench.serialise import from_json, to_json
from shardbench.trial import Backend, Outcome


class RecordStore:
    """Records of one suite in ``<results>/records/<suite>.jsonl``.

    ``read`` raises BadInput for a truncated or edited line and loses nothing: the file is
    never repaired behind the user's back.
    """

    def __init__(self, results: Path, suite: str) -> None:
        self.path = results / "records" / f"{suite}.jsonl"

    def read(self) -> list[Record]:
        """All records in the order they were written; an absent file is no records."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            line = data.count(b"\n") + 1
            raise BadInput(
                f"{self.path}: line {line} is truncated (no line end); "
                f"delete that line (sed -i '{line}d' {self.path}) and run again: its trial is repeated"
            )
        return [from_json(Record, line, f"{self.path}: line {i}") for i, line in enumerate(data.splitlines(), 1)]

    def latest(self) -> dict[str, Record]:
        """The last record of every trial key."""
        return {record.key: record for record in self.read()}

    def append(self, record: Record) -> None:
        """One atomic write under a lock; refuses to write after a truncated line."""
        line = to_json(record).encode() + b"\n"
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


def is_settled(
    record: Record | None, *, force: bool, retry: frozenset[Outcome], environment: str | None = None
) -> bool:
    """Whether a trial need not run (again) in ``environment`` (a hash; None: whichever it was).

    A measurement holds only where it was taken; a simulated trial is the same everywhere.
    """
    if record is None or force or record.outcome in retry:
        return False
    return record.spec.backend is Backend.SIMULATED or environment in (None, record.environment)
