"""TorchRec's ShardingPlan object of an exported plan, and TorchRec's sharding of every table as a plan of ours."""

from collections import Counter
from collections.abc import Collection as Container
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed.planner.constants import UVM_CACHING_RATIO
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.itep_embedding_modules import ITEPEmbeddingBagCollection, ITEPEmbeddingCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.serialise import to_json
from shardbench.engine.formats import DATA_TYPES
from shardbench.engine.torchrec.exported import DENSE, SEQUENCE_TYPES, Exported, TorchRecTable
from shardbench.model.caching import KERNELS
from shardbench.model.plan import Plan, Tier
from shardbench.model.problem import Problem
from shardbench.model.sharding_plan import ShardBlock, ShardedTable
from shardbench.model.sharding_plan import plan_of as plan_of_shards

Collection: TypeAlias = EmbeddingBagCollection | EmbeddingCollection
_COLLECTIONS = (EmbeddingBagCollection, EmbeddingCollection)
_PRUNED = (ITEPEmbeddingBagCollection, ITEPEmbeddingCollection)
_WRAPPERS = (BaseManagedCollisionEmbeddingCollection, FeatureProcessedEmbeddingBagCollection, *_PRUNED)
"""Modules that TorchRec shards together with the collection that they hold."""
BY_ROWS = ("row_wise", "table_row_wise")
TIERS = {kernel: tier for tier, kernel in KERNELS.items()} | {DENSE: Tier.HBM}
"""The tier of a kernel's rows."""
TRAINED_TYPES = frozenset(DATA_TYPES.values())
_TRANSPARENT = (EmbeddingTower, EmbeddingTowerCollection)
"""Modules of TorchRec's that may stay as they are while the collections in them are sharded."""


class Unsharded(Unsupported):
    """A module that has to be sharded together with its collection is given no sharder."""


@dataclass(frozen=True)
class Shardable:
    """What TorchRec shards as one module, and the collection that holds its tables: itself, or one that it wraps."""

    path: str
    module: torch.nn.Module
    collection: Collection

    @property
    def types(self) -> tuple[str, ...] | None:
        """Return the sharding types that it may have; None for all."""
        if isinstance(self.module, BaseManagedCollisionEmbeddingCollection):
            return ("row_wise",)
        if isinstance(self.module, _PRUNED):
            return ("table_wise", "column_wise", *BY_ROWS)
        return None if isinstance(self.collection, EmbeddingBagCollection) else SEQUENCE_TYPES


def shardables(model: torch.nn.Module, kinds: Container[type] | None = None) -> Iterator[Shardable]:
    """Yield what TorchRec shards in a model that is not sharded yet, found as TorchRec finds it: outermost first.

    ``kinds`` are the classes that a sharder is given for, all where it is left out. Raises Unsharded for a module that
    would be trained wrongly if the collection in it were sharded alone, such as one of managed collisions, whose ranks
    would then give one id different rows; Unsupported for other classes that TorchRec shards or for which
    there is no sharder.
    """
    visited: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop(0)
        if id(module) in visited:
            continue
        visited.add(id(module))
        description = f"{path or 'the module'}, a {type(module).__name__}"
        inside = [part for part in module.modules() if isinstance(part, _COLLECTIONS)]
        is_shardable = isinstance(module, (*_COLLECTIONS, *_WRAPPERS))
        own_way = f"{description}, is sharded in a way of its own, which only TorchRec's planner plans: let it be asked"
        if type(module) in kinds if kinds is not None else is_shardable:
            if not is_shardable or len(inside) != 1:
                raise Unsupported(own_way)
            if inside[0] not in (module, *module.children()):
                raise Unsupported(
                    f"{description}, has no collection any more: TorchRec shards none that was split, so leave it whole"
                )
            yield Shardable(path, module, inside[0])
            continue
        if is_shardable and inside == [module]:
            raise Unsupported(f"no sharder is given for {description}")
        if inside and (is_shardable or _is_wrapper(module)):
            if kinds is None:
                raise Unsupported(own_way)
            raise Unsharded(
                f"no sharder is given for {description}: give one, since its collection cannot be sharded without it"
            )
        waiting += [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]


def _is_wrapper(module: torch.nn.Module) -> bool:
    own = type(module).__module__.startswith("torchrec.modules.")
    return own and not isinstance(module, _TRANSPARENT)


def names_of(parts: Sequence[Shardable]) -> dict[tuple[str, str], str]:
    """Return a name for each path and table: the table's own, with the path in front where several have it."""
    pairs = [(one.path, config.name) for one in parts for config in configs_of(one.collection)]
    times = Counter(name for _, name in pairs)
    return {(path, name): name if times[name] == 1 else f"{path}.{name}" for path, name in pairs}


def sharding_plan(exported: Exported, model: torch.nn.Module, device: str = "cuda") -> ShardingPlan:
    """Make the plan of all collections in ``model``, for ``DistributedModelParallel(model, plan=...)``.

    ``model`` holds the exported tables: the user's own module where none is remapped, else what
    ``split`` made of it. Raises BadInput where its tables are others or two have one name, Unsupported for a
    module or a sequence that TorchRec cannot shard so.
    """
    parts = list(shardables(model))
    names = names_of(parts)
    twice = sorted({name for (_, name), full_name in names.items() if name != full_name})
    if twice:
        raise BadInput(f"two collections have a table '{twice[0]}', and a plan knows tables by name: rename one")
    return plan_of(exported, parts, names, device)


def plan_of(
    exported: Exported,
    parts: Sequence[Shardable],
    names: Mapping[tuple[str, str], str],
    device: str,
    local_size: int | None = None,
) -> ShardingPlan:
    """Make the plan of modules whose tables are known to the exported plan by ``names`` of path and table.

    ``local_size`` are the ranks of a computer, where the plan's nodes are pods of several.
    """
    pieces, plans = exported.pieces, {}
    for one in parts:
        tables = {}
        for config in configs_of(one.collection):
            table_name = names[one.path, config.name]
            _check(table_name, (config.num_embeddings, config.embedding_dim), pieces)
            if one.types is not None and pieces[table_name].sharding_type not in one.types:
                kind = pieces[table_name].sharding_type
                raise Unsupported(f"table '{table_name}': TorchRec shards no {type(one.module).__name__} by {kind}")
            tables[config.name] = _parameter(pieces[table_name], local_size or exported.devices_per_node, device)
        fault = fault_of(one.collection, {name: parameter.sharding_type for name, parameter in tables.items()}, device)
        if fault:
            raise Unsupported(fault)
        plans[one.path] = EmbeddingModuleShardingPlan(tables)
    missing = sorted(pieces.keys() - set(names.values()))
    if missing:
        raise BadInput(f"the plan places table '{missing[0]}', which no collection of the model has")
    return ShardingPlan(plan=plans)


def fault_of(collection: Collection, types: Mapping[str, str], device: str) -> str:
    """Say why TorchRec would crash or compute something else with tables of these sharding types; empty if it does not.

    Seen in TorchRec 1.8 and 1.9: it takes all these plans.
    """
    configs, pooled = configs_of(collection), isinstance(collection, EmbeddingBagCollection)
    for config in configs:
        if device == "cpu" and config.data_type not in TRAINED_TYPES:
            return f"table '{config.name}': TorchRec trains no {config.data_type.value} weights on CPUs"
        if device == "cpu" and not pooled and types[config.name] == "data_parallel":
            # Its dense CPU kernel only knows bags.
            return f"table '{config.name}': TorchRec has no data_parallel for an EmbeddingCollection on CPUs"
        if device == "cpu" and pooled and config.pooling is PoolingType.MEAN and collection.is_weighted():
            # Its backward pass leaves the division by the length out.
            return f"table '{config.name}': FBGEMM's weighted means train wrongly on CPUs: weight sums by 1 / length"
    means = [c.name for c in configs if pooled and c.pooling is PoolingType.MEAN and types[c.name] in BY_ROWS]
    others = [config.name for config in configs if types[config.name] not in BY_ROWS]
    if means and others:
        return (
            f"table '{means[0]}': with mean pooling by {types[means[0]]} TorchRec also divides the vectors of table "
            f"'{others[0]}', which is {types[others[0]]}: shard all tables of the collection by rows, or no mean"
        )
    return ""


def sharding_plan_json(plan: ShardingPlan) -> str:
    """Return TorchRec's plan of a model as JSON for ``shardbench plan --against``, whichever planner made it.

    Raises BadInput for a plan whose shards are not listed (``EnumerableShardingSpec``).
    """
    modules = {
        path: {name: sharded_table(name, parameter) for name, parameter in module.items()}
        for path, module in plan.plan.items()
        if isinstance(module, EmbeddingModuleShardingPlan)
    }
    return to_json(modules)


def sharded_table(name: str, parameter: ParameterSharding) -> ShardedTable:
    """Return how TorchRec shards a table in plain data; raises BadInput where its shards are not listed."""
    spec = parameter.sharding_spec
    if spec is not None and not isinstance(spec, EnumerableShardingSpec):
        raise BadInput(f"table '{name}': its shards are not listed, but given by {type(spec).__name__}")
    blocks = [_block(name, shard) for shard in (spec.shards if spec is not None else ())]
    cache = parameter.cache_params
    return ShardedTable(
        sharding_type=parameter.sharding_type,
        compute_kernel=parameter.compute_kernel,
        ranks=tuple(parameter.ranks or (block.rank for block in blocks)),
        sharding_spec=tuple(blocks) if spec is not None else None,
        cache_load_factor=cache.load_factor if cache is not None else None,
    )


def _block(name: str, shard: ShardMetadata) -> ShardBlock:
    rank = shard.placement.rank() if shard.placement is not None else None
    if rank is None:
        raise BadInput(f"table '{name}': a shard of it is on no rank")
    (row, column), (rows, columns) = shard.shard_offsets, shard.shard_sizes
    return ShardBlock(offsets=(row, column), sizes=(rows, columns), rank=rank)


def parameters_of_replicas(exported: Exported, model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the weights of tables that every rank holds, which an ordinary optimiser steps."""
    replicas = {name for name, piece in exported.pieces.items() if piece.sharding_type == "data_parallel"}
    named = ((name.split("."), parameter) for name, parameter in model.named_parameters())
    return [parameter for path, parameter in named if path[-1] == "weight" and path[-2] in replicas]


def configs_of(module: Collection) -> list[Any]:
    """Return the configurations of a collection's tables."""
    configs = getattr(module, "embedding_bag_configs", None) or module.embedding_configs
    return list(configs())


def _check(name: str, shape: tuple[int, int], pieces: dict[str, TorchRecTable]) -> None:
    if name not in pieces:
        split = any(piece.table == name for piece in pieces.values())
        advice = "is in several pieces there: call split(exported, module) first" if split else "is not in the plan"
        raise BadInput(f"table '{name}' of the model {advice}")
    logical = pieces[name].logical()
    rows = logical.rows if pieces[name].ways > 1 else logical.segment.rows
    if shape != (rows, logical.segment.columns):
        raise BadInput(f"table '{name}' is {shape[0]} x {shape[1]}, the plan's is {rows} x {logical.segment.columns}")


def _parameter(piece: TorchRecTable, local_size: int, device: str) -> ParameterSharding:
    shards = [
        ShardMetadata(
            shard_offsets=[shard.row, shard.column],
            shard_sizes=[shard.rows, shard.columns],
            placement=placement(device, shard.rank, local_size),
        )
        for shard in piece.shards
    ]
    return ParameterSharding(
        sharding_type=piece.sharding_type,
        compute_kernel=piece.compute_kernel,
        ranks=list(piece.ranks),
        sharding_spec=EnumerableShardingSpec(shards) if shards else None,
        cache_params=cache_params(piece),
    )


def cache_params(piece: TorchRecTable) -> CacheParams | None:
    """Return TorchRec's parameters of a table's cache; None without one."""
    return None if piece.cache_load_factor is None else CacheParams(load_factor=piece.cache_load_factor)


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
        plan = plan_of_shards({"": tables}, problem.tables, problem.world_size)
    except BadInput as error:
        raise Unsupported(str(error)) from error
    return replace(plan, notes={f"tables_{kind}": kinds[kind] for kind in sorted(kinds)})
