"""Files and folders that are there whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shardbench.base.errors import BadInput


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` where the block ends well, and else is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            # mkstemp makes files that only the owner can read.
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    finally:
        # There only where something went wrong, Ctrl-C included.
        Path(name).unlink(missing_ok=True)


def write_atomically(path: Path, text: str, *, encoding: str = "ascii") -> None:
    """Write a whole text file or none."""
    with whole_file(path) as file:
        file.write(text.encode(encoding))


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` where the block ends well, and else is gone.

    Raises BadInput where ``target`` is there already.
    """
    if target.exists():
        raise BadInput(f"{target} is there already: remove it, or take another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield folder
        # mkdtemp makes folders that only the owner can enter.
        folder.chmod(0o755)
        folder.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
