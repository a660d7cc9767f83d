"""A sequence-to-sequence policy with attention: tables in, devices out (deviation 1); its episodes, many at once."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shardbench.base.arrays import Floats32, Ints
from shardbench.base.errors import BadInput
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.features import FEATURES
from shardbench.learned.tasks.task import TableSet

EMBEDDED = 64
ENCODED = 128
"""Width of the encoder: its two directions together."""
DEVICE = 32
HIDDEN = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """A sequence of tables as the decoder reads it: encodings [E, T, 128], and where it attends, keys [E, T, 128]."""

    outputs: Tensor
    keys: Tensor


class RnnNetworks(nn.Module):
    """Bidirectional LSTM encoder, attentive LSTM decoder, one head and device embedding per number of devices."""

    def __init__(self, devices: Iterable[int], seed: int) -> None:
        super().__init__()
        self.devices = tuple(sorted(set(devices)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Sequential(nn.Linear(len(FEATURES), EMBEDDED), nn.ReLU())
            self.encoder = nn.LSTM(EMBEDDED, ENCODED // 2, batch_first=True, bidirectional=True)
            self.decoder = nn.LSTM(ENCODED + DEVICE, HIDDEN, batch_first=True)
            self.keys = nn.Linear(ENCODED, HIDDEN, bias=False)
            self.joined = nn.Sequential(nn.Linear(HIDDEN + ENCODED, HIDDEN), nn.Tanh())
            # Of the device before; the last row is for the first step, which has none.
            self.before = nn.ModuleDict({str(n): nn.Embedding(n + 1, DEVICE) for n in self.devices})
            self.heads = nn.ModuleDict({str(n): nn.Linear(HIDDEN, n) for n in self.devices})

    def embedding(self, devices: int) -> nn.Module:
        """Give the embedding of the device chosen before, by number of devices; BadInput where none was trained."""
        if devices not in self.devices:
            sizes = ", ".join(map(str, self.devices))
            raise BadInput(f"the RNN has output layers for {sizes} devices, not for {devices}: fit it on such problems")
        return self.before[str(devices)]

    def encode(self, features: Tensor) -> Encoded:
        """Encode normalised features of whole sequences in order, [E, T, 21]."""
        outputs: Tensor = self.encoder(self.embed(features))[0]
        return Encoded(outputs=outputs, keys=self.keys(outputs))

    def logits(self, encoded: Encoded, chosen: Tensor, devices: int) -> Tensor:
        """Score devices at every step given the devices chosen before it: chosen int64 [E, T] -> [E, T, devices].

        ``encoded`` may be of one sequence [1, T, ...] that all episodes share.
        """
        count = len(chosen)
        first = torch.full_like(chosen[:, :1], devices)
        before = self.embedding(devices)(torch.cat([first, chosen[:, :-1]], dim=1))
        inputs = torch.cat([encoded.outputs.expand(count, -1, -1), before], dim=2)
        return self.scores(encoded, self.decoder(inputs)[0], devices)

    def scores(self, encoded: Encoded, hidden: Tensor, devices: int) -> Tensor:
        """Score devices from outputs of the decoder that attend to whole sequences, [E, T, 128] -> [E, T, devices]."""
        attention = (hidden @ encoded.keys.transpose(1, 2)).softmax(dim=2)
        joined = self.joined(torch.cat([hidden, attention @ encoded.outputs], dim=2))
        scores: Tensor = self.heads[str(devices)](joined)
        return scores


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
