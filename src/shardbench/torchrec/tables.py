"""The tables of a module as TorchRec's planner is given it: with sharders, constraints and a topology."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ModuleSharder

from shardbench.base.errors import BadInput
from shardbench.engine.formats import DATA_TYPES, exchange_of
from shardbench.model.constraints import allowed
from shardbench.model.table import Optimizer, Pooling, Precision, Table
from shardbench.torchrec.sharding import SEQUENCE_TYPES, Collection, collections, configs_of

NATIVE_TYPES = ("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")
"""Sharding types that need no remap of ids; grid_shard needs widths that few tables have."""
Sharders: TypeAlias = list[ModuleSharder[torch.nn.Module]]
_REFUSED = ("device_group", "key_value_params", "batch_sizes")


class PlannedTables:
    """What a model's collections hold, and what each table may be; raises PlannerError for what has no plan here."""

    def __init__(
        self,
        module: torch.nn.Module,
        sharders: Sharders,
        constraints: Mapping[str, ParameterConstraints],
        topology: TorchRecTopology,
    ) -> None:
        by_kind = {sharder.module_type: sharder for sharder in sharders}
        self.paths: dict[str, set[str]] = {}
        self.types: dict[str, tuple[str, ...]] = {}
        self.pooling: dict[str, float] = {}
        tables: list[Table] = []
        formats = set()
        optimizers: set[Optimizer] = set()
        exchanges: set[Precision] = set()
        for path, collection in collections(module):
            if type(collection) not in by_kind:
                raise PlannerError(f"no sharder is given for {path or 'the module'}, a {type(collection).__name__}")
            sharder = by_kind[type(collection)]
            self.paths[path] = {config.name for config in configs_of(collection)}
            for config in configs_of(collection):
                if config.name in self.pooling:
                    raise PlannerError(f"two collections have a table '{config.name}': rename one")
                constraint = constraints.get(config.name, ParameterConstraints())
                tables.append(_table(config, collection))
                formats.add(config.data_type)
                self.pooling[config.name] = _pooling(constraint, len(config.feature_names), config.name)
                self.types[config.name] = _types(config, collection, sharder, constraint, topology)
            exchanges.add(_exchange(sharder))
            optimizers |= {_optimizer(sharder, parameter) for parameter in collection.parameters()}
        self.tables = tuple(tables)
        known = {data_type: precision for precision, data_type in DATA_TYPES.items()}
        if not formats <= set(known):
            raise PlannerError("a table's numbers are neither fp32, fp16 nor bf16: give tables of one of these")
        # Where tables differ the wider format, so that memory suffices for all.
        self.precision = max((known[kind] for kind in formats), key=lambda kind: kind.bytes, default=Precision.FP32)
        if len(exchanges) > 1:
            raise PlannerError(
                f"the sharders exchange vectors as {' and '.join(sorted(exchanges))}: give them one format"
            )
        self.exchange = exchanges.pop() if exchanges else Precision.FP32
        # The one that keeps most, so that memory suffices for all.
        self.optimizer = max(optimizers, key=lambda kind: kind.state_bytes(4), default=Optimizer.SGD)


def _table(config: Any, collection: Collection) -> Table:
    if config.embedding_dim % 4:
        raise PlannerError(f"table '{config.name}' is {config.embedding_dim} wide; kernels read four numbers at a time")
    return Table(
        name=config.name,
        rows=config.num_embeddings,
        dim=config.embedding_dim,
        pooling=Pooling.SUM if hasattr(collection, "embedding_bag_configs") else Pooling.NONE,
        features=len(config.feature_names),
    )


def _pooling(constraint: ParameterConstraints, features: int, name: str) -> float:
    """Return the lookups of a sample in all of the table's features."""
    refused = [field for field in _REFUSED if getattr(constraint, field) is not None]
    if refused or constraint.use_virtual_table:
        raise PlannerError(f"table '{name}': constraint {(refused or ['use_virtual_table'])[0]} cannot be kept")
    each = constraint.pooling_factors
    times = constraint.num_poolings or [1.0] * len(each)
    total: float = sum(factor * n for factor, n in zip(each, times, strict=True))
    return total * features if len(each) == 1 else total


def _types(
    config: Any,
    collection: Collection,
    sharder: ModuleSharder[torch.nn.Module],
    constraint: ParameterConstraints,
    topology: TorchRecTopology,
) -> tuple[str, ...]:
    world, local, rows = topology.world_size, topology.local_world_size, config.num_embeddings
    offered = set(sharder.sharding_types(topology.compute_device)) & set(NATIVE_TYPES)
    if not hasattr(collection, "embedding_bag_configs"):
        offered &= set(SEQUENCE_TYPES)
    # Blocks that leave a rank empty crash it.
    for kind, ways in (("row_wise", world), ("table_row_wise", local)):
        if (ways - 1) * -(-rows // ways) >= rows:
            offered.discard(kind)
    if constraint.sharding_types:
        offered &= set(allowed(tuple(constraint.sharding_types)))
    least = constraint.min_partition
    if least is not None and config.embedding_dim < 2 * least:
        offered.discard("column_wise")
    if not offered:
        raise PlannerError(f"table '{config.name}': no sharding type is left of {constraint.sharding_types}")
    return tuple(sorted(offered))


def _exchange(sharder: ModuleSharder[torch.nn.Module]) -> Precision:
    """Return the format in which the sharder's modules exchange vectors."""
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
    known = {
        "SGD": Optimizer.SGD,
        "sgd": Optimizer.SGD,
        "exact_sgd": Optimizer.SGD,
        "RowWiseAdagrad": Optimizer.ROWWISE_ADAGRAD,
        "exact_row_wise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    }
    return known.get(name, Optimizer.ADAM)
