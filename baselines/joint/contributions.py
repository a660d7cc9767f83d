"""What the options of a menu, and the groups of pieces that go to one place together, add to the phases of a step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.accounting import DECODE_BYTES, ENCODE_BYTES
from shardbench.cost.collectives import switched_ratio
from shardbench.model.problem import Problem
from shardbench.model.table import Precision

from .pieces import NUMBERS, CountedPieces, Counter, Holders

WEIGHTS = np.array([1.0, 1.0, 1.0, 2.0])
"""How many times a step pays for forward, backward, lookups, and vectors, which come back as gradients."""
EXCHANGES = np.array([1.0, 2.0, 2.0, 1.0, 1.0])
"""How many times a step pays for lookups, vectors, their sums, and the gradients of copies a device and a node."""
PARCEL = NUMBERS + 5
"""Length of a parcel: numbers, bytes received and returned, columns of a node, bytes of HBM and of host memory."""


class Option(NamedTuple):
    """A form of a table, or of tables that are together: numbers of groups of pieces, each of which has one place."""

    unit: int
    """The number of the table, or of the tables, among the menu's units."""
    groups: tuple[int, ...]
    shards: int = 1
    """Column ranges that the last group stands for: all alike."""


class Links:
    """Milliseconds that a byte or column of a piece takes on a problem's links, as if all devices had as much."""

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


class Groups:
    """The tiers of a device's rows, or single pieces: what they add together, [groups, ...]."""

    def __init__(self, groups: Sequence[tuple[int, ...]], counted: CountedPieces, counter: Counter) -> None:
        """``groups`` are numbers of counted pieces."""
        world = counter.problem.world_size
        self.pieces = np.array([piece for group in groups for piece in group], dtype=np.int64)
        self.first: Ints = np.cumsum([0, *map(len, groups)])[:-1]
        """Where the pieces of each group begin."""
        leads = self.pieces[self.first]
        self.scope, self.share = counted.scope[leads], counter.holders[counted.scope[leads]] / world
        """The ``Holders`` of each, and the share of all devices that have a part of it."""
        kinds, self.kind = np.unique(np.stack([self.scope, counted.module[leads]], axis=1), axis=0, return_inverse=True)
        self.kind = self.kind.ravel()
        """The number of each group's kind among ``kinds``, scopes and modules."""
        self.kinds = [(Holders(int(kind[0])), int(kind[1])) for kind in kinds]
        ranked, on_rank = counted.scope <= Holders.WORLD, counted.scope == Holders.RANK
        sample_bytes = counter.problem.batch_size // world * counter.problem.exchange.bytes
        returned = counted.returned + counted.pooled * sample_bytes * on_rank
        columns = counted.pooled * (counted.scope == Holders.NODE)
        exchanged = np.stack([counted.received * ranked, returned * ranked, columns], axis=1)
        self.parcels = self.sum(np.concatenate([counted.numbers, exchanged, counted.fullest], axis=1))
        """What each adds to the fullest device that has it, [groups, PARCEL]."""
        self.sources = self.sum(counted.sources)
        """Milliseconds in which each rank puts the lookups of its samples in place to send them."""

    def sum(self, values: Floats) -> Floats:
        """Return the sums over each group's pieces of ``values`` [pieces, ...], [groups, ...]."""
        return np.asarray(np.add.reduceat(values[self.pieces], self.first, axis=0))


class Contributions:
    """What options add, taken alone, [options, ...]; milliseconds where nothing else is said."""

    def __init__(self, options: Sequence[Option], groups: Groups, counted: CountedPieces, counter: Counter) -> None:
        links = Links(counter.problem)
        group = np.array([one for option in options for one in option.groups], dtype=np.int64)
        ends = np.cumsum([len(option.groups) for option in options])
        times, first = np.ones(len(group)), np.concatenate([[0], ends[:-1]])
        times[ends - 1] = [option.shards for option in options]

        def sums(values: Floats) -> Floats:
            """Return the sums over the options' groups of ``values`` [groups, ...]."""
            return np.asarray(np.add.reduceat((values[group].T * times).T, first, axis=0))

        share = counter.holders[counted.scope] / counter.problem.world_size
        kernels = np.stack(counter.kernels.work_ms(counted.numbers), axis=1)
        self.kernels = sums(groups.sum(kernels * share[:, None]))
        """Forward and backward milliseconds, in the mean over the devices."""
        self.links = sums(groups.sum(links.by_link_ms(counted) * share[:, None, None]))
        """Milliseconds of exchanges by link, in the mean over the devices, as ``Links.by_link_ms`` gives them."""
        self.alike = sums(groups.sum(counted.sources + links.added_ms(counted) * share))
        """Milliseconds, in the mean over the devices, to put lookups in place to send them and to add up sums."""
        lumps = groups.sum(np.concatenate([kernels, np.stack(links.lumps_ms(counted), axis=1)], axis=1))
        lumps[groups.scope > Holders.NODE] = 0.0
        self.largest = np.maximum.reduceat(lumps[group], first, axis=0)
        """Milliseconds of each phase on a device that has a part, of pieces that not all devices have."""
        self.size = sums(groups.sum(counted.size))
        """Bytes in the HBM of all devices together."""
        self.spread = sums(groups.parcels[:, : NUMBERS + 2] * groups.share[:, None])
        """Kernel numbers, bytes received and bytes returned, if all were spread evenly over the devices."""
        self.sources = sums(groups.sources * (groups.scope < Holders.WORLD))
        """Milliseconds to put in place the lookups that are sent to some devices alone."""
        self.kinds = groups.kinds
        self.needs = np.zeros((len(options), len(self.kinds)), dtype=np.bool_)
        """True where an option needs the calls of a kind, [options, kinds]."""
        self.needs[np.repeat(np.arange(len(options)), np.diff(ends, prepend=0)), groups.kind[group]] = True
        self.unit = np.array([option.unit for option in options])
