"""Embedding tables and the dense part of the model they belong to."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from shardbench.base.serialise import STRICT

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
"""Names of strategies, suites, machines and the like: they become names of files."""
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
TableName = Annotated[str, Field(min_length=1)]
"""What a table's owner calls it: any text, a key and never the name of a file."""

MAX_ROWS = 1 << 40
"""No table has more rows; a higher row index is a mistake (a hash that was not folded, say)."""
MAX_WIDTH = 1 << 16
MAX_BATCH = 1 << 22
MAX_SEED = (1 << 32) - 1
"""The largest seed that every library takes."""
Rows = Annotated[int, Field(ge=1, le=MAX_ROWS)]
Width = Annotated[int, Field(ge=4, le=MAX_WIDTH, multiple_of=4)]
"""Columns of a table; the embedding kernels read four numbers at a time."""
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH)]
"""Samples of one step on all devices together."""
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Units = Annotated[int, Field(ge=1, le=1 << 20)]
"""Units of a layer of the dense model."""
Amount = Annotated[float, Field(ge=0.0, le=1e15, exclude_if=lambda amount: amount == 0.0)]
"""An amount a sample; none is not written, so that hashes are those of before it could be stated."""


HISTORY_FLOPS = 4
"""Operations of the attention's forward pass for a column of a lookup: products with query and weight, and sums."""


SharedBy = Annotated[int, Field(ge=1, le=1 << 20, exclude_if=lambda features: features == 1)]
"""Features that share a table; one is not written, so that hashes are those of before tables could be shared."""


Distinct = Annotated[bool, Field(exclude_if=lambda distinct: not distinct)]
"""Whether ids are made distinct; False is not written, so that hashes are those of before it could be chosen."""


class Pooling(StrEnum):
    """What happens to the vectors of one bag: summed, or kept one by one (a sequence)."""

    SUM = "sum"
    NONE = "none"


class Precision(StrEnum):
    """Number format of the embedding weights, or of the vectors that ranks exchange."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def bytes(self) -> int:
        """Return the bytes of one number."""
        return 4 if self is Precision.FP32 else 2


Exchanged = Annotated[Precision, Field(exclude_if=lambda exchange: exchange is Precision.FP32)]
"""Number format of exchanged vectors; fp32 is not written, so that hashes are those of before it could be chosen."""


class StepSchedule(StrEnum):
    """What of a training step goes on beside what else."""

    SEQUENTIAL = "sequential"
    """Phases follow one another, and steps too."""
    PIPELINED = "pipelined"
    """TorchRec's TrainPipelineSparseDist: the next batch's lookups are exchanged while this one computes."""


Scheduled = Annotated[StepSchedule, Field(exclude_if=lambda schedule: schedule is StepSchedule.SEQUENTIAL)]
"""A step's schedule; the sequential one is not written, so that hashes are those of before it could be chosen."""


class Optimizer(StrEnum):
    """Fused optimiser of the embedding tables."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAM = "adam"

    def state_bytes(self, columns: int) -> int:
        """Return the bytes of optimiser state that one row of ``columns`` columns keeps (fp32 state)."""
        return {Optimizer.SGD: 0, Optimizer.ROWWISE_ADAGRAD: 4, Optimizer.ADAM: 8 * columns}[self]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Table:
    """One embedding table: ``rows`` (hash size) vectors of ``dim`` numbers."""

    name: TableName
    rows: Rows
    dim: Width
    pooling: Pooling = Pooling.SUM
    features: SharedBy = 1
    """How many features look it up: a sample has a bag of each, and each gives the dense model a vector of its own."""
    distinct: Distinct = False
    """Whether each rank asks for a row once, however often its samples do, and puts the vector in all their places.

    Only tables that are not pooled can have it (TorchRec's ``use_index_dedup``).
    """

    def __post_init__(self) -> None:
        if self.distinct and self.pooling is not Pooling.NONE:
            raise ValueError(f"table {self.name}: only ids of tables that are not pooled are made distinct")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DenseShape:
    """Layer widths of the DLRM around the tables.

    ``bottom`` maps ``features`` dense inputs to its last width, ``top`` ends in one logit.
    Tables of one width that equals ``bottom[-1]`` meet by pairwise dot products, else by
    concatenation. An unpooled table's history becomes one vector by attention.
    """

    features: Units = 13
    bottom: Annotated[tuple[Units, ...], Field(min_length=1)] = (512, 256, 64)
    top: tuple[Units, ...] = (512, 256, 1)
    sequence_flops: Amount = 0.0
    """Operations a sample, forward and backward, of a sequence model on the histories, in half precision on a GPU.

    They are part of the predicted step; our trainer has no such model.
    """
    attention_flops: Amount = 0.0
    """Attention's part of them; the others are of matrix products."""
    sequence_numbers: Amount = 0.0
    """Numbers a sample that the sequence model's layers hand on: events, times layers, times width."""
    input_bytes: Amount = 0.0
    """Bytes a sample that the sequence model's devices wait for, while hosts bring them."""

    @field_validator("top")
    @classmethod
    def _one_logit(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if widths[-1:] != (1,):
            raise ValueError("must end in 1, the logit")
        return widths

    def __post_init__(self) -> None:
        parts = self.attention_flops, self.sequence_numbers, self.input_bytes
        if self.attention_flops > self.sequence_flops or (any(parts) and not self.sequence_flops):
            raise ValueError("sequence_flops must be stated, and include attention_flops")

    def interacts_by_dot(self, tables: tuple[Table, ...]) -> bool:
        """Say whether dot-product interaction applies (all widths equal, summed bags)."""
        return all(t.dim == self.bottom[-1] and t.pooling is Pooling.SUM for t in tables)

    def layers(self, tables: tuple[Table, ...]) -> tuple[tuple[int, int], ...]:
        """Return (in, out) of every linear layer, bottom first."""
        if self.interacts_by_dot(tables):
            vectors = sum(t.features for t in tables) + 1
            interacted = self.bottom[-1] + vectors * (vectors - 1) // 2
        else:
            interacted = self.bottom[-1] + sum(t.dim * t.features for t in tables)
        bottom = (self.features, *self.bottom)
        top = (interacted, *self.top)
        return tuple(zip(bottom[:-1], bottom[1:])) + tuple(zip(top[:-1], top[1:]))

    def queries(self, tables: tuple[Table, ...]) -> tuple[tuple[int, int], ...]:
        """Return (in, out) of the linear layer that makes the attention query of each feature of unpooled tables."""
        unpooled = [t for t in tables if t.pooling is Pooling.NONE]
        return tuple((self.bottom[-1], t.dim) for t in unpooled for _ in range(t.features))

    def parameters(self, tables: tuple[Table, ...]) -> int:
        """Return the number of weights and biases, all fp32, all-reduced every step."""
        return sum(i * o + o for i, o in self.layers(tables) + self.queries(tables))

    def flops_per_sample(self, tables: tuple[Table, ...]) -> int:
        """Return the floating-point operations of one sample's forward pass (multiply and add = 2).

        Of the attention only the queries: the rest grows with the histories, ``HISTORY_FLOPS`` a
        column of each lookup.
        """
        flops = sum(2 * i * o for i, o in self.layers(tables) + self.queries(tables))
        if self.interacts_by_dot(tables):
            vectors = sum(t.features for t in tables) + 1
            flops += 2 * vectors * vectors * self.bottom[-1]
        return flops


KnownDense = Annotated[DenseShape | None, Field(exclude_if=lambda dense: dense is None)]
"""The model around the tables, which is not written where nothing is known of it."""
