"""Measured shards (sets of tables on one device) and the cost network's regression on them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardbench.base.arrays import Floats, Floats32, Ints

from .networks import AutoShardNetworks


class MeasuredShards:
    """A ring buffer: how often each table of the catalogue is on a shard [size, catalogue], and its ms [size]."""

    def __init__(self, size: int, catalogue: int) -> None:
        self.size = size
        self.holds: NDArray[np.int16] = np.zeros((size, catalogue), dtype=np.int16)
        self.ms: Floats32 = np.zeros(size, dtype=np.float32)
        self.added = 0

    def __len__(self) -> int:
        return min(self.added, self.size)

    def add(self, rows: Sequence[Ints], chosen: Sequence[Ints], device_ms: Sequence[Floats]) -> None:
        """Append all devices of some episodes: catalogue rows [tables], their devices [tables] and ms [devices]."""
        if not rows:
            return
        starts = np.cumsum([0, *(len(ms) for ms in device_ms)])
        shard = np.concatenate([start + devices for start, devices in zip(starts, chosen)])
        new = np.zeros((int(starts[-1]), self.holds.shape[1]), dtype=np.int16)
        np.add.at(new, (shard, np.concatenate(rows)), 1)
        # More than a whole ring at once: only the last ones stay.
        new, ms = new[-self.size :], np.concatenate(device_ms)[-self.size :]
        at = (self.added + np.arange(len(new))) % self.size
        self.holds[at], self.ms[at] = new, ms
        self.added += len(new)

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw uniformly with replacement: float32 [updates, batch, catalogue] and [updates, batch]."""
        at = rng.integers(0, len(self), shape)
        return torch.from_numpy(self.holds[at]), torch.from_numpy(self.ms[at])


def learn_costs(
    networks: AutoShardNetworks,
    optimizer: torch.optim.Optimizer,
    shards: MeasuredShards,
    tables: Tensor,
    *,
    shape: tuple[int, int],
    rng: np.random.Generator,
) -> list[float]:
    """Fit the cost network to shards, ``shape`` = (updates, batch); gives each update's loss, ms^2, if there are any.

    ``tables`` float32 [catalogue + 1, 21] normalised; its last row, of zeros, is added to every shard.
    """
    if not len(shards):
        return []
    holds, ms = shards.draw(shape, rng)
    losses = []
    for batch, batch_ms in zip(holds, ms):
        encoded = networks.encoder(tables)
        predicted = networks.device_ms(batch.float() @ encoded[:-1] + encoded[-1])  # deviation 10
        loss = (predicted - batch_ms).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # deviation 9
        losses.append(loss.detach())
    return torch.stack(losses).tolist()
