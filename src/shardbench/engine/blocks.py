"""Blocks of columns: pooling segments together before they are sent, and assembling tables after."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

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
        strips = _strips([block for block, _ in mine])
        if all(len(numbers) <= 1 for _, _, numbers in strips):
            merged_blocks += [block for block, _ in mine]
            parts += [((offset, offset + block.width),) for block, offset in mine]
            continue
        for low, high, numbers in strips:
            if numbers:
                over = [mine[number] for number in numbers]
                merged_blocks.append(Block(slot=slot, start=low, stop=high))
                parts.append(tuple((at + low - block.start, at + high - block.start) for block, at in over))
    return Merge(blocks=tuple(merged_blocks), parts=tuple(parts))


def _strips(blocks: Sequence[Block]) -> list[tuple[int, int, list[int]]]:
    """Cut the columns at every edge of some blocks; return each strip, and the numbers of the blocks that hold it."""
    edges = sorted({edge for block in blocks for edge in (block.start, block.stop)})
    return [
        (low, high, [n for n, block in enumerate(blocks) if block.start <= low and high <= block.stop])
        for low, high in pairwise(edges)
    ]


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
    return [
        [(tensor, at, low - block.start, high - block.start) for tensor, at, block in map(placed.__getitem__, numbers)]
        for low, high, numbers in _strips([block for _, _, block in placed])
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
