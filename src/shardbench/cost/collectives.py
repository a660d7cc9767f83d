"""The collectives of a step: their names, their bytes by rank and link, and the time they take.

Bytes are algorithmic: what a rank sends to *other* ranks. Reductions are counted as two-level
(inside the node, then across nodes between equal local ranks), whose total equals the ring's,
(W-1)/W of the payload for a reduce-scatter or an all-gather and twice that for an all-reduce.
Time is latency a call + bytes over the slower link, done when the slowest rank is. What nccl does otherwise on GPUs, in
all-reduces and where a graph calls it, is in ``all_reduce_latencies_s``, ``switched_ratio`` and ``captured``.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats, Ints, zeros
from shardbench.model.machine import Constants, Machine, Topology


class CollectiveName(StrEnum):
    """The names of a step's collectives, in the order of the step."""

    INPUT_SPLITS = "input_splits"
    INPUT_ALL_TO_ALL = "input_all_to_all"
    OUTPUT_ALL_TO_ALL = "output_all_to_all"
    OUTPUT_REDUCE_SCATTER = "output_reduce_scatter"
    BACKWARD_ALL_TO_ALL = "backward_all_to_all"
    BACKWARD_ALL_GATHER = "backward_all_gather"
    ROWS_SPLITS = "rows_splits"
    """The numbers of rows that each rank touched, sent before hot mini-batches of a batch schedule gather the rows."""
    ROWS_ALL_REDUCE = "rows_all_reduce"
    DENSE_ALL_REDUCE = "dense_all_reduce"


RING_CALLS = 4.0
"""Exchanges that nccl's all-reduce in a node waits for: its rings' steps follow one another, an exchange's do not."""
ALL_REDUCES = (CollectiveName.ROWS_ALL_REDUCE, CollectiveName.DENSE_ALL_REDUCE)
EXCHANGES = tuple(name for name in CollectiveName if name not in (*ALL_REDUCES, CollectiveName.ROWS_SPLITS))
"""The collectives that exchange lookups, vectors or their gradients."""


class Calls(NamedTuple):
    """Collectives by who takes part; those of one name follow one another and each waits for its latency."""

    world: float = 0.0
    """Calls over all ranks."""
    node: float = 0.0
    """Calls inside each node."""
    cross: float = 0.0
    """Calls between the equal local ranks of all nodes."""
    inner: float = 0.0
    """Calls of other groups, each inside a node."""
    outer: float = 0.0
    """Calls of other groups, which span nodes."""
    peers: float = 0.0
    """Ranks that one rank meets in the calls of other groups, added up over these calls."""

    def times(self, number: float) -> "Calls":
        """Return each of the calls that often."""
        return Calls(*(number * calls for calls in self))

    def plus(self, other: "Calls") -> "Calls":
        """Return these calls and those."""
        return Calls(*(a + b for a, b in zip(self, other)))


def grouped(topology: Topology, world: int, node: int = 0, cross: int = 0) -> Calls:
    """Return calls by the ranks that really meet: a group of one rank calls nothing, one of all is the world."""
    nodes, devices = topology.nodes > 1, topology.devices_per_node > 1
    if nodes and devices:
        return Calls(world, node, cross)
    return Calls(world=(world + node) * devices + (world + cross) * nodes)


def group_calls(groups: Ints, topology: Topology) -> Calls:
    """Return one call of each of some groups, [groups, ranks], side by side: a group of one rank calls nothing.

    A group of all ranks is the world, one of a whole node a node, one of a rank of every node across.
    """
    size, nodes = groups.shape[1], groups // topology.devices_per_node
    if size == 1:
        return Calls()
    if size == topology.world_size:
        return Calls(world=1)
    inside = (nodes == nodes[:, :1]).all()
    if inside and size == topology.devices_per_node:
        return Calls(node=1)
    if size == topology.nodes and (np.diff(np.sort(nodes, axis=1), axis=1) > 0).all():
        return Calls(cross=1)
    return Calls(inner=int(inside), outer=int(not inside), peers=size - 1)


ONE = Calls(world=1.0)
"""One collective over all ranks."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Bytes each rank sends to and receives from other ranks, inside its node and across; [..., world]."""

    sent_intra: Floats
    sent_inter: Floats
    received_intra: Floats
    received_inter: Floats
    calls: Calls = ONE

    @classmethod
    def zeros(cls, n: int) -> "Collective":
        """Return a collective of ``n`` ranks that sends nothing."""
        return cls(
            sent_intra=zeros(n), sent_inter=zeros(n), received_intra=zeros(n), received_inter=zeros(n), calls=Calls()
        )  # fmt: skip

    @property
    def sent(self) -> Floats:
        """Bytes that each rank sends over both links, [..., world]."""
        return self.sent_intra + self.sent_inter

    def __add__(self, other: "Collective") -> "Collective":
        return Collective(
            sent_intra=self.sent_intra + other.sent_intra,
            sent_inter=self.sent_inter + other.sent_inter,
            received_intra=self.received_intra + other.received_intra,
            received_inter=self.received_inter + other.received_inter,
            calls=self.calls.plus(other.calls),
        )

    def called(self, calls: Calls) -> "Collective":
        """Return the same bytes, sent in these calls."""
        return replace(self, calls=calls)


def pairwise(sent: Floats, topology: Topology) -> Collective:
    """Return the all-to-all in which rank s sends ``sent[s, r]`` bytes to rank r; what stays on a rank is free."""
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
    """Return reduction over all ranks of ``payload`` bytes on each, in 1 pass (scatter, gather) or 2 (all-reduce)."""
    nodes, local, world = topology.nodes, topology.devices_per_node, topology.world_size
    intra = np.full(world, passes * payload * (local - 1) / local)
    inter = np.full(world, passes * payload / local * (nodes - 1) / nodes)
    return _both_ways(intra, inter)


def node_reduction(payload: Floats, topology: Topology) -> Collective:
    """Return the reduce-scatter or all-gather inside each node of ``payload`` [nodes] bytes on each of its ranks."""
    local = topology.devices_per_node
    intra = np.repeat(np.asarray(payload, dtype=np.float64), local) * (local - 1) / local
    return _both_ways(intra, zeros(topology.world_size))


def group_reduction(payload: Floats, passes: float, groups: Ints, topology: Topology) -> Collective:
    """Return the reduction inside each of some groups, [groups, ranks], of ``payload`` bytes by rank, [world].

    The payload of a group's ranks is equal; passes are as in ``world_reduction``. A rank first reduces with those of
    its group in its node, and then the part that is left to it with other nodes'.
    """
    nodes, size = groups // topology.devices_per_node, groups.shape[1]
    beside, bytes_ = np.ones(topology.world_size), passes * payload
    beside[groups] = (nodes[:, :, None] == nodes[:, None, :]).sum(axis=2)
    return _both_ways(bytes_ * (1.0 - 1.0 / beside), bytes_ * (1.0 / beside - 1.0 / size))


def cross_all_reduce(payload: float, topology: Topology) -> Collective:
    """Return the all-reduce between equal local ranks of all nodes of ``payload`` bytes on each."""
    world, nodes = topology.world_size, topology.nodes
    return _both_ways(zeros(world), np.full(world, 2.0 * payload * (nodes - 1) / nodes))


def latencies_s(machine: Machine) -> Calls:
    """Return the seconds that one call of each kind costs whatever its bytes."""
    constants, topology = machine.constants, machine.topology
    across = constants.inter_latency_s if topology.nodes > 1 else constants.intra_latency_s

    def latency(first: float, ranks: int) -> float:
        return first + constants.peer_latency_s * (ranks - 1)

    return Calls(
        world=latency(across, topology.world_size),
        node=latency(constants.intra_latency_s, topology.devices_per_node),
        cross=latency(across, topology.nodes),
        inner=constants.intra_latency_s,
        outer=across,
        peers=constants.peer_latency_s,
    )


def all_reduce_latencies_s(machine: Machine) -> Calls:
    """Return the seconds that one all-reduce of each kind costs whatever its bytes.

    On CPU ranks they are any collective's. nccl goes round rings inside a node, and along a tree of the nodes from its
    leaves to its root and back: what a rank waits for grows with the logarithm of the nodes.
    """
    exchange = latencies_s(machine)
    if machine.device == "cpu":
        return exchange
    constants, topology = machine.constants, machine.topology
    ring = RING_CALLS * exchange.node if topology.devices_per_node > 1 else 0.0
    tree = 2.0 * math.log2(topology.nodes) * constants.inter_latency_s
    return Calls(
        world=ring + tree,
        node=ring,
        cross=tree,
        inner=RING_CALLS * exchange.inner,
        outer=RING_CALLS * constants.intra_latency_s + tree,
        peers=RING_CALLS * exchange.peers,
    )


def switched_ratio(machine: Machine) -> float:
    """Return the time of an all-reduce's bytes inside a node over that of a ring's, at most 1.

    Where the node's switches add up, each of n ranks sends them its P bytes, gets the sum of its n-th part and sends
    that to all: P (1 + 1 / n) each way, where a ring takes 2 P (1 - 1 / n). nccl takes what is faster.
    """
    local = machine.topology.devices_per_node
    if machine.nccl is None or machine.nccl.switch_ratio == 0.0 or local == 1:
        return 1.0
    return min(1.0, (local + 1) / (2.0 * (local - 1)) / machine.nccl.switch_ratio)


def captured(machine: Machine) -> Machine:
    """Return the machine as a recorded graph finds it: its collectives wait for no call of the host."""
    if machine.nccl is None:
        return machine
    constants, call_s = machine.constants, machine.nccl.call_s
    return replace(
        machine,
        constants=replace(
            constants,
            intra_latency_s=max(0.0, constants.intra_latency_s - call_s),
            inter_latency_s=max(0.0, constants.inter_latency_s - call_s),
        ),
    )


def bytes_s(intra: Floats | float, inter: Floats | float, constants: Constants) -> Floats:
    """Return the seconds of bytes inside the node and across, which travel at once: those of the slower link."""
    return np.maximum(intra / constants.intra_bytes_per_s, inter / constants.inter_bytes_per_s)


def moved(sent: Floats, received: Floats, *, duplex: bool) -> Floats:
    """Return the bytes that a rank's link is busy with: the larger of both ways, or their mean where it is one way.

    Devices send while they receive. On CPUs the core that copies a message out also copies one in, so that what a
    rank sends and receives adds up; the bandwidth is that of messages that are as many both ways.
    """
    return np.maximum(sent, received) if duplex else (sent + received) / 2.0


def ranks_s(collective: Collective, machine: Machine, *, duplex: bool = True, all_reduce: bool = False) -> Floats:
    """Return the seconds of the collectives of one name on each rank if it waited for no other, [..., world].

    Zero where no rank sends anything. Every call costs its latency; the bytes of all calls are one
    sum a rank, those of ``moved``. Latency + bytes / bandwidth is also the
    size-dependent efficiency: half of the bandwidth is reached at latency x bandwidth bytes. nccl sends
    a message in chunks, whose number trades the start of each against the wait for the first: that adds
    the geometric mean of both. Only groups that fill a node use its switches for an ``all_reduce``.
    """
    intra = moved(collective.sent_intra, collective.received_intra, duplex=duplex)
    inter = moved(collective.sent_inter, collective.received_inter, duplex=duplex)
    if all_reduce and not (collective.calls.inner or collective.calls.outer):
        intra = intra * switched_ratio(machine)
    latency_s = calls_latency_s(collective.calls, machine, all_reduce=all_reduce)
    moving = bytes_s(intra, inter, machine.constants)
    own = latency_s + moving + (np.sqrt(latency_s * moving) if machine.device == "cuda" else 0.0)
    return np.where((intra != 0).any(axis=-1, keepdims=True) | (inter != 0).any(axis=-1, keepdims=True), own, 0.0)


def calls_latency_s(calls: Calls, machine: Machine, *, all_reduce: bool = False) -> float:
    """Return the seconds that calls cost whatever they send."""
    latencies = all_reduce_latencies_s(machine) if all_reduce else latencies_s(machine)
    return sum(number * latency for number, latency in zip(calls, latencies))


def vectors_exchange_s(bag_bytes: Floats, machine: Machine) -> Floats:
    """Return the seconds of each device in the all-to-all of pooled vectors, as ``ranks_s``, [..., devices].

    ``bag_bytes`` [..., devices] are its tables' pooled vectors for the whole batch, of which a rank
    keeps its own samples' share.
    """
    world, local = machine.topology.world_size, machine.topology.devices_per_node
    everyone = bag_bytes.sum(axis=-1, keepdims=True)
    shape = (*bag_bytes.shape[:-1], machine.topology.nodes, local)
    node = np.repeat(bag_bytes.reshape(shape).sum(axis=-1), local, axis=-1)
    exchange = Collective(
        sent_intra=(local - 1) * bag_bytes / world,
        sent_inter=(world - local) * bag_bytes / world,
        received_intra=(node - bag_bytes) / world,
        received_inter=(everyone - node) / world,
    )
    return ranks_s(exchange, machine)


def waits_s(name: CollectiveName, collective: Collective, machine: Machine) -> Floats:
    """Return the seconds of the collectives of one name on each rank in a step, as ``ranks_s``, [world].

    On a machine of CPU ranks links are not duplex. A reduce-scatter adds up the vectors that arrive; an all-reduce of
    weights counts as its bytes alone.
    """
    seconds = ranks_s(collective, machine, duplex=machine.device != "cpu", all_reduce=name in ALL_REDUCES)
    if name is CollectiveName.OUTPUT_REDUCE_SCATTER:
        arrived = collective.received_intra + collective.received_inter
        seconds = seconds + arrived / machine.constants.reduce_bytes_per_s
    return seconds


def collective_s(collective: Collective, machine: Machine, *, all_reduce: bool = False) -> float:
    """Return the seconds of the collectives of one name over all ranks: those of the slowest rank."""
    return float(ranks_s(collective, machine, all_reduce=all_reduce).max())


def all_reduce_s(payload: float, machine: Machine) -> float:
    """Return the seconds of an all-reduce over all ranks of ``payload`` bytes on each."""
    return collective_s(world_reduction(payload, 2.0, machine.topology), machine, all_reduce=True)
