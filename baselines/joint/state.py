"""A plan as sums by device and by link, and its step: what a piece adds is added, never a whole plan counted."""

from collections import Counter
from copy import copy
from dataclasses import dataclass, fields

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import DECODE_BYTES, ENCODE_BYTES, SPLIT_BYTES
from shardbench.cost.bounds.step import dense_all_reduce_s, expected_dense_s
from shardbench.cost.collectives import (
    Calls,
    all_reduce_latencies_s,
    bytes_s,
    grouped,
    latencies_s,
    moved,
    switched_ratio,
)
from shardbench.cost.costmodel import hides_all_reduce
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape, Precision, StepSchedule

from .pieces import NUMBERS, Holders, PieceKernels, TablePiece

Ms = Floats | float
"""Milliseconds, of one plan or of many candidates."""


class Overlap:
    """What of a step goes on beside other phases: the cost model's rule, for sums and for arrays of candidates."""

    def __init__(self, problem: Problem, shape: DenseShape) -> None:
        self.hides = hides_all_reduce(problem.machine)
        self.pipelined = problem.schedule is StepSchedule.PIPELINED
        self.reduced_ms = 1e3 * dense_all_reduce_s(problem, shape)
        """Milliseconds of the all-reduce of the dense model's gradients."""
        self.dense_ms = 1e3 * expected_dense_s(problem, shape)

    @property
    def input_waits(self) -> bool:
        """True where the exchange of lookups may be hidden whole."""
        return self.pipelined and self.hides

    def hidden_reduced_ms(self, replicas: Ms, beside: Ms) -> Ms:
        """Return what of the all-reduces of ``replicas`` and of the dense model the backward pass hides."""
        return np.minimum(replicas + self.reduced_ms, beside) if self.hides else 0.0

    def hidden_input_ms(
        self, waits: Ms, sources: Ms, *, kernels: Ms, linked: Ms, hidden_reduced: Ms, called: float = 0.0
    ) -> Ms:
        """Return what a pipeline hides of the exchange of lookups, ``waits``, and of placing them, ``sources``.

        ``kernels`` are those of a step without the dense model's, ``linked`` its other exchanges and all-reduces of
        rows, ``called`` the part of ``waits`` that is latency.
        """
        if not self.pipelined:
            return 0.0
        busy, linked = kernels + self.dense_ms, linked + self.reduced_ms
        if not self.hides:
            return np.minimum(called, busy)
        step, ahead, idle = busy + linked - hidden_reduced, waits + sources, linked - hidden_reduced
        free = np.maximum(step - linked, 0.0)
        exposed = np.maximum(np.maximum(sources - idle, waits - free), np.maximum(ahead - step, 0.0))
        return ahead - exposed


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """Milliseconds of the phases that plans decide."""

    forward: float
    """Kernels of the rank that is busy longest, with what it puts in place around them, and all modules' calls."""
    backward: float
    input: float
    output: float
    """Exchanges of vectors in one direction; their gradients' take as long."""
    added: float
    """Sums of vectors that arrive in reduce-scatters, to which gradients have no like."""
    converted: tuple[float, float]
    """Conversions of vectors to the exchange's format and back, and of their gradients."""
    all_reduce: float
    hidden: float
    """What of the input, of the all-reduce and of that of the dense model goes on beside other phases."""

    @property
    def step_ms(self) -> float:
        """The step without the dense model's time and whole all-reduce, which are the same for every plan."""
        whole = self.forward + self.backward + self.input + 2.0 * self.output + self.added + self.all_reduce
        return whole + sum(self.converted) - self.hidden


@dataclass(kw_only=True, eq=False)
class Sums:
    """What the pieces of a plan add up to; a step follows from it."""

    load: Floats
    """The numbers of ``PieceKernels`` by device, [NUMBERS, world]."""
    received: Floats
    """Bytes of lookups that each rank sends to a device, [world]."""
    returned: Floats
    """Bytes of vectors that a device sends to each rank, [world]."""
    node_columns: Floats
    held_bytes: Floats
    """Bytes that devices hold, [tiers, world], HBM first."""
    kinds: Counter[tuple[Holders, int]]
    sources_ms: float = 0.0
    """Milliseconds in which each rank puts its lookups in place to send them."""
    node_received: float = 0.0
    node_returned: float = 0.0
    """Bytes to and from each device of the asking rank's node, for the copies of the nodes."""
    world_columns: float = 0.0
    copied_columns: float = 0.0
    replicated_weights: float = 0.0
    copied_weights: float = 0.0


class PlanState(Sums):
    """Sums over the pieces that are placed, for one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.topology, self.machine = problem, problem.topology, problem.machine
        self.constants = problem.machine.constants
        self.world, self.local = self.topology.world_size, self.topology.devices_per_node
        self.nodes = self.topology.nodes
        super().__init__(
            load=np.zeros((NUMBERS, self.world)),
            received=np.zeros(self.world),
            returned=np.zeros(self.world),
            node_columns=np.zeros(self.nodes),
            held_bytes=np.zeros((2, self.world)),
            kinds=Counter(),
        )
        self.sample_bytes = problem.batch_size // self.world * problem.exchange.bytes
        self.latency, self.reduced_latency = latencies_s(problem.machine), all_reduce_latencies_s(problem.machine)
        self.switched = switched_ratio(problem.machine)
        self.kernels, self.overlap = PieceKernels(self.constants), Overlap(problem, problem.dense or DenseShape())
        self.capacity: Floats = np.array([[self.topology.hbm_bytes], [self.topology.uvm_bytes]], dtype=np.float64)
        self._calls: dict[tuple[frozenset[tuple[Holders, int]], bool], tuple[Calls, Calls, Calls, Calls]] = {}

    def with_sums(self, sums: Sums) -> "PlanState":
        """Return the state of this problem with a copy of the sums of a plan."""
        state = copy(self)
        vars(state).update({field.name: copy(getattr(sums, field.name)) for field in fields(Sums)})
        return state

    @property
    def whole_ms(self) -> float:
        """Milliseconds of the whole step that the cost model predicts, the dense model included."""
        step_ms = self.times().step_ms + self.overlap.reduced_ms + self.overlap.dense_ms
        return max(step_ms, 1e3 * self.constants.step_floor_s)

    def ranks(self, piece: TablePiece, place: int) -> slice:
        """Return a piece's devices; ``place`` is a rank or a node, and means nothing for a piece of all devices."""
        return self.devices(piece.scope, place)

    def devices(self, scope: Holders, place: int) -> slice:
        """Return the devices of a place of a scope."""
        if scope is Holders.RANK:
            return slice(place, place + 1)
        if scope is Holders.NODE:
            return slice(place * self.local, (place + 1) * self.local)
        return slice(0, self.world)

    def add(self, piece: TablePiece, place: int, sign: int = 1) -> None:
        """Put a piece at a place, or take it away with ``sign`` -1."""
        at = self.ranks(piece, place)
        self.load[:, at] += sign * piece.numbers[:, None]
        held_bytes = np.tile(piece.held_bytes, self.nodes) if piece.scope is Holders.NODES else piece.held_bytes
        self.held_bytes[:, at] += sign * held_bytes
        self.share(piece, sign)
        if piece.scope <= Holders.WORLD:
            self.received[at] += sign * piece.received
            self.returned[at] += sign * piece.returned
        if piece.scope is Holders.RANK:
            self.returned[at] += sign * piece.pooled * self.sample_bytes
        elif piece.scope is Holders.NODE:
            self.node_columns[place] += sign * piece.pooled

    def share(self, piece: TablePiece, sign: int = 1) -> None:
        """Put a piece, or with ``sign`` -1 take it away, as far as all devices pay alike for it."""
        self.kinds[piece.scope, piece.module] += sign
        self.sources_ms += sign * piece.sources
        if piece.scope is Holders.COPIES:
            self.replicated_weights += sign * piece.weights
        elif piece.scope is Holders.NODES:
            self.node_received += sign * piece.received
            self.node_returned += sign * piece.returned
            self.copied_columns += sign * piece.pooled
            self.copied_weights += sign * piece.weights
        elif piece.scope is Holders.WORLD:
            self.world_columns += sign * piece.pooled

    def calls(self) -> tuple[Calls, Calls, Calls, Calls]:
        """Return calls that exchange lookups, return vectors, return sums and all-reduce rows, as in ``Account``."""
        present = frozenset(kind for kind, number in self.kinds.items() if number > 0)
        key = present, self.copied_weights > 0
        if key not in self._calls:
            self._calls[key] = self._calls_of(*key)
        return self._calls[key]

    def _calls_of(self, present: frozenset[tuple[Holders, int]], copied: bool) -> tuple[Calls, Calls, Calls, Calls]:
        def number(*scopes: Holders, pooled: bool | None = None) -> int:
            return sum(scope in scopes and pooled in (None, module == 0) for scope, module in present)

        rank, node, world, nodes, copies = Holders
        topology = self.topology
        return (
            grouped(topology, number(rank, node, world), number(nodes)),
            grouped(topology, number(rank) + number(world, pooled=False), number(nodes, pooled=False), number(node)),
            grouped(topology, number(world, pooled=True), number(node, nodes, pooled=True)),
            grouped(topology, number(copies), cross=int(copied)),
        )

    def _wait_s(
        self, calls: Calls, intra: Floats | float, inter: Floats | float, latency: Calls | None = None
    ) -> float:
        """Return seconds of a collective whose slowest rank moves so many bytes by link; zero if nothing is sent."""
        if not np.any(intra) and not np.any(inter):
            return 0.0
        waited = _called_s(calls, latency or self.latency)
        moving = float(np.max(bytes_s(intra, inter, self.constants)))
        return waited + moving + ((waited * moving) ** 0.5 if self.machine.device == "cuda" else 0.0)

    def _calls_s(self, calls: Calls) -> float:
        return _called_s(calls, self.latency)

    def latencies_ms(self) -> float:
        """Return the milliseconds of all modules and calls of a step whatever they send, if each sends something.

        A pipeline is taken to hide those that exchange lookups.
        """
        lookups, vectors, sums, reduced = self.calls()
        exchanges = (lookups.times(3 * (not self.overlap.pipelined)), vectors.times(2), sums.times(2))
        waited = sum(self._calls_s(calls) for calls in exchanges) + _called_s(reduced, self.reduced_latency)
        return 1e3 * (waited + self._modules_s())

    def returning_ms(self) -> float:
        """Return the milliseconds of the calls that return vectors, or bring their gradients, whatever they send."""
        _, vectors, sums, _ = self.calls()
        return 1e3 * (self._calls_s(vectors) + self._calls_s(sums))

    def _modules_s(self) -> float:
        """Return the seconds of the host's calls of modules, one a sharding type."""
        return self.constants.module_s * sum(number > 0 for number in self.kinds.values())

    def times(self) -> PhaseTimes:
        """Return the phases of the step, exactly as the cost model expects them."""
        forward, backward = self.kernels.times_ms(np.maximum(self.load, 0.0))
        lookups, vectors, sums, reduced = self.calls()
        summed_s, added_s = self._sums_s(sums)
        splits_s, input_s, rows_s = self._splits_s(lookups), self._input_s(lookups), self._rows_s(reduced)
        output, busy = 1e3 * (self._vectors_s(vectors) + summed_s), float(backward.max())
        converted = self._converted_ms()
        on_modules = float(forward.max()) + 1e3 * self._modules_s()
        called = 1e3 * (self._calls_s(lookups) * (splits_s > 0.0) + self._calls_s(lookups.times(2)) * (input_s > 0.0))
        replicas = 1e3 * self._rows_s(self.replica_calls(), copied=False)
        reduced_ms = self.overlap.hidden_reduced_ms(replicas, busy + output + converted[1])
        linked = 2.0 * output + 1e3 * (added_s + rows_s)
        ahead, kernels = 1e3 * (splits_s + input_s), on_modules + busy + sum(converted)
        input_ms = self.overlap.hidden_input_ms(
            ahead, self.sources_ms, kernels=kernels, linked=linked, hidden_reduced=reduced_ms, called=called
        )
        return PhaseTimes(
            forward=on_modules,
            backward=busy,
            input=ahead + self.sources_ms,
            output=output,
            added=1e3 * added_s,
            converted=converted,
            all_reduce=1e3 * rows_s,
            hidden=float(reduced_ms + input_ms),
        )

    def _splits_s(self, calls: Calls) -> float:
        exchanges = [scope for (scope, _), n in self.kinds.items() if n > 0 and scope is not Holders.COPIES]
        in_node = exchanges.count(Holders.NODES)
        everywhere = len(exchanges) - in_node
        intra = SPLIT_BYTES * (self.local - 1) * (everywhere + in_node)
        return self._wait_s(calls, float(intra), float(SPLIT_BYTES * (self.world - self.local) * everywhere))

    def _moved(self, sent: Floats, received: Floats) -> Floats:
        return moved(sent, received, duplex=self.machine.device != "cpu")

    def _input_s(self, calls: Calls) -> float:
        by_node = self.received.reshape(self.nodes, self.local).sum(axis=1).repeat(self.local)
        copies = (self.local - 1) * self.node_received
        intra = self._moved(by_node - self.received, (self.local - 1) * self.received) + copies
        inter = self._moved(self.received.sum() - by_node, (self.world - self.local) * self.received)
        return self._wait_s(calls.times(2), _clean(intra), _clean(inter))

    def _vectors_s(self, calls: Calls) -> float:
        by_node = self.returned.reshape(self.nodes, self.local).sum(axis=1).repeat(self.local)
        own = self.node_columns.repeat(self.local) * self.sample_bytes
        copies = (self.local - 1) * self.node_returned
        intra = self._moved((self.local - 1) * self.returned, by_node - self.returned) + copies
        sent = (self.world - self.local) * self.returned + (self.nodes - 1) * own
        received = self.returned.sum() - by_node + self.node_columns.sum() * self.sample_bytes - own
        return self._wait_s(calls, _clean(intra), _clean(self._moved(sent, received)))

    def _sums_s(self, calls: Calls) -> tuple[float, float]:
        """Return seconds to exchange vectors that are summed, and to add up those that arrive."""
        payload = self.world_columns * self.world * self.sample_bytes
        in_node = (self.node_columns * self.world + self.copied_columns * self.local) * self.sample_bytes
        intra = _clean((payload + in_node) * (self.local - 1) / self.local)
        inter = payload / self.local * (self.nodes - 1) / self.nodes
        return self._wait_s(calls, intra, inter), (float(intra.max()) + inter) / self.constants.reduce_bytes_per_s

    def replica_calls(self) -> Calls:
        """Return the calls that all-reduce rows of which every device has a copy."""
        copies = sum(scope is Holders.COPIES and number > 0 for (scope, _), number in self.kinds.items())
        return grouped(self.topology, copies)

    def _converted_ms(self) -> tuple[float, float]:
        """Return milliseconds to convert vectors and gradients for their exchanges and back, as in ``Account``."""
        exchange, inside = self.problem.exchange, self.local > 1
        if exchange is Precision.FP32 or self.world == 1:
            return 0.0, 0.0
        across = self.node_columns * self.sample_bytes
        copies = self.local * self.node_returned * inside
        in_world = self.world_columns * self.world * self.sample_bytes
        in_node = (across * self.world + self.copied_columns * self.local * self.sample_bytes) * inside
        sent_bytes = self.world * self.returned + copies + in_world
        received_bytes = self.returned.sum() + copies + across.sum() + in_world / self.world
        encoded = sent_bytes + (in_node + self.nodes * across).repeat(self.local)
        decoded = received_bytes + (in_node / self.local).repeat(self.local)
        ways = (ENCODE_BYTES * encoded + DECODE_BYTES * decoded, DECODE_BYTES * encoded + ENCODE_BYTES * decoded)
        a_number_ms = 1e3 / (exchange.bytes * self.constants.vector_copy_bytes_per_s)
        return float(ways[0].max()) * a_number_ms, float(ways[1].max()) * a_number_ms

    def _rows_s(self, calls: Calls, *, copied: bool = True) -> float:
        """Return the seconds of the all-reduce of copies, or of those that every device has."""
        size = self.problem.precision.bytes
        payload = 2.0 * self.replicated_weights * size
        intra = payload * (self.local - 1) / self.local * self.switched
        inter = payload / self.local * (self.nodes - 1) / self.nodes
        inter += 2.0 * self.copied_weights * size * (self.nodes - 1) / self.nodes * copied
        return self._wait_s(calls, intra, inter, self.reduced_latency)


def _called_s(calls: Calls, latency: Calls) -> float:
    return sum(number * each for number, each in zip(calls, latency))


def _clean(values: Floats) -> Floats:
    """Return the values with zero for what rounding left of pieces that were taken away."""
    return np.where(values > 1e-6, values, 0.0)
