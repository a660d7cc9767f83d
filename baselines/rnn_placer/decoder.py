"""Episodes of the decoder, many of one task at once, table by table; in numpy, which is faster on small arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shardbench.base.arrays import Floats32, Ints
from shardbench.learning.clocks import one_thread
from shardbench.learning.episodes import Placing
from shardbench.learning.placement import place_or_by_size
from shardbench.learning.training import Trained
from shardbench.learning.weights import array_of, linear_arrays
from shardbench.tasks.task import TableSet

from .networks import ENCODED, HIDDEN, RnnNetworks


def _sigmoid(values: Floats32) -> Floats32:
    # Exact and without overflow, unlike 1 / (1 + exp(-x)).
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)), dtype=np.float32)


class Decoder:
    """The decoder's weights for a number of devices, frozen at the time it is made."""

    def __init__(self, networks: RnnNetworks, devices: int) -> None:
        weights = {name: array_of(value) for name, value in networks.decoder.named_parameters()}
        inputs = weights["weight_ih_l0"].T
        bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]
        self.of_outputs = inputs[:ENCODED].copy()
        embedded = array_of(next(networks.embedding(devices).parameters()))
        # What each device chosen before adds to the gates, [devices + 1, 4 x hidden]; the last is none.
        self.of_before: Floats32 = embedded @ inputs[ENCODED:] + bias
        self.of_hidden = weights["weight_hh_l0"].T.copy()
        self._joined, self._head = linear_arrays(networks.joined[0]), linear_arrays(networks.head(devices))

    def step(self, gates: Floats32, cell: Floats32) -> tuple[Floats32, Floats32]:
        """Step from LSTM gates [E, 4 x hidden] and cell [E, hidden] to the new hidden and cell."""
        entry, forget, new, out = np.split(gates, 4, axis=1)
        cell = _sigmoid(forget) * cell + _sigmoid(entry) * np.tanh(new)
        return _sigmoid(out) * np.tanh(cell), cell

    def scores(self, hidden: Floats32, outputs: Floats32, keys: Floats32) -> Floats32:
        """Score devices, [E, hidden] over one sequence [T, 128] and its keys [T, 128] -> [E, devices]."""
        attention = hidden @ keys.T
        attention -= attention.max(axis=1, keepdims=True)
        np.exp(attention, out=attention)
        attention /= attention.sum(axis=1, keepdims=True)
        joined = np.tanh(np.concatenate([hidden, attention @ outputs], axis=1) @ self._joined[0] + self._joined[1])
        return np.asarray(joined @ self._head[0] + self._head[1], dtype=np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class RnnEpisodes:
    """Finished episodes of one task."""

    placing: Placing
    order: Ints


def play(
    networks: RnnNetworks,
    task: TableSet,
    scaled: Floats32,
    order: Ints,
    *,
    episodes: int,
    rng: np.random.Generator | None,
) -> RnnEpisodes:
    """Place all tables of ``task`` in ``order``, on devices with room only; samples with ``rng``, else the best.

    ``scaled`` float32 [tables, 21] are the task's normalised features.
    """
    with torch.no_grad():
        encoded = networks.encode(torch.from_numpy(scaled[order])[None])
    outputs, keys = array_of(encoded.outputs[0]), array_of(encoded.keys[0])
    decoder = Decoder(networks, task.devices)
    of_outputs = outputs @ decoder.of_outputs
    nothing: Floats32 = np.zeros((episodes, task.tables, 0), dtype=np.float32)
    placing = Placing([task] * episodes, [order] * episodes, nothing)
    hidden: Floats32 = np.zeros((episodes, HIDDEN), dtype=np.float32)
    cell, before = hidden, np.full(episodes, task.devices)
    shape = (task.tables, episodes, task.devices)
    # Gumbel's trick: the largest noisy score is a draw from the softmax over the legal devices.
    noise = None if rng is None else rng.gumbel(size=shape).astype(np.float32)
    for step in range(task.tables):
        hidden, cell = decoder.step(of_outputs[step] + decoder.of_before[before] + hidden @ decoder.of_hidden, cell)
        scores = decoder.scores(hidden, outputs, keys)
        if noise is not None:
            scores += noise[step]
        before = np.where(placing.legal(), scores, -np.inf).argmax(axis=1)
        placing.put(before)
    return RnnEpisodes(placing=placing, order=order)


@one_thread()
def place(trained: Trained[RnnNetworks, Any, Any], tasks: Sequence[TableSet]) -> list[Ints]:
    """Place every table of every task, int64 [tables] a task, by the decoder's best devices.

    Raises Infeasible, naming the task and the table, where a table has no device with room, in the
    tables' own order and, once more, largest first; BadInput for a number of devices that was not trained.
    """

    def one(task: TableSet) -> Ints:
        scaled = trained.scaling(task.features)

        def best(numbers: Sequence[int], orders: Sequence[Ints] | None) -> Placing:
            order = np.arange(task.tables) if orders is None else orders[0]
            return play(trained.networks, task, scaled, order, episodes=1, rng=None).placing

        return place_or_by_size([task], best)[0]

    return [one(task) for task in tasks]
