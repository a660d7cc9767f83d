"""Attention over unpooled histories: what turns a sequence of vectors into one vector a sample."""

from typing import NamedTuple

import torch


class History(NamedTuple):
    """An unpooled table's vectors [lookups, dim], sample after sample, and each sample's ``lengths`` int64 [batch]."""

    vectors: torch.Tensor
    lengths: torch.Tensor


class HistoryAttention(torch.nn.Module):
    """Scaled dot-product attention of one query a sample over its history; no history gives zeros.

    The query is a linear map of the bottom MLP's output, so that the dense features choose what
    of the history counts. Histories stay jagged: nothing is padded, no sample is looped over.
    """

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.query = torch.nn.Linear(inputs, dim)
        self.scale = dim**-0.5

    def forward(self, bottom: torch.Tensor, history: History) -> torch.Tensor:
        """Bottom output [batch, inputs] and a history -> [batch, dim]."""
        vectors, lengths = history
        samples = torch.arange(len(lengths), device=lengths.device)
        sample = torch.repeat_interleave(samples, lengths, output_size=len(vectors))
        query = self.query(bottom)
        score = (vectors * query[sample]).sum(dim=1) * self.scale
        weighted = _softmax(score, sample, len(lengths))[:, None] * vectors
        return weighted.new_zeros(query.shape).index_add(0, sample, weighted)


def _softmax(score: torch.Tensor, sample: torch.Tensor, samples: int) -> torch.Tensor:
    """Softmax of scores [lookups] within each sample."""
    # The peak only keeps exp in range: the softmax does not depend on it, so neither does the gradient.
    peak = score.new_zeros(samples).scatter_reduce(0, sample, score.detach(), "amax", include_self=False)
    raised = torch.exp(score - peak[sample])
    total = score.new_zeros(samples).index_add(0, sample, raised)
    return raised / total[sample]
