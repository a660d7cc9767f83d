"""Software that runs training steps, by what it does: properties that the cost model needs and no machine has.

The simulated backend counts what TorchRec's modules do. Published steps were run by other software as well, which
fuses less or more, copies vectors more or less often, and hides other parts. Each property is one of the software,
the same for all of its steps on all machines; what a property costs follows from the machine's constants.
"""

from dataclasses import dataclass, replace

from shardbench.base.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Executor:
    """What a software does in a step; a pass reads and writes every byte once."""

    name: str
    why: str
    """Where the properties come from."""
    vector_passes_forward: float
    """Passes over the pooled vectors that a rank sends."""
    vector_passes_backward: float
    """Passes over the gradients that it receives."""
    assembly_passes: float
    """Passes over the vectors of a rank's own samples between the exchange and the dense model, and back again."""
    elementwise_passes: float
    """Passes over the results of dense layers, forward and backward, outside the products' kernels."""
    interaction_passes: float
    """Passes over the vectors in which they meet, forward and backward, for each step of the interaction."""
    kernels_a_table: float = 0.0
    """Kernels of each table, forward and backward, one after another; 0 where one fused kernel serves all tables."""
    materialised_passes: float = 0.0
    """Passes over gradients of single lookups that are written out before the update; 0 where they never are."""
    graph: bool = False
    """Whether a step is one recorded graph, so that the host's time is no floor."""
    host_ratio: float = 1.0
    """Host time of a step over TorchRec's; below it a step cannot fall, but for a recorded graph."""
    hides_input: bool = True
    """Whether the next step's input is copied and exchanged beside this one."""
    sort_ratio: float = 1.0
    """Time to sort lookups over that of FBGEMM; 0 where it is done for the next step beside this one."""
    hides_gradient_exchange: bool = False
    """Whether gradients of vectors are exchanged beside the products of weight gradients."""
    bottom_on_one: bool = False
    """Whether the bottom layers run on the first GPU, for the samples of all."""


TORCHREC = Executor(
    name="torchrec",
    why="TorchRec: a staging copy before the exchange, three passes over its gradients (PR 4703), regroup",
    vector_passes_forward=1.0,
    vector_passes_backward=3.0,
    assembly_passes=2.0,
    elementwise_passes=3.0,
    interaction_passes=12.0,
)
HUGECTR = Executor(
    name="hugectr",
    why="HugeCTR: fused embeddings, network buffers read once more each way, CUDA graph",
    vector_passes_forward=1.0,
    vector_passes_backward=1.0,
    assembly_passes=2.0,
    elementwise_passes=0.0,
    interaction_passes=5.0,
    graph=True,
    sort_ratio=0.0,
    hides_gradient_exchange=True,
)
TENSORFLOW = Executor(
    name="tensorflow-xla",
    why="TensorFlow 2 on distributed-embeddings or SOK, XLA over the dense model",
    vector_passes_forward=2.0,
    vector_passes_backward=2.0,
    assembly_passes=2.0,
    elementwise_passes=2.0,
    interaction_passes=12.0,
    kernels_a_table=10.0,
    materialised_passes=2.0,
    sort_ratio=4.0,
    host_ratio=0.75,
)
EXECUTORS = {
    executor.name: executor
    for executor in (
        TORCHREC,
        replace(
            TORCHREC,
            name="torchrec-base",
            why="as torchrec, without a pipeline: input is copied and exchanged before the step",
            assembly_passes=4.0,
            hides_input=False,
        ),
        replace(
            TORCHREC,
            name="torchrec-pipeline",
            why="as torchrec; regroup and concatenation of pooled vectors each read and write all of them, and back",
            assembly_passes=4.0,
        ),
        HUGECTR,
        replace(
            HUGECTR,
            name="hugectr-hybrid",
            why="HugeCTR's hybrid embedding: frequent rows on every GPU, others exchanged row by row, CUDA graph",
            interaction_passes=3.0,
        ),
        Executor(
            name="pytorch-graph",
            why="NVIDIA's DLRM: one fused embedding kernel of one-hot lookups, fused interaction, CUDA graph",
            vector_passes_forward=1.0,
            vector_passes_backward=1.0,
            assembly_passes=2.0,
            elementwise_passes=3.0,
            interaction_passes=3.0,
            graph=True,
            bottom_on_one=True,
        ),
        TENSORFLOW,
        replace(
            TENSORFLOW,
            name="tensorflow-xla-fused-interaction",
            why="as tensorflow-xla, with a fused interaction",
            interaction_passes=3.0,
        ),
        replace(
            TENSORFLOW,
            name="tensorflow-eager",
            why="TensorFlow 2 on distributed-embeddings: a chain of kernels for every table and feature",
            assembly_passes=4.0,
            interaction_passes=4.0,
            kernels_a_table=30.0,
            materialised_passes=4.0,
        ),
    )
}
"""The known software, by name."""


def executor(name: str) -> Executor:
    """Return the software of that name; raises BadInput for one that is not declared."""
    if name not in EXECUTORS:
        raise BadInput(f"unknown executor '{name}'; known: {', '.join(sorted(EXECUTORS))}")
    return EXECUTORS[name]
