"""Weights as arrays: steps of episodes run in numpy, because torch's dispatch would outweigh their small products."""

import torch
from torch import nn

from shardbench.base.arrays import Floats32


def array_of(tensor: torch.Tensor) -> Floats32:
    """Give the same memory as an array, without gradient."""
    values: Floats32 = tensor.detach().numpy()
    return values


def linear_arrays(layer: nn.Module) -> tuple[Floats32, Floats32]:
    """Copy a linear layer's weight [in, out] and bias [out]; raises TypeError for any other module."""
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"expected a linear layer, got {type(layer).__name__}")
    return array_of(layer.weight).T.copy(), array_of(layer.bias).copy()
