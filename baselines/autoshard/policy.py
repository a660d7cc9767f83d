"""Whole episodes of placing with frozen networks, many at once; nothing loops but over the tables to place.

The steps run in numpy on the networks' own weights: on these small arrays torch would spend more
time on dispatch than on the products. Of a device's description only that of the device which got
a table changes in a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from shardbench.base.arrays import Floats, Floats32, Ints
from shardbench.learning.clocks import one_thread
from shardbench.learning.episodes import Placing
from shardbench.learning.placement import place_or_by_size
from shardbench.learning.training import Trained
from shardbench.learning.weights import linear_arrays
from shardbench.tasks.features import GIB, Scaling
from shardbench.tasks.task import TableSet

from .networks import LATENT, STATE, AutoShardNetworks

_Layer = tuple[Floats32, Floats32]


def _layers(network: nn.Module) -> list[_Layer]:
    """Copy the weights [in, out] and the bias of every linear layer."""
    return [linear_arrays(layer) for layer in network.modules() if isinstance(layer, nn.Linear)]


def _through(layers: Sequence[_Layer], rows: Floats32) -> Floats32:
    """Send rows [n, in] through linear layers with ReLU between them."""
    for number, (weight, bias) in enumerate(layers):
        if number:
            np.maximum(rows, 0.0, out=rows)
        rows = rows @ weight
        rows += bias
    return rows


def progress_of(steps: int, tables: Ints) -> Floats32:
    """Give the share of its tables that an episode has placed before each step, [E, steps]."""
    return (np.arange(steps) / tables[:, None]).astype(np.float32)


class AutoShardPolicy:
    """The weights that acting needs, frozen at the time it is made."""

    def __init__(self, networks: AutoShardNetworks, scaling: Scaling) -> None:
        self.networks, self.scaling = networks, scaling
        self._cost, self._scalars = _layers(networks.cost), _layers(networks.scalars)
        (first, bias), *self._rest = _layers(networks.policy)
        # The first layer of a concatenation is a sum of products; the state's is the same for all devices.
        self._of_state, self._of_action, self._of_product = first[:STATE], first[STATE : 2 * STATE], first[2 * STATE :]
        self._bias = bias

    def encode(self, features: Floats) -> Floats32:
        """Encode tables, [tables, 21] raw -> [tables, 32]."""
        return self._encoded(self.scaling(features))

    def _encoded(self, scaled: Floats32) -> Floats32:
        with torch.no_grad():
            encoded: Floats32 = self.networks.encoder(torch.from_numpy(scaled)).numpy()
        return encoded

    @property
    def dummy(self) -> Floats32:
        """Encode a row of zeros, which is added to every device, [32]."""
        return np.asarray(self._encoded(np.zeros((1, len(self.scaling.mean)), dtype=np.float32))[0])

    def device_ms(self, sums: Floats32) -> Floats32:
        """Predict ms of devices, [n, 32] -> [n]."""
        return np.asarray(_through(self._cost, sums)[:, 0])

    def order(self, encodings: Floats32) -> Ints:
        """Order tables by predicted single-table cost, dearest first, [tables, 32] -> [tables]."""
        return np.argsort(-self.device_ms(encodings + self.dummy), kind="stable")

    def states(self, vectors: Floats32, tables: Ints) -> Floats32:
        """Give the LSTM states of whole episodes, encodings in order [E, T, 32] and tables [E] -> [E, T, 64]."""
        progress = torch.from_numpy(progress_of(vectors.shape[1], tables))
        with torch.no_grad():
            states: Floats32 = self.networks.states(torch.from_numpy(vectors), progress).numpy()
        return states

    def of_states(self, states: Floats32) -> Floats32:
        """Compute the states' part of the policy's first layer, [..., 64] -> [..., 128]."""
        return np.asarray(states @ self._of_state + self._bias, dtype=np.float32)

    def actions(self, sums: Floats32, ms: Floats32, gib: Floats32) -> tuple[Floats32, Floats32]:
        """Give descriptions of devices [n, 64] and their part of the policy's first layer [n, 128]."""
        scalars = _through(self._scalars, np.stack([ms, gib], axis=-1))
        np.maximum(scalars, 0.0, out=scalars)
        described = np.concatenate([sums, scalars], axis=-1)
        return described, described @ self._of_action

    def logits(self, state: Floats32, of_state: Floats32, actions: Floats32, of_actions: Floats32) -> Floats32:
        """Score devices: [E, 64], [E, 128], [E, D, 64], [E, D, 128] -> [E, D]."""
        shape = actions.shape[:2]
        products = (state[:, None] * actions).reshape(-1, STATE)
        hidden: Floats32 = np.asarray(products @ self._of_product, dtype=np.float32)
        hidden += (of_actions + of_state[:, None]).reshape(len(hidden), -1)
        np.maximum(hidden, 0.0, out=hidden)
        return _through(self._rest, hidden).reshape(shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class AutoShardEpisodes:
    """Finished episodes: the placing, each one's order, and the log-probabilities of what was chosen, [E, T]."""

    placing: Placing
    orders: Sequence[Ints]
    log_p: Floats32


def play(
    policy: AutoShardPolicy,
    tasks: Sequence[TableSet],
    encodings: Sequence[Floats32],
    rng: np.random.Generator | None,
    *,
    masked: bool,
    orders: Sequence[Ints] | None = None,
) -> AutoShardEpisodes:
    """Place all tables of one episode a task; samples with ``rng``, else takes the best device.

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
    log_p = _steps(policy, placing, policy.states(vectors, placing.tables), capacity, rng=rng, masked=masked)
    return AutoShardEpisodes(placing=placing, orders=orders, log_p=log_p)


def _steps(
    policy: AutoShardPolicy,
    placing: Placing,
    states: Floats32,
    capacity: Ints,
    *,
    rng: np.random.Generator | None,
    masked: bool,
) -> Floats32:
    of_states = policy.of_states(states)
    start_ms = policy.device_ms(policy.dummy[None])
    described, part = policy.actions(policy.dummy[None], start_ms, np.zeros(1, dtype=np.float32))
    episodes, devices = placing.free.shape
    actions = np.tile(described, (episodes, devices, 1))
    of_actions = np.tile(part, (episodes, devices, 1))
    rows = np.arange(episodes)
    scores: Floats32 = np.empty((episodes, placing.steps, devices), dtype=np.float32)
    shape = (placing.steps, episodes, devices)
    # Gumbel's trick: the largest noisy score is a draw from the softmax.
    noise = None if rng is None else rng.gumbel(size=shape).astype(np.float32)
    for step in range(placing.steps):
        allowed = placing.legal() if masked else placing.real
        logits = policy.logits(states[:, step], of_states[:, step], actions, of_actions)
        scores[:, step] = logits = np.where(allowed, logits, np.float32(-np.inf))
        chosen: Ints = (logits if noise is None else logits + noise[step]).argmax(axis=1)
        sums = placing.put(chosen)
        used_gib = ((capacity - placing.free[rows, chosen]) / GIB).astype(np.float32)
        described, part = policy.actions(sums, policy.device_ms(sums), used_gib)
        actions[rows, chosen], of_actions[rows, chosen] = described, part
    scores -= scores.max(axis=2, keepdims=True)
    taken = np.take_along_axis(scores, placing.chosen[:, :, None], axis=2)[:, :, 0]
    return np.asarray(taken - np.log(np.exp(scores).sum(axis=2)), dtype=np.float32)


@one_thread()
def place(trained: Trained[AutoShardNetworks, Any, Any], tasks: Sequence[TableSet]) -> list[Ints]:
    """Place every table of every task, int64 [tables] a task; all tasks at once.

    Raises Infeasible, naming the task, where a table has no device with room: in the order of
    predicted cost, and then, once more, largest table first (deviation 2).
    """
    policy = AutoShardPolicy(trained.networks, trained.scaling)
    encodings = [policy.encode(task.features) for task in tasks]

    def best(numbers: Sequence[int], orders: Sequence[Ints] | None) -> Placing:
        chosen, encoded = [tasks[i] for i in numbers], [encodings[i] for i in numbers]
        return play(policy, chosen, encoded, None, masked=True, orders=orders).placing

    return place_or_by_size(tasks, best)
