"""Numbers out of bytes, vectorised: every field of a block of text at once, errors by line."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from shardbench.base.arrays import Bools, Bytes, Ints
from shardbench.base.errors import BadInput

BLOCK_BYTES = 1 << 24
MAX_DIGITS = 18
"""Decimal digits that always fit int64."""

_HEX = np.full(256, 255, dtype=np.uint8)
_HEX[np.frombuffer(b"0123456789", dtype=np.uint8)] = np.arange(10)
_HEX[np.frombuffer(b"abcdef", dtype=np.uint8)] = np.arange(10, 16)
_HEX[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16)

_BROKEN = (EOFError, OSError, zlib.error, tarfile.TarError)


@contextmanager
def open_bytes(path: Path, member: str | None = None) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked by its suffix (.gz, .zst; of a .tar.gz the file called ``member``).

    Raises BadInput where there is no such file, and where it cannot be unpacked.
    """
    if not path.is_file():
        raise BadInput(f"no file {path}: bring it, or correct the name")
    try:
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path, "r|gz") as archive, _member(archive, path, member) as file:
                yield file
        elif path.suffix == ".gz":
            with io.BufferedReader(gzip.open(path, "rb")) as file:
                yield file
        elif path.suffix == ".zst":
            # zstandard's own reader takes a cut file for a finished one; Arrow's raises.
            with io.BufferedReader(pa.input_stream(str(path), compression="zstd")) as file:
                yield file
        else:
            with path.open("rb") as file:
                yield file
    except _BROKEN as error:
        raise BadInput(f"{path.name}: cannot unpack ({error}): the file is damaged, fetch it again") from error


def _member(archive: tarfile.TarFile, path: Path, name: str | None) -> IO[bytes]:
    # In the order of the archive, which is read once: it is packed as a whole.
    for info in archive:
        if info.isfile() and Path(info.name).name == name:
            file = archive.extractfile(info)
            if file is not None:
                return file
    raise BadInput(f"{path.name} has no file {name}: give the archive as it was downloaded, or the file itself")


def blocks(path: Path, block_bytes: int = BLOCK_BYTES, *, member: str | None = None) -> Iterator[Bytes]:
    """Whole lines of a text file, about ``block_bytes`` at a time, each block ending in a newline."""
    with open_bytes(path, member) as file:
        while block := file.read(block_bytes) + file.readline():
            yield np.frombuffer(block if block.endswith(b"\n") else block + b"\n", dtype=np.uint8)


def decimals(block: Bytes, starts: Ints, stops: Ints) -> tuple[Ints, Bools]:
    """Integers int64 [n] of the fields block[starts:stops], and which of them are well formed.

    A field is an optional minus sign and 1..18 digits; the value of a bad field is undefined.
    """
    negative = block[np.minimum(starts, len(block) - 1)] == ord("-")
    starts = starts + negative
    digits = stops - starts
    good = (digits >= 1) & (digits <= MAX_DIGITS)
    values = np.zeros(len(starts), dtype=np.int64)
    for position in range(min(int(digits.max(initial=0)), MAX_DIGITS)):
        inside = position < digits
        digit = block[np.minimum(starts + position, len(block) - 1)] - np.uint8(ord("0"))
        good &= (digit <= 9) | ~inside
        values = np.where(inside, values * 10 + digit, values)
    return np.where(negative, -values, values), good


def hexadecimals(block: Bytes, starts: Ints, stops: Ints) -> tuple[Ints, Bools]:
    """32-bit numbers int64 [n] of fields of 1..8 hex digits, and which of them are well formed."""
    digits = stops - starts
    good = (digits >= 1) & (digits <= 8)
    values = np.zeros(len(starts), dtype=np.int64)
    for position in range(min(int(digits.max(initial=0)), 8)):
        inside = position < digits
        digit = _HEX[block[np.minimum(starts + position, len(block) - 1)]]
        good &= (digit < 16) | ~inside
        values = np.where(inside, values * 16 + digit, values)
    return values, good


def quoted(block: Bytes, start: int, stop: int) -> str:
    """A field for an error message: printable ASCII, at most 40 characters."""
    text = bytes(block[start : min(stop, start + 40)]).decode("latin-1")
    return repr(text).encode("ascii", "backslashreplace").decode()
