"""Adam on all weights of a module as one vector.

The first use of ``torch.optim`` imports a compiler, which takes longer than a short pre-training; a test compares the
numbers.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

MEAN_DECAY, SQUARE_DECAY = 0.9, 0.999
EPSILON = 1e-8


class Adam:
    """Kingma and Ba (ICLR 2015), with the usual constants; the module's weights become views of one vector."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        self.values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.gradient = torch.zeros_like(self.values)
        """Where the weights' ``grad`` lie: a backward pass adds to it."""
        self.mean, self.square = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.steps = 0
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, value, gradient in zip(parameters, self.values.split(sizes), self.gradient.split(sizes)):
            parameter.data = value.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)

    def step(self, rate: float) -> None:
        """One update with learning rate ``rate``, after which the gradient is forgotten."""
        self.steps += 1
        self.mean.lerp_(self.gradient, 1.0 - MEAN_DECAY)
        self.square.mul_(SQUARE_DECAY).addcmul_(self.gradient, self.gradient, value=1.0 - SQUARE_DECAY)
        spread = self.square.sqrt().div_((1.0 - SQUARE_DECAY**self.steps) ** 0.5).add_(EPSILON)
        self.values.addcdiv_(self.mean, spread, value=-rate / (1.0 - MEAN_DECAY**self.steps))
        self.gradient.zero_()

    def state(self) -> dict[str, Tensor]:
        """Both moments, by name."""
        return {"adam.mean": self.mean, "adam.square": self.square}

    def put_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Set what ``state`` gave, after so many steps."""
        self.mean.copy_(tensors["adam.mean"])
        self.square.copy_(tensors["adam.square"])
        self.steps = steps
