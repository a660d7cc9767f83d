"""What plans cost by the trained networks, for many devices at once."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from shardbench.base.arrays import Floats, Floats32
from shardbench.base.errors import BadInput
from shardbench.learning.weights import array_of, linear_arrays

from .networks import INPUTS, NeuroShardNetworks

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained


class Simulator:
    """The networks of one training, as arrays; raises BadInput for another number of devices than they are for."""

    def __init__(self, trained: "AnyTrained", devices: int) -> None:
        networks: NeuroShardNetworks = trained.networks
        if networks.devices != devices:
            raise BadInput(
                f"neuroshard's exchange networks are for {networks.devices} devices, not for {devices}: "
                "fit it on such problems"
            )
        self._scaling, self._networks = trained.scaling, networks
        encoder, head = networks.compute.encoder, networks.compute.head
        self._encoder = linear_arrays(encoder[0]), linear_arrays(encoder[2])
        (self._into_head, self._head_bias), (out, out_bias) = linear_arrays(head[0]), linear_arrays(head[2])
        self._out, self._out_bias = out[:, 0], out_bias[0]

    def encode(self, features: Floats) -> Floats32:
        """Encode raw features [tables, 21] as what devices add up, float32 [tables, 64].

        These are the encodings after the head's first layer, which is linear: a table more is a sum more, and no
        product.
        """
        (first, first_bias), (second, second_bias) = self._encoder
        inner = np.maximum(self._scaling(features)[:, INPUTS] @ first + first_bias, np.float32(0.0))
        encoded: Floats32 = np.maximum(inner @ second + second_bias, np.float32(0.0)) @ self._into_head
        return encoded

    @property
    def empty(self) -> Floats32:
        """Give the sum of a device without tables, float32 [64]."""
        return self._head_bias

    def set_ms(self, sums: Floats32) -> Floats32:
        """Predict forward and backward ms of devices from what they added up, [..., 64] -> [...]."""
        # Against an array, not a number: that is the fast loop of numpy.
        found: Floats32 = np.maximum(sums, np.zeros_like(sums)) @ self._out + self._out_bias
        return found

    def plan_ms(self, compute_ms: Floats32, widths: Floats) -> Floats:
        """Predict plans' cost from their devices' kernels and sums of widths, [plans, devices] each -> float64 [plans].

        The slowest device's kernels, backward exchange and forward exchange; a device comes to the latter as much
        after the first one as its kernels and backward exchange take longer.
        """
        wide = torch.from_numpy(widths.astype(np.float32))
        with torch.no_grad():
            backward = array_of(self._networks.backward_exchange(wide))
            before = compute_ms + backward
            late = torch.from_numpy(before - before.min(axis=1, keepdims=True))
            forward = array_of(self._networks.forward_exchange(torch.cat([wide, late], dim=1)))
        return np.asarray((before + forward).max(axis=1), dtype=np.float64)
