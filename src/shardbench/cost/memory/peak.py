"""What ranks hold from moment to moment of a step, by term; the peak is the fullest moment, no sum of all terms."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.memory import GIB
from shardbench.cost.phases import StepPhase


class Term(StrEnum):
    """What a rank's memory is taken by."""

    TABLES = "tables"
    """Weights, optimiser state and caches in device memory, padding of shards included."""
    REPLICAS = "replicas"
    """DDP's buckets of replicated rows, their gradients and what is broadcast of them; copies that are averaged."""
    DENSE = "dense"
    """Weights of the dense model and DDP's bucket of their gradients."""
    BATCHES = "batches"
    """Inputs of the batches that are on the device."""
    LOOKUPS = "lookups"
    """Lookups on their way to the owners of their rows, and there."""
    VECTORS = "vectors"
    """Vectors that were looked up, in exchange and arrived."""
    CODEC = "codec"
    """Copies of vectors and gradients in the exchange's format, and the clamped ones that they are made of."""
    ACTIVATIONS = "activations"
    """What the dense model keeps for its backward pass, and computes on the way."""
    GRADIENTS = "gradients"
    """Gradients of vectors, in exchange and arrived."""
    WORKSPACE = "workspace"
    """What lookups are sorted in, and rows' gradients collected, by kernels of the backward pass."""
    SLACK = "slack"
    """What the allocator takes beyond what it is asked for."""
    CONTEXT = "context"
    """What a process has before it holds anything: of CUDA, nccl or the libraries."""


TERMS = tuple(Term)


@dataclass(frozen=True, kw_only=True)
class MemoryConstants:
    """What of a rank's memory no plan decides, by kind of device."""

    context_bytes: float
    segment_bytes: float
    """What modules, features and exchanges take beside it for each segment of a plan."""
    slack_ratio: float
    """What the allocator takes beyond what a step asks for, over that."""
    sort_bytes: float
    """Workspace of the backward kernel for each lookup of a rank's pooled tables."""
    table_sort_bytes: float
    """The same for each lookup of the table that has most, where tables are sorted one after another."""
    row_bytes: float
    """The same for each distinct row of pooled tables."""
    map_bytes: float
    """What a CPU's kernels take for each distinct row of an unpooled table beside its gradient."""
    gloo: bool
    """Whether ranks exchange by gloo, which reduces a copy of what it is given and lets go late of what it sent."""
    judged: bool
    """Whether peaks of real ranks were held against predictions by these constants."""
    source: str


CPU = MemoryConstants(
    context_bytes=1.7e6, segment_bytes=45e3, slack_ratio=0.037, sort_bytes=4.0, table_sort_bytes=12.0, row_bytes=12.0,
    map_bytes=450.0, gloo=True, judged=True,
    source="context: measured of ranks with 2 and with 26 tables of 100 rows; slack: fitted to every second plan of "
    "results/tables/memory/peaks.csv; bytes of rows of unpooled tables: measured; of other lookups and rows: arrays of "
    "FBGEMM 1.8's csr2csc",
)  # fmt: skip
CUDA = MemoryConstants(
    context_bytes=1.5 * GIB, segment_bytes=0.0, slack_ratio=0.05, sort_bytes=52.0, table_sort_bytes=0.0, row_bytes=0.0,
    map_bytes=0.0, gloo=False, judged=False,
    source="judged by no measurement; context: an assumption for CUDA, cuBLAS and nccl's channels; slack: an "
    "assumption; bytes of the backward kernel: arrays of FBGEMM 1.8's transpose_embedding_input for 8-byte indices, "
    "by reading",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """What ranks hold in a step, moment by moment."""

    moments: tuple[StepPhase, ...]
    """The phase that each moment is in, in their order, [moments]."""
    bytes: Floats
    """Bytes held by moment, term (``TERMS``) and rank, float64 [moments, terms, world]."""
    judged: bool
    """Whether measurements judge what no plan decides; see ``MemoryConstants``."""

    @property
    def peak(self) -> Floats:
        """Bytes that each rank holds at most, [world]."""
        return np.asarray(self.bytes.sum(axis=1).max(axis=0))

    @property
    def fullest(self) -> int:
        """The rank that holds most."""
        return int(self.peak.argmax())

    def moment(self, rank: int) -> StepPhase:
        """Return the phase in which a rank holds most."""
        return self.moments[self._fullest_moment(rank)]

    def terms(self, rank: int) -> dict[Term, float]:
        """Return the bytes that a rank's peak consists of, without terms that are not in it."""
        sizes = self.bytes[self._fullest_moment(rank), :, rank].tolist()
        return {term: size for term, size in zip(TERMS, sizes) if size > 0.0}

    def without(self, *terms: Term) -> "PeakMemory":
        """Return the same without some terms, such as those that a counter does not see."""
        counted = np.array([term not in terms for term in TERMS], dtype=np.float64)
        return replace(self, bytes=self.bytes * counted[:, None])

    def _fullest_moment(self, rank: int) -> int:
        return int(self.bytes[:, :, rank].sum(axis=1).argmax())
