"""FBGEMM's fused tables for small measurements, in a tier of this device, with weights that cost little to make."""

from collections.abc import Sequence
from typing import Any

import torch
from box import Box
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from shardbench.engine.operators import WEIGHT

TIERS = {
    "hbm": EmbeddingLocation.DEVICE,
    "uvm": EmbeddingLocation.MANAGED,
    "cached": EmbeddingLocation.MANAGED_CACHING,
}


def fused_tables(
    box: Box,
    shapes: Sequence[tuple[int, int]],
    *,
    tier: str = "hbm",
    optimizer: EmbOptimType = EmbOptimType.EXACT_SGD,
    pooled: bool = True,
    **options: Any,
) -> SplitTableBatchedEmbeddingBagsCodegen:
    """Return one fused module of tables (rows, width); on a CPU every tier is its memory."""
    location, compute = TIERS[tier], ComputeDevice.CUDA
    if box.cpu:
        location, compute = EmbeddingLocation.HOST, ComputeDevice.CPU
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, location, compute) for rows, width in shapes],
        optimizer=optimizer,
        learning_rate=0.01,
        device=box.device,
        pooling_mode=PoolingMode.SUM if pooled else PoolingMode.NONE,
        **options,
    )
    for weights in tables.split_embedding_weights():
        weights.fill_(WEIGHT)
    return tables


def even_bags(box: Box, tables: int, rows: int, batch: int, pooling: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw uniform ids [tables x batch x pooling] and the offsets of their bags, on the device."""
    draw = torch.Generator(device=box.device).manual_seed(tables * 1_000_003 + batch)
    bags = tables * batch
    ids = torch.randint(0, rows, (bags * pooling,), device=box.device, generator=draw)
    offsets = torch.arange(0, bags * pooling + 1, pooling, device=box.device)
    return ids, offsets
