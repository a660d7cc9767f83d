"""Machines: nodes x devices, memory tiers, links and kernel constants, each with its source."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass

from shardbench.base.serialise import STRICT
from shardbench.model.table import DenseShape, Name, Table

Positive = Annotated[float, Field(ge=1e-12, allow_inf_nan=False)]
"""A rate or a share: what a smaller one divides is no number any more."""
MAX_DEVICES = 1 << 16
ErrorFactor = Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]
"""One standard deviation of a logarithm, as a factor."""
Devices = Annotated[int, Field(ge=1, le=MAX_DEVICES)]
"""Number of devices, in all or on a node; no world is larger."""
Capacity = Annotated[int, Field(ge=0, le=1 << 50)]
"""Bytes of one memory, a pebibyte at most."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Topology:
    """Shape and capacities; every strategy sees these. Capacities in bytes for embeddings."""

    nodes: Devices
    devices_per_node: Devices
    hbm_bytes: Annotated[Capacity, Field(ge=1), "hbm_capacity"]
    """Device memory of one device."""
    uvm_bytes: Annotated[Capacity, "uvm_capacity"]
    """Host memory that one device may read directly (managed memory)."""
    host_bytes: Annotated[Capacity, "host_capacity"]
    """Host memory of one node for tables that its CPU looks up."""

    def __post_init__(self) -> None:
        if self.world_size > MAX_DEVICES:
            raise ValueError(f"nodes: {self.nodes} of {self.devices_per_node} devices; {MAX_DEVICES} is the most")

    @property
    def world_size(self) -> int:
        """Return the number of devices in all."""
        return self.nodes * self.devices_per_node

    def node_of(self, rank: int) -> int:
        """Return the node that holds a rank; ranks are numbered node by node."""
        return rank // self.devices_per_node

    def node_ranks(self, node: int) -> tuple[int, ...]:
        """Return the ranks of one node."""
        return tuple(range(node * self.devices_per_node, (node + 1) * self.devices_per_node))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Constants:
    """Rates of one device, its tiers and links, in bytes, seconds and operations.

    A name ends in its unit. A machine file states it under the key that is beside its type, in any unit that fits.
    """

    hbm_bytes_per_s: Annotated[Positive, "hbm_bandwidth"]
    cache_bytes_per_s: Annotated[Positive, "cache_bandwidth"]
    cache_bytes: Annotated[Positive, "cache_capacity"]
    cache_reach_ratio: Annotated[Positive, "cache_reach"]
    """Multiple of the cache's capacity that a table's working set must have for half of its repeats to miss."""
    uvm_bytes_per_s: Annotated[Positive, "uvm_bandwidth"]
    host_bytes_per_s: Annotated[Positive, "host_bandwidth"]
    gather_efficiency_ratio: Annotated[float, Field(ge=1e-12, le=1), "gather_efficiency"]
    """Share of the HBM bandwidth that random row reads reach when rows are wide."""
    access_overhead_bytes: Annotated[NonNegativeFloat, "access_overhead"]
    """Bytes that one row access wastes: makes narrow rows inefficient."""
    sort_bytes: Annotated[NonNegativeFloat, "sort_traffic"]
    """Bytes the backward pass moves per lookup to sort and de-duplicate indices."""
    launch_s: Annotated[NonNegativeFloat, "launch"]
    """Fixed time of one fused forward or backward on the device."""
    dispatch_s: Annotated[NonNegativeFloat, "dispatch"]
    """Host time of one fused forward, exposed where the device has less to do; large batches hide it."""
    bag_step_s: Annotated[NonNegativeFloat, "bag_step"]
    """Time of one lookup of a bag, which one warp (or thread) reads row by row: the long-bag tail."""
    table_s: Annotated[NonNegativeFloat, "table_call"]
    """Time that every table of a fused forward or backward adds: a CPU goes through them one by one."""
    bag_s: Annotated[NonNegativeFloat, "bag_call"]
    """Time that every bag of a fused forward or backward adds, whatever its lookups: a CPU's loop over bags."""
    page_s: Annotated[NonNegativeFloat, "page_walk"]
    """Time to find a memory page of rows, once a batch and page to read them and twice to update them."""
    sequence_row_s: Annotated[NonNegativeFloat, "sequence_row"]
    """Time that the backward pass of unpooled tables adds for every distinct row: a CPU collects them in a map."""
    sequence_half_rows: Annotated[NonNegativeFloat, "sequence_half"]
    """Rows in that map at which half of that time is reached: a small map stays in the cache."""
    host_launch_s: Annotated[NonNegativeFloat, "host_launch"]
    """Fixed time of one forward or backward of the lookups of a node's CPUs."""
    host_table_s: Annotated[NonNegativeFloat, "host_table_call"]
    """Time that every table adds to that forward or backward."""
    intra_bytes_per_s: Annotated[Positive, "intra_bandwidth"]
    inter_bytes_per_s: Annotated[Positive, "inter_bandwidth"]
    intra_latency_s: Annotated[NonNegativeFloat, "intra_latency"]
    inter_latency_s: Annotated[NonNegativeFloat, "inter_latency"]
    peer_latency_s: Annotated[NonNegativeFloat, "peer_latency"]
    """Time that every further rank adds to the latency of a collective."""
    dense_flop_per_s: Annotated[Positive, "dense_rate"]
    """Rate that the MLPs reach, not the device's peak."""
    dense_step_s: Annotated[NonNegativeFloat, "dense_step"]
    """Fixed time of a dense model's step: its loss, its optimiser and the bookkeeping of its parallel copies."""
    dense_layer_s: Annotated[NonNegativeFloat, "dense_layer"]
    """Fixed time of one layer of the dense model, forward and backward."""
    module_s: Annotated[NonNegativeFloat, "module_call"]
    """Host time of the forward call of one sharding type of one module, on every rank, whatever it holds there."""
    vector_copy_bytes_per_s: Annotated[Positive, "vector_copy"]
    """Bytes of vectors that are put in place a second; one pass reads and writes each byte."""
    activation_bytes_per_s: Annotated[Positive, "activation_copy"]
    """Bytes a second of what lies between the dense model's products: vectors joined and split, attention, pairs."""
    lookup_copy_s: Annotated[NonNegativeFloat, "lookup_copy"]
    """Time to put one lookup in place for an exchange, and again to put it in place after it."""
    length_copy_s: Annotated[NonNegativeFloat, "length_copy"]
    """Time to put the length of one bag in place for an exchange, and again to put it in place after it."""
    bucketise_s: Annotated[NonNegativeFloat, "bucketise"]
    """Time to find the owner of one lookup of rows that are dealt over ranks, beside putting it in place."""
    reduce_bytes_per_s: Annotated[Positive, "reduce"]
    """Bytes that arrive in a reduce-scatter and are added up a second, beside what the link takes for them."""
    step_floor_s: Annotated[NonNegativeFloat, "step_floor"]
    """Host time of a step, below which it cannot fall whatever the devices do."""
    # What only a GPU has; a file that does not state it is as it was before, and so is its hash.
    sort_launch_s: Annotated[NonNegativeFloat, "sort_launch"] = Field(
        default=0.0, exclude_if=lambda value: value == 0.0
    )
    """Fixed time of one fused backward beside ``launch_s``: a GPU's sort of the lookups is several kernels."""
    warp_s: Annotated[NonNegativeFloat, "warp"] = Field(default=0.0, exclude_if=lambda value: value == 0.0)
    """Time that every bag adds to a fused forward whose bags are spread over a GPU's cores, a warp each."""
    gradient_ratio: Annotated[float, Field(ge=1e-12, le=1), "gradient_gather"] = Field(
        default=1.0, exclude_if=lambda value: value == 1.0
    )
    """Rate of gradient rows over that of weights' rows: the backward reads them in the order of sorted lookups."""
    uvm_hit_ratio: Annotated[Annotated[float, Field(ge=0, le=1)] | None, "uvm_hits"] = Field(
        default=None, exclude_if=lambda v: v is None
    )
    """Share of repeated rows in host memory that a GPU's cache serves, whatever their working set: only the hottest
    ones stay in it. Without it the same law as for rows in HBM, as on CPUs, where both are one memory."""
    uvm_update_ratio: Annotated[Positive, "uvm_update"] = Field(default=1.0, exclude_if=lambda value: value == 1.0)
    """Time to read and write back a row in host memory over that to read it: 1 where the link is full duplex."""

    @property
    def backward_launch_s(self) -> float:
        """Fixed time of one fused backward."""
        return self.launch_s + self.sort_launch_s


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HostConstants:
    """What a node's CPUs can do besides looking rows up; stated by machines on which models train with them."""

    link_bytes_per_s: Annotated[Positive, "host_link"]
    """One device's copies of whole blocks from and to host memory."""
    dense_flop_per_s: Annotated[Positive, "host_dense_rate"]
    """Rate that the MLPs reach on all CPUs of a node, not their peak."""
    dense_step_s: Annotated[NonNegativeFloat, "host_dense_step"]
    """The same time as a device's, on the CPUs of a node."""
    dense_layer_s: Annotated[NonNegativeFloat, "host_dense_layer"]
    """The same time as a device's, on the CPUs of a node."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MatrixConstants:
    """Rates that large products of narrower number formats reach; stated by GPUs, whose matrix units have them."""

    dense_tf32_flop_per_s: Annotated[Positive, "dense_tf32_rate"]
    dense_half_flop_per_s: Annotated[Positive, "dense_half_rate"]
    """Products of fp16 or bf16 numbers."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NcclConstants:
    """What nccl's collectives have beside links and latencies; stated by GPUs."""

    call_s: Annotated[NonNegativeFloat, "collective_call"]
    """The part of a collective's latency that the host's call takes: a recorded graph has none."""
    switch_ratio: Annotated[NonNegativeFloat, "switch_reduction"]
    """Share of a node's link rate that all-reduces in its switches reach; 0 where switches add nothing up."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Trust:
    """How far whole steps of plans that no constant was fitted to are from what a machine file predicts of them."""

    step_error: ErrorFactor
    """The factor whose logarithm is the root mean square of log(predicted / measured) of these steps."""
    pair_error: ErrorFactor | None = None
    """The same of the ratios of two plans' steps on the same tables, in which what all plans share is left out;
    None where no two of them are on the same tables."""
    pair_low: ErrorFactor | None = Field(default=None, exclude_if=lambda end: end is None)
    """Lower end of its 95 % interval; None where the file does not state it."""
    pair_high: ErrorFactor | None = Field(default=None, exclude_if=lambda end: end is None)
    plans: PositiveInt
    """The number of these steps."""
    pairs: Annotated[int, Field(ge=0)] = 0
    """Pairs of plans of the same tables whose measured steps differ by more than the noise."""
    pairs_right: Annotated[int, Field(ge=0)] = 0
    """Pairs of these that are predicted in the order in which they are measured."""
    source: Annotated[str, Field(min_length=8)]
    """What was measured, where and when."""

    def __post_init__(self) -> None:
        if self.pairs_right > self.pairs:
            raise ValueError(f"trust: {self.pairs_right} pairs are right of {self.pairs}")
        if self.pairs and self.pair_error is None:
            raise ValueError("trust: pairs were compared, so pair_error says how far their ratios are off")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Machine:
    """A cluster as the cost model and the planners see it."""

    name: Name
    description: str
    device: Literal["cuda", "cpu"]
    topology: Topology
    constants: Constants
    sources: dict[str, str]
    """Source of every number, by field name."""
    # What a machine does not state is not in its JSON, nor in its hash.
    host: HostConstants | None = Field(default=None, exclude_if=lambda host: host is None)
    matrix: MatrixConstants | None = Field(default=None, exclude_if=lambda matrix: matrix is None)
    nccl: NcclConstants | None = Field(default=None, exclude_if=lambda nccl: nccl is None)
    errors: dict[str, ErrorFactor] = Field(default_factory=dict, exclude_if=lambda errors: not errors)
    """How well each rate, latency and share is known, by name as in ``sources``: the factor that is one
    standard deviation of its logarithm. Every file states them; empty on machines that are built in code."""
    dense_steps: dict[Name, Positive] = Field(default_factory=dict, exclude_if=lambda steps: not steps)
    """Seconds of the dense model, forward and backward, that were measured on this machine, by ``dense_key``: they go
    before the formula. No plan changes them, so that nothing is lost in foresight by taking them as measured."""
    trust: Trust | None = Field(default=None, exclude_if=lambda trust: trust is None)
    """What held-out whole steps say of this machine's predictions; None where none was held against it."""


def dense_key(dense: DenseShape, tables: tuple[Table, ...], batch_size: int, world: int) -> str:
    """Return the name of a measured dense model: a digest of its layers, of what tables give it, batch and ranks."""
    vectors = [[table.dim, table.pooling.value, table.features] for table in tables]
    shape = [dense.features, dense.bottom, dense.top, vectors, batch_size, world]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]
