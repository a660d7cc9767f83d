"""Folders of prepared samples: a note says what was prepared and how; arrays are written part by part, and mapped."""

import hashlib
import io
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from shardbench.base.arrays import mapped
from shardbench.base.errors import BadInput
from shardbench.base.reading import file_bytes
from shardbench.base.serialise import StrictModel, from_json, to_json

NOTE = "prepared.json"


class Note(StrictModel):
    """What a folder's note says, whatever was prepared."""

    format: Literal[1] = 1
    samples: PositiveInt
    seed: NonNegativeInt
    checksums: dict[str, str]
    """SHA-256 of every array's bytes, by file name."""


N = TypeVar("N", bound=pydantic.BaseModel)


def write_model(path: Path, model: pydantic.BaseModel) -> None:
    """Write a file of a folder that is being prepared."""
    path.write_text(to_json(model) + "\n")


def read_model(kind: type[N], path: Path, how: str) -> N:
    """Read what ``write_model`` wrote; raises BadInput that says ``how`` to prepare the folder where there is none."""
    if not path.is_file():
        raise BadInput(f"no file {path}: {how}")
    return from_json(kind, file_bytes(path), str(path))


class ArrayFile:
    """A .npy file that grows along its first axis; open while it is written to alone, so that there may be many."""

    def __init__(self, path: Path, dtype: Any, shape: tuple[int, ...] = ()) -> None:
        self.path = path
        self.length = 0
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._digest = hashlib.sha256()
        self._data_start = path.write_bytes(self._header())

    def _header(self) -> bytes:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.length, *self._shape),
        }
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, header)
        return stream.getvalue()

    def append(self, values: NDArray[Any]) -> None:
        """Add ``values`` [n, ...]."""
        data = np.ascontiguousarray(values, dtype=self._dtype).reshape(-1).view(np.uint8).data
        self._digest.update(data)
        with self.path.open("ab") as file:
            file.write(data)
        self.length += len(values)

    def close(self) -> str:
        """Write the final header (numpy leaves room for the length) and return the data's SHA-256."""
        header = self._header()
        if len(header) != self._data_start:
            raise RuntimeError(f"{self.path.name}: numpy changed the size of its header")
        with self.path.open("r+b") as file:
            file.write(header)
        return self._digest.hexdigest()


def read_array(path: Path, kind: type[np.generic], shape: tuple[int, ...], how: str) -> NDArray[Any]:
    """Map a prepared array; raises BadInput where it is none of this kind and shape, or not what was prepared."""
    try:
        array = mapped(path)
    except BadInput as error:
        raise BadInput(f"{error}: {how}") from error
    if array.shape != shape or not np.issubdtype(array.dtype, kind):
        raise BadInput(f"{path} has {array.dtype} {array.shape}, expected {kind.__name__} {shape}: {how}")
    stat, note = path.stat(), path.parent / NOTE
    if note.is_file():
        _verify(path, (stat.st_mtime_ns, stat.st_size), note, note.stat().st_mtime_ns, how)
    return array


@lru_cache(maxsize=4096)
def _verify(path: Path, state: tuple[int, int], note: Path, noted: int, how: str) -> None:
    """Hold an array against its checksum, once for every state of both files; raises BadInput."""
    expected = _checksums(note, noted).get(path.name)
    if expected is None:
        raise BadInput(f"{path} is not among the files of {note}: {how}")
    if hashlib.sha256(np.ascontiguousarray(mapped(path)).reshape(-1).view(np.uint8).data).hexdigest() != expected:
        raise BadInput(f"{path} is not what was prepared (its SHA-256 is not that of {note}): {how}")


class _Checked(pydantic.BaseModel):
    """The checksums of a note, whatever else it says."""

    checksums: dict[str, str]


@lru_cache(maxsize=64)
def _checksums(note: Path, noted: int) -> dict[str, str]:
    return from_json(_Checked, file_bytes(note), str(note)).checksums
