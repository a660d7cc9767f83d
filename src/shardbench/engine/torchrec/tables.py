"""The tables of a module as TorchRec's planner is given it: with sharders, constraints and a topology."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from shardbench.base.errors import BadInput, Unsupported
from shardbench.engine.formats import DATA_TYPES, exchange_of
from shardbench.engine.torchrec.exported import DENSE
from shardbench.engine.torchrec.sharding import (
    BY_ROWS,
    TIERS,
    Collection,
    Shardable,
    configs_of,
    fault_of,
    load_factor,
    names_of,
    shardables,
)
from shardbench.model.constraints import Constraints, types_of
from shardbench.model.plan import Tier
from shardbench.model.table import Optimizer, Pooling, Precision, Table
from shardbench.model.validate import COLUMN_MULTIPLE

NATIVE_TYPES = ("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")
"""Sharding types that need no remap of ids; grid_shard needs widths that few tables have."""
Sharders: TypeAlias = list[ModuleSharder[torch.nn.Module]]
_REFUSED = ("key_value_params", "batch_sizes")


class PlannedTables:
    """What a model's collections hold, and what each table may be; raises PlannerError for what has no plan here.

    Tables are named as ``names_of`` does, so that several modules may have tables of one name.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        sharders: Sharders,
        constraints: Mapping[str, ParameterConstraints],
        topology: TorchRecTopology,
    ) -> None:
        by_kind = {sharder.module_type: sharder for sharder in sharders}
        try:
            self.parts = list(shardables(module, by_kind.keys()))
        except Unsupported as error:
            raise PlannerError(str(error)) from error
        self.names = names_of(self.parts)
        self.constraints: dict[str, ParameterConstraints] = {}
        self.pooling: dict[str, float] = {}
        tables: list[Table] = []
        types: dict[str, tuple[str, ...]] = {}
        tiers: dict[str, tuple[Tier, ...]] = {}
        ratios: dict[str, float] = {}
        formats = set()
        optimizers: set[Optimizer] = set()
        exchanges: set[Precision] = set()
        for one in self.parts:
            sharder = by_kind[type(one.module)]
            _check_buckets(one, topology.world_size)
            for config in configs_of(one.collection):
                name, constraint = self.names[one.path, config.name], constraints.get(config.name)
                if constraint is not None:
                    self.constraints[name] = constraint
                constraint = constraint or ParameterConstraints()
                tables.append(_table(name, config, one.collection, sharder))
                ratio = load_factor(constraint, _cache_ratio(sharder))
                if ratio:
                    ratios[name] = ratio
                formats.add(config.data_type)
                self.pooling[name] = _pooling(constraint, len(config.feature_names), name, topology.compute_device)
                types[name], tiers[name] = _possible_types(config, one, sharder, constraint, topology)
            exchanges.add(_exchange(sharder))
            optimizers |= {_optimizer(sharder, parameter) for parameter in one.collection.parameters()}
        self.tables = tuple(tables)
        in_node = tuple((name,) for name, one in self.constraints.items() if only(one, "table_column_wise"))
        least = {name: one.min_partition for name, one in self.constraints.items() if one.min_partition}
        self.own_constraints = Constraints(
            sharding_types=types, tiers=tiers, cache_ratios=ratios, same_node=in_node, least_columns=least
        )
        """What the constraints of TorchRec's are in ours."""
        by_type = {data_type: precision for precision, data_type in DATA_TYPES.items()}
        if not formats <= set(by_type):
            raise PlannerError("a table's numbers are neither fp32, fp16 nor bf16: give tables of one of these")
        # Where tables differ the wider format, so that memory suffices for all.
        self.precision = max((by_type[kind] for kind in formats), key=lambda kind: kind.bytes, default=Precision.FP32)
        if len(exchanges) > 1:
            raise PlannerError(
                f"the sharders exchange vectors as {' and '.join(sorted(exchanges))}: give them one format"
            )
        self.exchange = exchanges.pop() if exchanges else Precision.FP32
        # The one that keeps most, so that memory suffices for all.
        self.optimizer = max(optimizers, key=lambda kind: kind.state_bytes(4), default=Optimizer.SGD)

    @property
    def own_names(self) -> dict[str, str]:
        """Return the names that tables have in their module, by ours."""
        return {name: own for (_, own), name in self.names.items()}

    @property
    def paths(self) -> dict[str, set[str]]:
        """Return the names that tables have in their module, by its path."""
        return {one.path: {config.name for config in configs_of(one.collection)} for one in self.parts}


def only(constraint: ParameterConstraints, kind: str) -> bool:
    """Tell whether a table may be sharded by this type in nodes, and not by the one over all ranks."""
    types = constraint.sharding_types or ()
    return kind in types and kind.removeprefix("table_") not in types


def names_without_tables(names: Iterable[str], module: torch.nn.Module, sharders: Sharders) -> tuple[str, ...]:
    """Return those of some names that no table has which a sharder could shard, alone or with its module's path."""
    by_kind = {sharder.module_type: sharder for sharder in sharders}
    table_names = {
        table_name
        for path, part in module.named_modules()
        if type(part) in by_kind
        for name in by_kind[type(part)].shardable_parameters(part)
        for table_name in (name, f"{path}.{name}")
    }
    return tuple(sorted(set(names) - table_names))


def with_safe_types(
    module: torch.nn.Module,
    sharders: Sharders,
    constraints: Mapping[str, ParameterConstraints],
    topology: TorchRecTopology,
) -> dict[str, ParameterConstraints]:
    """Return the constraints without types by which TorchRec would not compute what is asked for (``fault_of``).

    Raises PlannerError where a table has no other types.
    """
    safe, device = dict(constraints), topology.compute_device
    by_kind = {sharder.module_type: sharder for sharder in sharders}
    for one in shardables(module, by_kind.keys()):
        possible = by_kind[type(one.module)].sharding_types(device)
        types_by_table = {
            config.name: _types_within(constraints.get(config.name), possible) for config in configs_of(one.collection)
        }
        by_rows = all(types and set(types) <= set(BY_ROWS) for types in types_by_table.values())
        others = dict.fromkeys(types_by_table, "row_wise" if by_rows else "table_wise")
        for name, types in types_by_table.items():
            faults = {kind: fault_of(one.collection, {**others, name: kind}, device) for kind in types}
            safe_types = [kind for kind, fault in faults.items() if not fault]
            if types and not safe_types:
                raise PlannerError(faults[types[0]])
            if len(safe_types) < len(types):
                safe[name] = replace(safe.get(name, ParameterConstraints()), sharding_types=safe_types)
    return safe


def _types_within(constraint: ParameterConstraints | None, possible: Sequence[str]) -> list[str]:
    constrained = constraint.sharding_types if constraint is not None else None
    return [kind for kind in possible if constrained is None or kind in constrained]


def _table(name: str, config: Any, collection: Collection, sharder: ModuleSharder[torch.nn.Module]) -> Table:
    if config.embedding_dim % 4:
        raise PlannerError(f"table '{name}' is {config.embedding_dim} wide; kernels read four numbers at a time")
    pooled = hasattr(collection, "embedding_bag_configs")
    return Table(
        name=name,
        rows=config.num_embeddings,
        dim=config.embedding_dim,
        pooling=Pooling.SUM if pooled else Pooling.NONE,
        features=len(config.feature_names),
        distinct=not pooled and bool(getattr(sharder, "_use_index_dedup", False)),
    )


def _pooling(constraint: ParameterConstraints, features: int, name: str, device: str) -> float:
    """Return the lookups of a sample in all of the table's features."""
    refused = [field for field in _REFUSED if getattr(constraint, field) is not None]
    if constraint.device_group not in (None, device):
        refused.append("device_group")
    if refused or constraint.use_virtual_table:
        raise PlannerError(f"table '{name}': constraint {(refused or ['use_virtual_table'])[0]} cannot be kept")
    each = constraint.pooling_factors
    times = constraint.num_poolings or [1.0] * len(each)
    total: float = sum(factor * n for factor, n in zip(each, times, strict=True))
    return total * features if len(each) == 1 else total


def _possible_types(
    config: Any,
    one: Shardable,
    sharder: ModuleSharder[torch.nn.Module],
    constraint: ParameterConstraints,
    topology: TorchRecTopology,
) -> tuple[tuple[str, ...], tuple[Tier, ...]]:
    """Return the sharding types that a table may have, and the tiers that its rows may be in."""
    device, local, rows = topology.compute_device, topology.intra_group_size, config.num_embeddings
    kinds = set(sharder.sharding_types(device)) & set(NATIVE_TYPES)
    if one.types is not None:
        kinds &= set(one.types)
    # TorchRec's types in a node are of the ranks of a fast group: a node, or the nodes of a pod. Those of the only one
    # are all ranks; the plan is called by the type that was asked for.
    alike = {"table_row_wise": "row_wise"} if local == topology.world_size else {}
    # Blocks that leave a rank empty crash it.
    for kind, ways in (("row_wise", topology.world_size), ("table_row_wise", local)):
        if (ways - 1) * -(-rows // ways) >= rows:
            kinds.discard(kind)
    if constraint.sharding_types:
        kinds &= {alike.get(kind, kind) for kind in types_of(tuple(constraint.sharding_types))}
    least = constraint.min_partition or COLUMN_MULTIPLE
    if "column_wise" in kinds and (config.embedding_dim < 2 * least or config.embedding_dim % (2 * COLUMN_MULTIPLE)):
        # TorchRec leaves such a table in one piece, and calls that column-wise.
        kinds = (kinds - {"column_wise"}) | {"table_wise"}
    if not kinds:
        constrained = constraint.sharding_types or "those of its sharder"
        raise PlannerError(f"table '{config.name}': no sharding type is left of {constrained}")
    kernels = {kind: _kernels(sharder, constraint, kind, device) for kind in sorted(kinds)}
    types = tuple(kind for kind, run in kernels.items() if (DENSE in run if kind == "data_parallel" else run))
    if not types:
        raise PlannerError(
            f"table '{config.name}': no compute kernel is left of {constraint.compute_kernels} for sharding types "
            f"{', '.join(kernels)}: change one of the two constraints"
        )
    tiers = {TIERS[kernel] for kind in types for kernel in kernels[kind]}
    return types, tuple(tier for tier in Tier if tier in tiers)


def _kernels(
    sharder: ModuleSharder[torch.nn.Module], constraint: ParameterConstraints, kind: str, device: str
) -> set[str]:
    """Return the kernels of a sharding type that the sharder has, the constraint allows, and that have a tier here."""
    kernels = set(sharder.compute_kernels(kind, device)) & set(TIERS)
    return kernels & set(constraint.compute_kernels) if constraint.compute_kernels else kernels


def _check_buckets(one: Shardable, world_size: int) -> None:
    """Raise PlannerError for managed collisions whose buckets ranks cannot share: TorchRec asserts it."""
    if not isinstance(one.module, BaseManagedCollisionEmbeddingCollection):
        return
    modules = one.module._managed_collision_collection._managed_collision_modules
    for name, buckets in {name: collisions.buckets() for name, collisions in modules.items()}.items():
        if buckets % world_size:
            raise PlannerError(
                f"table '{name}': its managed collisions have {buckets} buckets, which {world_size} ranks cannot "
                f"share: make the module with buckets={world_size}, or a multiple"
            )


def _cache_ratio(sharder: ModuleSharder[torch.nn.Module]) -> float:
    """Return the share of rows in the caches of tables that no constraint states one for; 0 where it states none."""
    return float((getattr(sharder, "fused_params", None) or {}).get("cache_load_factor") or 0.0)


def _exchange(sharder: ModuleSharder[torch.nn.Module]) -> Precision:
    try:
        return exchange_of(sharder.qcomm_codecs_registry)
    except BadInput as error:
        raise PlannerError(str(error)) from error


def _optimizer(sharder: ModuleSharder[torch.nn.Module], parameter: torch.nn.Parameter) -> Optimizer:
    """Name the optimiser of the backward pass, or the sharder's fused one; adam stands for any that is not known."""
    classes = getattr(parameter, "_optimizer_classes", None)
    if classes:
        name = classes[0].__name__
    else:
        stated = (getattr(sharder, "fused_params", None) or {}).get("optimizer")
        name = "SGD" if stated is None else str(getattr(stated, "value", stated))
    optimizers = {
        "SGD": Optimizer.SGD,
        "sgd": Optimizer.SGD,
        "exact_sgd": Optimizer.SGD,
        "RowWiseAdagrad": Optimizer.ROWWISE_ADAGRAD,
        "exact_row_wise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    }
    return optimizers.get(name, Optimizer.ADAM)
