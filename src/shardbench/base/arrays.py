"""Types of arrays, named once, and arrays in files."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardbench.base.errors import BadInput

Floats = NDArray[np.float64]
"""float64: times, bytes, rates, expected counts."""
Floats32 = NDArray[np.float32]
"""float32: weights, features, and everything a network computes."""
Ints = NDArray[np.int64]
"""int64: ids, counts, offsets, positions."""
Ints32 = NDArray[np.int32]
"""int32: ids as data sets store them."""
Words = NDArray[np.uint64]
"""uint64: bits that are hashed or mixed."""
Bytes = NDArray[np.uint8]
"""uint8: text, one character each."""
Bools = NDArray[np.bool_]
"""bool: masks of rows, samples and the like."""
Ids = Ints | Ints32
"""Row ids of either width."""


def zeros(n: int) -> Floats:
    """Return float64 [n] of zeros."""
    return np.zeros(n, dtype=np.float64)


def mapped(path: Path) -> NDArray[Any]:
    """Map the array of a .npy file; raises BadInput where there is none, or less of it than its header says."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:
        # numpy reads the header as Python, and raises whatever Python raises of it.
        raise BadInput(f"{path} cannot be read as an array of numpy's: {error}") from error
