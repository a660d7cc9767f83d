"""Operators that the engine has in the place of torch's: weights that cost little to make, and distinct ids on CPUs.

What a step takes does not depend on the values of weights. For CPUs FBGEMM has no kernel that makes ids distinct, which
is the operator ``fbgemm::jagged_unique_indices`` as TorchRec calls it by ``use_index_dedup``; on GPUs its own one runs.
"""

from functools import cache
from typing import Any

import fbgemm_gpu  # noqa: F401 - defines the operator
import torch
from torch.library import Library
from torch.utils._python_dispatch import TorchDispatchMode

WEIGHT = 0.01
"""Not left untouched: memory that was never written is one page of zeros, which always hits the cache."""
_DRAWS = {torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default}


class Constant(TorchDispatchMode):
    """While it is on, weights that would be drawn are all WEIGHT: a tenth of the time or less."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Write the constant where something is drawn, else do what was asked."""
        if func in _DRAWS:
            return args[0].fill_(WEIGHT)
        return func(*args, **(kwargs or {}))


def leave(weights: torch.Tensor) -> torch.Tensor:
    """A collection's own initialisation where its kernels have made the weights already."""
    return weights


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
