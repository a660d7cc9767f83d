"""Published plans of DLRMv4, whose tables' memory is stated rank by rank: what ``memory_bytes`` is held against."""

import json
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.memory import GIB
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import OnRank, Plan, Tier, whole_table
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Optimizer, Pooling, Table
from shardbench.model.validate import memory_bytes

MACHINE = "b200-1x8"
"""Any machine of eight devices in one node: only the shape counts."""


class TablesOfRanks(NamedTuple):
    """HBM that tables take of each rank of a plan, in GiB, [world]."""

    point: str
    published: Floats
    counted: Floats


def published_plans(tables: Iterable[Table]) -> dict[str, Plan]:
    """Return the plans in ``memory.json``, for the benchmark's tables, by the names of their points."""
    by_name = {table.name: table for table in tables}
    plans = {}
    for one in _data()["plans"]:
        segments = []
        for name, ranks in one["columns"].items():
            width = by_name[name].dim // len(ranks)
            for i, rank in enumerate(ranks):
                segments.append(whole_table(by_name[name], OnRank(rank=rank), (i * width, (i + 1) * width)))
        for name, rank in one["whole"].items():
            ratio = one.get("cache_ratio", {}).get(name)
            tier = Tier.HBM if ratio is None else Tier.CACHED
            segments.append(whole_table(by_name[name], OnRank(rank=rank, tier=tier, cache_ratio=ratio)))
        plans[one["point"]] = Plan(world_size=len(one["hbm_gib"]), segments=tuple(segments))
    return plans


def tables_of_ranks() -> Iterator[TablesOfRanks]:
    """Yield what is published of each plan in ``memory.json`` beside what our count gives."""
    data = _data()
    tables = {name: Table(name=name, rows=n, dim=data["dim"], pooling=Pooling.NONE) for name, n in data["rows"].items()}
    problem = Problem.of(
        "published",
        tuple(tables.values()),
        tuple(AccessProfile(rows=t.rows, samples=1, present=0, counts=(), row_counts=()) for t in tables.values()),
        load_machine(MACHINE),
        batch_size=load_machine(MACHINE).topology.world_size,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
    )
    plans = published_plans(tables.values())
    for one in data["plans"]:
        counted = memory_bytes(plans[one["point"]], problem).hbm / GIB
        yield TablesOfRanks(one["point"], np.array(one["hbm_gib"]), counted)


def _data() -> Any:
    return json.loads((resources.files(__package__) / "memory.json").read_text())
