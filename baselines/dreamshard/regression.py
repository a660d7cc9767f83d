"""The cost network's updates on measured costs, by hand: the same numbers as autograd, at a third of its cost.

The network is small and is updated 3,000 times; recording and walking autograd's graph would take
most of the time. A test compares these gradients with autograd's.
"""

import numpy as np
import torch

from shardbench.base.arrays import Bools, Floats32

from .adam import Adam
from .measured_placements import MeasuredPlacements
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
        """[n, in] -> [n, out]."""
        out: Floats32 = inputs @ self.weight.T
        out += self.bias
        return out

    def backward(self, inputs: Floats32, upstream: Floats32) -> None:
        """Write the weights' gradients, given those of the outputs, [n, out]."""
        np.matmul(upstream.T, inputs, out=self.weight_grad)
        np.sum(upstream, axis=0, out=self.bias_grad)


def views(parameter: torch.Tensor) -> tuple[Floats32, Floats32]:
    """A parameter and its gradient as arrays that share their memory."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.detach().numpy(), parameter.grad.numpy()


class Regression:
    """Loss and gradients of a cost network on table sets; gradients land in the parameters' ``grad``."""

    def __init__(self, network: CostNetwork, tables: Floats32) -> None:
        self._tables = tables
        self._encoder = Layer(network.encoder[0]), Layer(network.encoder[2])
        self._hidden = Layer(network.hidden)
        self._out, self._out_grad = views(network.out)
        self._out_bias, self._out_bias_grad = views(network.out_bias)
        self._overall = Layer(network.overall[0]), Layer(network.overall[2])

    def gradients(
        self,
        holds: Floats32,
        overall_ms: Floats32,
        device_ms: Floats32,
        padding: Bools | None = None,
    ) -> float:
        """Sum of four mean squared errors, in ms^2.

        ``holds`` float32 [placements * devices + shards, tables] are the table sets: first those of
        whole placements with their costs [placements], then single devices with theirs [shards, 3].
        ``padding`` bool [placements, devices] marks devices that are not there.
        """
        first, second = self._encoder
        inner = rectified(first.forward(self._tables))
        encoded = rectified(second.forward(inner))
        sums = holds @ encoded
        whole = len(holds) - len(device_ms)
        upstream = np.zeros_like(sums)
        loss = self._whole(sums[:whole].reshape(len(overall_ms), -1, sums.shape[1]), overall_ms, padding, upstream)
        loss += self._devices(sums[whole:], device_ms, upstream[whole:])
        to_encoded = holds.T @ upstream
        to_encoded *= encoded > RECTIFIED
        second.backward(inner, to_encoded)
        to_inner = to_encoded @ second.weight
        to_inner *= inner > RECTIFIED
        first.backward(self._tables, to_inner)
        return loss

    def _whole(self, sums: Floats32, targets: Floats32, padding: Bools | None, upstream: Floats32) -> float:
        """Mean squared error of the placements' costs; the maximum passes its gradient to where it is reached."""
        first, second = self._overall
        if padding is not None:
            sums = np.where(padding[:, :, None], np.float32(-np.inf), sums)
        largest = sums.max(axis=1)
        inner = rectified(first.forward(largest))
        error = second.forward(inner)[:, 0] - targets
        gradient = (np.float32(2.0 / len(targets)) * error)[:, None]
        second.backward(inner, gradient)
        to_inner = gradient * second.weight
        to_inner *= inner > RECTIFIED
        first.backward(largest, to_inner)
        reached = sums == largest[:, None]
        # Devices that share the maximum share its gradient, as autograd's amax has it.
        share = (to_inner @ first.weight) / reached.sum(axis=1)
        upstream[: reached.shape[0] * reached.shape[1]] = (reached * share[:, None]).reshape(-1, sums.shape[2])
        return float(error @ error) / len(targets)

    def _devices(self, sums: Floats32, targets: Floats32, upstream: Floats32) -> float:
        """Sum of the three heads' mean squared errors."""
        inner = rectified(self._hidden.forward(sums)).reshape(-1, len(COSTS), HEAD)
        error = np.einsum("nch,ch->nc", inner, self._out) + self._out_bias - targets
        gradient = np.float32(2.0 / len(targets)) * error
        np.einsum("nc,nch->ch", gradient, inner, out=self._out_grad)
        np.sum(gradient, axis=0, out=self._out_bias_grad)
        to_inner = gradient[:, :, None] * self._out
        to_inner *= inner > RECTIFIED
        flat = to_inner.reshape(len(targets), -1)
        self._hidden.backward(sums, flat)
        np.matmul(flat, self._hidden.weight, out=upstream)
        return float((error * error).sum()) / len(targets)


def rectified(values: Floats32) -> Floats32:
    """max(0, values), in place."""
    np.maximum(values, RECTIFIED, out=values)
    return values


class CostLearner:
    """Regression on a buffer; every table that was ever measured is encoded once an update."""

    def __init__(self, network: CostNetwork, adam: Adam, measured: MeasuredPlacements, catalogue: Floats32) -> None:
        self._adam = adam
        zero = np.zeros((1, catalogue.shape[1]), dtype=np.float32)
        holds = measured.holds.reshape(-1, measured.holds.shape[2])
        met = np.flatnonzero(holds.any(axis=0))
        self._regression = Regression(network, np.concatenate([catalogue, zero])[met])
        self._devices = measured.holds.shape[1]
        self._holds = np.ascontiguousarray(holds[:, met])
        self._device_ms = measured.device_ms.reshape(-1, measured.device_ms.shape[2])
        self._overall_ms = measured.overall_ms
        self._padding = None if measured.real.all() else ~measured.real
        self._shards = np.flatnonzero(measured.real)

    def learn(self, updates: int, batch: int, rate: float, rng: np.random.Generator) -> list[float]:
        """Loss of each update on ``batch`` placements and ``batch`` devices drawn uniformly; ``rate`` is Adam's."""
        placements = rng.integers(0, len(self._overall_ms), (updates, batch))
        shards = self._shards[rng.integers(0, len(self._shards), (updates, batch))]
        every = (placements[:, :, None] * self._devices + np.arange(self._devices)).reshape(updates, -1)
        rows = np.concatenate([every, shards], axis=1)
        losses = []
        for sets, chosen, of_devices in zip(rows, placements, shards):
            padding = None if self._padding is None else self._padding[chosen]
            holds, targets = self._holds[sets], self._device_ms[of_devices]
            losses.append(self._regression.gradients(holds, self._overall_ms[chosen], targets, padding))
            self._adam.step(rate)
        return losses
