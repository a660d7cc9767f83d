"""Plans in and out of TorchRec: export, sharding plans, remapped collections, and a planner in place of its own."""

from shardbench.advice.torchrec.planner import ShardBenchPlanner
from shardbench.engine.formats import codecs_registry
from shardbench.engine.torchrec.exported import Exported, ExportedTable, Shard, TorchRecTable, export, inexpressible
from shardbench.engine.torchrec.remap import IdRemap, ranks_of
from shardbench.engine.torchrec.sharding import parameters_of_replicas, sharding_plan, sharding_plan_json
from shardbench.engine.torchrec.split import SplitBags, SplitSequences, load_tables, read_tables, split
from shardbench.workloads.value_hash import hash_ids

__all__ = [
    "Exported",
    "ExportedTable",
    "IdRemap",
    "Shard",
    "ShardBenchPlanner",
    "SplitBags",
    "SplitSequences",
    "TorchRecTable",
    "codecs_registry",
    "export",
    "hash_ids",
    "inexpressible",
    "load_tables",
    "parameters_of_replicas",
    "ranks_of",
    "read_tables",
    "sharding_plan",
    "sharding_plan_json",
    "split",
]
