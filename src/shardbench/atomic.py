"""Files that are there whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str, *, encoding: str = "ascii") -> None:
    """Write a whole file or none: a temporary file beside it, then ``os.replace``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding=encoding, newline="\n") as file:
            file.write(text)
            # mkstemp makes files that only the owner can read.
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    except BaseException:  # Ctrl-C too must leave no temporary file; it is raised again
        Path(name).unlink(missing_ok=True)
        raise
