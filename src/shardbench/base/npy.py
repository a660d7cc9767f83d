"""Arrays in numpy's format that somebody else may have written: the header is held against what is there, first."""

import math
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardbench.base.errors import BadInput

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4}
"""Bytes of the header's length, by version of the format."""
_LONGEST_HEADER = 10_000
# numpy evaluates the header as Python; what numpy writes of numbers always looks like this.
_HEADER = re.compile(
    r"\{'descr': '([<>|=][biuf][1248])', 'fortran_order': (True|False), 'shape': \(([0-9, ]{0,99})\), \} *\n?"
)
MAX_AXES = 8


@dataclass(frozen=True, kw_only=True)
class Header:
    """What an array's header says: numbers of ``dtype`` [shape] follow it."""

    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    """Whether numbers lie row by row or column by column."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the numbers that follow."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes], what: str) -> Header:
    """Read the header of a stream, which is then at the first number; raises BadInput that begins with ``what``."""
    start = stream.read(8)
    if len(start) < 8 or start[:6] != _MAGIC or start[6] not in _LENGTH_BYTES or start[7] != 0:
        raise BadInput(f"{what} is no array of numpy's, version 1.0 or 2.0 of the format")
    length = int.from_bytes(stream.read(_LENGTH_BYTES[start[6]]), "little")
    text = stream.read(min(length, _LONGEST_HEADER)).decode("latin1")
    found = _HEADER.fullmatch(text)
    if found is None or len(text) != length:
        raise BadInput(f"{what} is no array of numpy's: its header is no header of numbers")
    kind, by_column, sizes = found.groups()
    axes = [size.strip() for size in sizes.split(",") if size.strip()]
    if len(axes) > MAX_AXES or not all(size.isdecimal() for size in axes):
        raise BadInput(f"{what} is no array of numpy's: its shape is ({sizes})")
    try:
        dtype = np.dtype(kind)
    except TypeError as error:
        raise BadInput(f"{what} is no array of numpy's: its numbers are '{kind}'") from error
    return Header(dtype=dtype, order="F" if by_column == "True" else "C", shape=tuple(int(size) for size in axes))


def mapped(path: Path) -> NDArray[Any]:
    """Map the array of a file; raises BadInput where it is none, or other than its header says."""
    try:
        with path.open("rb") as file:
            header = read_header(file, str(path))
            start, there = file.tell(), path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    if header.nbytes != there - start:
        raise BadInput(f"{path} has {there - start} bytes of numbers, its header says {header.nbytes}")
    if header.nbytes == 0:  # which cannot be mapped
        return np.empty(header.shape, dtype=header.dtype, order=header.order)
    return np.memmap(path, header.dtype, "r", start, header.shape, header.order)


def read_arrays(path: Path, most_bytes: int) -> dict[str, NDArray[Any]]:
    """Read all arrays of a .npz file by name; raises BadInput where it is damaged, or larger than ``most_bytes``."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(info.file_size for info in archive.infolist())
            if size > most_bytes:
                raise BadInput(f"{path} unpacks to {size} bytes; {most_bytes} is the most")
            return {
                info.filename.removesuffix(".npy"): _read(archive, info, f"{path} array '{info.filename}'")
                for info in archive.infolist()
            }
    except ZIP_FAULTS as error:
        raise BadInput(f"{path} cannot be read: {error}") from error


ZIP_FAULTS = (OSError, EOFError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What a damaged archive raises; NotImplementedError for ways of packing that there are not, RuntimeError for keys."""


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> NDArray[Any]:
    with archive.open(info) as stream:
        header = read_header(stream, what)
        # No more than the directory of the archive says, whatever is packed there.
        data = stream.read(info.file_size)
    if len(data) != header.nbytes:
        raise BadInput(f"{what} has {len(data)} bytes of numbers, its header says {header.nbytes}")
    return np.frombuffer(data, dtype=header.dtype).reshape(header.shape, order=header.order)
