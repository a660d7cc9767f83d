"""What data sheets say of GPUs, and the shares of it that all GPUs reach: together they are the machine files' rates.

The shares are fitted once, over all families of published points (``tools/published_agreement.py --fit``), so that a
GPU without any published point has constants of the same standing: its data sheet times the shared ones.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, TypeAdapter
from pydantic.dataclasses import dataclass

from shardbench.base.serialise import STRICT
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine, with_values


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Share:
    """A constant that all GPUs share: a share of what their data sheets say, or a time or a number of bytes."""

    value: PositiveFloat
    prior: PositiveFloat
    """What it would be without the published points."""
    fitted: bool
    source: str
    """Where the prior comes from."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataSheet:
    """Peaks of a machine's GPU and links, in GB a second and TFLOP a second."""

    hbm: PositiveFloat
    cache: PositiveFloat
    link: PositiveFloat
    """One direction of a GPU's links to the others of its node."""
    fabric: Literal["nvlink", "pcie"]
    switch: NonNegativeFloat = 0.0
    """Share of the links' rate that nccl expects of all-reduces in the node's switches; 0 where they add nothing up."""
    nic: PositiveFloat
    network: Literal["infiniband", "efa"] = "infiniband"
    fp32: PositiveFloat
    lanes: Literal[64, 128]
    """FP32 units of one of its cores (streaming multiprocessors): with ``fp32`` they tell the cores' cycles."""
    tf32: PositiveFloat
    """The same as FP32 where the GPU has no TF32."""
    fp16: PositiveFloat
    """Products of fp16 numbers summed in FP32, without sparsity."""
    judged: bool = True
    """Whether published points of its maker's GPUs judge what follows from it."""
    source: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Gpus:
    """The contents of the data file."""

    shares: dict[str, Share]
    gpus: dict[str, DataSheet]
    """The data sheet of each machine file, by its name."""


@cache
def known_gpus() -> Gpus:
    """Read data sheets and shares; raises pydantic.ValidationError if the file is malformed."""
    text = (resources.files("shardbench.cost.published") / "gpus.json").read_text()
    return TypeAdapter(Gpus).validate_json(text)


def shared() -> dict[str, float]:
    """Return the committed shares by name."""
    return {name: share.value for name, share in known_gpus().shares.items()}


def rates(sheet: DataSheet, shares: Mapping[str, float]) -> dict[str, float]:
    """Return the constants of a GPU's machine file that follow from its data sheet and the shares, by their keys.

    Units are bytes, seconds and operations.
    """
    copy = 1e9 * sheet.hbm * shares["copy"] / 2.0
    # Of all cores together: what bounds a kernel of many warps that wait for little memory.
    cycles = 1e12 * sheet.fp32 / (2.0 * sheet.lanes)
    tensor = shares["product_tensor"]
    return {
        "cache_bandwidth": 1e9 * sheet.cache * shares["cache"],
        "cache_reach": shares["cache_reach"],
        "gather_efficiency": shares["gather"],
        "access_overhead": shares["access_overhead_bytes"],
        # Sorting is bound by the cores, whatever the memory: as much traffic as takes that long.
        "sort_traffic": 1e9 * sheet.hbm * shares["sort_cycles"] / cycles,
        "launch": shares["launch_s"],
        "sort_launch": shares["sort_launch_s"],
        "warp": shares["warp_cycles"] / cycles,
        "gradient_gather": shares["gradient"],
        "uvm_hits": shares["uvm_hits"],
        "uvm_update": shares["uvm_update"],
        "dispatch": shares["dispatch_s"],
        "bag_step": shares["bag_step_s"],
        "intra_bandwidth": 1e9 * sheet.link * shares[sheet.fabric],
        # What goes across passes the links of the node as well.
        "inter_bandwidth": min(1e9 * sheet.nic * shares["nic"], 1e9 * sheet.link * shares[sheet.fabric]),
        "intra_latency": shares["node_latency_s"],
        "inter_latency": shares[f"{sheet.network}_latency_s"],
        "peer_latency": shares["peer_latency_s"],
        "collective_call": shares["collective_call_s"],
        "switch_reduction": sheet.switch,
        "dense_rate": 1e12 * sheet.fp32 * shares["product_fp32"],
        # Without TF32 such products run as FP32.
        "dense_tf32_rate": 1e12 * sheet.tf32 * (tensor if sheet.tf32 > sheet.fp32 else shares["product_fp32"]),
        "dense_half_rate": 1e12 * sheet.fp16 * tensor,
        "dense_layer": shares["layer_s"],
        "vector_copy": copy,
        "activation_copy": copy,
        "reduce": copy,
        "lookup_copy": INDEX_BYTES / copy,
        "length_copy": LENGTH_BYTES / copy,
        "bucketise": shares["bucketise_s"],
    }


@cache
def committed(name: str) -> Machine:
    """Return a machine, which is read once: fits and draws ask for it thousands of times."""
    return load_machine(name)


def with_shares(name: str, shares: Mapping[str, float]) -> Machine:
    """Return a GPU's machine as it would be with these shares."""
    return with_values(committed(name), rates(known_gpus().gpus[name], shares))
