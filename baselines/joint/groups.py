"""Groups of pieces that go to one place together, and what each adds to a device that has it, as arrays."""

from collections.abc import Sequence

import numpy as np

from shardbench.base.arrays import Floats, Ints

from .kernels import NUMBERS
from .pieces import CountedPieces, Counter, Holders

PARCEL = NUMBERS + 5
"""Length of a parcel: numbers, bytes received and returned, columns of a node, bytes of HBM and of host memory."""


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
        held_bytes = np.stack([counted.fullest * ~counted.uvm, counted.fullest * counted.uvm], axis=1)
        exchanged = np.stack([counted.received * ranked, returned * ranked, columns], axis=1)
        self.parcels = self.sum(np.concatenate([counted.numbers, exchanged, held_bytes], axis=1))
        """What each adds to the fullest device that has it, [groups, PARCEL]."""
        self.sources = self.sum(counted.sources)
        """Milliseconds in which each rank puts the lookups of its samples in place to send them."""

    def sum(self, values: Floats) -> Floats:
        """Return the sums over each group's pieces of ``values`` [pieces, ...], [groups, ...]."""
        return np.asarray(np.add.reduceat(values[self.pieces], self.first, axis=0))
