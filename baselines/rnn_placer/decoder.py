"""Episodes of the decoder, many of one task at once, table by table."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shardbench.base.arrays import Floats32, Ints
from shardbench.learned.episodes import Placing
from shardbench.learned.placement import place_or_by_size
from shardbench.learned.tasks.task import TableSet
from shardbench.learned.training import Trained, one_thread

from .networks import HIDDEN, RnnNetworks


@torch.inference_mode()
def play(
    networks: RnnNetworks,
    task: TableSet,
    scaled: Floats32,
    order: Ints,
    *,
    episodes: int,
    rng: np.random.Generator | None,
) -> Placing:
    """Place all tables of ``task`` in ``order``, on devices with room only; samples with ``rng``, else the best.

    ``scaled`` float32 [tables, 21] are the task's normalised features.
    """
    encoded, embedding = networks.encode(torch.from_numpy(scaled[order])[None]), networks.embedding(task.devices)
    no_state: Floats32 = np.zeros((episodes, task.tables, 0), dtype=np.float32)
    placing = Placing([task] * episodes, [order] * episodes, no_state)
    hidden, before = torch.zeros(episodes, HIDDEN), np.full(episodes, task.devices)
    cell, weights = hidden, tuple(networks.decoder.parameters())
    shape = (task.tables, episodes, task.devices)
    # Gumbel's trick: the largest noisy score is a draw from the softmax over the legal devices.
    noise = None if rng is None else rng.gumbel(size=shape).astype(np.float32)
    for step in range(task.tables):
        inputs = torch.cat([encoded.outputs[:, step].expand(episodes, -1), embedding(torch.from_numpy(before))], dim=1)
        # One step of the LSTM, a fraction of what the module takes for it.
        hidden, cell = torch.lstm_cell(inputs, (hidden, cell), *weights)
        # All episodes attend to one sequence: to it they are as many outputs of one decoder.
        scores = networks.scores(encoded, hidden[None], task.devices)[0].numpy()
        if noise is not None:
            scores += noise[step]
        before = np.where(placing.legal(), scores, -np.inf).argmax(axis=1)
        placing.put(before)
    return placing


@one_thread()
def place(trained: Trained[RnnNetworks, Any], tasks: Sequence[TableSet]) -> list[Ints]:
    """Place every table of every task, int64 [tables] a task, by the decoder's best devices.

    Raises Infeasible, naming the task and the table, where a table has no device with room, in the
    tables' own order and, once more, largest first; BadInput for a number of devices that was not trained.
    """

    def one(task: TableSet) -> Ints:
        scaled = trained.scaling(task.features)

        def best(numbers: Sequence[int], orders: Sequence[Ints] | None) -> Placing:
            order = np.arange(task.tables) if orders is None else orders[0]
            return play(trained.networks, task, scaled, order, episodes=1, rng=None)

        return place_or_by_size([task], best)[0]

    return [one(task) for task in tasks]
