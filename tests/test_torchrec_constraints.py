"""ShardBenchPlanner keeps what TorchRec's constraints, sharders and modules ask for, or says that it cannot."""

from typing import Any

import pytest
import torch

pytest.importorskip("torchrec")
from torchrec import EmbeddingBagCollection, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import CacheParams
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import LFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule
from torchrec_modules import MIB, SHARDERS, as_dict, constraints, module, topology

from shardbench.base.errors import Unsupported
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, whole_table
from shardbench.model.table import Table
from shardbench.torchrec import ShardBenchPlanner, export, sharding_plan


def test_any_strategy_is_behind_it_under_the_same_constraints() -> None:
    rows = [5_000, 6_000, 7_000, 8_000, 9_000]
    for strategy in ("greedy-lookup", "row-wise"):
        planner = ShardBenchPlanner(
            topology(), 64, constraints=constraints(rows), strategy=strategy, ask_torchrec=False
        )
        plan = planner.plan(module(rows), SHARDERS).plan["tables"]
        assert (plan["t0"].sharding_type, plan["t1"].sharding_type) == ("row_wise", "table_wise")
        rest = {plan[f"t{i}"].sharding_type for i in range(2, 5)}
        assert rest == {"row_wise" if strategy == "row-wise" else "table_wise"}


def test_constraints_that_cannot_be_kept_are_refused() -> None:
    def planner(constraint: ParameterConstraints) -> ShardBenchPlanner:
        return ShardBenchPlanner(topology(), 64, constraints={"t0": constraint}, plan_s=0.1, ask_torchrec=False)

    with pytest.raises(PlannerError, match=r"no sharding type is left of \['grid_shard'\]"):
        planner(ParameterConstraints(sharding_types=["grid_shard"])).plan(module([100]), SHARDERS)
    with pytest.raises(PlannerError, match="constraint device_group cannot be kept"):
        planner(ParameterConstraints(device_group="cpu")).plan(module([100]), SHARDERS)
    with pytest.raises(PlannerError, match=r"'t0': no compute kernel is left of \['key_value'\]"):
        planner(ParameterConstraints(compute_kernels=["key_value"])).plan(module([100_000]), SHARDERS)
    both = ParameterConstraints(compute_kernels=["fused_uvm"], sharding_types=["data_parallel"])
    says = r"'t0': no compute kernel is left of \['fused_uvm'\] for sharding types data_parallel: change one of the two"
    with pytest.raises(PlannerError, match=says):
        planner(both).plan(module([100_000]), SHARDERS)
    with pytest.raises(PlannerError, match="no sharder is given for tables"):
        ShardBenchPlanner(topology(), 64, ask_torchrec=False).plan(module([100]), [])


@pytest.mark.parametrize("ask_torchrec", [True, False])
def test_kernels_are_kept_while_planning(ask_torchrec: bool) -> None:
    """Without the constraints small tables are copied by the dense kernel, and no table is in host memory."""
    kernels = ["fused", "fused_uvm", "fused_uvm_caching", "fused_uvm_caching", "dense"]
    asked = {f"t{i}": ParameterConstraints(compute_kernels=[kernel]) for i, kernel in enumerate(kernels)}
    asked["t3"].cache_params = CacheParams(load_factor=0.5)
    planner = ShardBenchPlanner(topology(), 64, constraints=asked, ask_torchrec=ask_torchrec, plan_s=0.1)
    made = planner.plan(module([1_000] * len(kernels)), SHARDERS).plan["tables"]
    assert [made[f"t{i}"].compute_kernel for i in range(len(kernels))] == kernels
    assert made["t3"].cache_params.load_factor == 0.5
    assert planner.answer is not None
    ratios = {s.table: s.placement.cache_ratio for s in planner.answer.plan.segments if s.table in ("t2", "t3")}
    assert ratios["t3"] == 0.5, "a stated share is kept"
    assert 0.0 < ratios["t2"] <= 1.0


def wrapped(kind: type, buckets: int = 4) -> torch.nn.Module:
    """Two tables in a collection, in a module of TorchRec's around it."""
    inner = module([1_000, 600])["tables"]
    if kind is FeatureProcessedEmbeddingBagCollection:
        inner = EmbeddingBagCollection(
            tables=inner.embedding_bag_configs(), is_weighted=True, device=torch.device("meta")
        )
        weights = PositionWeightedModuleCollection({f"f{i}": 10 for i in range(2)}, device=torch.device("meta"))
        return torch.nn.ModuleDict({"tables": kind(inner, weights)})
    configs = inner.embedding_bag_configs()
    slots = ManagedCollisionCollection(
        managed_collision_modules={
            config.name: MCHManagedCollisionModule(
                zch_size=config.num_embeddings,
                device=torch.device("cpu"),
                eviction_interval=1,
                eviction_policy=LFU_EvictionPolicy(),
                buckets=buckets,
            )
            for config in configs
        },
        embedding_configs=configs,
    )
    return torch.nn.ModuleDict({"tables": kind(inner, slots)})


def test_a_module_around_a_collection_is_planned_as_a_whole_or_refused() -> None:
    planner = ShardBenchPlanner(topology(), 64, ask_torchrec=False, plan_s=0.1)
    for kind in (ManagedCollisionEmbeddingBagCollection, FeatureProcessedEmbeddingBagCollection):
        model = wrapped(kind)
        made = planner.plan(model).plan
        assert set(made) == {"tables"}
        assert set(made["tables"]) == {"t0", "t1"}
        # TorchRec's planner would shard the collection, and leave on each rank a map of ids of its own.
        for ask_torchrec in (True, False):
            refused = ShardBenchPlanner(topology(), 64, ask_torchrec=ask_torchrec, plan_s=0.1)
            with pytest.raises(PlannerError, match=f"no sharder is given for tables, a {kind.__name__}"):
                refused.plan(model, SHARDERS)
    # 1 is the default of the module.
    for buckets in (1, 6):
        says = f"'t0': its managed collisions have {buckets} buckets, which 4 ranks cannot share"
        with pytest.raises(PlannerError, match=says):
            planner.plan(wrapped(ManagedCollisionEmbeddingBagCollection, buckets=buckets))
    dealt = planner.plan(wrapped(ManagedCollisionEmbeddingBagCollection)).plan["tables"]
    assert {how.sharding_type for how in dealt.values()} == {"row_wise"}
    whole = Plan(
        world_size=1,
        segments=tuple(
            whole_table(Table(name=f"t{i}", rows=n, dim=64), OnRank(rank=0)) for i, n in enumerate((1_000, 600))
        ),
    )
    with pytest.raises(Unsupported, match="shards no ManagedCollisionEmbeddingBagCollection by table_wise"):
        sharding_plan(export(whole), wrapped(ManagedCollisionEmbeddingBagCollection))


def test_a_sequence_on_cpus_is_not_copied() -> None:
    """TorchRec's own plan has copies of so small a table, and crashes at its first step."""
    configs = [EmbeddingConfig(name="t0", num_embeddings=40, embedding_dim=8, feature_names=["f0"])]
    model = torch.nn.ModuleDict({"tables": EmbeddingCollection(tables=configs, device=torch.device("meta"))})
    cpus = TorchRecTopology(world_size=2, local_world_size=2, compute_device="cpu")
    sharders: Any = [EmbeddingCollectionSharder()]
    for ask_torchrec in (True, False):
        planner = ShardBenchPlanner(cpus, 64, ask_torchrec=ask_torchrec, plan_s=0.1)
        assert planner.plan(model, sharders).plan["tables"]["t0"].sharding_type != "data_parallel"
        copied = {"t0": ParameterConstraints(sharding_types=["data_parallel"])}
        with pytest.raises(PlannerError, match="'t0'"):
            ShardBenchPlanner(cpus, 64, constraints=copied, ask_torchrec=ask_torchrec, plan_s=0.1).plan(model, sharders)
    plan = Plan(world_size=2, segments=(whole_table(Table(name="t0", rows=40, dim=8), Replicated(ranks=(0, 1))),))
    with pytest.raises(Unsupported, match="'t0': TorchRec has no data_parallel for an EmbeddingCollection on CPUs"):
        sharding_plan(export(plan), model, "cpu")


@pytest.mark.parametrize("ask_torchrec", [True, False])
def test_means_are_not_sharded_by_rows_beside_other_types(ask_torchrec: bool) -> None:
    """TorchRec then divides the vectors of the collection's other tables, too, by the lengths of their bags."""
    configs = module([50_000, 9_000])["tables"].embedding_bag_configs()
    configs[0].pooling = PoolingType.MEAN
    model = torch.nn.ModuleDict({"tables": EmbeddingBagCollection(tables=configs, device=torch.device("meta"))})

    def planned(**types: list[str]) -> dict[str, str]:
        asked = {name: ParameterConstraints(sharding_types=kinds) for name, kinds in types.items()}
        planner = ShardBenchPlanner(topology(), 64, constraints=asked, ask_torchrec=ask_torchrec, plan_s=0.1)
        return {name: how.sharding_type for name, how in planner.plan(model, SHARDERS).plan["tables"].items()}

    assert planned(t0=["row_wise", "table_wise"], t1=["row_wise", "table_wise"])["t0"] == "table_wise"
    assert planned(t1=["row_wise"], t0=["table_wise"]) == {"t0": "table_wise", "t1": "row_wise"}
    assert set(planned(t0=["row_wise"], t1=["row_wise"]).values()) == {"row_wise"}
    with pytest.raises(PlannerError, match=r"'t0': with mean pooling by row_wise TorchRec also divides .* 't1'"):
        planned(t0=["row_wise"])
    places: Any = [RowWise(ranks=(0, 1, 2, 3)), OnRank(rank=0)]
    tables = [Table(name=config.name, rows=config.num_embeddings, dim=64) for config in configs]
    plan = Plan(world_size=4, segments=tuple(whole_table(table, place) for table, place in zip(tables, places)))
    with pytest.raises(Unsupported, match="'t0': with mean pooling by row_wise"):
        sharding_plan(export(plan, in_blocks=True), model)


def test_types_in_nodes_are_called_as_asked() -> None:
    asked = {
        "t0": ParameterConstraints(sharding_types=["table_row_wise"]),
        "t1": ParameterConstraints(sharding_types=["table_column_wise"], min_partition=16),
    }
    for local, ways in ((4, 4), (2, 2)):
        nodes = TorchRecTopology(
            world_size=4, local_world_size=local, compute_device="cuda", hbm_cap=256 * MIB, ddr_cap=1 << 30
        )
        planner = ShardBenchPlanner(nodes, 64, constraints=asked, ask_torchrec=False, plan_s=0.1)
        made = planner.plan(module([5_000, 9_000]), SHARDERS).plan["tables"]
        assert {name: how.sharding_type for name, how in made.items()} == {
            "t0": "table_row_wise", "t1": "table_column_wise",
        }  # fmt: skip
        assert len(made["t0"].ranks) == ways
        assert len({rank // local for rank in made["t1"].ranks}) == 1


def test_kernels_that_no_planner_has_are_said() -> None:
    """TorchRec's planner raises RuntimeError there."""
    planner = ShardBenchPlanner(topology(), 64, constraints={"t0": ParameterConstraints(compute_kernels=["quant"])})
    with pytest.raises(PlannerError, match=r"'t0': no compute kernel is left of \['quant'\]"):
        planner.plan(module([100_000]), SHARDERS)


def test_columns_are_not_narrower_than_asked() -> None:
    wide = ParameterConstraints(sharding_types=["column_wise"], min_partition=64)
    planner = ShardBenchPlanner(topology(), 64, constraints={"t0": wide}, plan_s=0.1, ask_torchrec=False)
    shards = planner.plan(module([5_000], dim=128), SHARDERS).plan["tables"]["t0"].sharding_spec.shards
    assert [shard.shard_sizes for shard in shards] == [[5_000, 64], [5_000, 64]]
    # As TorchRec's planner does: in one piece.
    whole = planner.plan(module([5_000], dim=64), SHARDERS).plan["tables"]["t0"]
    assert (whole.sharding_type, [shard.shard_sizes for shard in whole.sharding_spec.shards]) == (
        "column_wise", [[5_000, 64]],
    )  # fmt: skip


def test_a_pods_nodes_are_one_group() -> None:
    """Two nodes of 2 a pod: rows by table lie on the 4 ranks of a pod, each on a device of its own node."""
    pods = TorchRecTopology(world_size=8, local_world_size=2, pod_size=2, compute_device="cuda", hbm_cap=256 * MIB)
    limits = {"t0": ParameterConstraints(sharding_types=["table_row_wise"])}
    planner = ShardBenchPlanner(pods, 64, constraints=limits, ask_torchrec=False, plan_s=0.5)
    how = planner.plan(module([50_000]), SHARDERS).plan["tables"]["t0"]
    assert (how.sharding_type, how.ranks) in [("table_row_wise", [0, 1, 2, 3]), ("table_row_wise", [4, 5, 6, 7])]
    devices = [shard.placement.device().index for shard in how.sharding_spec.shards]
    assert devices == [0, 1, 0, 1]
    beside = ShardBenchPlanner(pods, 64, constraints=limits)
    beside.plan(module([50_000]), SHARDERS)
    assert beside.taken == "torchrec"  # it can be compared


@pytest.mark.parametrize("width", [4, 20, 28, 44, 52, 76, 100, 124])
def test_a_table_that_cannot_be_halved_is_column_wise_in_one_piece(width: int) -> None:
    limits = {"t0": ParameterConstraints(sharding_types=["column_wise"])}
    arguments = (topology(), 64), {"constraints": limits, "ask_torchrec": False, "plan_s": 0.5}
    ours = ShardBenchPlanner(*arguments[0], **arguments[1]).plan(module([5_000], dim=width), SHARDERS)
    kind, kernel, ranks, shards = as_dict(ours)["t0"]
    assert (kind, kernel, len(ranks), shards) == ("column_wise", "fused", 1, [([0, 0], [5_000, width])])


def test_the_cache_of_a_sharder_is_kept() -> None:
    limits = {"t0": ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused_uvm_caching"])}
    sharders: Any = [EmbeddingBagCollectionSharder(fused_params={"cache_load_factor": 0.9})]
    for ask in (True, False):
        planner = ShardBenchPlanner(topology(), 64, constraints=limits, ask_torchrec=ask, plan_s=0.5)
        how = planner.plan(module([50_000]), sharders).plan["tables"]["t0"]
        assert how.cache_params is None or how.cache_params.load_factor == 0.9
        assert planner.answer is not None
        place = planner.answer.plan.segments[0].placement
        assert isinstance(place, OnRank)
        assert place.cache_ratio == 0.9
