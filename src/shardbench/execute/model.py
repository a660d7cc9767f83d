"""The DLRM around the tables: TorchRec's bottom MLP, interaction and top MLP."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

from shardbench.execute.lower import Lowered
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


Vectors = Mapping[str, torch.Tensor]


def assembler(lowered: Lowered) -> Callable[[Vectors], list[torch.Tensor]]:
    """Function that puts the logical tables' pooled vectors together, one [batch, dim] a table.

    Row segments are added (sum pooling is linear), column ranges are concatenated.
    """
    recipes = [_recipe(lowered, i) for i in range(len(lowered.tables))]

    def assemble(vectors: Vectors) -> list[torch.Tensor]:
        return [_join(recipe, vectors) for recipe in recipes]

    return assemble


Piece = tuple[str, int, int]
"""Logical name, first and last column within it."""


def _recipe(lowered: Lowered, table: int) -> list[list[Piece]]:
    parts = [t for t in lowered.logical if t.table == table]
    edges = sorted({0, *(t.segment.column_start for t in parts), *(t.segment.column_stop for t in parts)})
    return [
        [
            (t.name, low - t.segment.column_start, high - t.segment.column_start)
            for t in parts
            if t.segment.column_start <= low and high <= t.segment.column_stop
        ]
        for low, high in zip(edges, edges[1:])
    ]


def _join(recipe: list[list[Piece]], vectors: Vectors) -> torch.Tensor:
    columns = []
    for pieces in recipe:
        total: torch.Tensor | None = None
        for name, low, high in pieces:
            vector = vectors[name]
            part = vector if (low, high) == (0, vector.shape[1]) else vector[:, low:high]
            total = part if total is None else total + part
        if total is not None:
            columns.append(total)
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
