"""TorchRec's sharding of every table as a plan of ours."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torchrec.distributed.planner.constants import UVM_CACHING_RATIO

from shardbench.base.errors import BadInput, Unsupported
from shardbench.engine.torchrec.exported import DENSE
from shardbench.engine.torchrec.sharding import sharded_table
from shardbench.model.caching import KERNELS
from shardbench.model.plan import Plan, Tier
from shardbench.model.problem import Problem
from shardbench.model.sharding_plan import plan_of

TIERS = {kernel: tier for tier, kernel in KERNELS.items()} | {DENSE: Tier.HBM}
"""The tier of a kernel's rows."""


def load_factor(sharded: Any, otherwise: float = UVM_CACHING_RATIO) -> float:
    """Return the share of rows that a table's cache holds: what its cache's parameters say, or that of its sharder."""
    params = getattr(sharded, "cache_params", None)
    return otherwise if params is None or params.load_factor is None else float(params.load_factor)


def translate(
    sharding: Mapping[str, Any], problem: Problem, cache_ratios: Mapping[str, float] = MappingProxyType({})
) -> Plan:
    """Return the plan of TorchRec's ParameterSharding (type, kernel, ranks, shard metadata) by table name.

    ``cache_ratios`` are those of tables whose sharding states no cache, TorchRec's own where it is left out. Blocks of
    rows become rows that are dealt over the same ranks. Raises Unsupported for a type or a kernel that has
    no segments here, and for blocks of unlike sizes.
    """
    kinds = Counter(sharding[table.name].sharding_type for table in problem.tables)
    tables = {}
    try:
        for table in problem.tables:
            ratio = load_factor(sharding[table.name], cache_ratios.get(table.name, UVM_CACHING_RATIO))
            tables[table.name] = replace(sharded_table(table.name, sharding[table.name]), cache_load_factor=ratio)
        plan = plan_of({"": tables}, problem.tables, problem.world_size)
    except BadInput as error:
        raise Unsupported(str(error)) from error
    return replace(plan, notes={f"tables_{kind}": kinds[kind] for kind in sorted(kinds)})
