"""Rates places: how much the step would grow, in a norm that sees more than the slowest device."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints

from .contributions import WEIGHTS, Links
from .pieces import NUMBERS, Holders, TablePiece
from .state import Ms, PlanState

DOUBLINGS = (0, 2, 4)
"""How often the power 12 of the norms that stand for the slowest device's time is doubled: from a norm that sees all
devices to one that follows the slowest."""
PROMISING = 32
"""Places of a group that are rated exactly, where there are more: those where the norms grow least to first order."""
LARGEST_EXPONENT = 150
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
        self.load = state.load + self.ahead[:NUMBERS, None]
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
        power = 12 << self.doublings
        steep = np.maximum(self.sums / state.world, 10.0**-LARGEST_EXPONENT) ** (1.0 / power - 1.0) / state.world
        self.steep = steep * self.weights * self.scale / power
        """Milliseconds by which a little more of each phase's sum of powers makes the norms grow, [4]."""

    def _phases(self, load: Floats, received: Floats, returned: Floats, columns: Floats) -> Floats:
        """Return milliseconds of devices' forward, backward, input and output, [4, ...]."""
        forward, backward = self.state.kernels.times_ms(load)
        output = returned * self._pairs + columns * (self._crossed + self._scattered)
        return np.stack([forward, backward, received * self._pairs, output])

    def _norms(self, sums: Floats) -> Floats:
        norms = np.maximum(sums / self.state.world, 0.0) ** (1.0 / (12 << self.doublings))
        return np.asarray(norms * self.scale.reshape(-1, *(1,) * (norms.ndim - 1)))

    def _norm(self, sums: Floats) -> Floats:
        return self._sum(self._norms(sums))

    def _sum(self, norms: Floats) -> Floats:
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
        steps = [float(self._sum(norms + little * one)) for one in np.eye(4)]
        paid: Floats = np.maximum((np.array(steps) - self.base) / little, 0.0)
        return paid

    def rate(self, parcels: Floats, scope: Holders, *, everywhere: bool = False) -> tuple[Floats, Floats]:
        """Return how much groups of a scope make the norms grow, [groups, places], and the powers, [4, groups, places].

        ``parcels`` are [groups, PARCEL]. The norms grow infinitely where there is no room, and where they grow by
        more than in ``PROMISING`` places to first order, unless all are rated ``everywhere``. Norms of powers are
        concave: several groups add ``grown`` of the sum of their powers, not the sum of their norms.
        """
        state = self.state
        received, returned, columns = parcels[:, NUMBERS : NUMBERS + 3].T[:, :, None]
        new = self._phases(
            self.load[:, None] + parcels[:, :NUMBERS].T[:, :, None],
            self.received + received,
            self.returned + returned,
            self.columns + columns,
        )
        powers = self._power(new) - self.powers[:, None]
        if scope is Holders.NODE:
            powers = powers.reshape(4, -1, state.nodes, state.local).sum(axis=3)
        elif scope is not Holders.RANK:
            powers = powers.sum(axis=2, keepdims=True)
        full = self._full(parcels[:, NUMBERS + 3 :], scope)
        if everywhere or powers.shape[2] <= PROMISING:
            rates = self.grown(powers)
        else:
            rough = np.where(full, np.inf, np.tensordot(self.steep, powers, axes=1))
            best = np.argpartition(rough, PROMISING, axis=1)[:, :PROMISING]
            rates = np.full_like(rough, np.inf)
            np.put_along_axis(rates, best, self.grown(np.take_along_axis(powers, best[None], axis=2)), axis=1)
        return np.where(full, np.inf, rates), powers

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
        ms = now.sources + now.rows + beside(received, state.node_received, 0.0)
        ms += 2.0 * beside(returned, state.node_returned, (nodes - 1) * columns * links.inter)
        payload = state.world_columns * world * state.sample_bytes
        in_node = state.copied_columns * local * state.sample_bytes
        inside, across = (payload + in_node) * (local - 1) / local, payload / local * (nodes - 1) / nodes
        ms += 2.0 * max(inside * links.intra, across * links.inter) + (inside + across) * links.added
        # Against what the norms already take off.
        return float(ms + self._hidden(norms, self.shared) - self._hidden(norms, now))

    def _shared(self) -> Shared:
        state, links = self.state, self.links
        weights = 2.0 * links.weight_bytes

        def rows_ms(copied: float) -> float:
            each = weights * state.replicated_weights / state.local
            across = (each + weights * copied) * (state.nodes - 1) / state.nodes
            return max(each * (state.local - 1) * links.intra * links.switched, across * links.inter)

        return Shared(state.sources_ms, rows_ms(state.copied_weights), rows_ms(0.0), state.returning_ms())

    def alike_ms(self, pieces: Sequence[TablePiece]) -> float:
        """Return milliseconds that all devices pay alike for pieces that all have."""
        if not pieces:
            return 0.0
        before = self.shared_ms()
        for piece in pieces:
            self.state.share(piece)
        after = self.shared_ms()
        for piece in pieces:
            self.state.share(piece, -1)
        return after - before

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

    def _full(self, more_bytes: Floats, scope: Holders) -> Bools:
        """Return True for the places that have no room for ``more_bytes`` [groups, tiers], [groups, places]."""
        state = self.state
        places = {Holders.RANK: state.world, Holders.NODE: state.nodes}.get(scope, 1)
        if self.roomy(more_bytes.max(axis=0)):
            return np.zeros((1, places), dtype=np.bool_)
        full = (state.held_bytes + more_bytes[:, :, None] > state.capacity).any(axis=1)
        return np.asarray(full.reshape(len(more_bytes), places, -1).any(axis=2))

    def roomy(self, more_bytes: Floats) -> bool:
        """Tell whether every device has room for so many bytes more, [tiers]."""
        return bool((self.state.held_bytes.max(axis=1) + more_bytes <= self.state.capacity[:, 0]).all())

    def parcels_ms(self, parcels: Floats) -> Floats:
        """Return milliseconds of forward, backward, input and output of parcels, without launches, [4, parcels]."""
        forward, backward = self.state.kernels.work_ms(parcels[:, :NUMBERS])
        received, returned, columns = parcels[:, NUMBERS : NUMBERS + 3].T
        output = returned * self._pairs + columns * (self._crossed + self._scattered)
        return np.stack([forward, backward, received * self._pairs, output])

    def roughly(self, of: int, places: Ints, own: Floats, others: Floats, devices: int) -> Floats:
        """Return roughly how much norms grow if place ``of`` swaps ``own`` for ``others`` of ``places``, [own, others].

        ``own`` [4, own] and ``others`` [4, others] are phases in ms, which are taken to add up, although caches and
        dispatch do not let them. Places are groups of so many ``devices``.
        """
        moved = own[:, :, None] - others[:, None]
        growth = np.zeros(moved.shape[1:])
        for device in range(devices):
            own_devices, other_devices = of * devices + device, places * devices + device
            own_power = self._power(np.maximum(self.phases[:, own_devices, None, None] - moved, 0.0))
            grown = own_power + self._power(np.maximum(self.phases[:, None, other_devices] + moved, 0.0))
            growth += np.tensordot(self.steep, grown, axes=1)
            growth -= self.steep @ (self.powers[:, other_devices] + self.powers[:, own_devices, None])
        return growth

    def fits(self, of: int, places: Ints, own: Floats, others: Floats, devices: int) -> Bools:
        """Tell where place ``of`` has room for ``others``, not ``own``, and ``places`` for the reverse, [own, others].

        ``own`` [own, tiers] and ``others`` [others, tiers] are bytes. Places are groups of so many ``devices``.
        """
        state, fitting = self.state, np.ones((len(own), len(others)), dtype=np.bool_)
        room = state.capacity - (self._slack if devices > 1 else 0.0)
        room = room - state.held_bytes.reshape(len(room), -1, devices).max(axis=2)
        for tier in np.flatnonzero((others.max(axis=0) > 0.0) | (own.max(axis=0) > 0.0)):
            more = others[:, tier] - own[:, tier, None]
            fitting &= more <= room[tier, of]
            fitting &= more >= -room[tier, places]
        return fitting

    def exchange_growth(self, of: int, places: Ints, delta: Floats, devices: int) -> Floats:
        """Return how much the norms grow if place ``of`` gets ``delta`` more and ``places`` as much less, [candidates].

        ``delta`` [candidates, PARCEL] are differences of parcels. The norms grow infinitely where there is no room.
        """
        state, changes = self.state, np.zeros((4, len(places)))
        # Parcels of nodes are those of their fullest devices, which two tables have on different ones.
        capacity = state.capacity - (self._slack if devices > 1 else 0.0)
        for side, sign in ((np.full(len(places), of), 1.0), (places, -1.0)):
            for device in range(devices):
                at = side * devices + device
                new = self._phases(
                    self.load[:, at] + sign * delta[:, :NUMBERS].T,
                    self.received[at] + sign * delta[:, NUMBERS],
                    self.returned[at] + sign * delta[:, NUMBERS + 1],
                    self.columns[at] + sign * delta[:, NUMBERS + 2],
                )
                room = (state.held_bytes[:, at] + sign * delta[:, NUMBERS + 3 :].T <= capacity).all(axis=0)
                changes += np.where(room, self._power(new) - self.powers[:, at], np.inf)
        return np.asarray(self._norm(self.sums[:, None] + changes) - self.base)

    def _power(self, values: Floats) -> Floats:
        """Raise ``values`` to the norm's power by products: a general power takes as long as all the rest."""
        largest = 10.0 ** (LARGEST_EXPONENT / (12 << self.doublings))
        values = np.minimum(values / self.scale.reshape(-1, *(1,) * (values.ndim - 1)), largest)
        fourth = (values * values) ** 2
        powers = fourth * fourth * fourth
        for _ in range(self.doublings):
            powers = powers * powers
        return np.asarray(powers)
