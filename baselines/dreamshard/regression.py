"""The cost network's loss on measured placements."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Floats32

from .measured_placements import MeasuredPlacements
from .networks import CostNetwork


class Regression:
    """The cost network beside measured placements; every table that one of them holds is encoded once a loss.

    ``catalogue`` float32 [tables, 21] are the normalised features of all tables.
    """

    def __init__(self, network: CostNetwork, measured: MeasuredPlacements, catalogue: Floats32) -> None:
        self._network = network
        zero = np.zeros((1, catalogue.shape[1]), dtype=np.float32)
        met = np.flatnonzero(measured.holds.any(axis=(0, 1)))
        self._tables = torch.from_numpy(np.concatenate([catalogue, zero])[met])
        self._holds = torch.from_numpy(measured.holds[:, :, met])
        self._overall_ms = torch.from_numpy(measured.overall_ms)
        self._device_ms = torch.from_numpy(measured.device_ms).flatten(0, 1)
        self._padding = torch.from_numpy(~measured.real)[:, :, None]
        self._devices = np.flatnonzero(measured.real)

    def draws(self, updates: int, batch: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw placements int64 [batch], and devices int64 [batch] (placement x devices + device), for each update."""
        placements = rng.integers(0, len(self._overall_ms), (updates, batch))
        devices = self._devices[rng.integers(0, len(self._devices), (updates, batch))]
        return zip(torch.from_numpy(placements), torch.from_numpy(devices))

    def loss(self, placements: Tensor, devices: Tensor) -> Tensor:
        """Add up the mean squared errors of the placements and of the devices' three heads, in ms^2."""
        sums = self._holds @ self._network.encoder(self._tables)
        whole = sums.masked_fill(self._padding, -torch.inf).index_select(0, placements)
        overall = self._network.overall_ms(whole) - self._overall_ms[placements]
        single = self._network.device_ms(sums.flatten(0, 1).index_select(0, devices)) - self._device_ms[devices]
        return overall.square().mean() + single.square().sum(1).mean()
