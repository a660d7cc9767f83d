"""Blocks of columns: pooling segments together before they are sent, and assembling tables after."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from shardbench.engine.lower import Slot


@dataclass(frozen=True, kw_only=True)
class Block:
    """Columns [start, stop) of a slot's vectors, as a run of columns of some tensor."""

    slot: Slot
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return self.stop - self.start


Piece = tuple[int, int, int, int]
"""Tensor, block of it, first and last column within the block."""


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Adds the blocks that hold the same columns of the same slot: sum pooling is linear.

    ``blocks`` are what is left, in order; ``parts[i]`` the column runs of the input that add up
    to block i.
    """

    blocks: tuple[Block, ...]
    parts: tuple[tuple[tuple[int, int], ...], ...]

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Add up vectors [samples, columns in] -> [samples, columns left]."""
        # The runs tile the columns. One split: its backward is one concatenation, where a slice a run would add up as
        # many full-sized gradients.
        tiles = sorted(run for runs in self.parts for run in runs)
        cut = dict(zip(tiles, vectors.split([high - low for low, high in tiles], dim=1)))
        merged = []
        for runs in self.parts:
            first, *others = (cut[run] for run in runs)
            merged.append(sum(others, first))
        return torch.cat(merged, dim=1) if merged else vectors


def merge(blocks: Sequence[Block]) -> Merge:
    """Merge of a tensor whose columns are these blocks in order."""
    offsets = list(accumulate((block.width for block in blocks), initial=0))
    merged_blocks: list[Block] = []
    parts: list[tuple[tuple[int, int], ...]] = []
    for slot in dict.fromkeys(block.slot for block in blocks):
        mine = [(block, offset) for block, offset in zip(blocks, offsets) if block.slot == slot]
        edges = sorted({edge for block, _ in mine for edge in (block.start, block.stop)})
        if not _overlap([block for block, _ in mine]):
            edges = []
            merged_blocks += [block for block, _ in mine]
            parts += [((offset, offset + block.width),) for block, offset in mine]
        for low, high in zip(edges, edges[1:]):
            runs = tuple(
                (offset + low - block.start, offset + high - block.start)
                for block, offset in mine
                if block.start <= low and high <= block.stop
            )
            if runs:
                merged_blocks.append(Block(slot=slot, start=low, stop=high))
                parts.append(runs)
    return Merge(blocks=tuple(merged_blocks), parts=tuple(parts))


def _overlap(blocks: list[Block]) -> bool:
    ordered = sorted(blocks, key=lambda block: block.start)
    return any(a.stop > b.start for a, b in zip(ordered, ordered[1:]))


class Assembler:
    """Whole vectors [samples, dim] of the slots out of tensors whose columns are known blocks."""

    def __init__(self, slots: Sequence[Slot], layouts: Sequence[Sequence[Block]]) -> None:
        self._recipes = [_recipe(slot, layouts) for slot in slots]
        self._widths = [[block.width for block in layout] for layout in layouts]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Vectors of every slot, float32 [samples, dim] each."""
        # One split a tensor, as in a merge.
        parts = [tensor.split(widths, dim=1) for tensor, widths in zip(tensors, self._widths)]
        return [_join(recipe, parts) for recipe in self._recipes]


def _recipe(slot: Slot, layouts: Sequence[Sequence[Block]]) -> list[list[Piece]]:
    placed = [
        (tensor, number, block)
        for tensor, layout in enumerate(layouts)
        for number, block in enumerate(layout)
        if block.slot == slot
    ]
    edges = sorted({edge for _, _, block in placed for edge in (block.start, block.stop)})
    return [
        [
            (tensor, number, low - block.start, high - block.start)
            for tensor, number, block in placed
            if block.start <= low and high <= block.stop
        ]
        for low, high in zip(edges, edges[1:])
    ]


def _join(recipe: list[list[Piece]], parts: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    columns = []
    for pieces in recipe:
        first, *others = (_piece(piece, parts) for piece in pieces)
        columns.append(sum(others, first))
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)


def _piece(piece: Piece, parts: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    tensor, number, low, high = piece
    block = parts[tensor][number]
    return block if high - low == block.shape[1] else block[:, low:high]
