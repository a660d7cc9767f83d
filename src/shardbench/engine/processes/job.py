"""What the ranks of a measured trial are given, and what each gives back."""

from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from shardbench.base.host import Environment
from shardbench.base.serialise import StrictModel, content_hash
from shardbench.cost.collectives import Calls
from shardbench.model.machine import Topology
from shardbench.model.plan import Plan
from shardbench.model.table import DenseShape, Optimizer, Precision, StepSchedule, Table
from shardbench.records.provenance import Provenance
from shardbench.records.trial import Failure

JOB = "job.json"
TO_DEVICE, TO_HOST = "copied_to_device", "copied_to_host"
"""Directions of hot rows' copies under a batch schedule: into all replicas, and out of one into the masters."""


Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RankJob(StrictModel):
    """Everything the ranks need; the same file for all of them."""

    plan: Plan
    control: Plan | None = None
    """Held by the same ranks and stepped in turn with the plan, so that drift hits both; None: the plan alone."""
    tables: tuple[Table, ...]
    topology: Topology
    dense: DenseShape
    batch_size: int
    precision: Precision
    optimizer: Optimizer
    exchange: Precision = Precision.FP32
    schedule: StepSchedule = StepSchedule.SEQUENTIAL
    learning_rate: float = 0.01
    warmup: NonNegativeInt
    iterations: PositiveInt
    seed: int
    device: Literal["cpu", "cuda"]
    """What the machine of the job has: a CPU machine is measured on CPUs, even beside a GPU."""
    timeout_s: float
    batches: str
    """Folder with the materialised batches, as seen from the job's, so that both can be moved together."""
    batches_hash: str | None = None
    """``Batches.hash`` of what has to lie there; None: not compared."""
    dump: bool = False
    """Start from seeded weights and write logits and stepped weights, to compare with a reference."""


class Ran(StrictModel):
    """Where, when and by which code a rank ran that torchrun or a scheduler started."""

    environment: Environment
    provenance: Provenance
    """The code that ran, of no strategy."""
    host: str
    """Hash that tells machines apart and names none."""

    @classmethod
    def begin(cls) -> "Ran":
        """Describe what begins now in this process."""
        boot = Path("/proc/sys/kernel/random/boot_id")
        host = content_hash(boot.read_text() if boot.is_file() else "")
        return cls(environment=Environment.here(), provenance=Provenance.begin(None), host=host)

    def with_load_at_end(self) -> "Ran":
        """Return the description with the load at the end, which is now."""
        return self.model_copy(update={"provenance": self.provenance.ended()})


class RankError(StrictModel):
    """What a rank leaves that ended badly."""

    failure: Failure
    ran: Ran | None


class RankResult(StrictModel):
    """Milliseconds per iteration by phase, and bytes per iteration by collective, of one rank."""

    rank: int
    job: str
    """Hash of the job's file, as this rank read it."""
    took_s: NonNegativeFloat
    """Wall time from its start to its result."""
    ran: Ran | None = None
    """Where it ran; None where the launcher of a session started it, which knows."""
    ms: dict[str, list[Number]]
    """Wall time on CPU ranks."""
    cpu_ms: dict[str, list[Number]] = pydantic.Field(default_factory=dict)
    """CPU time; empty on devices."""
    control_ms: list[Number] = pydantic.Field(default_factory=list)
    """The control plan's steps; empty without one."""
    sent: list[dict[str, tuple[Number, Number]]]
    """One dict a distinct batch: collective -> (bytes inside the node, bytes across)."""
    calls: list[dict[str, Calls]]
    """One dict a distinct batch: collective -> the calls that the rank took part in."""
    shares: list[Number]
    """One number a distinct batch: its share of all samples."""
    copied: dict[str, Number] = pydantic.Field(default_factory=dict)
    """Bytes of hot rows that a batch schedule copies for one step at this rank, by direction; empty without one."""
