"""What jobs of a cluster do in tests. Each is a Python of its own: no import here that costs seconds."""

import os
import signal
import time
from pathlib import Path


def fails_at_two(number: int) -> int:
    """Which process it was; fails at 2 and is killed at 3."""
    if number == 2:
        raise ZeroDivisionError("two is not to be had")
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def hangs_or_ends(folder: str) -> None:
    """Hangs and leaves its id where a folder is given."""
    if folder:
        (Path(folder) / f"{os.getpid()}.pid").touch()
        time.sleep(1e6)
