"""Rates places: how much the step would grow, in a norm that sees more than the slowest device."""

from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.model.plan import Tier

from .kernels import NUMBERS
from .links import Links
from .menu import WEIGHTS
from .overlap import Ms
from .pieces import Form, Holders, TablePiece
from .state import PlanState

DOUBLINGS = (0, 2, 4)
"""How often the power 12 of the norms that stand for the slowest device's time is doubled: from a norm that sees all
devices to one that follows the slowest."""
Group = tuple[TablePiece, ...]
PARCEL = NUMBERS + 5
"""Length of a parcel: numbers, bytes received and returned, columns of a node, bytes of HBM and of host memory."""
LARGEST_EXPONENT = 290
"""The largest power of ten that a sum of floats is let reach."""
TINY = 1e-9
"""Milliseconds below which nothing counts."""
DEALT_PIECES = 4
"""Pieces, at most, of a group that is dealt over a node: each leaves a device a row short of another."""


class Shared(NamedTuple):
    """Milliseconds that all devices pay alike and that may go on beside other phases."""

    sources: float
    """The time to put lookups in place that are sent."""
    rows: float
    """The all-reduce of all copies."""
    replicas: float
    """The all-reduce of those copies that every device has."""
    returning: float
    """Latencies of the calls that return vectors, once."""


class Sums:
    """What a group of pieces adds to a device that has it: kernel numbers, lookups, vectors and a node's columns."""

    def __init__(self, group: Group) -> None:
        self.scope = group[0].scope
        self.numbers = sum((piece.numbers for piece in group[1:]), start=group[0].numbers)
        self.received = sum(piece.received for piece in group)
        self.returned = sum(piece.returned for piece in group)
        self.pooled = sum(piece.pooled for piece in group)
        self.weights = sum(piece.weights for piece in group)
        self.held = np.array([sum(p.held.max() for p in group if (p.tier is Tier.UVM) == uvm) for uvm in (False, True)])
        """Bytes that the fullest device holds of the group, by tier."""


class Ruler:
    """The sum over phases of norms over the devices; what pieces to come are expected to add is spread evenly."""

    def __init__(self, state: PlanState) -> None:
        self.state, self.links = state, Links(state.problem)
        self.doublings = DOUBLINGS[0]
        self.ahead: Floats = np.zeros(NUMBERS + 2)
        """Numbers and bytes received and returned that each device is expected to get of what is not placed yet."""
        self._pairs = max((state.local - 1) * self.links.intra, (state.world - state.local) * self.links.inter)
        # Sums are added up in one of the two directions.
        a_byte = self.links.intra + self.links.added / 2.0
        self._scattered = state.world * state.sample_bytes * (state.local - 1) / state.local * a_byte
        problem = state.problem
        row_bytes = max(t.dim * problem.precision.bytes + problem.optimizer.state_bytes(t.dim) for t in problem.tables)
        self._slack = float(DEALT_PIECES * row_bytes)
        """The most bytes by which a device's share of a dealt group is smaller than the fullest device's."""
        self._crossed = (state.nodes - 1) * state.sample_bytes * self.links.inter
        self.refresh()

    def refresh(self) -> None:
        """Compute the phases and norms of what the state has become."""
        state = self.state
        self.load = state.load + self.ahead[:NUMBERS]
        self.received = state.received + self.ahead[NUMBERS]
        self.returned = state.returned + self.ahead[NUMBERS + 1]
        self.columns = np.repeat(state.node_columns, state.local)
        self.phases = self._phases(self.load, self.received, self.returned, self.columns)
        # Powers of shares of the slowest device's time stay within what a float holds.
        self.scale = np.maximum(self.phases.max(axis=1), 1e-3 * self.phases.max() + TINY)
        self.powers = self._power(self.phases)
        self.sums = self.powers.sum(axis=1)
        self.shared = self._shared()
        self.base = float(self._norm(self.sums))
        self.weights = self._weights()

    def _phases(self, load: Floats, received: Floats, returned: Floats, columns: Floats) -> Floats:
        """Return milliseconds of devices' forward, backward, input and output, [4, ...]."""
        forward, backward = self.state.kernels.times_ms(load)
        output = returned * self._pairs + columns * (self._crossed + self._scattered)
        return np.stack([forward, backward, received * self._pairs, output])

    def _norms(self, sums: Floats) -> Floats:
        norms = np.maximum(sums / self.state.world, 0.0) ** (1.0 / (12 << self.doublings))
        return np.asarray(norms * self.scale.reshape(-1, *(1,) * (norms.ndim - 1)))

    def _norm(self, sums: Floats) -> Floats:
        return self._summed(self._norms(sums))

    def _summed(self, norms: Floats) -> Floats:
        forward, backward, received, output = norms
        return np.asarray(forward + backward + received + 2.0 * output - self._hidden(norms, self.shared))

    def _hidden(self, norms: Floats, shared: Shared) -> Ms:
        """Return what of the phases and of what all pay alike goes on beside the phases ``norms`` [4, ...]."""
        overlap, (forward, backward, received, output) = self.state.overlap, norms
        output = output + shared.returning
        reduced = overlap.hidden_reduced_ms(shared.replicas, backward + output)
        if not overlap.input_waits:
            return reduced
        kernels, linked = forward + backward, 2.0 * output + shared.rows
        return reduced + overlap.hidden_input_ms(
            received, shared.sources, kernels=kernels, linked=linked, hidden_reduced=reduced
        )

    def _weights(self) -> Floats:
        """Return how many times the step pays for a little more of each phase, [4]: for what is hidden, nothing."""
        if not (self.state.overlap.hides or self.state.overlap.pipelined):
            return WEIGHTS[:4]
        norms = self._norms(self.sums)
        little = 1e-6 * norms.max() + TINY
        steps = [float(self._summed(norms + little * one)) for one in np.eye(4)]
        paid: Floats = np.maximum((np.array(steps) - self.base) / little, 0.0)
        return paid

    def rate(self, sums: Sums, taken: Floats | None = None) -> tuple[Floats, Floats]:
        """Return how much a group makes the norms grow, [places], and the powers that it adds, [4, places].

        The norms grow infinitely where there is no room. ``taken`` [tiers, devices] are bytes that other groups of the
        table will have there. Norms of powers are concave: several groups add ``grown`` of the sum of their powers, not
        the sum of their norms.
        """
        state, scope = self.state, sums.scope
        ranked = scope <= Holders.WORLD
        returned = sums.returned + sums.pooled * state.sample_bytes * (scope is Holders.RANK)
        new = self._phases(
            self.load + sums.numbers,
            self.received + sums.received * ranked,
            self.returned + returned * ranked,
            self.columns + sums.pooled * (scope is Holders.NODE),
        )
        grown = self._power(new) - self.powers
        if scope is Holders.NODE:
            grown = grown.reshape(4, state.nodes, state.local).sum(axis=2)
        elif scope is not Holders.RANK:
            grown = grown.sum(axis=1, keepdims=True)
        return np.where(self._full(sums, taken), np.inf, self.grown(grown)), grown

    def grown(self, powers: Floats) -> Floats:
        """Return by how many milliseconds the norms grow with ``powers`` [4, ...] of the phases."""
        sums = self.sums.reshape(4, *(1,) * (powers.ndim - 1))
        return np.asarray(self._norm(sums + powers) - self.base)

    def shared_ms(self) -> float:
        """Return milliseconds that all pay alike: sending, nodes' copies beside the slowest rank, sums, all-reduce."""
        state, links = self.state, self.links
        local, nodes, world = state.local, state.nodes, state.world
        received, returned = float(self.received.max()), float(self.returned.max())
        columns = float(self.columns.max()) * state.sample_bytes

        def beside(own: float, copies: float, crossed: float) -> float:
            intra, inter = (local - 1) * own * links.intra, (world - local) * own * links.inter + crossed
            return max(intra + (local - 1) * copies * links.intra, inter) - max(intra, inter)

        now, norms = self._shared(), self._norms(self.sums)
        found = now.sources + now.rows + beside(received, state.node_received, 0.0)
        found += 2.0 * beside(returned, state.node_returned, (nodes - 1) * columns * links.inter)
        payload = state.world_columns * world * state.sample_bytes
        in_node = state.copied_columns * local * state.sample_bytes
        inside, across = (payload + in_node) * (local - 1) / local, payload / local * (nodes - 1) / nodes
        found += 2.0 * max(inside * links.intra, across * links.inter) + (inside + across) * links.added
        # Against what the norms already take off.
        return float(found + self._hidden(norms, self.shared) - self._hidden(norms, now))

    def _shared(self) -> Shared:
        state, links = self.state, self.links
        weights = 2.0 * links.weight_bytes

        def rows_ms(copied: float) -> float:
            each = weights * state.replicated_weights / state.local
            across = (each + weights * copied) * (state.nodes - 1) / state.nodes
            return max(each * (state.local - 1) * links.intra, across * links.inter)

        return Shared(state.sources_ms, rows_ms(state.copied_weights), rows_ms(0.0), state.returning_ms())

    def alike_ms(self, form: Form) -> float:
        """Return milliseconds that all devices pay alike for a form: to send lookups, and for pieces that all have."""
        pieces = [piece for group in form for piece in group if piece.scope >= Holders.WORLD]
        sources = sum(piece.sources for group in form for piece in group if piece.scope < Holders.WORLD)
        if not pieces:
            return sources
        before = self.shared_ms()
        for piece in pieces:
            self.state.add(piece, 0)
        after = self.shared_ms()
        for piece in pieces:
            self.state.add(piece, 0, -1)
        return after - before + sources

    def calls_ms(self, kinds: frozenset[tuple[Holders, int]]) -> float:
        """Return milliseconds of the calls that would be new with these kinds."""
        new = {kind for kind in kinds if not self.state.kinds[kind]}
        if not new:
            return 0.0
        before = self.state.latencies_ms()
        self.state.kinds.update(new)
        after = self.state.latencies_ms()
        self.state.kinds.subtract(new)
        return after - before

    def _full(self, sums: Sums, taken: Floats | None) -> Bools:
        """Return True for the places that have no room, [places]."""
        state = self.state
        held = state.held if taken is None else state.held + taken
        full = (held + sums.held[:, None] > state.capacity).any(axis=0)
        if sums.scope is Holders.NODE:
            return np.asarray(full.reshape(state.nodes, -1).any(axis=1))
        return full if sums.scope is Holders.RANK else np.asarray(full.any(keepdims=True))

    def parcel(self, sums: Sums) -> Floats:
        """Return what a group of one device or node adds to a device that has it, [PARCEL]."""
        on_rank = sums.scope is Holders.RANK
        returned = sums.returned + sums.pooled * self.state.sample_bytes * on_rank
        return np.concatenate([sums.numbers, [sums.received, returned, sums.pooled * (not on_rank)], sums.held])

    def parcels_ms(self, parcels: Floats) -> Floats:
        """Return milliseconds of forward, backward, input and output of parcels, without launches, [4, parcels]."""
        forward, backward = self.state.kernels.work_ms(parcels[:, :NUMBERS])
        received, returned, columns = parcels[:, NUMBERS : NUMBERS + 3].T
        output = returned * self._pairs + columns * (self._crossed + self._scattered)
        return np.stack([forward, backward, received * self._pairs, output])

    def roughly(self, of: int, places: Ints, own: Floats, given: Floats, devices: int) -> Floats:
        """Return roughly how much norms grow if place ``of`` swaps ``own`` for ``given`` of ``places``, [own, given].

        ``own`` [4, own] and ``given`` [4, given] are phases in ms, which are taken to add up, although caches and
        dispatch do not let them. Places are groups of so many ``devices``.
        """
        power = 12 << self.doublings
        steep = np.maximum(self.sums / self.state.world, 1e-300) ** (1.0 / power - 1.0) / self.state.world
        steep = steep * self.weights * self.scale / power
        moved = own[:, :, None] - given[:, None]
        found = np.zeros(moved.shape[1:])
        for device in range(devices):
            here, there = of * devices + device, places * devices + device
            left = self._power(np.maximum(self.phases[:, here, None, None] - moved, 0.0))
            grown = left + self._power(np.maximum(self.phases[:, None, there] + moved, 0.0))
            found += np.tensordot(steep, grown, axes=1)
            found -= steep @ (self.powers[:, there] + self.powers[:, here, None])
        return found

    def exchanged(self, of: int, places: Ints, delta: Floats, devices: int) -> Floats:
        """Return how much the norms grow if place ``of`` gets ``delta`` more and ``places`` as much less, [candidates].

        ``delta`` [candidates, PARCEL] are differences of parcels. The norms grow infinitely where there is no room.
        """
        state, changes = self.state, np.zeros((4, len(places)))
        # Parcels of nodes are those of their fullest devices, which two tables have on different ones.
        capacity = state.capacity - (self._slack if devices > 1 else 0.0)
        for whose, sign in ((np.full(len(places), of), 1.0), (places, -1.0)):
            for device in range(devices):
                at = whose * devices + device
                new = self._phases(
                    self.load[at] + sign * delta[:, :NUMBERS],
                    self.received[at] + sign * delta[:, NUMBERS],
                    self.returned[at] + sign * delta[:, NUMBERS + 1],
                    self.columns[at] + sign * delta[:, NUMBERS + 2],
                )
                room = (state.held[:, at] + sign * delta[:, NUMBERS + 3 :].T <= capacity).all(axis=0)
                changes += np.where(room, self._power(new) - self.powers[:, at], np.inf)
        return np.asarray(self._norm(self.sums[:, None] + changes) - self.base)

    def _power(self, values: Floats) -> Floats:
        """Raise ``values`` to the norm's power by products: a general power takes as long as all the rest."""
        largest = 10.0 ** (LARGEST_EXPONENT / (12 << self.doublings))
        values = np.minimum(values / self.scale.reshape(-1, *(1,) * (values.ndim - 1)), largest)
        fourth = (values * values) ** 2
        found = fourth * fourth * fourth
        for _ in range(self.doublings):
            found = found * found
        return np.asarray(found)
