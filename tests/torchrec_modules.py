"""Modules, topologies and strategies that tests give to ShardBenchPlanner, and what they read of its plans."""

from typing import Any

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardbench.base.errors import Infeasible
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.torchrec import ShardBenchPlanner

SHARDERS: Any = [EmbeddingBagCollectionSharder()]
MIB = 1 << 20


def module(rows: list[int], dim: int = 64) -> torch.nn.Module:
    configs = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=n, embedding_dim=dim, feature_names=[f"f{i}"])
        for i, n in enumerate(rows)
    ]
    tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    return torch.nn.ModuleDict({"tables": tables})


def topology(hbm: int = 256 * MIB, ddr: int = 1 << 30, **rest: Any) -> TorchRecTopology:
    made = TorchRecTopology(world_size=4, local_world_size=4, compute_device="cuda", hbm_cap=hbm, **rest)
    for device in made.devices:
        device.storage.ddr = ddr  # 0 would be the default of older releases
    return made


def held(plan: Any, world: int = 4) -> list[int]:
    """Bytes of fp32 weights in device memory by rank."""
    found = [0] * world
    for tables in plan.plan.values():
        for sharding in tables.values():
            if sharding.sharding_spec is None:
                continue
            for rank, shard in zip(sharding.ranks, sharding.sharding_spec.shards, strict=True):
                found[rank] += (
                    4 * shard.shard_sizes[0] * shard.shard_sizes[1] * (sharding.compute_kernel != "fused_uvm")
                )
    return found


class OnRank3(Strategy):
    """Puts all tables on the last rank: a bad plan."""

    name = "on-rank-3"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return Plan(world_size=4, segments=whole_tables(problem.tables, [3] * len(problem.tables)))


class Declines(OnRank3):
    """Has no plan."""

    name = "declines"

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise Infeasible("no plan of mine")


def asked_with(strategy: Strategy, **rest: Any) -> ShardBenchPlanner:
    planner = ShardBenchPlanner(topology(), 64, **rest)
    planner.strategies = [strategy]
    return planner


def theirs(**rest: Any) -> EmbeddingShardingPlanner:
    return EmbeddingShardingPlanner(topology(), 64, stats=[], debug=False, **rest)


def as_dict(plan: Any) -> dict[str, Any]:
    """A plan's tables as they can be compared: type, kernel, ranks, blocks."""
    return {
        name: (
            how.sharding_type,
            how.compute_kernel,
            list(how.ranks),
            [(shard.shard_offsets, shard.shard_sizes) for shard in getattr(how.sharding_spec, "shards", [])],
        )
        for tables in plan.plan.values()
        for name, how in tables.items()
    }


def constraints(rows: list[int]) -> dict[str, ParameterConstraints]:
    pooling = [1.0, 40.0, 5.0]
    found = {
        f"t{i}": ParameterConstraints(pooling_factors=[pooling[i % 3]], compute_kernels=["fused", "dense"])
        for i in range(len(rows))
    }
    found["t0"].sharding_types = ["row_wise"]
    found["t1"].sharding_types = ["table_wise"]
    return found
