"""The cost network's updates on measured costs, by hand: the same gradients as autograd's, at a part of its cost.

The network is small and is updated 3,000 times; recording and walking autograd's graph would take
most of the time. A test compares these gradients with autograd's. Of 64 draws with replacement from few
placements many are the same one: each is evaluated once and weighted by its share of the draws.
"""

import numpy as np
import torch
from scipy import sparse

from shardbench.base.arrays import Bools, Floats32, Ints
from shardbench.learned.tasks.oracle import Costs
from shardbench.learned.training import Catalogue

from .networks import COSTS, HEAD, CostNetwork

RECTIFIED = np.float32(0.0)


class Layer:
    """A linear layer: views of a module's weights, and of the gradients that are written to them."""

    def __init__(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Linear):
            raise TypeError(f"expected a linear layer, got {type(module).__name__}")
        self.weight, self.weight_grad = views(module.weight)
        self.bias, self.bias_grad = views(module.bias)

    def forward(self, inputs: Floats32) -> Floats32:
        """Apply the layer, [n, in] -> [n, out]."""
        out: Floats32 = inputs @ self.weight.T
        out += self.bias
        return out

    def backward(self, inputs: Floats32, upstream: Floats32) -> None:
        """Write the weights' gradients, given those of the outputs, [n, out]."""
        np.matmul(upstream.T, inputs, out=self.weight_grad)
        # A product with ones adds columns up at a third of a sum's time.
        np.matmul(np.ones(len(upstream), dtype=np.float32), upstream, out=self.bias_grad)


def views(parameter: torch.Tensor) -> tuple[Floats32, Floats32]:
    """Give a parameter and its gradient as arrays that share their memory."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.detach().numpy(), parameter.grad.numpy()


class Regression:
    """Loss and gradients of a cost network on measured placements; gradients land in the parameters' ``grad``.

    ``tables`` float32 [tables, 21] are the normalised features of all tables that the placements
    hold; ``holds`` float32 [placements, devices, tables] counts them. Targets are ``overall_ms``
    float32 [placements] and ``device_ms`` float32 [placements, devices, 3]; ``real`` bool
    [placements, devices] is False for devices that are not there.
    """

    def __init__(
        self,
        network: CostNetwork,
        tables: Floats32,
        *,
        holds: Floats32,
        overall_ms: Floats32,
        device_ms: Floats32,
        real: Bools,
    ) -> None:
        self._tables = tables
        # A device holds a few of many tables: sums over them are sparse products.
        self._holds = sparse.csr_array(holds.reshape(-1, holds.shape[2]))
        self._holders = sparse.csr_array(self._holds.T)
        self._overall_ms, self._device_ms = overall_ms, device_ms.reshape(-1, len(COSTS))
        self._devices = holds.shape[1]
        self._padding = None if real.all() else ~real
        self._encoder = Layer(network.encoder[0]), Layer(network.encoder[2])
        self._hidden = Layer(network.hidden)
        self._out, self._out_grad = views(network.out)
        self._out_bias, self._out_bias_grad = views(network.out_bias)
        self._overall = Layer(network.overall[0]), Layer(network.overall[2])

    def gradients(self, placement_shares: Floats32, device_shares: Floats32) -> float:
        """Compute the sum of four mean squared errors over draws, in ms^2, of which each has a share.

        Shares are of all measured placements [placements], and of their single devices [placements * devices]; those of
        either add up to one.
        """
        first, second = self._encoder
        inner = rectify(first.forward(self._tables))
        encoded = rectify(second.forward(inner))
        sums: Floats32 = self._holds @ encoded
        upstream = np.zeros_like(sums)
        loss = self._whole(sums, placement_shares, upstream) + self._single(sums, device_shares, upstream)
        to_encoded: Floats32 = self._holders @ upstream
        stop_gradient(to_encoded, encoded)
        second.backward(inner, to_encoded)
        to_inner = to_encoded @ second.weight
        stop_gradient(to_inner, inner)
        first.backward(self._tables, to_inner)
        return loss

    def _whole(self, sums: Floats32, all_shares: Floats32, upstream: Floats32) -> float:
        """Compute the placements' mean squared error; the maximum passes its gradient to where it is reached."""
        first, second = self._overall
        chosen = np.flatnonzero(all_shares)
        shares = all_shares[chosen]
        devices = sums.reshape(-1, self._devices, sums.shape[1])[chosen]
        if self._padding is not None:
            devices[self._padding[chosen]] = -np.inf
        largest = devices.max(axis=1)
        inner = rectify(first.forward(largest))
        error = second.forward(inner)[:, 0] - self._overall_ms[chosen]
        gradient = (np.float32(2.0) * shares * error)[:, None]
        second.backward(inner, gradient)
        to_inner = gradient * second.weight
        stop_gradient(to_inner, inner)
        first.backward(largest, to_inner)
        reached = devices == largest[:, None]
        # Devices that share the maximum share its gradient, as autograd's amax has it.
        share = (to_inner @ first.weight) / reached.sum(axis=1)
        upstream.reshape(-1, self._devices, sums.shape[1])[chosen] = reached * share[:, None]
        return float(shares @ (error * error))

    def _single(self, sums: Floats32, all_shares: Floats32, upstream: Floats32) -> float:
        """Compute the sum of the three heads' mean squared errors on single devices."""
        chosen = np.flatnonzero(all_shares)
        shares = all_shares[chosen]
        mine = sums[chosen]
        inner = rectify(self._hidden.forward(mine))
        # Block-diagonal, so that the three heads are one product each way.
        heads = np.zeros((len(COSTS), inner.shape[1]), dtype=np.float32)
        own = [(i, slice(i * HEAD, (i + 1) * HEAD)) for i in range(len(COSTS))]
        for i, block in own:
            heads[i, block] = self._out[i]
        error = inner @ heads.T
        error += self._out_bias - self._device_ms[chosen]
        gradient = (np.float32(2.0) * shares)[:, None] * error
        of_heads = gradient.T @ inner
        for i, block in own:
            self._out_grad[i] = of_heads[i, block]
        np.sum(gradient, axis=0, out=self._out_bias_grad)
        to_inner = gradient @ heads
        stop_gradient(to_inner, inner)
        self._hidden.backward(mine, to_inner)
        upstream[chosen] += to_inner @ self._hidden.weight
        return float(shares @ (error * error).sum(axis=1))


def rectify(values: Floats32) -> Floats32:
    """Take max(0, values), in place."""
    # Against an array, not a number: that is the fast loop of numpy.
    np.maximum(values, np.zeros_like(values), out=values)
    return values


def stop_gradient(gradient: Floats32, values: Floats32) -> None:
    """Let no gradient pass, in place, where a rectified value is zero."""
    gradient *= values > RECTIFIED


class MeasuredPlacements:
    """A buffer that only grows: which tables every device held, and what it cost.

    ``holds`` float32 [placements, devices, catalogue + 1] counts tables; the last column is the row
    of zeros that stands for an empty device. ``device_ms`` float32 [placements, devices, 3] and
    ``overall_ms`` float32 [placements] are the targets; ``real`` bool [placements, devices] is False
    where a placement has fewer devices than the widest task.
    """

    def __init__(self, catalogue: Catalogue, devices: int) -> None:
        self._columns = len(catalogue) + 1
        self._rows = catalogue.rows
        self.holds: Floats32 = np.zeros((0, devices, self._columns), dtype=np.float32)
        self.device_ms: Floats32 = np.zeros((0, devices, 3), dtype=np.float32)
        self.overall_ms: Floats32 = np.zeros(0, dtype=np.float32)
        self.real: Bools = np.zeros((0, devices), dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.overall_ms)

    def add(self, task: int, placement: Ints, costs: Costs) -> None:
        """Append one placement int [tables] of a task number and its costs [1, devices]."""
        wide, devices = self.holds.shape[1], costs.device_ms.shape[1]
        holds = np.zeros((wide, self._columns), dtype=np.float32)
        np.add.at(holds, (placement, self._rows[task]), 1.0)
        holds[holds.sum(axis=1) == 0, -1] = 1.0
        targets = np.zeros((wide, 3), dtype=np.float32)
        # Of the two exchanges only the backward one has a head; the forward one is in the overall cost.
        columns = (costs.forward_ms[0], costs.backward_comm_ms[0], costs.backward_ms[0])
        targets[:devices] = np.stack(columns, axis=-1)
        self.holds = np.concatenate([self.holds, holds[None]])
        self.device_ms = np.concatenate([self.device_ms, targets[None]])
        self.overall_ms = np.append(self.overall_ms, np.float32(costs.overall_ms[0]))
        self.real = np.concatenate([self.real, (np.arange(wide) < devices)[None]])


def learn_costs(
    network: CostNetwork,
    adam: torch.optim.Adam,
    measured: MeasuredPlacements,
    catalogue: Floats32,
    *,
    shape: tuple[int, int],
    rng: np.random.Generator,
) -> list[float]:
    """Fit the cost network to all that was measured, ``shape`` = (updates, batch); gives each update's loss, ms^2.

    An update learns from ``batch`` placements and as many devices, drawn uniformly; every table that was ever measured
    is encoded once in it. ``catalogue`` float32 [tables, 21] are the normalised features.
    """
    # Whatever else it steps has no gradient then, and is left as it is.
    adam.zero_grad()
    zero = np.zeros((1, catalogue.shape[1]), dtype=np.float32)
    tables = np.flatnonzero(measured.holds.any(axis=(0, 1)))
    regression = Regression(
        network,
        np.concatenate([catalogue, zero])[tables],
        holds=measured.holds[:, :, tables],
        overall_ms=measured.overall_ms,
        device_ms=measured.device_ms,
        real=measured.real,
    )
    real_devices = np.flatnonzero(measured.real)
    placements = rng.integers(0, len(measured), shape)
    devices = real_devices[rng.integers(0, len(real_devices), shape)]
    of_placements = shares(placements, len(measured))
    of_devices = shares(devices, measured.real.size)
    losses = []
    for of_placement, of_device in zip(of_placements, of_devices):
        losses.append(regression.gradients(of_placement, of_device))
        adam.step()
    return losses


def shares(draws: Ints, kinds: int) -> Floats32:
    """Give each kind's share of draws int64 [updates, draws] from 0..kinds-1, float32 [updates, kinds]."""
    updates, batch = draws.shape
    counts = np.bincount((draws + kinds * np.arange(updates)[:, None]).reshape(-1), minlength=updates * kinds)
    kind_shares: Floats32 = (counts.reshape(updates, kinds) / batch).astype(np.float32)
    return kind_shares
