"""Milliseconds that a byte or column of a piece takes on the links, as if all devices had as much."""

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import DECODE_BYTES, ENCODE_BYTES
from shardbench.cost.collectives import switched_ratio
from shardbench.model.problem import Problem
from shardbench.model.table import Precision

from .pieces import CountedPieces, Holders


class Links:
    """The rates of a problem's exchanges."""

    def __init__(self, problem: Problem) -> None:
        topology, constants = problem.topology, problem.machine.constants
        self.world, self.local, self.nodes = topology.world_size, topology.devices_per_node, topology.nodes
        self.intra, self.inter = 1e3 / constants.intra_bytes_per_s, 1e3 / constants.inter_bytes_per_s
        """Milliseconds a byte."""
        self.switched = switched_ratio(problem.machine)
        """What a byte of an all-reduce counts inside a node."""
        self.weight_bytes = problem.precision.bytes
        self.sample_bytes = problem.batch_size // self.world * problem.exchange.bytes
        """Bytes of one column of pooled vectors for one rank's samples."""
        self.exchanged = max((self.local - 1) * self.intra, (self.world - self.local) * self.inter) / self.world
        """Milliseconds a byte that each rank asks of rows dealt over all devices."""
        across = 1.0 / self.local * (self.nodes - 1) / self.nodes * self.inter
        self.reduced = max((self.local - 1) / self.local * self.intra * self.switched, across)
        """Milliseconds a byte of half an all-reduce between all devices."""
        self.added = 1e3 / constants.reduce_bytes_per_s
        """Milliseconds to add up a byte that arrives in a reduce-scatter."""
        converts = problem.exchange is not Precision.FP32 and self.world > 1
        number_ms = 1e3 * (ENCODE_BYTES + DECODE_BYTES) / constants.vector_copy_bytes_per_s
        self.converted = converts * number_ms / problem.exchange.bytes
        """Milliseconds to convert a byte that a device gives to exchanges or gets from them, and its gradient."""

    def by_link_ms(self, counted: CountedPieces) -> Floats:
        """Return milliseconds by link of each piece's lookups, vectors, sums and copies' gradients on every device.

        The shape is [pieces, 5, 2], the link inside nodes before the one between them; copies on every device come
        before copies a node.
        """
        local, nodes, across, scope = self.local - 1, self.nodes, self.world - self.local, counted.scope
        columns = counted.pooled * self.sample_bytes
        weights = 2.0 * self.weight_bytes * counted.weights
        ranked, node, world = scope <= Holders.WORLD, scope == Holders.NODE, scope == Holders.WORLD
        copies, own = scope == Holders.NODES, scope == Holders.COPIES
        vectors = counted.returned + columns * (scope == Holders.RANK)
        sharers = np.where(copies, self.local, self.world) * (node | world | copies)
        link_bytes = np.zeros((len(scope), 5, 2))
        link_bytes[:, 0, 0], link_bytes[:, 0, 1] = counted.received * local, counted.received * across * ranked
        link_bytes[:, 1, 0] = vectors * local
        link_bytes[:, 1, 1] = vectors * across * ranked + columns * (nodes - 1) * node
        link_bytes[:, 2, 0] = columns * sharers * local / self.local
        link_bytes[:, 2, 1] = columns * self.world / self.local * (nodes - 1) / nodes * world
        link_bytes[:, 3, 0] = weights * local / self.local * own * self.switched
        link_bytes[:, 3, 1] = weights * own / self.local * (nodes - 1) / nodes
        link_bytes[:, 4, 1] = weights * copies * (nodes - 1) / nodes
        return np.asarray(link_bytes * [self.intra, self.inter])

    def added_ms(self, counted: CountedPieces) -> Floats:
        """Return milliseconds in which each device adds up what arrives of a piece's sums, and converts, [pieces].

        What others convert of it counts as if the devices that have it did.
        """
        local, nodes, scope = self.local, self.nodes, counted.scope
        inside = np.select(
            [scope == Holders.NODES, scope == Holders.RANK, scope == Holders.COPIES], [local, 0, 0], self.world
        )
        across = self.world / local * (nodes - 1) / nodes * (scope == Holders.WORLD)
        arriving_bytes = counted.pooled * self.sample_bytes * (inside * (local - 1) / local + across)
        columns, shared = counted.pooled * self.sample_bytes, self.local > 1
        passed = np.select(
            [scope == Holders.RANK, scope == Holders.NODE, scope == Holders.WORLD, scope == Holders.NODES],
            [
                2 * self.world,
                2 * nodes + shared * (self.world + nodes),
                self.world + 1,
                shared * (self.local + 1),
            ],
            0,
        )
        askers = np.where(scope == Holders.NODES, self.local * shared, self.world)
        converted = columns * passed + 2.0 * counted.returned * askers
        return np.asarray(arriving_bytes * self.added + converted * self.converted)

    def lumps_ms(self, counted: CountedPieces) -> tuple[Floats, Floats]:
        """Return milliseconds of lookups and vectors on a device that has a piece of one device or node, [pieces] each.

        Sums are added up in one of the two directions in which vectors and gradients go. They are zero for pieces that
        more devices have.
        """
        pairs = max((self.local - 1) * self.intra, (self.world - self.local) * self.inter)
        columns, scope = counted.pooled * self.sample_bytes, counted.scope
        scattered = columns * self.world * (self.local - 1) / self.local * (self.intra + self.added / 2.0)
        out = counted.returned * pairs + np.where(
            scope == Holders.RANK, columns * pairs, columns * (self.nodes - 1) * self.inter + scattered
        )
        lumped = scope <= Holders.NODE
        return counted.received * pairs * lumped, out * lumped
