"""TorchRec's own estimate of a plan's step: a judge of another form than the cost model, asked about the same machine.

``EmbeddingPerfEstimator`` rates every shard by bytes over bandwidths: kernels and collectives, forward and backward, of
the mean bag of each table. It knows nothing of the dense model, of launches, skew or caches, nor of the exchange of
inputs.
"""

import inspect

import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.planner.types import Shard as TorchRecShard
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.planner.utils import build_sharder_data

from shardbench.base.errors import Unsupported
from shardbench.engine.described import describe
from shardbench.engine.formats import TENSOR_TYPES, codecs_registry
from shardbench.engine.torchrec.exported import SEQUENCE_TYPES, TorchRecTable, export
from shardbench.engine.torchrec.sharding import cache_params
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling, Precision, Table

_OWNER = torch.nn.Module()
"""Stands for the collection of every table: the estimator asks only its class for communication types."""


def torchrec_estimate_ms(plan: Plan, problem: Problem) -> float | None:
    """Return the milliseconds of a step by TorchRec; None where it cannot express the plan (``inexpressible``).

    They are what its planner rates a plan by (``NoopPerfModel``): the most that the estimates of the shards of one rank
    add up to. The plan is rated as it is exported: a table whose rows it parts is several tables of TorchRec, each with
    its share of the lookups that the training profile expects.
    """
    try:
        exported = export(plan, devices_per_node=problem.topology.devices_per_node)
    except Unsupported:
        return None
    by_name = {table.name: (table, profile) for table, profile in zip(problem.tables, problem.profiles, strict=True)}
    options = []
    for table in exported.tables:
        own, profile = by_name[table.name]
        if own.pooling is Pooling.NONE and not _is_sequence(table.pieces, own):
            return None
        options += [_option(piece, own, profile, problem) for piece in table.pieces]
    topology = describe(problem)
    _estimate(options, EmbeddingPerfEstimator(topology=topology), problem.exchange)
    return float(NoopPerfModel(topology).rate(options))


def _is_sequence(pieces: tuple[TorchRecTable, ...], table: Table) -> bool:
    """Tell whether an EmbeddingCollection can hold the pieces: of one width, and sharded by one of its types."""
    return all(
        piece.sharding_type in SEQUENCE_TYPES and piece.column_stop - piece.column_start == table.dim
        for piece in pieces
    )


def _option(piece: TorchRecTable, table: Table, profile: AccessProfile, problem: Problem) -> ShardingOption:
    lookups = profile.mean_pooling * profile.share(piece.row_start, piece.row_stop)
    shape = (piece.row_stop - piece.row_start, piece.column_stop - piece.column_start)
    shards = [
        TorchRecShard(size=[shard.rows, shard.columns], offset=[shard.row, shard.column], rank=shard.rank)
        for shard in piece.shards
    ]
    # TorchRec's planner has a shard a rank of what all ranks hold.
    copies = [TorchRecShard(size=list(shape), offset=[0, 0], rank=rank) for rank in piece.ranks] if not shards else []
    return ShardingOption(
        name=piece.name,
        tensor=torch.empty(shape, dtype=TENSOR_TYPES[problem.precision], device="meta"),
        module=("tables", _OWNER),
        input_lengths=[lookups / table.features] * table.features,
        batch_size=problem.batch_size // problem.world_size,
        sharding_type=piece.sharding_type,
        partition_by="device",
        compute_kernel=piece.compute_kernel,
        cache_params=cache_params(piece),
        shards=shards or copies,
        is_pooled=table.pooling is not Pooling.NONE,
    )


def _estimate(options: list[ShardingOption], estimator: EmbeddingPerfEstimator, exchange: Precision) -> None:
    """Fill in what every shard takes; of shards of one size, which take as long, the estimator is asked for one."""
    sharder = EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs_registry(exchange))
    sharders = {f"{type(_OWNER).__module__}.{type(_OWNER).__name__}": sharder_data(sharder, estimator)}
    for option in options:
        every = option.shards
        option.shards = list({tuple(shard.size): shard for shard in every}.values())
        estimator.estimate([option], sharders)
        perf_by_size = {tuple(shard.size): shard.perf for shard in option.shards}
        for shard in every:
            shard.perf = perf_by_size[tuple(shard.size)]
        option.shards = every


def sharder_data(sharder: EmbeddingBagCollectionSharder, estimator: EmbeddingPerfEstimator) -> object:
    """Return what the estimator asks for of a sharder: data of it, or the sharder itself in older releases."""
    by_data = "sharder_data_map" in inspect.signature(estimator.estimate).parameters
    return build_sharder_data(sharder) if by_data else sharder
