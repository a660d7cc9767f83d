"""How far a rank has come: a counter in a file that it shares with whoever watches it."""

import mmap
from pathlib import Path

_BYTES = 8


class RankProgress:
    """Counts the stamps that a rank takes; a count costs a write to memory."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = _path(folder, rank)
        path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._count = 0

    def step(self) -> None:
        """Count one more stamp."""
        self._count += 1
        self._map[:] = self._count.to_bytes(_BYTES, "little")


def progress_of(folder: Path, rank: int) -> int:
    """Return the number of stamps that a rank took; -1 where it never began."""
    path = _path(folder, rank)
    return int.from_bytes(path.read_bytes(), "little") if path.is_file() else -1


def _path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.progress"
