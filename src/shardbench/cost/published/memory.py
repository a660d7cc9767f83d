"""Published plans whose tables' memory is stated rank by rank: what ``memory_bytes`` is held against."""

from importlib import resources
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from shardbench.base.arrays import Floats
from shardbench.base.serialise import StrictModel, from_json
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import OnRank, Plan, Tier, whole_table
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Optimizer, Pooling, Table
from shardbench.model.validate import memory_bytes

GIB = 1 << 30
MACHINE = "b200-1x8"
"""Any machine of eight devices in one node: only the shape counts."""


class PublishedPlan(StrictModel):
    """Where the tables are, by name, and what each rank then has."""

    point: str
    columns: dict[str, tuple[int, ...]]
    """The rank of each of a table's equal column ranges."""
    whole: dict[str, int]
    """The rank of each table that is whole."""
    cache_ratio: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(default_factory=dict)
    """The share of rows that a cache has slots for, of tables in host memory."""
    hbm_gib: tuple[PositiveFloat, ...]
    """HBM of each rank that tables take."""


class PublishedPlans(StrictModel):
    """Plans for one model, fp32 with row-wise Adagrad."""

    source: str
    dim: PositiveInt
    rows: dict[str, PositiveInt]
    plans: tuple[PublishedPlan, ...]

    def hbm_gib(self, published: PublishedPlan) -> Floats:
        """Return the HBM that our count gives each rank, [world]."""
        tables = {name: Table(name=name, rows=n, dim=self.dim, pooling=Pooling.NONE) for name, n in self.rows.items()}
        profiles = tuple(
            AccessProfile(rows=rows, samples=1, present=0, counts=(), row_counts=()) for rows in self.rows.values()
        )
        machine = load_machine(MACHINE)
        problem = Problem.of(
            published.point, tuple(tables.values()), profiles, machine, batch_size=machine.topology.world_size,
            optimizer=Optimizer.ROWWISE_ADAGRAD,
        )  # fmt: skip
        segments = []
        for name, ranks in published.columns.items():
            width = self.dim // len(ranks)
            for start, rank in zip(range(0, self.dim, width), ranks):
                segments.append(whole_table(tables[name], OnRank(rank=rank), (start, start + width)))
        for name, rank in published.whole.items():
            ratio = published.cache_ratio.get(name)
            tier = Tier.HBM if ratio is None else Tier.CACHED
            segments.append(whole_table(tables[name], OnRank(rank=rank, tier=tier, cache_ratio=ratio)))
        plan = Plan(world_size=problem.world_size, segments=tuple(segments))
        return np.asarray(memory_bytes(plan, problem).hbm / GIB)


def published_plans() -> PublishedPlans:
    """Return the committed plans."""
    text = (resources.files(__package__) / "memory.json").read_text()
    return from_json(PublishedPlans, text, "memory.json")
