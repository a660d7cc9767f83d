"""When two runs' numbers are the same, and in which of them something stands."""

from collections.abc import Sequence

import numpy as np

SAME = 1e-6
"""Relative difference below which two simulated numbers are one: other processors round elsewise."""
BOTH, ONLY, COMMITTED_ONLY = "both", "this run only", "committed only"


def same(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether there are as many numbers, and each is the other's."""
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=SAME, atol=0.0, equal_nan=True))
