"""Types of arrays, named once."""

import numpy as np
from numpy.typing import NDArray

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
