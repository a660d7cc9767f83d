"""Cutting a rank's lookups of one table into row ranges, in FBGEMM."""

from dataclasses import dataclass

import torch

from shardbench.workloads.trace import Bags

Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class RowCut:
    """The lookups of one row range, ids relative to its start.

    ``ids`` int64 [n]; ``lengths`` int32 [bags]; ``positions`` int64 [n] are the places of these
    lookups among all of the table's, None where they are all of them in order.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor | None


def cut_bags(bags: Bags, ranges: list[Range], rows: int) -> dict[Range, RowCut]:
    """Cut the lookups of a table of ``rows`` rows into row ranges."""
    ids = torch.from_numpy(bags.values.astype("int64"))
    return cut_ids(ids, torch.from_numpy(bags.lengths.astype("int32")), ranges, rows)


def cut_ids(ids: torch.Tensor, lengths: torch.Tensor, ranges: list[Range], rows: int) -> dict[Range, RowCut]:
    """Cut ids int64 [n], with the lengths int32 [bags] of their bags, into row ranges."""
    if ranges == [(0, rows)]:
        return {ranges[0]: RowCut(ids=ids, lengths=lengths, positions=None)}
    if all(a[1] == b[0] for a, b in zip(ranges, ranges[1:])):
        return _bucketize(ids, lengths, ranges)
    return {row_range: _select(ids, lengths, row_range) for row_range in ranges}


def _bucketize(ids: torch.Tensor, lengths: torch.Tensor, ranges: list[Range]) -> dict[Range, RowCut]:
    edges = torch.tensor([ranges[0][0], *(stop for _, stop in ranges)], device=ids.device)
    size = edges[-1:].clone()
    new_lengths, new_ids, _, _, places = torch.ops.fbgemm.block_bucketize_sparse_features(
        lengths, ids, False, True, size, len(ranges), block_bucketize_pos=[edges]
    )
    per_range = new_lengths.view(len(ranges), -1)
    sizes = per_range.sum(dim=1).tolist()
    # ``places[i]`` is where lookup i went; inverted, where each cut lookup came from.
    origins = torch.empty_like(places, dtype=torch.int64)
    origins[places.long()] = torch.arange(len(ids), device=ids.device)
    pieces = zip(torch.split(new_ids, sizes), per_range, torch.split(origins, sizes))
    return {
        row_range: RowCut(ids=piece, lengths=counts, positions=positions)
        for row_range, (piece, counts, positions) in zip(ranges, pieces)
    }


def _select(ids: torch.Tensor, lengths: torch.Tensor, row_range: Range) -> RowCut:
    inside = (ids >= row_range[0]) & (ids < row_range[1])
    bag = torch.repeat_interleave(torch.arange(len(lengths), device=ids.device), lengths.long())
    counts = torch.bincount(bag[inside], minlength=len(lengths))
    return RowCut(ids=ids[inside] - row_range[0], lengths=counts.to(torch.int32), positions=inside.nonzero().squeeze(1))
