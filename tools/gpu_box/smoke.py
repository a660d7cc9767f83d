"""Whether the engine runs here at all: each optimizer forward and backward in each tier, and one TorchRec step.

It times nothing: its notes say what the other parts can hope for.
"""

import torch
from box import Box
from cases import even_bags
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec_loop import TorchRecLoop

from shardbench.calibrate.kernels import fused_tables
from shardbench.model.plan import Tier

OPTIMIZERS = (
    EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ROWWISE_ADAGRAD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.ADAM,
)  # fmt: skip
TABLES, ROWS, WIDTH, BATCH, POOLING = 4, 10_000, 64, 256, 5


def measure(box: Box) -> None:
    """Try the kernels one by one, then a step of TorchRec's."""
    for tier in Tier:
        if box.cpu and tier is not Tier.HBM:
            box.skip(f"tables in {tier}", "a CPU has one memory")
            continue
        for optimizer in OPTIMIZERS:
            for pooled in (True, False):
                with box.attempt(f"{optimizer.value} in {tier}, {'pooled' if pooled else 'unpooled'}"):
                    _try_kernels(box, tier, optimizer, pooled=pooled)
    with box.attempt("a step of TorchRec's"):
        loop = TorchRecLoop(box, tables=4, rows=ROWS, batch=64)
        loss = [float(loop.step()) for _ in range(3)][-1]
        box.note(torchrec_step="runs", loss=loss)


def _try_kernels(box: Box, tier: Tier, optimizer: EmbOptimType, *, pooled: bool) -> None:
    tables = fused_tables(box.device, [(ROWS, WIDTH)] * TABLES, tier=tier, optimizer=optimizer, pooled=pooled)
    ids, offsets = even_bags(box, TABLES, ROWS, BATCH, POOLING)
    vectors = tables(ids, offsets)
    right = 0.01 * POOLING if pooled else 0.01
    wrong = float((vectors.detach() - right).abs().max())
    if wrong > 1e-5:
        raise ValueError(f"vectors of equal weights are off by {wrong}")
    vectors.backward(torch.ones_like(vectors))
    box.clock.settle()
    largest_change = float((tables.split_embedding_weights()[0] - 0.01).abs().max()) if tier is not Tier.CACHED else 1.0
    if not largest_change:
        raise ValueError("the backward pass changed no weight")
    box.note(kernels="run", tier=tier, optimizer=optimizer.value, pooled=pooled)
