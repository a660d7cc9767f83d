"""ShardBenchPlanner where EmbeddingShardingPlanner was: the same module, constraints and topology."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("torchrec")
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardbench.cost.collectives import CollectiveName
from shardbench.cost.traffic import expect
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, Segment, Tier
from shardbench.model.table import Precision
from shardbench.runs.simulate import simulate
from shardbench.torchrec import ShardBenchPlanner, codecs_registry

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
    return TorchRecTopology(world_size=4, local_world_size=4, compute_device="cuda", hbm_cap=hbm, ddr_cap=ddr, **rest)


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


def as_segments(plan: Any, rows: list[int], dim: int) -> Plan:
    """TorchRec's plan in our words, its blocks of rows as dealt ones."""
    segments: list[Segment] = []
    for name, sharding in plan.plan["tables"].items():
        whole = {"table": name, "row_stop": rows[int(name[1:])]}
        tier = Tier.UVM if sharding.compute_kernel in ("fused_uvm", "fused_uvm_caching") else Tier.HBM
        if sharding.sharding_type == "data_parallel":
            segments.append(Segment(**whole, column_stop=dim, placement=Replicated(ranks=(0, 1, 2, 3))))
        elif "row" in sharding.sharding_type:
            place = RowWise(ranks=tuple(sharding.ranks), tier=tier)
            segments.append(Segment(**whole, column_stop=dim, placement=place))
        else:
            for rank, shard in zip(sharding.ranks, sharding.sharding_spec.shards, strict=True):
                start, columns = shard.shard_offsets[1], shard.shard_sizes[1]
                place = OnRank(rank=rank, tier=tier)
                segments.append(Segment(**whole, column_start=start, column_stop=start + columns, placement=place))
    return Plan(world_size=4, segments=tuple(segments))


def constraints(rows: list[int]) -> dict[str, ParameterConstraints]:
    pooling = [1.0, 40.0, 5.0]
    found = {
        f"t{i}": ParameterConstraints(pooling_factors=[pooling[i % 3]], compute_kernels=["fused", "dense"])
        for i in range(len(rows))
    }
    found["t0"].sharding_types = ["row_wise"]
    found["t1"].sharding_types = ["table_wise"]
    return found


def test_beside_torchrecs_own_planner() -> None:
    rows = [200_000, 150_000, 9_000, 50_000, 120_000, 3_000, 80_000, 60_000, 40_000, 300, 220_000, 20_000]
    given = {
        "topology": topology(),
        "batch_size": 512,
        "constraints": constraints(rows),
        "storage_reservation": FixedPercentageStorageReservation(percentage=0.4),
    }
    ours = ShardBenchPlanner(**given, plan_s=2.0)
    theirs = EmbeddingShardingPlanner(**given, stats=[], debug=False)
    made, expected = ours.plan(module(rows), SHARDERS), theirs.plan(module(rows), SHARDERS)
    assert set(made.plan["tables"]) == set(expected.plan["tables"])
    for plan in (made, expected):
        kinds = {name: sharding.sharding_type for name, sharding in plan.plan["tables"].items()}
        assert (kinds["t0"], kinds["t1"]) == ("row_wise", "table_wise")
    assert max(held(made)) <= 0.6 * 256 * MIB
    assert ours.answer is not None
    question: Any = ours.answer.question
    steps = [
        simulate(plan, question.problem, question.batches, question.dense, 1).step_ms
        for plan in (ours.answer.plan, as_segments(expected, rows, 64))
    ]
    assert steps[0] < steps[1]


def test_exchanges_are_priced_in_the_format_of_the_sharders_codecs() -> None:
    found = {}
    for exchange in Precision:
        planner = ShardBenchPlanner(topology(), batch_size=512, strategy="greedy-lookup", plan_s=1.0)
        sharders: Any = [EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs_registry(exchange.value))]
        planner.plan(module([9_000, 50_000]), sharders)
        assert planner.answer is not None
        problem = planner.answer.question.problem
        assert problem.exchange is exchange
        found[exchange] = expect(planner.answer.plan, problem).collectives[CollectiveName.OUTPUT_ALL_TO_ALL].sent.sum()
    assert found[Precision.FP32] == 2 * found[Precision.FP16] == 2 * found[Precision.BF16] > 0
    kind = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
    mixed: Any = [EmbeddingBagCollectionSharder(qcomm_codecs_registry=get_qcomm_codecs_registry(kind))]
    with pytest.raises(PlannerError, match="codecs are of bfloat16, float16: give all collectives, both ways, one of"):
        ShardBenchPlanner(topology(), batch_size=512).plan(module([9_000]), mixed)


def test_memory_is_never_exceeded_and_what_does_not_fit_is_said() -> None:
    rows = [100_000] * 6  # 24.4 MiB each
    reservation = FixedPercentageStorageReservation(percentage=0.5)
    planner = ShardBenchPlanner(topology(104 * MIB, 0), 64, reservation, plan_s=1.0)
    assert max(held(planner.plan(module(rows), SHARDERS))) <= 52 * MIB
    small = ShardBenchPlanner(topology(60 * MIB, 0), 64, reservation, plan_s=1.0)
    with pytest.raises(PlannerError, match="joint"):
        small.plan(module(rows), SHARDERS)
    assert small.answer is None


def test_any_strategy_is_behind_it_under_the_same_constraints() -> None:
    rows = [5_000, 6_000, 7_000, 8_000, 9_000]
    for strategy in ("greedy-lookup", "row-wise"):
        planner = ShardBenchPlanner(topology(), 64, constraints=constraints(rows), strategy=strategy)
        plan = planner.plan(module(rows), SHARDERS).plan["tables"]
        assert (plan["t0"].sharding_type, plan["t1"].sharding_type) == ("row_wise", "table_wise")
        rest = {plan[f"t{i}"].sharding_type for i in range(2, 5)}
        assert rest == {"row_wise" if strategy == "row-wise" else "table_wise"}


def test_constraints_that_cannot_be_kept_are_refused() -> None:
    def planner(constraint: ParameterConstraints) -> ShardBenchPlanner:
        return ShardBenchPlanner(topology(), 64, constraints={"t0": constraint}, plan_s=1.0)

    with pytest.raises(PlannerError, match=r"no sharding type is left of \['grid_shard'\]"):
        planner(ParameterConstraints(sharding_types=["grid_shard"])).plan(module([100]), SHARDERS)
    with pytest.raises(PlannerError, match="constraint device_group cannot be kept"):
        planner(ParameterConstraints(device_group="cpu")).plan(module([100]), SHARDERS)
    with pytest.raises(PlannerError, match=r"'t0' would need .*allowed"):
        planner(ParameterConstraints(compute_kernels=["fused_uvm_caching"])).plan(module([100_000]), SHARDERS)
    with pytest.raises(PlannerError, match="no sharder is given for tables"):
        ShardBenchPlanner(topology(), 64).plan(module([100]), [])


def test_the_plan_of_rank_0_is_everybodys_and_the_topology_is_the_groups(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        planner = ShardBenchPlanner(batch_size=64, plan_s=1.0)
        made = planner.collective_plan(module([5_000, 70]), SHARDERS).plan["tables"]
    finally:
        dist.destroy_process_group()
    assert {name: list(sharding.ranks) for name, sharding in made.items()} == {"t0": [0], "t1": [0]}
    assert planner.answer is not None
    assert planner.answer.judged.step_ms > 0


def test_columns_are_not_narrower_than_asked() -> None:
    wide = ParameterConstraints(sharding_types=["column_wise"], min_partition=64)
    planner = ShardBenchPlanner(topology(), 64, constraints={"t0": wide}, plan_s=1.0)
    shards = planner.plan(module([5_000], dim=128), SHARDERS).plan["tables"]["t0"].sharding_spec.shards
    assert [shard.shard_sizes for shard in shards] == [[5_000, 64], [5_000, 64]]
    with pytest.raises(PlannerError, match="no sharding type is left"):
        planner.plan(module([5_000], dim=64), SHARDERS)


def test_the_strategies_that_plan_unless_one_is_named() -> None:
    assert [strategy.name for strategy in ShardBenchPlanner(topology()).strategies] == ["joint"]
