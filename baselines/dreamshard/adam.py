"""Adam on all weights of a module at once.

``torch.optim`` gives the same numbers (a test compares them) at several times the cost for networks
of this size, and its first use imports a second's worth of compiler.
"""

import numpy as np
import torch
from torch import nn

from shardbench.base.arrays import Floats32

MEAN_DECAY, SQUARE_DECAY = 0.9, 0.999
EPSILON = 1e-8


class Adam:
    """Kingma and Ba (ICLR 2015), with the usual constants; the module's weights become views of one vector."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        values = torch.cat([p.detach().flatten() for p in parameters])
        gradient = torch.zeros_like(values)
        first = 0
        for parameter in parameters:
            own = slice(first, first + parameter.numel())
            parameter.data = values[own].view_as(parameter)
            parameter.grad = gradient[own].view_as(parameter)
            first = own.stop
        self.values: Floats32 = values.numpy()
        self.gradient: Floats32 = gradient.numpy()
        """Where the weights' ``grad`` lie: a backward pass adds to it."""
        self.mean: Floats32 = np.zeros_like(self.values)
        self.square: Floats32 = np.zeros_like(self.values)
        self.steps = 0
        # Written to by every step: allocating them anew would be a third of its time.
        self._scratch, self._change = np.empty_like(self.values), np.empty_like(self.values)

    def zero_grad(self) -> None:
        """Forget the gradient, in place."""
        self.gradient[:] = 0.0

    def step(self, rate: float) -> None:
        """One update with learning rate ``rate``."""
        self.steps += 1
        gradient, mean, square, scratch, change = self.gradient, self.mean, self.square, self._scratch, self._change
        np.subtract(gradient, mean, out=scratch)
        scratch *= np.float32(1.0 - MEAN_DECAY)
        mean += scratch
        np.multiply(gradient, gradient, out=scratch)
        scratch -= square
        scratch *= np.float32(1.0 - SQUARE_DECAY)
        square += scratch
        np.sqrt(square, out=scratch)
        scratch /= np.float32((1.0 - SQUARE_DECAY**self.steps) ** 0.5)
        scratch += np.float32(EPSILON)
        np.divide(mean, scratch, out=change)
        change *= np.float32(rate / (1.0 - MEAN_DECAY**self.steps))
        self.values -= change
