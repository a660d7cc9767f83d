"""The folder of a measured trial: its job, and what ranks leave there, which nothing overwrites or deletes."""

import mmap
from pathlib import Path

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.jsonlines import digested, undigested
from shardbench.base.reading import file_bytes
from shardbench.base.serialise import content_hash, from_json, to_json
from shardbench.engine.processes.job import JOB, RankJob, RankResult

_LONGEST_PHASE = 100
_PROGRESS_BYTES = 8
REFUSED = 2
"""Exit code of a rank that found what ranks had left."""


def holds_results(folder: Path) -> bool:
    """Tell whether a rank ended there, well or not."""
    return any(folder.glob("rank*.json"))


def ranks_began(folder: Path) -> bool:
    """Tell whether a rank was ever started there."""
    return any(folder.glob("rank*.*"))


def attempt_number(folder: Path) -> int:
    """Return the number of an attempt's folder, 1 for the first."""
    number = folder.suffix[1:]
    return int(number) if number.isdigit() else 1


def next_attempt(folder: Path) -> Path:
    """Return the folder for ranks to be started: the last attempt's, or a new one where ranks began there.

    Attempts are ``folder``, ``folder.2``, ``folder.3``, ..., as far as they are there.
    """
    numbered = (path for path in folder.parent.glob(f"{folder.name}.*") if path.stem == folder.name)
    attempts = [folder, *(path for path in numbered if path.is_dir() and path.suffix[1:].isdigit())]
    last = max(attempts, key=attempt_number)
    return folder.with_name(f"{folder.name}.{attempt_number(last) + 1}") if ranks_began(last) else last


def result_text(result: RankResult) -> str:
    """Write a rank's result with a digest, as files are copied from machine to machine."""
    return digested(to_json(result).encode()).decode()


def read_result(path: Path) -> RankResult:
    """Read the result that a rank left; raises BadInput where it is not whole, or not as the rank left it."""
    return from_json(RankResult, undigested(file_bytes(path), path.name), path.name)


def write_job(job: RankJob, folder: Path) -> None:
    """Make ``folder`` a job folder, for ranks that are started here or elsewhere; raises BadInput where some began."""
    if ranks_began(folder):
        raise BadInput(f"{folder} holds what ranks left, which nothing overwrites")
    write_atomically(folder / JOB, to_json(job))


def read_job(folder: Path) -> tuple[RankJob, str]:
    """Read the job of a folder and the hash of its file; raises BadInput where it is missing or malformed."""
    path = folder / JOB
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    text = file_bytes(path)
    return from_json(RankJob, text, JOB), content_hash(text)


def left_hash(folder: Path) -> str:
    """Return the hash of what ranks left in a folder, how far they came, and of the folder's name."""
    paths = [*folder.glob("rank*.json"), *folder.glob("rank*.phase")]
    return content_hash(folder.name, *(part for path in sorted(paths) for part in (path.name, path.read_bytes())))


def phase_of(folder: Path, rank: int) -> str:
    """Return the phase in which a rank was when it last said so."""
    path = folder / f"rank{rank}.phase"
    if not path.exists():
        return "start"
    with path.open("rb") as file:
        return file.read(_LONGEST_PHASE).decode("ascii", "replace") or "start"


class RankProgress:
    """Counts the stamps that a rank takes, in a file that whoever watches it shares: each costs a write to memory."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = _progress_path(folder, rank)
        path.write_bytes(bytes(_PROGRESS_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _PROGRESS_BYTES)
        self._count = 0

    def step(self) -> None:
        """Count one more stamp."""
        self._count += 1
        self._map[:] = self._count.to_bytes(_PROGRESS_BYTES, "little")


def progress_of(folder: Path, rank: int) -> int:
    """Return the number of stamps that a rank took; -1 where it never began."""
    path = _progress_path(folder, rank)
    return int.from_bytes(path.read_bytes(), "little") if path.is_file() else -1


def _progress_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.progress"
