"""The DLRM around the tables: TorchRec's MLPs and interaction, and attention over unpooled histories."""

from collections.abc import Sequence

import torch
from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

from shardbench.engine.attention import History, HistoryAttention
from shardbench.model.table import DenseShape, Table


class DenseModel(torch.nn.Module):
    """Dense features [batch, features] and what each feature of each table gave -> logits [batch].

    That of a pooled table gives vectors [batch, dim]; that of an unpooled one its History, over
    which an attention of its own gives [batch, dim].
    """

    def __init__(self, shape: DenseShape, tables: tuple[Table, ...]) -> None:
        super().__init__()
        self.bottom = DenseArch(shape.features, list(shape.bottom))
        self.by_dot = shape.interacts_by_dot(tables)
        self.interaction = InteractionArch(sum(t.features for t in tables))
        joined = shape.layers(tables)[len(shape.bottom)][0]
        self.top = OverArch(joined, list(shape.top))
        self.attentions = torch.nn.ModuleList(HistoryAttention(*widths) for widths in shape.queries(tables))

    def forward(self, dense: torch.Tensor, given: Sequence[torch.Tensor | History]) -> torch.Tensor:
        """Return the logits, float32 [batch]; ``given`` table by table, feature by feature."""
        bottom = self.bottom(dense)
        attentions = iter(self.attentions)
        vectors = [next(attentions)(bottom, one) if isinstance(one, History) else one for one in given]
        if self.by_dot:
            joined = self.interaction(bottom, torch.stack(vectors, dim=1))
        else:
            joined = torch.cat([bottom, *vectors], dim=1)
        logits: torch.Tensor = self.top(joined).squeeze(1)
        return logits
