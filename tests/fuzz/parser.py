"""What one parser of the project is to the fuzzer."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]

Change = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Parser:
    """``read`` gets the path of a file, which lies in a folder with what else it needs."""

    name: str
    file: str
    """Where it lies under the folder."""
    make: Callable[[Path], list[bytes]]
    """Fills the folder and gives valid contents of the file."""
    change: Change
    read: Callable[[Path], object]
    weight: int = 10
    """Its share of all inputs."""


def words(*texts: str) -> Callable[[Path], list[bytes]]:
    """Contents as they stand here."""
    return lambda _: [text.encode() for text in texts]


def committed(*patterns: str) -> Callable[[Path], list[bytes]]:
    """Contents of files of the project."""
    return lambda _: [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Where files of relative paths are."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
