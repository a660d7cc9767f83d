"""Greedy placement of column plans, for a grid of caps on a device's width, all plans and caps at once."""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats, Floats32, Ints

from .shards import ColumnShards
from .simulator import Simulator

NO_CAP = (float("inf"),)
SLACK = 1e-9
"""Share by which sums of widths may exceed a cap: rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardPlacements:
    """The best placement of each of some column plans: ``ranks`` int64 [plans, shards], predicted ``ms`` [plans].

    Infinite where none fits.
    """

    ranks: Ints
    ms: Floats


class Placer:
    """Places shards of one problem on its devices of ``capacity_bytes`` each, by a grid of ``caps``."""

    def __init__(
        self, simulator: Simulator, shards: ColumnShards, devices: int, capacity_bytes: int, caps: tuple[float, ...]
    ) -> None:
        self.simulator, self.shards = simulator, shards
        self.devices, self.capacity_bytes, self.caps = devices, capacity_bytes, caps
        # Once, for all placements.
        self.encodings: Floats32 = simulator.encode(shards.features)
        self.alone_ms: Floats32 = simulator.set_ms(self.encodings + simulator.empty)
        """Predicted kernels of each shard alone on a device."""

    def place(self, plans: Ints) -> ShardPlacements:
        """Place column plans int64 [plans, shards] (numbers of shards), each by its best cap.

        Where no cap leaves room, once more without one; and where that fails too, largest shard first (deviation 5).
        """
        ranks = np.zeros(plans.shape, dtype=np.int64)
        ms = np.full(len(plans), np.inf)
        by_cost, by_size = -self.alone_ms.astype(np.float64), -self.shards.bytes.astype(np.float64)
        for order, caps in ((by_cost, self.caps), (by_cost, NO_CAP), (by_size, NO_CAP)):
            unplaced = np.flatnonzero(np.isinf(ms))
            if len(unplaced):
                placements = self._greedy(plans[unplaced], order, caps)
                ranks[unplaced], ms[unplaced] = placements.ranks, placements.ms
        return ShardPlacements(ranks=ranks, ms=ms)

    def _greedy(self, plans: Ints, weights: Floats, caps: tuple[float, ...]) -> ShardPlacements:
        """Place shards by ascending weight, each on the device with room whose kernels then take least."""
        count, steps = plans.shape
        order = np.argsort(weights[plans], axis=1, kind="stable")
        ordered = np.repeat(np.take_along_axis(plans, order, axis=1), len(caps), axis=0)
        mean_width = self.shards.vectors[plans].sum(axis=1) / self.devices
        limits = (np.asarray(caps)[None, :] * np.where(mean_width > 0, mean_width, 1.0)[:, None]).reshape(-1)
        state = _Filling(self, len(ordered))
        chosen = np.zeros(ordered.shape, dtype=np.int64)
        for step in range(steps):
            chosen[:, step] = state.put(ordered[:, step], limits)
        ms = self.simulator.plan_ms(state.compute_ms, state.widths)
        by_cap = np.where(state.failed, np.inf, ms).reshape(count, len(caps))
        best = by_cap.argmin(axis=1)
        rows = np.arange(count)
        ranks = np.zeros(plans.shape, dtype=np.int64)
        np.put_along_axis(ranks, order, chosen.reshape(count, len(caps), steps)[rows, best], axis=1)
        return ShardPlacements(ranks=ranks, ms=by_cap[rows, best])


class _Filling:
    """Devices of many placements while they are filled, [placements, devices]."""

    def __init__(self, placer: Placer, count: int) -> None:
        shape = (count, placer.devices)
        self._placer, self._rows = placer, np.arange(count)
        self._sums: Floats32 = np.tile(placer.simulator.empty, (*shape, 1))
        self._used: Ints = np.zeros(shape, dtype=np.int64)
        self.widths: Floats = np.zeros(shape)
        self.compute_ms: Floats32 = np.zeros(shape, dtype=np.float32)
        """Kernels' ms; a device without shards has zero: it runs none (deviation 5)."""
        self.failed: Bools = np.zeros(count, dtype=np.bool_)

    def put(self, shard: Ints, limits: Floats) -> Ints:
        """Give every placement its next shard int64 [placements]; the devices, int64 [placements].

        A placement without a legal device has failed; it goes on with its first device, and must not be used.
        """
        placer, at = self._placer, self._rows
        shards, own = placer.shards, placer.encodings[shard]
        legal = (self._used + shards.bytes[shard][:, None] <= placer.capacity_bytes) & (
            self.widths + shards.vectors[shard][:, None] <= limits[:, None] * (1.0 + SLACK)
        )
        self.failed |= ~legal.any(axis=1)
        after_ms = placer.simulator.set_ms(self._sums + own[:, None])
        device: Ints = np.where(legal, after_ms, np.float32(np.inf)).argmin(axis=1)
        self.compute_ms[at, device] = after_ms[at, device]
        self._sums[at, device] += own
        self._used[at, device] += shards.bytes[shard]
        self.widths[at, device] += shards.vectors[shard]
        return device
