"""Arrays that are written part by part and mapped when they are read."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
