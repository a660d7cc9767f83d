"""One tolerance says everywhere when two computed numbers are the same."""

from collections.abc import Sequence

import numpy as np

SAME = 1e-6
"""Relative difference up to which two numbers are one: a processor of another kind rounds otherwise."""


def same(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether there are as many numbers in both, each the same as the other's within ``SAME``."""
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=SAME, atol=0.0, equal_nan=True))
