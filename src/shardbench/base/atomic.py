"""Files and folders that are there whole or not at all."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shardbench.base.errors import BadInput

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def no_room(error: BaseException) -> bool:
    """Tell whether an exception says that a disk, a quota or the largest file allowed is full."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write, which takes the place of ``path`` where the block ends well, and else is gone.

    An OSError for want of room names ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _add_path_to_error(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                # mkstemp makes files that only the owner can read.
                os.fchmod(file.fileno(), 0o644)
                # The name must not be there before the content is, whatever happens to the machine.
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        finally:
            # There only where something went wrong, Ctrl-C included.
            Path(name).unlink(missing_ok=True)


@contextmanager
def _add_path_to_error(path: Path) -> Iterator[None]:
    """Have an OSError for want of room say what could not be written: the system does not."""
    try:
        yield
    except OSError as error:
        if not no_room(error):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: Path, text: str, *, encoding: str = "ascii") -> None:
    """Write a whole text file or none."""
    with whole_file(path) as file:
        file.write(text.encode(encoding))


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a folder to fill, which becomes ``target`` where the block ends well, and else is gone.

    Raises BadInput where ``target`` is there already.
    """
    if target.exists():
        raise BadInput(f"{target} is there already: remove it, or take another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with _add_path_to_error(target):
            yield folder
        # mkdtemp makes folders that only the owner can enter.
        folder.chmod(0o755)
        folder.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep everybody else from writing to this folder meanwhile; raises BadInput where somebody does."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"another run writes to {folder}: wait for it, or give another --results") from error
        yield
    finally:
        os.close(handle)
