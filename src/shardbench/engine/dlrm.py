"""The DLRM around the tables: TorchRec's MLPs and interaction, and attention over unpooled histories."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

from shardbench.base.errors import Unsupported
from shardbench.model.table import DenseShape, Table


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


class DenseModel(torch.nn.Module):
    """Dense features [batch, features] and what each feature of each table gave -> logits [batch].

    That of a pooled table gives vectors [batch, dim]; that of an unpooled one its History, over
    which an attention of its own gives [batch, dim]. Raises Unsupported for a shape with a sequence model.
    """

    def __init__(self, shape: DenseShape, tables: tuple[Table, ...]) -> None:
        super().__init__()
        if shape.sequence_flops:
            raise Unsupported("real ranks have no sequence model to train: leave sequence_flops out, or simulate")
        self.bottom = DenseArch(shape.features, list(shape.bottom))
        self.by_dot = shape.interacts_by_dot(tables)
        self.interaction = InteractionArch(sum(t.features for t in tables))
        top_width = shape.layers(tables)[len(shape.bottom)][0]
        self.top = OverArch(top_width, list(shape.top))
        self.attentions = torch.nn.ModuleList(HistoryAttention(*widths) for widths in shape.queries(tables))

    def forward(self, dense: torch.Tensor, table_vectors: Sequence[torch.Tensor | History]) -> torch.Tensor:
        """Return the logits, float32 [batch]; ``table_vectors`` table by table, feature by feature."""
        bottom = self.bottom(dense)
        attentions = iter(self.attentions)
        vectors = [next(attentions)(bottom, one) if isinstance(one, History) else one for one in table_vectors]
        if self.by_dot:
            top_input = self.interaction(bottom, torch.stack(vectors, dim=1))
        else:
            top_input = torch.cat([bottom, *vectors], dim=1)
        logits: torch.Tensor = self.top(top_input).squeeze(1)
        return logits
