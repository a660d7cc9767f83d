"""Temporary folders that go with the process that made them; a killed one's are cleaned by the next."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "shardbench.run-"
_UNFINISHED = ".shardbench.new-"
"""Prefix that others do not look at: nobody could tell that its maker lives before it is locked."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Give an empty folder that is locked as long as this process lives, and gone afterwards with all in it."""
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED))
    handle = os.open(unfinished, os.O_RDONLY)
    folder = unfinished
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder = unfinished.rename(unfinished.with_name(unfinished.name.replace(_UNFINISHED, _PREFIX)))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def clean_left_folders() -> list[Path]:
    """Remove the folders of this user's processes that are gone; return what was removed."""
    folders = sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    return [folder for folder in folders if _remove(folder)]


def _remove(folder: Path) -> bool:
    """Remove a folder that nobody has locked; return whether it is gone."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        # Its maker, or somebody else, was quicker; or it is another user's.
        return False
    try:
        if os.fstat(handle).st_uid != os.getuid():
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    finally:
        os.close(handle)
