"""Puts a problem to TorchRec's planner, on meta tensors and without a process group."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.constants import BATCH_SIZE, POOLING_FACTOR
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, Storage
from torchrec.modules.embedding_configs import DataType

from shardbench.base.errors import Infeasible
from shardbench.engine.described import describe
from shardbench.engine.formats import DATA_TYPES, codecs_registry
from shardbench.engine.torchrec.sharding import load_factor
from shardbench.model.caching import ROWWISE_STATE_BYTES, cache_bytes
from shardbench.model.machine import Topology
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling, Table
from shardbench.model.validate import dealt

from . import Offer

ROW_SPLITS = ("row_wise", "table_row_wise")
SEQUENCE_TYPES = ("table_wise", "column_wise", "row_wise", "data_parallel")
"""Sharding types that TorchRec's EmbeddingCollection can have (deviation 9)."""
UVM_KERNEL, CACHING_KERNEL = "fused_uvm", "fused_uvm_caching"


def ask(problem: Problem, offer: Offer, *, config: Any = None) -> dict[str, Any]:
    """Return TorchRec's ParameterSharding by table name; raises Infeasible where its planner finds no plan.

    A blind planner takes its own defaults. With a ``config`` its estimator has these coefficients in place of its own.
    """
    with _quiet():
        planner = _planner(problem, offer, config)
        try:
            codecs = codecs_registry(problem.exchange)
            kinds = (EmbeddingBagCollectionSharder, EmbeddingCollectionSharder)
            sharders = [kind(qcomm_codecs_registry=codecs) for kind in kinds]
            plan = planner.plan(module=_meta_model(problem), sharders=sharders)
        except PlannerError as error:
            reason = " ".join(str(error).partition("Possible solutions")[0].split())
            raise Infeasible(f"TorchRec's planner: {reason}") from error
    return {name: sharding for module in plan.plan.values() for name, sharding in module.items()}


def _planner(problem: Problem, offer: Offer, config: Any) -> Any:
    topology = describe(problem)  # deviations 3 and 4
    constraints = {table.name: _constraint(table, i, problem, offer) for i, table in enumerate(problem.tables)}
    local_batch = BATCH_SIZE if offer.blind else problem.batch_size // problem.world_size
    perf = EmbeddingPerfEstimator(topology=topology, constraints=constraints)
    if config is not None:
        # Older releases take no config.
        from torchrec.distributed.planner.estimator import estimator  # noqa: PLC0415

        perf = estimator.EmbeddingPerfEstimator(topology=topology, constraints=constraints, config=config)
    enumerator = EmbeddingEnumerator(
        topology=topology, batch_size=local_batch, constraints=constraints, estimator=[perf, WeightStorage(problem)]
    )
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=local_batch,
        enumerator=InFixedOrder(enumerator, problem, offer.types),
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
        stats=[],
        constraints=constraints,
        debug=False,
    )


def _constraint(table: Table, index: int, problem: Problem, offer: Offer) -> Any:
    offered = offered_types(table.rows, offer.types, problem.topology)
    if table.pooling is Pooling.NONE:
        offered = [kind for kind in offered if kind in SEQUENCE_TYPES]
    if not offered:  # an empty list would mean all types to the planner
        raise Infeasible(f"table '{table.name}' has too few rows ({table.rows}) for {', '.join(offer.types)}")
    # No other kernels, and no smallest width of a column shard nor load factor but the planner's own: deviation 7.
    in_host = [UVM_KERNEL] + ([CACHING_KERNEL] if offer.caches and problem.machine.device == "cuda" else [])
    lengths = [POOLING_FACTOR if offer.blind else problem.profiles[index].mean_pooling / table.features]  # deviation 8
    return ParameterConstraints(
        sharding_types=offered[:1] if offer.first_only else offered,
        compute_kernels=["fused", "dense"] + (in_host if problem.topology.uvm_bytes and not offer.blind else []),
        pooling_factors=lengths * table.features,
    )


def offered_types(rows: int, sharding_types: tuple[str, ...], topology: Topology) -> list[str]:
    """Return sharding types whose blocks of ceil(rows / ranks) rows leave no rank of the group empty (deviation 5)."""
    groups = {"row_wise": topology.world_size, "table_row_wise": topology.devices_per_node}
    ways = {kind: groups.get(kind, 1) for kind in sharding_types}
    return [kind for kind, n in ways.items() if (n - 1) * -(-rows // n) < rows]


def _meta_model(problem: Problem) -> Any:
    kind = DATA_TYPES[problem.precision]
    # Unpooled tables of one width share a module, as TorchRec demands.
    groups: dict[tuple[bool, int], list[Table]] = {}
    for table in problem.tables:
        pooled = table.pooling is Pooling.SUM
        groups.setdefault((pooled, 0 if pooled else table.dim), []).append(table)
    modules = {
        f"{'bags' if pooled else 'sequences'}{width}": _collection(tables, pooled, kind)
        for (pooled, width), tables in groups.items()
    }
    return torch.nn.ModuleDict(modules)


def _collection(tables: list[Table], pooled: bool, kind: DataType) -> Any:
    config, collection = (
        (EmbeddingBagConfig, EmbeddingBagCollection) if pooled else (EmbeddingConfig, EmbeddingCollection)
    )
    configs = [
        config(name=t.name, feature_names=_features(t), num_embeddings=t.rows, embedding_dim=t.dim, data_type=kind)
        for t in tables
    ]
    return collection(tables=configs, device=torch.device("meta"))


def _features(table: Table) -> list[str]:
    return [table.name] if table.features == 1 else [f"{table.name}/{number}" for number in range(table.features)]


class WeightStorage:
    """Storage estimator: weights and optimiser state, as every strategy's memory is counted (deviation 2)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def estimate(self, sharding_options: list[Any], sharder_data_map: object) -> None:
        """Fill in every shard's storage."""
        optimizer, precision = self.problem.optimizer, self.problem.precision.bytes
        for option in sharding_options:
            ways = len(option.shards)
            for i, shard in enumerate(option.shards):
                rows, columns = shard.size
                if option.sharding_type in ROW_SPLITS:
                    rows = int(dealt(option.name, option.tensor.shape[0], ways)[i])
                weights, state = rows * columns * precision, optimizer.state_bytes(columns)
                shard.storage = Storage(hbm=weights + rows * state, ddr=0)
                if option.compute_kernel == UVM_KERNEL:
                    shard.storage = Storage(hbm=0, ddr=weights + rows * state)
                elif option.compute_kernel == CACHING_KERNEL:
                    cache = cache_bytes(ceil(load_factor(option) * rows), rows, self._widest(option) * precision)
                    small = rows * state if state <= ROWWISE_STATE_BYTES else 0
                    shard.storage = Storage(hbm=cache + small, ddr=weights + rows * state - small)

    def _widest(self, option: Any) -> int:
        """Return the columns of the widest table that may share a cache with this one (deviation 15)."""
        tables = {table.name: table for table in self.problem.tables}
        own = tables[option.name]
        if own.pooling is Pooling.NONE:
            return own.dim
        return max(table.dim for table in self.problem.tables if table.pooling is Pooling.SUM)


class InFixedOrder:
    """The planner's enumerator with its options in a fixed order: it takes them out of sets (deviation 6)."""

    def __init__(self, inner: Any, problem: Problem, sharding_types: tuple[str, ...]) -> None:
        self.inner = inner
        self.position = {table.name: i for i, table in enumerate(problem.tables)}
        self.sharding_types = sharding_types

    def enumerate(self, module: Any, sharders: list[Any]) -> list[Any]:
        """Return the options by table, by the strategy's order of sharding types, by kernel."""
        options = self.inner.enumerate(module=module, sharders=sharders)

        def place(option: Any) -> tuple[int, int, str]:
            kind = self.sharding_types.index(option.sharding_type)
            return self.position[option.name], kind, option.compute_kernel

        return sorted(options, key=place)

    def populate_estimates(self, sharding_options: list[Any]) -> None:
        """Pass on to the planner's enumerator."""
        self.inner.populate_estimates(sharding_options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log: TorchRec writes a line for each proposal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
