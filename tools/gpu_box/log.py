"""Numbers as JSON lines in the few files that may come back.

Nothing here imports torch: who watches the measuring process writes here, too, how it ended.
"""

import json
import os
from pathlib import Path
from typing import Any

LARGEST_BYTES = 15 * 2**20
"""A file of numbers is no larger; the next number begins another one."""
MOST_FILES = 6
"""Files of numbers: with what is known of the run and what was printed there are eight."""
REST = "the rest of the part"
"""What is skipped where a part ends before its time."""


class Full(Exception):
    """The files that may come back are full."""


class Log:
    """Numbers as JSON lines, one a number, on disk before the next one is measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._number = max([int(path.stem.rpartition("-")[2]) for path in folder.glob("numbers-*.jsonl")], default=1)
        self._file = self._open()

    def _open(self) -> int:
        path = self._folder / f"numbers-{self._number}.jsonl"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row; raises Full where there is no room."""
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        if os.fstat(self._file).st_size + len(line) > LARGEST_BYTES:
            if self._number == MOST_FILES:
                raise Full(f"{MOST_FILES} files of {LARGEST_BYTES} bytes are full")
            os.close(self._file)
            self._number += 1
            self._file = self._open()
        os.write(self._file, line)
        os.fsync(self._file)

    def skip(self, part: str, what: str, why: str) -> None:
        """Append what could not be measured, and why."""
        self.add({"part": part, "skipped": what, "why": why})
