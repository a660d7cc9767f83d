"""DreamShard's cost and policy networks (papers' sizes), independent of the number of tables and devices."""

import torch
from torch import Tensor, nn

from shardbench.learned.tasks.features import FEATURES

HIDDEN = 128
LATENT = 32
HEAD = 64
COSTS = ("forward", "communication", "backward")
"""The per-device heads predict these, in ms; communication is that of the backward pass."""


def table_encoder() -> nn.Sequential:
    """Build the encoder: 21 -> 128 -> 32, both layers rectified (deviation 7), one row a table."""
    return nn.Sequential(nn.Linear(len(FEATURES), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, LATENT), nn.ReLU())


class CostNetwork(nn.Module):
    """Predicts milliseconds of devices and of whole placements from sums of table encodings."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = table_encoder()
        # The three heads side by side: their hidden layers are one product.
        self.hidden = nn.Linear(LATENT, HEAD * len(COSTS))
        self.out = nn.Parameter(torch.empty(len(COSTS), HEAD))
        self.out_bias = nn.Parameter(torch.empty(len(COSTS)))
        self.overall = nn.Sequential(nn.Linear(LATENT, HEAD), nn.ReLU(), nn.Linear(HEAD, 1))
        bound = HEAD**-0.5
        nn.init.uniform_(self.out, -bound, bound)
        nn.init.uniform_(self.out_bias, -bound, bound)

    def device_ms(self, sums: Tensor) -> Tensor:
        """Predict forward, communication, backward ms of devices, [..., 32] -> [..., 3]."""
        hidden = torch.relu(self.hidden(sums)).unflatten(-1, (len(COSTS), HEAD))
        predicted: Tensor = (hidden * self.out).sum(-1) + self.out_bias
        return predicted

    def overall_ms(self, sums: Tensor) -> Tensor:
        """Predict the cost of placements from their devices' sums by their maximum, [..., devices, 32] -> [...]."""
        predicted: Tensor = self.overall(sums.amax(dim=-2))
        return predicted.squeeze(-1)


class PolicyNetwork(nn.Module):
    """One logit a device from the sum of its tables' encodings and its predicted costs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = table_encoder()
        self.costs = nn.Sequential(nn.Linear(len(COSTS), HEAD), nn.ReLU(), nn.Linear(HEAD, LATENT))
        self.logit = nn.Linear(2 * LATENT, 1)

    def forward(self, sums: Tensor, costs_ms: Tensor) -> Tensor:
        """Score devices: [..., 32] and [..., 3] -> [...]."""
        predicted: Tensor = self.logit(torch.cat([sums, self.costs(costs_ms)], dim=-1))
        return predicted.squeeze(-1)


class DreamShardNetworks(nn.Module):
    """The two networks, as one checkpoint holds them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.cost = CostNetwork()
            self.policy = PolicyNetwork()
