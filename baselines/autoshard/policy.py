"""Whole episodes of placing with trained networks, many at once; nothing loops but over the tables to place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shardbench.base.arrays import Floats, Floats32, Ints
from shardbench.base.memory import GIB
from shardbench.learned.episodes import Placing
from shardbench.learned.placement import place_or_by_size
from shardbench.learned.tasks.features import Scaling
from shardbench.learned.tasks.task import TableSet
from shardbench.learned.training import Trained, one_thread

from .networks import ACTION_SCALARS, LATENT, AutoShardNetworks


def progress_of(steps: int, tables: Ints) -> Floats32:
    """Give the share of its tables that an episode has placed before each step, [E, steps]."""
    return (np.arange(steps) / tables[:, None]).astype(np.float32)


class AutoShardPolicy:
    """The networks, with arrays for tensors and without gradients."""

    def __init__(self, networks: AutoShardNetworks, scaling: Scaling) -> None:
        self.networks, self.scaling = networks, scaling

    def encode(self, features: Floats) -> Floats32:
        """Encode tables, [tables, 21] raw -> [tables, 32]."""
        return self._encode(self.scaling(features))

    @torch.inference_mode()
    def _encode(self, scaled: Floats32) -> Floats32:
        encoded: Floats32 = self.networks.encoder(torch.from_numpy(scaled)).numpy()
        return encoded

    @property
    def dummy(self) -> Floats32:
        """Encode a row of zeros, which is added to every device, [32]."""
        return np.asarray(self._encode(np.zeros((1, len(self.scaling.mean)), dtype=np.float32))[0])

    @torch.inference_mode()
    def device_ms(self, sums: Floats32) -> Floats32:
        """Predict ms of devices, [n, 32] -> [n]."""
        return self.networks.device_ms(torch.from_numpy(sums)).numpy()

    def order(self, encodings: Floats32) -> Ints:
        """Order tables by predicted single-table cost, dearest first, [tables, 32] -> [tables]."""
        return np.argsort(-self.device_ms(encodings + self.dummy), kind="stable")

    @torch.inference_mode()
    def states(self, vectors: Floats32, tables: Ints) -> Floats32:
        """Give the LSTM states of whole episodes, encodings in order [E, T, 32] and tables [E] -> [E, T, 64]."""
        progress = torch.from_numpy(progress_of(vectors.shape[1], tables))
        return self.networks.states(torch.from_numpy(vectors), progress).numpy()

    @torch.inference_mode()
    def logits(self, states: Floats32, sums: Floats32, scalars: Floats32) -> Floats32:
        """Score devices: states [E, 64], sums [E, D, 32], (ms, GiB) [E, D, 2] -> [E, D]."""
        return self.networks.logits(*map(torch.from_numpy, (states, sums, scalars))).numpy()


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
    states = policy.states(vectors, placing.tables)
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
        logits = policy.logits(states[:, step], placing.sums, scalars)
        scores[:, step] = logits = np.where(allowed, logits, np.float32(-np.inf))
        chosen: Ints = (logits if noise is None else logits + noise[step]).argmax(axis=1)
        sums = placing.put(chosen)
        scalars[rows, chosen, 0] = policy.device_ms(sums)
        scalars[rows, chosen, 1] = (capacity - placing.free[rows, chosen]) / GIB
    scores -= scores.max(axis=2, keepdims=True)
    taken = np.take_along_axis(scores, placing.chosen[:, :, None], axis=2)[:, :, 0]
    return np.asarray(taken - np.log(np.exp(scores).sum(axis=2)), dtype=np.float32)


@one_thread()
def place(trained: Trained[AutoShardNetworks, Any], tasks: Sequence[TableSet]) -> list[Ints]:
    """Place every table of every task, int64 [tables] a task; all tasks at once.

    Raises Infeasible, naming the task, where a table has no device with room: in the order of
    predicted cost, and then, once more, largest table first (deviation 2).
    """
    policy = AutoShardPolicy(trained.networks, trained.scaling)
    encodings = [policy.encode(task.features) for task in tasks]

    def best(numbers: Sequence[int], orders: Sequence[Ints] | None) -> Placing:
        chosen, encoded = [tasks[i] for i in numbers], [encodings[i] for i in numbers]
        return play(policy, chosen, encoded, None, masked=True, orders=orders)[0]

    return place_or_by_size(tasks, best)
