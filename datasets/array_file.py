"""Arrays that are written part by part and mapped when they are read."""

import hashlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


class ArrayFile:
    """A .npy file that grows along its first axis."""

    def __init__(self, path: Path, dtype: Any, shape: tuple[int, ...] = ()) -> None:
        self.path = path
        self.length = 0
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._digest = hashlib.sha256()
        self._file: IO[bytes] = path.open("wb")
        self._data_start = self._header()

    def _header(self) -> int:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.length, *self._shape),
        }
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, header)
        return self._file.tell()

    def append(self, values: NDArray[Any]) -> None:
        """Adds ``values`` [n, ...]."""
        data = np.ascontiguousarray(values, dtype=self._dtype).tobytes()
        self._digest.update(data)
        self._file.write(data)
        self.length += len(values)

    def close(self) -> str:
        """Writes the final header (numpy leaves room for the length) and returns the data's SHA-256."""
        if self._header() != self._data_start:
            raise RuntimeError(f"{self.path.name}: numpy changed the size of its header")
        self._file.close()
        return self._digest.hexdigest()

    def release(self) -> None:
        """Closes the file as it is: of a folder that is given up, or after ``close``."""
        self._file.close()
