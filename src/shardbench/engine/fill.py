"""Weights that cost little to make: what a step takes does not depend on their values."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WEIGHT = 0.01
"""Not left untouched: memory that was never written is one page of zeros, which always hits the cache."""
_DRAWS = {torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default}


class Constant(TorchDispatchMode):
    """While it is on, weights that would be drawn are all WEIGHT: a tenth of the time or less."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Write the constant where something is drawn, else do what was asked."""
        if func in _DRAWS:
            return args[0].fill_(WEIGHT)
        return func(*args, **(kwargs or {}))


def leave(weights: torch.Tensor) -> torch.Tensor:
    """A collection's own initialisation where its kernels have made the weights already."""
    return weights
