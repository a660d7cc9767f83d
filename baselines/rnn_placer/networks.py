"""A sequence-to-sequence policy with attention: tables in, devices out (deviation 1)."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shardbench.base.errors import BadInput
from shardbench.learned.tasks.features import FEATURES

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
