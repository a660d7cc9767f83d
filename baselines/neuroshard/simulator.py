"""What plans cost by the trained networks, for many devices at once."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from shardbench.base.arrays import Floats, Floats32
from shardbench.base.errors import BadInput

from .networks import INPUTS, NeuroShardNetworks

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained


class Simulator:
    """The networks of one training, for arrays; raises BadInput for another number of devices than they are for."""

    def __init__(self, trained: "AnyTrained", devices: int) -> None:
        networks: NeuroShardNetworks = trained.networks
        if networks.devices != devices:
            raise BadInput(
                f"neuroshard's exchange networks are for {networks.devices} devices, not for {devices}: "
                "fit it on such problems"
            )
        self._scaling, self._networks = trained.scaling, networks

    @torch.inference_mode()
    def encode(self, features: Floats) -> Floats32:
        """Encode raw features [tables, 21] as what devices add up, float32 [tables, 64].

        These are the encodings after the head's first layer, which is linear: a table more is a sum more, and no
        product.
        """
        compute, inputs = self._networks.compute, torch.from_numpy(self._scaling(features)[:, INPUTS])
        encoded: Floats32 = (compute.encoder(inputs) @ compute.into_head.weight.T).numpy()
        return encoded

    @property
    def empty(self) -> Floats32:
        """Give the sum of a device without tables, float32 [64]."""
        return self._networks.compute.into_head.bias.detach().numpy()

    @torch.inference_mode()
    def set_ms(self, sums: Floats32) -> Floats32:
        """Predict forward and backward ms of devices from what they added up, [..., 64] -> [...]."""
        return self._networks.compute.head(torch.from_numpy(sums)).numpy()

    @torch.inference_mode()
    def plan_ms(self, compute_ms: Floats32, widths: Floats) -> Floats:
        """Predict plans' cost from their devices' kernels and sums of widths, [plans, devices] each -> float64 [plans].

        The slowest device's kernels, backward exchange and forward exchange; a device comes to the latter as much
        after the first one as its kernels and backward exchange take longer.
        """
        wide, compute = torch.from_numpy(widths.astype(np.float32)), torch.from_numpy(compute_ms)
        before = compute + self._networks.backward_exchange(wide)
        late = before - before.amin(dim=1, keepdim=True)
        forward = self._networks.forward_exchange(torch.cat([wide, late], dim=1))
        cost_ms: Floats = (before + forward).amax(dim=1).double().numpy()
        return cost_ms
