"""The modules that run a plan: TorchRec's sharded collections, and plain replicas of unpooled rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# TorchRec imports it late, and it compiles for half a second: here it is done once, before ranks are forked.
import torch.distributed.optim
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torch.nn.parallel import DistributedDataParallel
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingDist, RwPooledEmbeddingSharding
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingDist, TwPooledEmbeddingSharding
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingDist, TwRwPooledEmbeddingSharding
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ParameterSharding, ShardingEnv
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shardbench.engine.blocks import Block, Merge, merge
from shardbench.engine.formats import DATA_TYPES, TENSOR_TYPES, codecs_registry
from shardbench.engine.lower import LogicalTable, Lowered, ModuleKey, Reach, Slot, home_rank
from shardbench.engine.operators import Constant, leave, provide_kernel
from shardbench.model.caching import KERNELS, is_cached, ratio_of
from shardbench.model.machine import Topology
from shardbench.model.plan import OnLocalRank, RowWise, ShardingGroups, Tier, sharding_groups, tier_of
from shardbench.model.table import Precision

Shards = dict[str, list[tuple[int, torch.Tensor]]]
"""Logical table -> this rank's [(first row, weights [rows, columns])]."""


class Groups:
    """Process groups of a step: all its ranks, this rank's sharding group, the equal ranks of all sharding groups.

    ``dense`` is one of all ranks, too: it tells dense gradients from those of replicated rows; and
    so is ``hosts``, between their CPUs.
    """

    def __init__(self, topology: Topology, groups: ShardingGroups | None = None) -> None:
        self.topology = topology
        self.rank = dist.get_rank()
        ranks = sharding_groups(groups, topology)
        (group,), (place,) = np.nonzero(ranks == self.rank)
        self.sharding_ranks: list[int] = ranks[group].tolist()
        # Every rank takes part in making every group.
        sharding = [dist.new_group(members) for members in ranks.tolist()]
        replicas = [dist.new_group(members) for members in ranks.T.tolist()]
        self.world: Any = dist.group.WORLD
        self.dense: Any = dist.new_group()
        self.hosts: Any = self.world if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        self.sharding, self.replicas = sharding[group], replicas[place]

    @classmethod
    def alone(cls, topology: Topology) -> "Groups":
        """Make the groups of a step that the first rank makes without the others; ``topology`` has the one device.

        Every rank takes part in making them.
        """
        groups = cls.__new__(cls)
        groups.topology, groups.rank, groups.sharding_ranks = topology, 0, [0]
        only = dist.new_group([0], backend="gloo")
        groups.world = groups.dense = groups.hosts = groups.sharding = groups.replicas = only
        return groups

    def between_hosts(self) -> "Groups":
        """Return the groups with CPUs in the place of all devices."""
        groups = copy(self)
        groups.world = self.hosts
        return groups


class TableModule(ABC):
    """Logical tables that are looked up and exchanged together."""

    key: ModuleKey
    layouts: list[list[Block]]
    """Columns of each tensor that ``output`` gives, where pooled."""

    def input(self, lookups: KeyedJaggedTensor) -> Any:
        """Send lookups to the owners of their rows; here nothing leaves the rank."""
        return lookups

    @abstractmethod
    def compute(self, received: Any) -> list[torch.Tensor]:
        """Look up what this rank owns."""

    @abstractmethod
    def output(self, received: Any, vectors: list[torch.Tensor]) -> Any:
        """Send vectors to the samples' ranks: tensors in ``layouts`` order, or by key if unpooled."""

    @abstractmethod
    def shards(self) -> Shards:
        """Return the weights of this rank, [first row, weights] by logical table."""

    def moments(self) -> dict[str, torch.Tensor]:
        """Return row-wise Adagrad's moments of this rank's rows, [rows] by logical table, where a kernel keeps them."""
        return {}

    def replicated_parameters(self) -> list[torch.nn.Parameter]:
        """Return the weights that an ordinary optimiser steps."""
        return []


class ShardedModule(TableModule):
    """A TorchRec collection, sharded over the world or over this rank's sharding group."""

    def __init__(self, lowered: Lowered, key: ModuleKey, groups: Groups, optimizer: Any, device: torch.device) -> None:
        self.key = key
        self.tables = {t.name: t for t in lowered.modules[key]}
        self._of_key = {name: (t, feature) for t in self.tables.values() for feature, name in enumerate(t.keys)}
        module = _collection(list(self.tables.values()), key.pooled, lowered.precision)
        fused = [p for n, p in module.named_parameters() if not self.tables[_logical(n)].is_replicated]
        if fused:
            # A copy: TorchRec adds to the arguments it is given.
            apply_optimizer_in_backward(optimizer[0], fused, dict(optimizer[1]))
        registry = codecs_registry(lowered.exchange)
        if key.pooled:
            sharder: Any = EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry)
        else:
            if key.distinct and device.type == "cpu":
                provide_kernel()
            sharder = EmbeddingCollectionSharder(qcomm_codecs_registry=registry, use_index_dedup=key.distinct)
        in_group = key.scope is Reach.GROUP
        ranks = groups.sharding_ranks if in_group else list(range(groups.topology.world_size))
        plan = EmbeddingModuleShardingPlan(
            {name: _sharding(table, ranks, groups, device) for name, table in self.tables.items()}
        )
        group = groups.sharding if in_group else groups.world
        self.module: Any = sharder.shard(module, plan, ShardingEnv.from_process_group(group), device)
        self.layouts = (
            [self._join_output(i, device) for i in range(len(self.module._output_dists))] if key.pooled else []
        )

    def input(self, lookups: KeyedJaggedTensor) -> Any:
        """Exchange lookups by TorchRec's input distribution."""
        context = self.module.create_context()
        return context, self.module.input_dist(context, lookups).wait().wait()

    def compute(self, received: Any) -> list[torch.Tensor]:
        """Look up the rows of this rank in TorchRec's kernels."""
        vectors: list[torch.Tensor] = self.module.compute(*received)
        return vectors

    def output(self, received: Any, vectors: list[torch.Tensor]) -> Any:
        """Exchange vectors by TorchRec's output distributions."""
        context, _ = received
        if not self.key.pooled:
            return self.arrived(self.module.output_dist(context, vectors))
        sent = [
            output(vector, sharding)
            for output, vector, sharding in zip(self.module._output_dists, vectors, context.sharding_contexts)
        ]
        return self.arrived(sent)

    def look_up_and_send(self, context: Any, received: Any) -> list[Any]:
        """Look up pooled vectors and send each sharding's before the next is looked up; give what ``arrived`` takes."""
        shardings = zip(self.module._lookups, self.module._output_dists, received, context.sharding_contexts)
        return [output(lookup(features), sharding) for lookup, output, features, sharding in shardings]

    def arrived(self, sent: Any) -> Any:
        """Wait for vectors that are on their way; give them as ``output`` does."""
        if not self.key.pooled:
            return {name: tensor.values() for name, tensor in sent.wait().items()}
        return [awaitable.wait() for awaitable in sent]

    def shards(self) -> Shards:
        """Return this rank's shards of TorchRec's state."""
        by_table: Shards = {}
        if any(is_cached(table.segment) for table in self.tables.values()):
            # What was trained in a cache is written to the rows.
            for kernel in self._kernels():
                kernel.flush()
        for name, value in self.module.state_dict().items():
            if hasattr(value, "local_shards"):
                by_table[_logical(name)] = [(s.metadata.shard_offsets[0], s.tensor) for s in value.local_shards()]
            else:
                by_table[_logical(name)] = [(0, value)]
        return by_table

    def moments(self) -> dict[str, torch.Tensor]:
        """Return the moments that FBGEMM's kernels keep."""
        return {
            table.name: state[0].view(-1)
            for kernel in self._kernels()
            for table, state in zip(kernel.config.embedding_tables, kernel.emb_module.split_optimizer_states())
        }

    def replicated_parameters(self) -> list[torch.nn.Parameter]:
        """Return the weights of data-parallel tables."""
        return [p for name, p in self.module.named_parameters() if self.tables[_logical(name)].is_replicated]

    def _kernels(self) -> Iterator[Any]:
        # Replicas' lookups are DDP's.
        return (kernel for lookup in self.module._lookups for kernel in getattr(lookup, "_emb_modules", ()))

    def _blocks(self, names: Sequence[str]) -> list[Block]:
        return [
            Block(slot=Slot(t.table, feature), start=t.segment.column_start, stop=t.segment.column_stop)
            for t, feature in (self._of_key[name] for name in names)
        ]

    def _join_output(self, index: int, device: torch.device) -> list[Block]:
        """Layout of one sharding's output; where segments meet on a rank they are pooled before they are sent."""
        sharding = self.module._embedding_shardings[index]
        units, own = _units(sharding)
        merges = [merge(self._blocks(names)) for names in units]
        if own is None or all(len(runs) == 1 for m in merges for runs in m.parts):
            return [block for names in units for block in self._blocks(names)]
        self.module._output_dists[index] = _MergedOutput(merges[own], _output_dist(sharding, merges, device))
        return [block for m in merges for block in m.blocks]


class _MergedOutput(torch.nn.Module):
    """TorchRec's output exchange, after segments of one table were pooled together."""

    def __init__(self, own: Merge, exchange: Any) -> None:
        super().__init__()
        self._own, self._exchange = own, exchange

    def forward(self, vectors: torch.Tensor, context: Any) -> Any:
        return self._exchange(self._own(vectors), context)


def _units(sharding: Any) -> tuple[list[list[str]], int | None]:
    """Keys by what sends together (rank, all, node), and which of them this rank is in."""
    if isinstance(sharding, TwRwPooledEmbeddingSharding):
        per_node = sharding._grouped_embedding_configs_per_node
        names = [[name for config in configs for name in config.embedding_names()] for configs in per_node]
        return names, sharding._rank // sharding._intra_pg.size()
    if isinstance(sharding, TwPooledEmbeddingSharding):
        return sharding.embedding_names_per_rank(), sharding._rank
    if isinstance(sharding, RwPooledEmbeddingSharding):
        return [sharding.embedding_names()], 0
    return [sharding.embedding_names()], None


def _output_dist(sharding: Any, merges: list[Merge], device: torch.device) -> Any:
    widths = [[block.width for block in m.blocks] for m in merges]
    sums, codecs = [sum(w) for w in widths], sharding.qcomm_codecs_registry
    if isinstance(sharding, TwRwPooledEmbeddingSharding):
        groups = sharding._cross_pg, sharding._intra_pg
        return TwRwPooledEmbeddingDist(sharding._rank, *groups, sums, widths, device, qcomm_codecs_registry=codecs)
    if isinstance(sharding, TwPooledEmbeddingSharding):
        return TwPooledEmbeddingDist(sharding._pg, sums, widths, device=device, qcomm_codecs_registry=codecs)
    return RwPooledEmbeddingDist(sharding._pg, embedding_dims=widths[0], qcomm_codecs_registry=codecs)


def _logical(parameter: str) -> str:
    return parameter.split(".")[1]


def _collection(tables: list[LogicalTable], pooled: bool, precision: Precision) -> Any:
    kind, collection = (
        (EmbeddingBagConfig, EmbeddingBagCollection) if pooled else (EmbeddingConfig, EmbeddingCollection)
    )
    configs = [
        kind(
            name=t.name,
            embedding_dim=t.segment.columns,
            num_embeddings=t.rows,
            feature_names=list(t.keys),
            data_type=DATA_TYPES[precision],
            # The kernels make their weights, and the collection would make them once more.
            init_fn=leave,
        )
        for t in tables
    ]
    return collection(tables=configs, device=torch.device("meta"))


def _sharding(table: LogicalTable, ranks: Sequence[int], groups: Groups, device: torch.device) -> ParameterSharding:
    """Return TorchRec's sharding of a table, with its kernel and cache, in a module of these ranks.

    TorchRec numbers them from 0, but places shards by the rank of the world, this rank's on its very device: torch
    refuses a shard that lies elsewhere. One machine may stand for several nodes.
    """
    place, topology = table.segment.placement, groups.topology
    if table.is_replicated:
        return ParameterSharding("data_parallel", "dense", ranks=list(range(len(ranks))))
    # On CPUs all memory is host memory, and a plan with a cache is not lowered.
    kernel = KERNELS[tier_of(place)] if device.type == "cuda" else "fused"
    home = place.local_rank if isinstance(place, OnLocalRank) else home_rank(table.segment, topology)
    if home is not None:
        kind, holders = "table_wise", [home]
    elif isinstance(place, RowWise) and len(place.ranks) < topology.world_size:
        kind, holders = "table_row_wise", list(place.ranks)
    else:
        kind, holders = "row_wise", list(range(len(ranks)))
    shards = []
    for number, holder in enumerate(holders):
        rank = ranks[holder]
        on = device if rank == groups.rank or device.type == "cpu" else f"cuda:{rank % topology.devices_per_node}"
        sizes, offsets = [table.block, table.segment.columns], [number * table.block, 0]
        shards.append(ShardMetadata(offsets, sizes, f"rank:{rank}/{on}"))
    return ParameterSharding(
        sharding_type=kind,
        compute_kernel=kernel,
        ranks=holders,
        sharding_spec=EnumerableShardingSpec(shards),
        cache_params=CacheParams(load_factor=ratio_of(table.segment)) if kernel == KERNELS[Tier.CACHED] else None,
    )


class HostTables(ShardedModule):
    """Tables that the CPUs of nodes look up beside GPUs.

    Lookups and vectors are exchanged between hosts, in collectives of the same names and bytes as
    devices'; a rank copies its own samples' vectors to its device, and their gradients back.
    """

    def __init__(self, lowered: Lowered, key: ModuleKey, groups: Groups, optimizer: Any, device: torch.device) -> None:
        super().__init__(lowered, key, groups.between_hosts(), optimizer, torch.device("cpu"))
        self._device = device

    def output(self, received: Any, vectors: list[torch.Tensor]) -> Any:
        """Exchange vectors between the hosts and copy them to the device."""
        outputs = super().output(received, vectors)
        if isinstance(outputs, dict):
            return {name: self._copied(rows) for name, rows in outputs.items()}
        return [self._copied(pooled) for pooled in outputs]

    def _copied(self, vectors: torch.Tensor) -> torch.Tensor:
        copied: torch.Tensor = _ToDevice.apply(vectors, self._device)  # type: ignore[no-untyped-call]
        return copied


class _ToDevice(torch.autograd.Function):
    """A copy to a device by way of pinned memory, and of its gradient back."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, device: torch.device) -> torch.Tensor:
        staged = vectors.pin_memory() if device.type == "cuda" else vectors.clone()
        return staged.to(device, non_blocking=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0]
        staged = torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=gradient.is_cuda)
        # Blocks until it is there: the CPUs read it next.
        return staged.copy_(gradient), None


class ReplicatedRows(TableModule):
    """Unpooled rows held whole by every rank, as plain embeddings under DDP.

    TorchRec's data-parallel kernel ignores the unpooled mode on a CPU.
    """

    def __init__(self, lowered: Lowered, key: ModuleKey, groups: Groups, device: torch.device) -> None:
        self.key = key
        self.layouts = []
        self.module = data_parallel_over(groups.world, _Rows(lowered.modules[key], lowered.precision, device), device)

    def compute(self, received: Any) -> list[torch.Tensor]:
        """Look up single rows of the replicas."""
        return list(self.module(received))

    def output(self, received: Any, vectors: list[torch.Tensor]) -> Any:
        """Name the vectors by their lookups; nothing is exchanged."""
        return dict(zip(received.keys(), vectors))

    def shards(self) -> Shards:
        """Return the replicas, which begin at row 0."""
        return {name: [(0, table.weight)] for name, table in self.module.module.tables.items()}

    def replicated_parameters(self) -> list[torch.nn.Parameter]:
        """Return the weights of all replicas."""
        return list(self.module.parameters())


def data_parallel_over(group: Any, module: torch.nn.Module, device: torch.device) -> DistributedDataParallel:
    """Wrap a module of which every rank of a group has a replica on its device, and whose gradients are averaged."""
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(
        module, device_ids=ids, process_group=group, broadcast_buffers=False, gradient_as_bucket_view=True
    )


class _Rows(torch.nn.Module):
    def __init__(self, tables: Sequence[LogicalTable], precision: Precision, device: torch.device) -> None:
        super().__init__()
        embeddings = {
            t.name: torch.nn.Embedding(t.rows, t.segment.columns, device=device, dtype=TENSOR_TYPES[precision])
            for t in tables
        }
        self.tables = torch.nn.ModuleDict(embeddings)
        self._table_of = {key: t.name for t in tables for key in t.keys}

    def forward(self, lookups: KeyedJaggedTensor) -> list[torch.Tensor]:
        # Vectors are fp32 whatever the weights are, as those of TorchRec's kernels.
        keys = lookups.keys()
        return [self.tables[self._table_of[key]](lookups[key].values()).float() for key in keys]


def make_modules(lowered: Lowered, groups: Groups, optimizer: Any, device: torch.device) -> list[TableModule]:
    """Make every module of a lowered plan; ``optimizer`` is the fused one's (class, keyword arguments).

    All weights are the same number until somebody writes others.
    """
    with Constant():  # type: ignore[no-untyped-call]
        return [_module(lowered, key, groups, optimizer, device) for key in lowered.modules]


def _module(lowered: Lowered, key: ModuleKey, groups: Groups, optimizer: Any, device: torch.device) -> TableModule:
    if key.scope is Reach.LOCAL:
        return ReplicatedRows(lowered, key, groups, device)
    kind = HostTables if key.scope is Reach.HOSTS else ShardedModule
    return kind(lowered, key, groups, optimizer, device)
