"""Numbers out of bytes, vectorised: every field of a block of text at once, errors by line."""

import gzip
import io
import zlib
from collections.abc import Iterator
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

_BROKEN = (EOFError, OSError, zlib.error)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked by its suffix (.gz, .zst); raises BadInput if it is not there."""
    if not path.is_file():
        raise BadInput(f"no file {path}: bring it, or correct the name")
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"))
    if path.suffix == ".zst":
        # zstandard's own reader takes a cut file for a finished one; Arrow's raises.
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[Bytes]:
    """Whole lines of a text file, about ``block_bytes`` at a time, each block ending in a newline."""
    with open_bytes(path) as file:
        while True:
            try:
                block = file.read(block_bytes) + file.readline()
            except _BROKEN as error:
                raise BadInput(f"{path.name}: cannot unpack ({error}): the file is damaged, fetch it again") from error
            if not block:
                return
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
