"""What the ranks of a measured trial are given, and what each gives back."""

from typing import Literal

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from shardbench.cost.collectives import Calls
from shardbench.model.machine import Topology
from shardbench.model.plan import Plan
from shardbench.model.table import DenseShape, Optimizer, Precision, Table

JOB = "job.json"
TO_DEVICE, TO_HOST = "copied_to_device", "copied_to_host"
"""Directions of hot rows' copies under a batch schedule: into all replicas, and out of one into the masters."""


class RankJob(pydantic.BaseModel):
    """Everything the ranks need; the same file for all of them."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    plan: Plan
    control: Plan | None = None
    """Held by the same ranks and stepped in turn with the plan, so that drift hits both; None: the plan alone."""
    tables: tuple[Table, ...]
    topology: Topology
    dense: DenseShape
    batch_size: int
    precision: Precision
    optimizer: Optimizer
    learning_rate: float = 0.01
    warmup: NonNegativeInt
    iterations: PositiveInt
    seed: int
    device: Literal["cpu", "cuda"]
    """What the machine of the job has: a CPU machine is measured on CPUs, even beside a GPU."""
    timeout_s: float
    batches: str
    """Folder with the materialised batches."""
    dump: bool = False
    """Start from seeded weights and write logits and stepped weights, to compare with a reference."""


class RankResult(pydantic.BaseModel):
    """Milliseconds per iteration by phase, and bytes per iteration by collective, of one rank."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    rank: int
    ms: dict[str, list[float]]
    """Wall time on CPU ranks."""
    cpu_ms: dict[str, list[float]] = pydantic.Field(default_factory=dict)
    """CPU time; empty on devices."""
    control_ms: list[float] = pydantic.Field(default_factory=list)
    """The control plan's steps; empty without one."""
    sent: list[dict[str, tuple[float, float]]]
    """One dict a distinct batch: collective -> (bytes inside the node, bytes across)."""
    calls: list[dict[str, Calls]]
    """Likewise: collective -> those the rank took part in."""
    shares: list[float]
    """Likewise: its share of all samples."""
    copied: dict[str, float] = pydantic.Field(default_factory=dict)
    """Bytes of hot rows that a batch schedule copies for one step at this rank, by direction; empty without one."""
