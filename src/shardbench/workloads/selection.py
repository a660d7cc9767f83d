"""Which of a data set's tables a task takes, and how wide they are."""

from typing import Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from shardbench.base.errors import BadInput
from shardbench.workloads.workload import WorkloadConfig

POOL_SEED = 0


class SelectedTablesConfig(WorkloadConfig):
    """Fields of data sets of many tables: how many, out of which pool, and their widths."""

    tables: PositiveInt = 856
    """How many tables the task has."""
    pool: Literal["all", "train", "test"] = "all"
    """DreamShard's split: the tables shuffled once (seed 0), first half train pool, rest test pool."""
    subset_seed: NonNegativeInt | None = None
    """Draws the tables without replacement; None takes the pool's first ones."""
    dim: PositiveInt = 16
    """Width of every table."""
    dims: tuple[PositiveInt, ...] | None = None
    """Widths to draw from, table by table, instead of ``dim``."""
    dims_seed: NonNegativeInt = 0

    def table_ids(self, available: int) -> list[int]:
        """Return the ids of the chosen tables; raises BadInput where the pool has fewer than wanted."""
        order = np.random.default_rng(POOL_SEED).permutation(available)
        cut = available // 2
        pools = {"all": np.arange(available), "train": order[:cut], "test": order[cut:]}
        pool = pools[self.pool]
        if self.tables > len(pool):
            raise BadInput(
                f"{self.name}: {self.tables} tables wanted, pool '{self.pool}' has {len(pool)}: lower tables"
            )
        if self.subset_seed is None:
            return [int(i) for i in pool[: self.tables]]
        return [int(i) for i in np.random.default_rng(self.subset_seed).choice(pool, self.tables, replace=False)]

    def table_dims(self, available: int) -> list[int]:
        """Return the width of every available table, whatever the task takes: a table keeps its width in all tasks."""
        if self.dims is None:
            return [self.dim] * available
        return [int(d) for d in np.random.default_rng(self.dims_seed).choice(self.dims, available)]
