"""Time from traffic and machine constants: the simulated backend and the strategies' oracle.

Per rank, forward:   launch + gather + (indices + outputs) / hbm
Per rank, backward:  launch + gradients + sort + (2 rows + 2 state) / gather rate
where repeated rows are served by the cache as far as the rank's distinct rows fit it, which
makes a fused set of tables dearer than the sum of its single tables (``docs/costmodel.md``).
Collective: latency + bytes over the slower link, done when the slowest rank is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardbench.load import Load
from shardbench.machine import Constants, Machine
from shardbench.plan import Plan
from shardbench.problem import Problem
from shardbench.table import DenseShape, Table
from shardbench.traffic import INDEX_BYTES, Collective, Traffic, expect

Floats = NDArray[np.float64]

BACKWARD_DENSE = 2.0
"""The MLPs' backward pass computes two products (input and weight gradients) for the forward's one."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Predicted milliseconds of one step; per-rank arrays float64 [world]."""

    forward_ms: Floats
    backward_ms: Floats
    phases_ms: dict[str, float]
    """Duration of each phase for the whole world (slowest rank), in order; they add up to the step."""

    @property
    def embedding_ms(self) -> Floats:
        """Forward and backward embedding time of each rank."""
        return self.forward_ms + self.backward_ms

    @property
    def step_ms(self) -> float:
        """The whole step."""
        return sum(self.phases_ms.values())


def gather_s(load: Load, constants: Constants) -> Floats:
    """Seconds to read every looked-up row once, HBM and UVM, [n]."""
    overhead = constants.access_overhead_bytes
    rate = constants.hbm_bytes_per_s * constants.gather_efficiency_ratio
    first = load.distinct_bytes + overhead * load.distinct
    repeats = load.lookup_bytes - load.distinct_bytes + overhead * (load.lookups - load.distinct)
    hit = constants.cache_bytes / np.maximum(first, constants.cache_bytes)
    cache_rate = max(constants.cache_bytes_per_s, rate)
    hbm = (first + (1.0 - hit) * repeats) / rate + hit * repeats / cache_rate
    uvm = (load.uvm_lookup_bytes + overhead * load.uvm_lookups) / constants.uvm_bytes_per_s
    return np.asarray(hbm + uvm)


def forward_s(load: Load, constants: Constants) -> Floats:
    """Seconds of the fused forward lookup, [n]; zero where a rank has no bag."""
    streamed = (INDEX_BYTES * load.all_lookups + load.bag_bytes) / constants.hbm_bytes_per_s
    return np.where(load.bags > 0, constants.launch_s + gather_s(load, constants) + streamed, 0.0)


def backward_s(load: Load, constants: Constants) -> Floats:
    """Seconds of the fused backward and optimiser, [n]; zero where a rank has no bag."""
    rate = constants.hbm_bytes_per_s * constants.gather_efficiency_ratio
    overhead = constants.access_overhead_bytes
    # One gradient row is read per lookup; rows of one bag share it, so the cache helps as in forward.
    first = np.minimum(load.bag_bytes, load.gradient_bytes)
    hit = constants.cache_bytes / np.maximum(first, constants.cache_bytes)
    repeats = load.gradient_bytes - first
    cache_rate = max(constants.cache_bytes_per_s, rate)
    gradients = (first + (1.0 - hit) * repeats) / rate + hit * repeats / cache_rate
    sort = constants.sort_bytes * load.all_lookups / constants.hbm_bytes_per_s
    update = 2.0 * (load.distinct_bytes + overhead * load.distinct + load.state_bytes) / rate
    uvm = 2.0 * (load.uvm_distinct_bytes + overhead * load.uvm_distinct) / constants.uvm_bytes_per_s
    return np.where(load.bags > 0, constants.launch_s + gradients + sort + update + uvm, 0.0)


def embedding_ms(load: Load, constants: Constants) -> Floats:
    """Forward and backward milliseconds, [n]: the quantity the strategies balance."""
    return np.asarray(1e3 * (forward_s(load, constants) + backward_s(load, constants)))


def collective_s(collective: Collective, machine: Machine) -> float:
    """Seconds of one collective over all ranks; zero where nothing is sent."""
    constants, topology = machine.constants, machine.topology
    intra = np.maximum(collective.sent_intra, collective.received_intra)
    inter = np.maximum(collective.sent_inter, collective.received_inter)
    if not (intra.any() or inter.any()):
        return 0.0
    times = np.maximum(intra / constants.intra_bytes_per_s, inter / constants.inter_bytes_per_s)
    latency = constants.inter_latency_s if topology.nodes > 1 else constants.intra_latency_s
    return float(latency + times.max())


def step_time(
    traffic: Traffic, machine: Machine, dense: DenseShape, tables: tuple[Table, ...], batch_size: int
) -> StepTime:
    """Predicted time of one step without overlap, as the measured backend runs it."""
    constants = machine.constants
    forward = forward_s(traffic.load, constants)
    backward = backward_s(traffic.load, constants)
    samples = batch_size / machine.topology.world_size
    dense_s = samples * dense.flops_per_sample(tables) / constants.dense_flop_per_s

    def wire(*names: str) -> float:
        return 1e3 * sum(collective_s(traffic.collectives[name], machine) for name in names)

    return StepTime(
        forward_ms=1e3 * forward,
        backward_ms=1e3 * backward,
        phases_ms={
            "input": wire("input_splits", "input_all_to_all"),
            "lookup": 1e3 * float(forward.max()),
            "output": wire("output_all_to_all", "output_reduce_scatter"),
            "dense": 1e3 * (1.0 + BACKWARD_DENSE) * dense_s,
            "output_backward": wire("backward_all_to_all", "backward_all_gather"),
            "lookup_backward": 1e3 * float(backward.max()),
            "all_reduce": wire("rows_all_reduce", "dense_all_reduce"),
        },
    )


def estimate(plan: Plan, problem: Problem, dense: DenseShape | None = None) -> StepTime:
    """What a strategy may ask: time of a plan under the training profiles it sees."""
    shape = dense if dense is not None else DenseShape()
    return step_time(expect(plan, problem, shape), problem.machine, shape, problem.tables, problem.batch_size)
