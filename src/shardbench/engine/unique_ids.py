"""Makes ids distinct on CPUs, for which FBGEMM has no such kernel: TorchRec's ``use_index_dedup`` runs on their ranks.

It is the operator ``fbgemm::jagged_unique_indices`` as TorchRec calls it; on GPUs FBGEMM's own one runs.
"""

from functools import cache

import fbgemm_gpu  # noqa: F401 - defines the operator
import torch
from torch.library import Library


@cache
def provide_kernel() -> Library:
    """Let CPUs have the operator, in this process; it goes with what is returned, which is kept."""
    kernels = Library("fbgemm", "IMPL")
    kernels.impl("jagged_unique_indices", unique_ids, "CPU")
    return kernels


def unique_ids(
    hash_size_cumsum: torch.Tensor, hash_size_offset: torch.Tensor, offsets: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return lengths and offsets of bags of distinct ids, these, and the place among them of each id, all int64.

    Ids of tables are distinct, whichever of its features asks for them: ``hash_size_cumsum`` [features + 1] is where
    the rows of a feature's table begin if all tables' rows are numbered on, the same for all features of one.
    ``offsets`` are of features times samples bags. A table's distinct ids are spread evenly over its bags.
    """
    starts = hash_size_cumsum[:-1]
    bags = (len(offsets) - 1) // len(starts)
    feature_lookups = offsets[bags::bags] - offsets[:-1:bags]
    numbered = ids + torch.repeat_interleave(starts, feature_lookups)
    distinct, places = torch.unique(numbered, sorted=True, return_inverse=True)
    tables, features = torch.unique_consecutive(starts, return_counts=True)
    ends = torch.searchsorted(distinct, torch.cat([tables, hash_size_cumsum[-1:]]))
    counts = ends.diff()
    lengths = torch.cat([
        count // bag_count + (torch.arange(bag_count) < count % bag_count)
        for count, bag_count in zip(counts.tolist(), (features * bags).tolist())
    ])  # fmt: skip
    new_offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return lengths, new_offsets, distinct - torch.repeat_interleave(tables, counts), places
