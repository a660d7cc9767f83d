"""Bytes of one collective, by rank and link.

Bytes are algorithmic: what a rank sends to *other* ranks. Reductions are counted as two-level
(inside the node, then across nodes between equal local ranks), whose total equals the ring's,
(W-1)/W of the payload for a reduce-scatter or an all-gather and twice that for an all-reduce.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from shardbench.base.arrays import Floats, zeros
from shardbench.model.machine import Topology


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Bytes each rank sends to and receives from other ranks, inside its node and across; [world]."""

    sent_intra: Floats
    sent_inter: Floats
    received_intra: Floats
    received_inter: Floats
    calls: float = 1.0
    """Collectives over the whole world that follow one another; each waits for its latency."""
    node_calls: float = 0.0
    """The same inside each node."""

    @classmethod
    def zeros(cls, n: int) -> "Collective":
        """Nothing sent."""
        none = [zeros(n) for _ in BYTES]
        return cls(sent_intra=none[0], sent_inter=none[1], received_intra=none[2], received_inter=none[3], calls=0.0)

    @property
    def sent(self) -> Floats:
        """Bytes sent, both links."""
        return self.sent_intra + self.sent_inter

    def __add__(self, other: "Collective") -> "Collective":
        return Collective(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def called(self, world: float, node: float = 0.0) -> "Collective":
        """The same bytes in that many collectives."""
        return replace(self, calls=world, node_calls=node)


BYTES = ("sent_intra", "sent_inter", "received_intra", "received_inter")
"""Fields that hold bytes, [world]."""


def pairwise(sent: Floats, topology: Topology) -> Collective:
    """All-to-all in which rank s sends ``sent[s, r]`` bytes to rank r; what stays on a rank is free."""
    nodes, local = topology.nodes, topology.devices_per_node
    away = sent.copy()
    np.fill_diagonal(away, 0.0)
    blocks = away.reshape(nodes, local, nodes, local)
    # [node, local] of what stays in the node, sent and received.
    inside = np.einsum("nlnm->nlm", blocks)
    sent_intra, received_intra = inside.sum(axis=2).ravel(), inside.sum(axis=1).ravel()
    return Collective(
        sent_intra=sent_intra,
        sent_inter=away.sum(axis=1) - sent_intra,
        received_intra=received_intra,
        received_inter=away.sum(axis=0) - received_intra,
    )


def _both_ways(intra: Floats, inter: Floats) -> Collective:
    return Collective(sent_intra=intra, sent_inter=inter, received_intra=intra, received_inter=inter)


def world_reduction(payload: float, passes: float, topology: Topology) -> Collective:
    """Reduction over all ranks of ``payload`` bytes on each: 1 pass (scatter, gather) or 2 (all-reduce)."""
    nodes, local, world = topology.nodes, topology.devices_per_node, topology.world_size
    intra = np.full(world, passes * payload * (local - 1) / local)
    inter = np.full(world, passes * payload / local * (nodes - 1) / nodes)
    return _both_ways(intra, inter)


def node_reduction(payload: Floats, topology: Topology) -> Collective:
    """Reduce-scatter or all-gather inside each node; ``payload`` [nodes] bytes on each of its ranks."""
    local = topology.devices_per_node
    intra = np.repeat(np.asarray(payload, dtype=np.float64), local) * (local - 1) / local
    return _both_ways(intra, zeros(topology.world_size))


def cross_all_reduce(payload: float, topology: Topology) -> Collective:
    """All-reduce of ``payload`` bytes between the equal local ranks of all nodes."""
    nodes, world = topology.nodes, topology.world_size
    return _both_ways(zeros(world), np.full(world, 2.0 * payload * (nodes - 1) / nodes))
