"""TorchRec's ShardingPlan object of an exported plan."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.serialise import to_json
from shardbench.model.sharding_plan import ShardBlock, ShardedTable
from shardbench.torchrec.exported import Exported, TorchRecTable

SEQUENCE_TYPES = ("table_wise", "column_wise", "row_wise", "data_parallel")
"""Types that TorchRec's EmbeddingCollection can be sharded by."""

Collection: TypeAlias = EmbeddingBagCollection | EmbeddingCollection


def collections(model: torch.nn.Module) -> Iterator[tuple[str, Collection]]:
    """Yield path and module of every collection in a model that is not sharded yet."""
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            yield path, module


def sharding_plan(exported: Exported, model: torch.nn.Module, device: str = "cuda") -> ShardingPlan:
    """Make the plan of all collections in ``model``, for ``DistributedModelParallel(model, plan=...)``.

    ``model`` holds the exported tables: the user's own module where none is remapped, else what
    ``split`` made of it. Raises BadInput where its tables are others, Unsupported for a sequence
    that TorchRec cannot shard so.
    """
    pieces, found = exported.pieces, {}
    for path, module in collections(model):
        tables = {config.name: (config.num_embeddings, config.embedding_dim) for config in configs_of(module)}
        for name, shape in tables.items():
            _check(name, shape, pieces)
            kind = pieces[name].sharding_type
            if isinstance(module, EmbeddingCollection) and kind not in SEQUENCE_TYPES:
                raise Unsupported(f"table '{pieces[name].table}': TorchRec shards no EmbeddingCollection by {kind}")
        found[path] = EmbeddingModuleShardingPlan(
            {name: _parameter(pieces[name], exported.devices_per_node, device) for name in tables}
        )
    placed = {name for plan in found.values() for name in plan}
    missing = sorted(pieces.keys() - placed)
    if missing:
        raise BadInput(f"the plan places table '{missing[0]}', which no collection of the model has")
    return ShardingPlan(plan=found)


def sharding_plan_json(plan: ShardingPlan) -> str:
    """Return TorchRec's plan of a model as JSON for ``shardbench plan --against``, whichever planner made it.

    Raises BadInput for a plan whose shards are not listed (``EnumerableShardingSpec``).
    """
    modules = {
        path: {name: _sharded(name, parameter) for name, parameter in module.items()}
        for path, module in plan.plan.items()
        if isinstance(module, EmbeddingModuleShardingPlan)
    }
    return to_json(modules)


def _sharded(name: str, parameter: ParameterSharding) -> ShardedTable:
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


def cache_params(piece: TorchRecTable) -> CacheParams | None:
    """Return TorchRec's parameters of a table's cache; None without one."""
    return None if piece.cache_load_factor is None else CacheParams(load_factor=piece.cache_load_factor)


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
