"""Adam on all weights of a module as one vector.

``torch.optim`` gives the same numbers (a test compares them) at several times the cost for networks of this size, and
its first use imports a compiler, which takes longer than a short training.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

MEAN_DECAY, SQUARE_DECAY = 0.9, 0.999
EPSILON = 1e-8


class Adam:
    """Kingma and Ba (ICLR 2015), with the usual constants; the module's weights become views of one vector."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        self.values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.gradient = torch.zeros_like(self.values)
        """The weights' ``grad`` lie here: a backward pass adds to it."""
        self.mean, self.square = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.steps = 0
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, value, gradient in zip(parameters, self.values.split(sizes), self.gradient.split(sizes)):
            parameter.data = value.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)

    def step(self, rate: float) -> None:
        """Update the weights once with learning rate ``rate``, after which the gradient is forgotten."""
        self.steps += 1
        self._move(rate / (1.0 - MEAN_DECAY**self.steps), (1.0 - SQUARE_DECAY**self.steps) ** 0.5)
        self.gradient.zero_()

    def _move(self, rate: float, spread: float) -> None:
        """Move the weights and both moments; ``rate`` and ``spread`` correct the moments for their start at zero."""
        self.mean.lerp_(self.gradient, 1.0 - MEAN_DECAY)
        self.square.mul_(SQUARE_DECAY).addcmul_(self.gradient, self.gradient, value=1.0 - SQUARE_DECAY)
        self.values.addcdiv_(self.mean, self.square.sqrt().div_(spread).add_(EPSILON), value=-rate)

    def state(self) -> dict[str, Any]:
        """Give both moments and the number of steps, for a checkpoint."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Set what ``state`` gave."""
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.steps = state["steps"]


class NumpyAdam(Adam):
    """The same steps in numpy: a fifth faster, and rounded otherwise, so that no training may change from one to it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        # Written to by every step: allocating them anew would be a third of its time.
        self._scratch, self._change = (np.empty_like(self.values.numpy()) for _ in range(2))

    def _move(self, rate: float, spread: float) -> None:
        gradient, mean, square = (moment.numpy() for moment in (self.gradient, self.mean, self.square))
        values, scratch, change = self.values.numpy(), self._scratch, self._change
        np.subtract(gradient, mean, out=scratch)
        scratch *= np.float32(1.0 - MEAN_DECAY)
        mean += scratch
        np.multiply(gradient, gradient, out=scratch)
        scratch -= square
        scratch *= np.float32(1.0 - SQUARE_DECAY)
        square += scratch
        np.sqrt(square, out=scratch)
        scratch /= np.float32(spread)
        scratch += np.float32(EPSILON)
        np.divide(mean, scratch, out=change)
        change *= np.float32(rate)
        values -= change
