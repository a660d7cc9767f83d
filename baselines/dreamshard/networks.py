"""DreamShard's cost and policy networks (papers' sizes), independent of the number of tables and devices.

With them comes the estimated MDP: tables in order of predicted cost, devices scored by the policy, costs by the cost
network. A device's logit depends only on what the device holds, so that a step recomputes one device an episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shardbench.base.arrays import Bools, Floats, Floats32, Ints
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.features import FEATURES, Scaling
from shardbench.learned.tasks.task import TableSet
from shardbench.learned.training import on_arrays

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


class DreamShardPolicy:
    """The networks, with arrays for tensors and without gradients."""

    def __init__(self, networks: DreamShardNetworks, scaling: Scaling) -> None:
        self.cost, self.policy, self.scaling = networks.cost, networks.policy, scaling

    def encode(self, features: Floats) -> Floats32:
        """Encode tables, [tables, 21] raw -> [tables, 64]: the policy's, then the cost network's."""
        return self._encode(self.scaling(features))

    def _encode(self, scaled: Floats32) -> Floats32:
        parts = [on_arrays(network.encoder, scaled) for network in (self.policy, self.cost)]
        return np.concatenate(parts, axis=-1)

    @property
    def empty(self) -> Floats32:
        """Encode a device without tables as that of one row of zeros, [64]."""
        return np.asarray(self._encode(np.zeros((1, len(FEATURES)), dtype=np.float32))[0])

    def device_ms(self, sums: Floats32) -> Floats32:
        """Predict forward, communication and backward ms of devices, [n, 64] -> [n, 3]."""
        return on_arrays(self.cost.device_ms, sums[:, LATENT:])

    def logits(self, sums: Floats32, costs_ms: Floats32) -> Floats32:
        """Score devices: [n, 64] and [n, 3] -> [n]."""
        return on_arrays(self.policy, sums[:, :LATENT], costs_ms)

    def order(self, encodings: Floats32) -> Ints:
        """Order tables by predicted single-table total cost, dearest first, [tables, 64] -> [tables]."""
        return np.argsort(-self.device_ms(encodings).sum(axis=1), kind="stable")

    def overall_ms(self, sums: Floats32, counts: Ints, real: Bools) -> Floats32:
        """Predict the cost of finished placements, [episodes, devices, 64] -> [episodes]; not ``real`` is padding."""
        latent = np.where(counts[:, :, None] > 0, sums, self.empty)[:, :, LATENT:]
        return on_arrays(self.cost.overall_ms, np.where(real[:, :, None], latent, -np.inf).astype(np.float32))


@dataclass(frozen=True, kw_only=True, eq=False)
class DreamShardEpisodes:
    """A batch of finished episodes: the placing and the predicted costs after every step, [E, T, 3]."""

    placing: Placing
    costs_ms: Floats32
    overall_ms: Floats32
    """Predicted cost of every placement, [E]: minus the return."""


def play(
    policy: DreamShardPolicy,
    tasks: Sequence[TableSet],
    encodings: Sequence[Floats32],
    orders: Sequence[Ints],
    rng: np.random.Generator | None,
) -> DreamShardEpisodes:
    """Place all tables of one episode a task; samples with ``rng``, else takes the best legal device.

    ``encodings`` [tables, 64] and ``orders`` [tables] belong to ``tasks``, which may differ in size.
    """
    steps = max(task.tables for task in tasks)
    vectors = np.zeros((len(tasks), steps, 2 * LATENT), dtype=np.float32)
    for row, encoded, order in zip(vectors, encodings, orders):
        row[: len(order)] = encoded[order]
    placing = Placing(tasks, orders, vectors)
    empty = policy.empty[None]
    costs = np.empty((len(tasks), steps, len(COSTS)), dtype=np.float32)
    logits = np.full(placing.free.shape, policy.logits(empty, policy.device_ms(empty))[0], dtype=np.float32)
    noise = None if rng is None else rng.gumbel(size=(steps, *logits.shape)).astype(np.float32)
    rows = np.arange(len(tasks))
    for step in range(steps):
        scores = logits if noise is None else logits + noise[step]
        # Gumbel's trick: the largest noisy score is a draw from the softmax over the legal devices, those with
        # room for weights and optimiser state (deviation 8).
        devices = np.where(placing.legal(), scores, -np.inf).argmax(axis=1)
        sums = placing.put(devices)
        costs[:, step] = policy.device_ms(sums)
        logits[rows, devices] = policy.logits(sums, costs[:, step])
    overall = policy.overall_ms(placing.sums, placing.held, placing.real)
    return DreamShardEpisodes(placing=placing, costs_ms=costs, overall_ms=overall)
