"""AutoShard's networks (KDD 2022; the sizes are those of the published code), for any number of tables and devices."""

import torch
from torch import Tensor, nn

from shardbench.learned.tasks.features import FEATURES

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
