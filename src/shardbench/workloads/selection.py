"""Which of a data set's tables a task takes, and how wide they are."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from shardbench.base.errors import BadInput
from shardbench.model.table import Seed, Width
from shardbench.workloads.workload import WorkloadConfig

POOL_SEED = 0

Tables = Annotated[int, Field(ge=1, le=100_000)]
"""Number of tables of a task, or of a data set."""


class SelectedTablesConfig(WorkloadConfig):
    """Fields of data sets of many tables: how many, out of which pool, and their widths."""

    tables: Tables = 856
    """How many tables the task has."""
    pool: Literal["all", "train", "test"] = "all"
    """DreamShard's split: the tables shuffled once (seed 0), first half train pool, rest test pool."""
    subset_seed: Seed | None = None
    """Draws the tables without replacement; None takes the pool's first ones."""
    dim: Width = 16
    """Width of every table."""
    dims: Annotated[tuple[Width, ...], Field(min_length=1)] | None = None
    """Widths to draw from, table by table, instead of ``dim``."""
    dims_seed: Seed = 0

    def table_ids(self, available: int) -> list[int]:
        """Return the ids of the chosen tables; raises BadInput where the pool has fewer than wanted."""
        order = np.random.default_rng(POOL_SEED).permutation(available)
        half = available // 2
        pools = {"all": np.arange(available), "train": order[:half], "test": order[half:]}
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
