"""Published plans of DLRMv4, whose tables' memory is stated rank by rank: what ``memory_bytes`` is held against."""

import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

from shardbench.model.plan import OnRank, Plan, Tier, whole_table
from shardbench.model.table import Table


def published_plans(tables: Iterable[Table]) -> dict[str, Plan]:
    """Return the plans in ``memory.json``, for the benchmark's tables, by the names of their points."""
    by_name = {table.name: table for table in tables}
    plans = {}
    for one in published_memory()["plans"]:
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


def published_memory() -> Any:
    """Return what is published: rows and width of tables, and plans, with the HBM of each rank in GiB."""
    return json.loads((resources.files(__package__) / "memory.json").read_text())
