"""Milliseconds that a byte or column of a piece takes on the links, as if all devices had as much."""

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.load import VECTOR_BYTES
from shardbench.model.problem import Problem

from .pieces import Counted, Scope


class Links:
    """Rates of a problem's exchanges."""

    def __init__(self, problem: Problem) -> None:
        topology, constants = problem.topology, problem.machine.constants
        self.world, self.local, self.nodes = topology.world_size, topology.devices_per_node, topology.nodes
        self.intra, self.inter = 1e3 / constants.intra_bytes_per_s, 1e3 / constants.inter_bytes_per_s
        """Milliseconds a byte."""
        self.weight_bytes = problem.precision.bytes
        self.sample_bytes = problem.batch_size // self.world * VECTOR_BYTES
        """Of a column of pooled vectors, for one rank's samples."""
        self.exchanged = max((self.local - 1) * self.intra, (self.world - self.local) * self.inter) / self.world
        """Milliseconds a byte that each rank asks of rows dealt over all devices."""
        self.reduced = self.all_reduced_ms(1.0) / 2.0

    def all_reduced_ms(self, weight_bytes: Floats | float) -> Floats | float:
        """Of an all-reduce of so many bytes between all devices."""
        intra = 2.0 * weight_bytes * (self.local - 1) / self.local * self.intra
        inter = 2.0 * weight_bytes / self.local * (self.nodes - 1) / self.nodes * self.inter
        return np.maximum(intra, inter)

    def pieces_ms(self, scope: Ints, counted: Counted) -> tuple[Floats, Floats, Floats]:
        """Of pieces, [pieces] each: lookups and vectors on a device that has one, and what all pay alike a step."""
        return self.rates_ms(scope, counted.received, counted.returned, counted.pooled, counted.weights)

    def rates_ms(
        self, scope: Ints, received: Floats, returned: Floats, pooled: Floats, weights: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """As pieces_ms, from what the pieces add."""
        ranked = scope <= Scope.WORLD
        pairs = max((self.local - 1) * self.intra, (self.world - self.local) * self.inter)
        columns = pooled * self.sample_bytes
        scattered = columns * self.world * (self.local - 1) / self.local * self.intra
        across = (self.nodes - 1) * columns * self.inter
        out = (returned + columns * (scope == Scope.RANK)) * pairs + (across + scattered) * (scope == Scope.NODE)
        summed = 2.0 * np.maximum(
            scattered, columns * self.world / self.local * (self.nodes - 1) / self.nodes * self.inter
        )
        within = (self.local - 1) * (received + 2.0 * returned) * self.intra
        within = within + 2.0 * columns * (self.local - 1) * self.intra
        copied = 2.0 * self.weight_bytes * weights * (self.nodes - 1) / self.nodes * self.inter
        shared = (
            summed * (scope == Scope.WORLD)
            + (within + copied) * (scope == Scope.NODES)
            + self.all_reduced_ms(self.weight_bytes * weights) * (scope == Scope.COPIES)
        )
        return np.where(ranked, received * pairs, 0.0), np.where(ranked, out, 0.0), np.asarray(shared)
