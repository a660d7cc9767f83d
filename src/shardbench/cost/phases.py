"""The phases of a training step, simulated and measured, and what each waits for."""

from enum import StrEnum

from shardbench.cost.collectives import CollectiveName


class StepPhase(StrEnum):
    """The phases in the order that they run; ``lookup`` and ``lookup_backward`` are the embedding kernels."""

    INPUT = "input"
    LOOKUP = "lookup"
    OUTPUT = "output"
    DENSE = "dense"
    OUTPUT_BACKWARD = "output_backward"
    LOOKUP_BACKWARD = "lookup_backward"
    ALL_REDUCE = "all_reduce"
    """The all-reduce is a phase of simulated steps only: measured, it is hidden in other phases or a part of them."""
    UPDATE = "update"
    """The optimiser of what is not fused is a phase of measured steps only."""
    SYNCHRONISE = "synchronise"
    """The copies of hot rows that a batch schedule needs."""


MEASURED_PHASES = (
    StepPhase.INPUT, StepPhase.LOOKUP, StepPhase.OUTPUT, StepPhase.DENSE, StepPhase.OUTPUT_BACKWARD,
    StepPhase.LOOKUP_BACKWARD, StepPhase.UPDATE,
)  # fmt: skip
"""The phases that a rank's clock tells apart."""
EXCHANGE_PHASES = (StepPhase.INPUT, StepPhase.OUTPUT, StepPhase.OUTPUT_BACKWARD)
"""Measured phases in which ranks exchange; what of the all-reduce is not hidden is in the last."""
KERNELS = (StepPhase.LOOKUP, StepPhase.LOOKUP_BACKWARD)
WAITS = {
    StepPhase.INPUT: (CollectiveName.INPUT_SPLITS, CollectiveName.INPUT_ALL_TO_ALL),
    StepPhase.OUTPUT: (CollectiveName.OUTPUT_ALL_TO_ALL, CollectiveName.OUTPUT_REDUCE_SCATTER),
    StepPhase.OUTPUT_BACKWARD: (CollectiveName.BACKWARD_ALL_TO_ALL, CollectiveName.BACKWARD_ALL_GATHER),
    StepPhase.ALL_REDUCE: (CollectiveName.ROWS_SPLITS, CollectiveName.ROWS_ALL_REDUCE, CollectiveName.DENSE_ALL_REDUCE),
}
"""The collectives of the phases that consist of nothing else."""
