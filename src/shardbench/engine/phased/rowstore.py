"""Embedding rows with their optimiser state, updated by plain tensor operations: master copies and replicas alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shardbench.base.errors import Unsupported
from shardbench.model.table import Optimizer
from shardbench.workloads.trace import Bags

EPSILON = 1e-10
"""The constant of row-wise Adagrad, as TorchRec's RowWiseAdagrad has it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatLookups:
    """Lookups of all tables in one store: rows int64 [lookups], lengths int32 [tables * samples], table after table."""

    rows: torch.Tensor
    lengths: torch.Tensor

    @property
    def bag_of(self) -> torch.Tensor:
        """Bag of each lookup, int64 [lookups]."""
        bags = torch.arange(len(self.lengths), device=self.lengths.device)
        return torch.repeat_interleave(bags, self.lengths, output_size=len(self.rows))


def flat_lookups(tables: Sequence[Bags], starts: Sequence[int]) -> FlatLookups:
    """The bags of every table; table i's rows begin at row ``starts[i]`` of the store."""
    rows = np.concatenate([bags.values + start for bags, start in zip(tables, starts)])
    lengths = np.concatenate([bags.lengths for bags in tables])
    return FlatLookups(rows=torch.from_numpy(rows.astype(np.int64)), lengths=torch.from_numpy(lengths.astype(np.int32)))


def coalesce(rows: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct rows, ascending, and the sum of each one's gradients [distinct, dim], added up in the order given."""
    distinct, at = torch.unique(rows, return_inverse=True)
    summed = gradients.new_zeros((len(distinct), gradients.shape[1])).index_add_(0, at, gradients)
    return distinct, summed


class RowStore:
    """Weights float32 [rows, dim] and, for row-wise Adagrad, one moment a row, float32 [rows].

    Raises Unsupported for an optimiser other than SGD and row-wise Adagrad.
    """

    def __init__(self, weights: torch.Tensor, optimizer: Optimizer, learning_rate: float) -> None:
        if optimizer not in (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD):
            raise Unsupported(f"phases run sgd and rowwise_adagrad, not {optimizer}")
        self.weights = weights
        self.moments = weights.new_zeros(len(weights)) if optimizer is Optimizer.ROWWISE_ADAGRAD else None
        self.learning_rate = learning_rate

    def pooled(self, lookups: FlatLookups) -> torch.Tensor:
        """Summed rows of every bag, [bags, dim]; empty bags give zeros."""
        ends = torch.cumsum(lookups.lengths, 0, dtype=torch.int64)
        offsets = ends - lookups.lengths
        return torch.nn.functional.embedding_bag(lookups.rows, self.weights, offsets, mode="sum")

    def step(self, rows: torch.Tensor, gradients: torch.Tensor) -> None:
        """One optimiser step of distinct ``rows`` by their gradients [rows, dim], in place."""
        if self.moments is None:
            self.weights.index_add_(0, rows, gradients, alpha=-self.learning_rate)
            return
        moments = self.moments.index_select(0, rows) + gradients.square().mean(dim=1)
        self.moments.index_copy_(0, rows, moments)
        scaled = gradients / (moments.sqrt() + EPSILON)[:, None]
        self.weights.index_add_(0, rows, scaled, alpha=-self.learning_rate)

    def copy(self, rows: torch.Tensor, source: "RowStore", source_rows: torch.Tensor) -> None:
        """Overwrite some rows and their moments by those of another store of the same optimiser, bit by bit."""
        self.weights.index_copy_(0, rows, source.weights.index_select(0, source_rows))
        if self.moments is not None and source.moments is not None:
            self.moments.index_copy_(0, rows, source.moments.index_select(0, source_rows))
