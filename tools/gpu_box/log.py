"""Numbers as JSON lines in one file.

Nothing here imports torch: who watches the measuring process writes here, too, how it ended.
"""

import json
import os
from pathlib import Path
from typing import Any

REST = "the rest of the part"
"""What is skipped where a part ends before its time."""


class Log:
    """Numbers as JSON lines, one a number, on disk before the next one is measured."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "numbers.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row to the file."""
        os.write(self._file, (json.dumps(row, allow_nan=False) + "\n").encode())
        os.fsync(self._file)

    def skip(self, part: str, what: str, why: str) -> None:
        """Append what could not be measured, and why."""
        self.add({"part": part, "skipped": what, "why": why})
