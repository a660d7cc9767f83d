"""AutoShard's networks (KDD 2022; the sizes are those of the published code), for any number of tables and devices.

Whole episodes of placing with them go many at once; nothing loops but over the tables to place.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from shardbench.base.arrays import Floats, Floats32, Ints
from shardbench.base.memory import GIB
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.features import FEATURES, Scaling
from shardbench.learned.tasks.task import TableSet
from shardbench.learned.training import on_arrays

LATENT = 32
STATE = 64
"""Width of the LSTM and of a device's description: a table encoding or a sum of them, and 32 numbers more."""
ACTION_SCALARS = 2
"""Predicted milliseconds and used GiB of a device."""
LAYERS = 2


def _mlp(*widths: int) -> nn.Sequential:
    """Build linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for ins, outs in zip(widths, widths[1:]):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class AutoShardNetworks(nn.Module):
    """Cost network, policy and value function over one shared table encoder."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = nn.Sequential(*_mlp(len(FEATURES), 128, LATENT), nn.ReLU())
            self.cost = _mlp(LATENT, 64, 1)
            self.progress = nn.Sequential(nn.Linear(1, STATE - LATENT), nn.ReLU())
            self.lstm = nn.LSTM(STATE, STATE, LAYERS, batch_first=True)
            self.scalars = nn.Sequential(nn.Linear(ACTION_SCALARS, STATE - LATENT), nn.ReLU())
            self.policy = _mlp(3 * STATE, 128, 128, 64, 1)
            self.value = _mlp(STATE, 64, 1)

    def device_ms(self, sums: Tensor) -> Tensor:
        """Predict forward and backward ms of devices from the sums of their tables' encodings, [..., 32] -> [...]."""
        predicted: Tensor = self.cost(sums)
        return predicted.squeeze(-1)

    def states(self, encodings: Tensor, progress: Tensor) -> Tensor:
        """Give the LSTM state at every step of whole episodes, [E, T, 32] and [E, T] -> [E, T, 64].

        What the LSTM reads depends on the order of the tables alone, not on the actions: one call
        gives the states of an episode, from zeros at its start.
        """
        inputs = torch.cat([encodings, self.progress(progress[..., None])], dim=-1)
        states: Tensor = self.lstm(inputs)[0]
        return states

    def values(self, states: Tensor) -> Tensor:
        """Predict the expected reward, [..., 64] -> [...]."""
        expected: Tensor = self.value(states)
        return expected.squeeze(-1)

    def logits(self, states: Tensor, sums: Tensor, scalars: Tensor) -> Tensor:
        """Score devices: states [n, 64], sums [n, D, 32], (ms, GiB) [n, D, 2] -> [n, D]."""
        actions = torch.cat([sums, self.scalars(scalars)], dim=-1)
        beside = states[:, None].expand_as(actions)
        scores: Tensor = self.policy(torch.cat([beside, actions, beside * actions], dim=-1))
        return scores.squeeze(-1)


def progress_of(steps: int, tables: Ints) -> Floats32:
    """Give the share of its tables that an episode has placed before each step, [E, steps]."""
    return (np.arange(steps) / tables[:, None]).astype(np.float32)


class AutoShardPolicy:
    """The networks, with arrays for tensors and without gradients."""

    def __init__(self, networks: AutoShardNetworks, scaling: Scaling) -> None:
        self.networks, self.scaling = networks, scaling

    def encode(self, features: Floats) -> Floats32:
        """Encode tables, [tables, 21] raw -> [tables, 32]."""
        return on_arrays(self.networks.encoder, self.scaling(features))

    @property
    def dummy(self) -> Floats32:
        """Encode a row of zeros, which is added to every device, [32]."""
        return np.asarray(on_arrays(self.networks.encoder, np.zeros((1, len(FEATURES)), dtype=np.float32))[0])

    def device_ms(self, sums: Floats32) -> Floats32:
        """Predict ms of devices, [n, 32] -> [n]."""
        return on_arrays(self.networks.device_ms, sums)

    def order(self, encodings: Floats32) -> Ints:
        """Order tables by predicted single-table cost, dearest first, [tables, 32] -> [tables]."""
        return np.argsort(-self.device_ms(encodings + self.dummy), kind="stable")


def play(
    policy: AutoShardPolicy,
    tasks: Sequence[TableSet],
    encodings: Sequence[Floats32],
    rng: np.random.Generator | None,
    *,
    masked: bool,
    orders: Sequence[Ints] | None = None,
) -> tuple[Placing, Floats32]:
    """Place all tables of one episode a task; samples with ``rng``, else takes the best device.

    Gives the finished episodes and the log-probabilities of what was chosen, [E, T].

    ``encodings`` [tables, 32] belong to ``tasks``, which may differ in size. Where ``masked`` only
    devices with room may be taken, else any: memory may then be exceeded. ``orders`` [tables] each
    are by predicted cost if not given.
    """
    orders = orders if orders is not None else [policy.order(encoded) for encoded in encodings]
    vectors: Floats32 = np.zeros((len(tasks), max(map(len, orders)), LATENT), dtype=np.float32)
    for row, encoded, order in zip(vectors, encodings, orders):
        row[: len(order)] = encoded[order]
    placing = Placing(tasks, orders, vectors, policy.dummy)
    capacity: Ints = np.array([task.capacity_bytes for task in tasks], dtype=np.int64)
    states = on_arrays(policy.networks.states, vectors, progress_of(vectors.shape[1], placing.tables))
    return placing, _steps(policy, placing, states, capacity, rng=rng, masked=masked)


def _steps(
    policy: AutoShardPolicy,
    placing: Placing,
    states: Floats32,
    capacity: Ints,
    *,
    rng: np.random.Generator | None,
    masked: bool,
) -> Floats32:
    episodes, devices = placing.free.shape
    scalars: Floats32 = np.zeros((episodes, devices, ACTION_SCALARS), dtype=np.float32)
    scalars[:, :, 0] = policy.device_ms(policy.dummy[None])
    rows = np.arange(episodes)
    scores: Floats32 = np.empty((episodes, placing.steps, devices), dtype=np.float32)
    shape = (placing.steps, episodes, devices)
    # Gumbel's trick: the largest noisy score is a draw from the softmax.
    noise = None if rng is None else rng.gumbel(size=shape).astype(np.float32)
    for step in range(placing.steps):
        allowed = placing.legal() if masked else placing.real
        logits = on_arrays(policy.networks.logits, states[:, step], placing.sums, scalars)
        scores[:, step] = logits = np.where(allowed, logits, np.float32(-np.inf))
        chosen: Ints = (logits if noise is None else logits + noise[step]).argmax(axis=1)
        sums = placing.put(chosen)
        scalars[rows, chosen, 0] = policy.device_ms(sums)
        scalars[rows, chosen, 1] = (capacity - placing.free[rows, chosen]) / GIB
    scores -= scores.max(axis=2, keepdims=True)
    taken = np.take_along_axis(scores, placing.chosen[:, :, None], axis=2)[:, :, 0]
    return np.asarray(taken - np.log(np.exp(scores).sum(axis=2)), dtype=np.float32)
