"""NeuroShard's three cost networks (the paper's sizes): of a device's tables, and of the two exchanges."""

import torch
from torch import Tensor, nn

from shardbench.learned.tasks.features import FEATURES, SCALARS

INPUTS = tuple(FEATURES.index(name) for name in (*FEATURES[len(SCALARS) :], "dim", "pooling", "rows"))
"""Columns of the raw features that a table is known by: 17 reuse bins, width, pooling factor, rows."""
HIDDEN = 128
LATENT = 32
HEAD = 64
EXCHANGE = (128, 64, 32, 16)


class ComputeNetwork(nn.Module):
    """The milliseconds of a device's fused forward and backward, from the sum of its tables' encodings."""

    def __init__(self) -> None:
        super().__init__()
        # Both layers rectified: deviation 6.
        self.encoder = nn.Sequential(nn.Linear(len(INPUTS), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, LATENT), nn.ReLU())
        self.into_head, self.out = nn.Linear(LATENT, HEAD), nn.Linear(HEAD, 1)

    def forward(self, tables: Tensor, members: Tensor, starts: Tensor) -> Tensor:
        """Predict, of scaled tables [tables, 20], set i of them members[starts[i]:starts[i + 1]] -> ms [sets]."""
        encoded = self.encoder(tables)
        sums = nn.functional.embedding_bag(members, encoded, starts, mode="sum")
        return self.head(self.into_head(sums))

    def head(self, hidden: Tensor) -> Tensor:
        """Predict the milliseconds of sets by their sums after the head's first layer, [..., 64] -> [...]."""
        predicted: Tensor = self.out(torch.relu(hidden))
        return predicted.squeeze(-1)


class ExchangeNetwork(nn.Module):
    """Milliseconds that every device is in an exchange, from numbers of all devices."""

    scale: Tensor

    def __init__(self, inputs: int, devices: int) -> None:
        super().__init__()
        # What inputs are divided by belongs to the weights: it is kept and read with them (deviation 6).
        self.register_buffer("scale", torch.ones(inputs))
        widths = (inputs, *EXCHANGE)
        layers: list[nn.Module] = []
        for one, other in zip(widths, widths[1:]):
            layers += [nn.Linear(one, other), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], devices))

    def forward(self, inputs: Tensor) -> Tensor:
        """Predict the milliseconds of every device, [n, inputs] -> [n, devices]."""
        predicted: Tensor = self.layers(inputs / self.scale)
        return predicted


class NeuroShardNetworks(nn.Module):
    """All three networks, for one number of devices."""

    def __init__(self, seed: int, devices: int) -> None:
        super().__init__()
        self.devices = devices
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.compute = ComputeNetwork()
            self.backward_exchange = ExchangeNetwork(devices, devices)
            """Its inputs are the sums of widths of all devices."""
            self.forward_exchange = ExchangeNetwork(2 * devices, devices)
            """Its inputs are these, then when each device comes to the exchange, in ms after the first."""
