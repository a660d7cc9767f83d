"""The DLRM around the tables: TorchRec's bottom MLP, interaction and top MLP."""

from collections.abc import Sequence

import torch
from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

from shardbench.table import DenseShape, Table


class DenseModel(torch.nn.Module):
    """Dense features [batch, features] and pooled vectors, one [batch, dim] a table -> logits [batch]."""

    def __init__(self, shape: DenseShape, tables: tuple[Table, ...]) -> None:
        super().__init__()
        self.bottom = DenseArch(shape.features, list(shape.bottom))
        self.by_dot = shape.interacts_by_dot(tables)
        self.interaction = InteractionArch(len(tables))
        joined = shape.layers(tables)[len(shape.bottom)][0]
        self.top = OverArch(joined, list(shape.top))

    def forward(self, dense: torch.Tensor, vectors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Logits, float32 [batch]."""
        bottom = self.bottom(dense)
        if self.by_dot:
            joined = self.interaction(bottom, torch.stack(list(vectors), dim=1))
        else:
            joined = torch.cat([bottom, *vectors], dim=1)
        logits: torch.Tensor = self.top(joined).squeeze(1)
        return logits
