"""The estimated MDP: tables in order of predicted cost, devices scored by the policy, costs by the cost network.

A device's logit depends only on what the device holds, so that a step recomputes one device an episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shardbench.base.arrays import Bools, Floats, Floats32, Ints
from shardbench.learned.episodes import Placing
from shardbench.learned.placement import place_or_by_size
from shardbench.learned.tasks.features import Scaling
from shardbench.learned.tasks.task import TableSet
from shardbench.learned.training import Trained, one_thread

from .networks import COSTS, LATENT, DreamShardNetworks


class DreamShardPolicy:
    """The networks, with arrays for tensors and without gradients."""

    def __init__(self, networks: DreamShardNetworks, scaling: Scaling) -> None:
        self.cost, self.policy, self.scaling = networks.cost, networks.policy, scaling

    def encode(self, features: Floats) -> Floats32:
        """Encode tables, [tables, 21] raw -> [tables, 64]: the policy's, then the cost network's."""
        return self._encode(self.scaling(features))

    @torch.inference_mode()
    def _encode(self, scaled: Floats32) -> Floats32:
        rows = torch.from_numpy(scaled)
        return torch.cat([self.policy.encoder(rows), self.cost.encoder(rows)], dim=-1).numpy()

    @property
    def empty(self) -> Floats32:
        """Encode a device without tables as that of one row of zeros, [64]."""
        (encoded,) = self._encode(np.zeros((1, len(self.scaling.mean)), dtype=np.float32))
        return np.asarray(encoded)

    @torch.inference_mode()
    def device_ms(self, sums: Floats32) -> Floats32:
        """Predict forward, communication and backward ms of devices, [n, 64] -> [n, 3]."""
        return self.cost.device_ms(torch.from_numpy(sums[:, LATENT:])).numpy()

    @torch.inference_mode()
    def logits(self, sums: Floats32, costs_ms: Floats32) -> Floats32:
        """Score devices: [n, 64] and [n, 3] -> [n]."""
        scores: Floats32 = self.policy(torch.from_numpy(sums[:, :LATENT]), torch.from_numpy(costs_ms)).numpy()
        return scores

    def order(self, encodings: Floats32) -> Ints:
        """Order tables by predicted single-table total cost, dearest first, [tables, 64] -> [tables]."""
        return np.argsort(-self.device_ms(encodings).sum(axis=1), kind="stable")

    @torch.inference_mode()
    def overall_ms(self, sums: Floats32, counts: Ints, real: Bools) -> Floats32:
        """Predict the cost of finished placements, [episodes, devices, 64] -> [episodes]; not ``real`` is padding."""
        latent = np.where(counts[:, :, None] > 0, sums, self.empty)[:, :, LATENT:]
        latent = np.where(real[:, :, None], latent, -np.inf).astype(np.float32)
        return self.cost.overall_ms(torch.from_numpy(latent)).numpy()


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


@one_thread()
def place(trained: Trained[DreamShardNetworks, Any], tasks: Sequence[TableSet]) -> list[Ints]:
    """Place every table of every task, int64 [tables] a task; all tasks at once.

    Raises Infeasible, naming the task and the table, where a table has no device with room: in the
    order of predicted cost, and then, once more, largest table first (deviation 4).
    """
    policy = DreamShardPolicy(trained.networks, trained.scaling)
    encodings = [policy.encode(task.features) for task in tasks]

    def best(numbers: Sequence[int], orders: Sequence[Ints] | None) -> Placing:
        chosen, encoded = [tasks[i] for i in numbers], [encodings[i] for i in numbers]
        return play(policy, chosen, encoded, orders or [policy.order(each) for each in encoded], None).placing

    return place_or_by_size(tasks, best)
