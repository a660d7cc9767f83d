"""ShardBenchPlanner where EmbeddingShardingPlanner was: the same module, constraints and topology."""

import inspect
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("torchrec")
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.proposers import UniformProposer
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlanLoader, PlannerError
from torchrec_modules import (
    MIB,
    SHARDERS,
    Declines,
    OnRank3,
    as_dict,
    asked_with,
    constraints,
    held,
    module,
    theirs,
    topology,
)

from shardbench.advice.torchrec.profile_batches import even_profile
from shardbench.base.errors import BadInput
from shardbench.cost.collectives import CollectiveName
from shardbench.cost.traffic import expect
from shardbench.engine.torchrec.sharding import translate
from shardbench.model.machine import Topology
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, Tier, whole_table
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.model.table import Pooling, Precision, Table
from shardbench.torchrec import Exported, ShardBenchPlanner, codecs_registry, export, sharding_plan
from shardbench.trials.simulate import simulate


def test_the_example_plans_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "plan_in_torchrec.py"))
    example["main"]()
    lines, tables = capsys.readouterr().out.splitlines(), len(example["ROWS"])
    assert lines[0].startswith("the plan of ")
    assert lines[-tables - 1].split()[0] == "table"
    assert {line.split()[0] for line in lines[-tables:]} == {f"t{i}" for i in range(tables)}


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
        for plan in (ours.answer.plan, translate(expected.plan["tables"], question.problem))
    ]
    assert steps[0] < steps[1]


def test_exchanges_are_priced_in_the_format_of_the_sharders_codecs() -> None:
    found = {}
    for exchange in Precision:
        planner = ShardBenchPlanner(topology(), batch_size=512, strategy="greedy-lookup", ask_torchrec=False)
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
        ShardBenchPlanner(topology(), batch_size=512, ask_torchrec=False).plan(module([9_000]), mixed)


def test_ids_are_planned_as_distinct_where_the_sharder_makes_them_so() -> None:
    configs = [EmbeddingConfig(name="t0", num_embeddings=9_000, embedding_dim=64, feature_names=["f0"])]
    model = EmbeddingCollection(tables=configs, device=torch.device("meta"))
    planned = []
    for makes_distinct in (False, True):
        sharders: Any = [EmbeddingCollectionSharder(use_index_dedup=makes_distinct)]
        planner = ShardBenchPlanner(topology(), batch_size=512, strategy="greedy-lookup", ask_torchrec=False)
        planner.plan(torch.nn.ModuleDict({"tables": model}), sharders)
        assert planner.answer is not None
        planned.append(planner.answer.question.problem.tables[0].distinct)
    assert planned == [False, True]


def test_memory_is_never_exceeded_and_what_does_not_fit_is_said() -> None:
    rows = [100_000] * 6  # 24.4 MiB each
    reservation = FixedPercentageStorageReservation(percentage=0.5)
    planner = ShardBenchPlanner(topology(104 * MIB, 0), 64, storage_reservation=reservation)
    assert max(held(planner.plan(module(rows), SHARDERS))) <= 52 * MIB
    small = ShardBenchPlanner(topology(60 * MIB, 0), 64, storage_reservation=reservation, strategy="greedy-lookup")
    with pytest.raises(PlannerError, match="greedy-lookup: "):
        small.plan(module(rows), SHARDERS)
    assert small.answer is None


def test_a_plan_leaves_room_for_the_peak_and_for_the_dense_model(caplog: pytest.LogCaptureFixture) -> None:
    rows, gib, mib = [100_000] * 6, 1 << 30, float(MIB)  # 24.4 MiB each
    model: Any = module(rows)
    model["dense"] = torch.nn.Linear(1024, 1024, bias=False, device="meta")  # 4 MiB

    def planned(**rest: Any) -> ShardBenchPlanner:
        planner = ShardBenchPlanner(topology(2 * gib, 0), 64, strategy="greedy-lookup", ask_torchrec=False, **rest)
        planner.plan(model, SHARDERS)
        assert planner.peak is not None
        return planner

    default, stated = planned(), planned(activation_bytes=100 * mib)
    reserved = planned(storage_reservation=FixedPercentageStorageReservation(percentage=0.5))
    there = [one.peak.device_bytes for one in (default, stated, reserved) if one.peak is not None]
    # Two copies of the weights, and a percentage or what is stated for activations; a reservation is beside the peak.
    assert there == pytest.approx([0.85 * 2 * gib - 8 * mib, 2 * gib - 108 * mib, 2 * gib - 8 * mib])
    rooms = [one.answer.question.problem.topology.hbm_bytes for one in (default, stated, reserved) if one.answer]
    assert rooms[0] < rooms[1] < there[1] - 1.5 * gib
    assert "peak of a step beside the dense model: device" in stated.statistics()
    assert "no plan is predicted to fit" not in caplog.text
    tight = planned(activation_bytes=2.0 * gib - 200 * mib)
    assert tight.peak is not None
    assert tight.peak.fits is False
    assert "no plan is predicted to fit; of the one that is taken device" in caplog.text


def test_tables_that_fill_the_devices_go_to_host_memory() -> None:
    """Ten of 24.4 MiB in 4 x 50 MiB: one a device, and six beside them."""
    planner = ShardBenchPlanner(topology(59 * MIB), 64, ask_torchrec=False, plan_s=0.1)
    made = planner.plan(module([100_000] * 10), SHARDERS)
    assert max(held(made)) <= 50 * MIB
    assert sum(held(made)) > 100 * MIB
    with pytest.raises(PlannerError, match=r"tables need 256000000 bytes .* 4 devices have .* of HBM"):
        ShardBenchPlanner(topology(59 * MIB, 0), 64, ask_torchrec=False, plan_s=0.1).plan(
            module([100_000] * 10), SHARDERS
        )


def test_modules_may_have_tables_of_one_name(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.ModuleDict({"of_user": module([5_000, 70])["tables"], "of_item": module([9_000])["tables"]})
    asked = {"t0": ParameterConstraints(sharding_types=["row_wise"]), "nobody": ParameterConstraints()}
    profiles = {"of_item.t0": even_profile(9_000, 3.0), "t1": even_profile(70, 2.0), "t9": even_profile(70, 2.0)}
    for ask_torchrec in (True, False):
        planner = ShardBenchPlanner(
            topology(), 64, constraints=asked, profiles=profiles, ask_torchrec=ask_torchrec, plan_s=0.1
        )
        made = planner.plan(model, SHARDERS).plan
        assert {path: set(tables) for path, tables in made.items()} == {"of_user": {"t0", "t1"}, "of_item": {"t0"}}
        assert [s.shard_sizes[0] for s in made["of_item"]["t0"].sharding_spec.shards] == [2_250] * 4
        assert [s.shard_sizes[0] for s in made["of_user"]["t0"].sharding_spec.shards] == [1_250] * 4
        assert planner.answer is not None
        problem = planner.answer.question.problem
        found = {table.name: profile.mean_pooling for table, profile in zip(problem.tables, problem.profiles)}
        assert found == {"of_user.t0": 1.0, "t1": 2.0, "of_item.t0": 3.0}
    assert "constraints name tables that the module does not have: nobody" in caplog.text
    assert "profiles name tables that the module does not have: t9" in caplog.text
    with pytest.raises(BadInput, match="two collections have a table 't0'"):
        sharding_plan(Exported(world_size=1, devices_per_node=1, tables=()), model)


def test_the_plan_of_rank_0_is_everybodys_and_the_topology_is_the_groups(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        planner = ShardBenchPlanner(batch_size=64, plan_s=0.1)
        made = planner.collective_plan(module([5_000, 70]), SHARDERS).plan["tables"]
        with pytest.raises(PlannerError, match="'t0' is 6 wide"):
            ShardBenchPlanner(batch_size=64, ask_torchrec=False).collective_plan(module([70], dim=6), SHARDERS)
    finally:
        dist.destroy_process_group()
    with pytest.raises(PlannerError, match="there is no process group"):
        planner.collective_plan(module([70]), SHARDERS)
    assert {name: list(sharding.ranks) for name, sharding in made.items()} == {"t0": [0], "t1": [0]}
    assert planner.answer is not None
    assert planner.answer.judged.step_ms > 0


def test_torchrecs_plan_is_taken_where_it_is_the_faster_one() -> None:
    rows = [50_000, 40_000, 30_000, 20_000, 10_000]
    given = {"constraints": constraints(rows)}
    bad = asked_with(OnRank3(), **given)
    expected = theirs(**given).plan(module(rows), SHARDERS)
    assert as_dict(bad.plan(module(rows), SHARDERS)) == as_dict(expected)
    assert bad.taken == "torchrec"
    alone = asked_with(OnRank3(), **given, ask_torchrec=False)
    kinds = {name: how[:3] for name, how in as_dict(alone.plan(module(rows), SHARDERS)).items()}
    assert kinds["t0"][0] == "row_wise"
    assert {name: how[2] for name, how in kinds.items() if name != "t0"} == {f"t{i}": [3] for i in range(1, 5)}
    assert alone.taken == "on-rank-3"
    assert bad.answer is not None
    assert alone.answer is not None
    assert bad.answer.judged.step_ms < alone.answer.judged.step_ms
    assert bad.answer.question.problem.topology == alone.answer.question.problem.topology


def test_of_equal_plans_torchrecs_is_taken() -> None:
    rows = [50_000, 40_000]
    expected = theirs().plan(module(rows), SHARDERS)

    class Same(OnRank3):
        def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
            return translate(expected.plan["tables"], problem)

    planner = asked_with(Same())
    assert as_dict(planner.plan(module(rows), SHARDERS)) == as_dict(expected)
    assert planner.taken == "torchrec"


@pytest.mark.parametrize("name", ["_user", "user:id", "user@v1", "emb/user", "user id", "用户"])
def test_a_table_may_have_any_name_that_torch_takes(name: str) -> None:
    config = EmbeddingBagConfig(name=name, num_embeddings=99, embedding_dim=8, feature_names=[f"{name}:f"])
    tables = EmbeddingBagCollection(tables=[config], device=torch.device("meta"))
    plan = asked_with(OnRank3(), ask_torchrec=False).plan(torch.nn.ModuleDict({"tables": tables}), SHARDERS)
    assert as_dict(plan) == {name: ("table_wise", "fused", [3], [([0, 0], [99, 8])])}


def test_a_table_may_have_thousands_of_features() -> None:
    names = [f"f{i}" for i in range(1500)]
    config = EmbeddingBagConfig(name="t0", num_embeddings=99, embedding_dim=8, feature_names=names)
    tables = EmbeddingBagCollection(tables=[config], device=torch.device("meta"))
    planner = asked_with(OnRank3(), ask_torchrec=False)
    planner.plan(torch.nn.ModuleDict({"tables": tables}), SHARDERS)
    assert planner.answer is not None
    assert planner.answer.question.problem.tables[0].features == 1500


def test_what_torchrecs_planner_fails_at_does_not_end_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("uneven buckets")

    monkeypatch.setattr(EmbeddingShardingPlanner, "plan", fails)
    planner = asked_with(OnRank3())
    assert as_dict(planner.plan(module([50_000]), SHARDERS))["t0"][2] == [3]
    assert "TorchRec's planner failed (ValueError: uneven buckets)" in caplog.text
    numbers = {"t0": ParameterConstraints(pooling_factors=[1.0], num_poolings=[1.0, 2.0])}
    with pytest.raises(PlannerError, match="'t0': constraint num_poolings has 2 numbers and pooling_factors has 1"):
        ShardBenchPlanner(topology(), 64, constraints=numbers).plan(module([50_000]), SHARDERS)


def test_it_takes_what_torchrecs_planner_takes(caplog: pytest.LogCaptureFixture) -> None:
    names = list(inspect.signature(EmbeddingShardingPlanner).parameters)
    assert list(inspect.signature(ShardBenchPlanner).parameters)[: len(names)] == names

    def on_rank_2(options: list[Any]) -> list[Any]:
        called.append(len(options))
        for option in options:
            option.shards[0].rank = 2
        return options

    called: list[int] = []
    limits = {"t0": ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])}
    given: Any = {"proposer": UniformProposer(), "callbacks": [on_rank_2], "timeout_seconds": 5, "constraints": limits}
    planner = asked_with(Declines(), **given)
    assert as_dict(planner.plan(module([50_000]), SHARDERS))["t0"][2] == [2]
    assert called == [1]
    asked_with(OnRank3(), **given, ask_torchrec=False).plan(module([50_000]), SHARDERS)
    assert called == [1]
    assert "callbacks, proposer: for TorchRec's planner alone, which is not asked" in caplog.text


class Loader(PlanLoader):
    """Has a plan that was made for inputs of this hash; None where it has none."""

    def __init__(self, plan: dict[int, Any] | None, of: str | None = None) -> None:
        self.plan, self.of = plan, of

    def load(self) -> dict[int, Any] | None:
        return self.plan

    def plan_context_hash(self) -> str | None:
        return self.of

    def get_plan_id(self) -> str:
        return "earlier"


def test_the_plan_of_a_loader_is_the_plan_as_it_is_in_torchrecs_planner() -> None:
    def on_rank_2(options: list[Any]) -> list[Any]:
        for option in options:
            option.shards = option.shards[:1]
            option.shards[0].rank = 2
        return options

    rows = [50_000, 40_000, 30_000]
    types = {f"t{i}": ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[9.0]) for i in range(3)}
    slow = theirs(constraints=types, callbacks=[on_rank_2])
    slow.plan(module(rows), SHARDERS)
    options = {option.storage_hash(): option for option in slow._best_plan}
    planner = ShardBenchPlanner(topology(), 64, constraints=types, plan_loader=Loader(options))
    plan = planner.plan(module(rows), SHARDERS)
    assert {name: how[2] for name, how in as_dict(plan).items()} == {f"t{i}": [2] for i in range(3)}
    assert planner.taken == "torchrec" and planner.answer is not None
    with pytest.raises(PlannerError, match="input context mismatch"):
        ShardBenchPlanner(topology(), 64, constraints=types, plan_loader=Loader(options, "others")).plan(
            module(rows), SHARDERS
        )
    without = ShardBenchPlanner(topology(), 64, constraints=types, plan_loader=Loader(None))
    assert as_dict(without.plan(module(rows), SHARDERS)) != as_dict(plan)


def test_statistics_say_what_the_plan_comes_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="shardbench")
    planner = asked_with(OnRank3(), ask_torchrec=False, debug=True)
    assert planner.statistics() == "nothing was planned yet"
    planner.plan(module([50_000, 400_000]), SHARDERS)
    step, phases, memory, *rest = planner.statistics().splitlines()
    assert planner.answer is not None
    assert step.startswith(f"the plan of on-rank-3: {planner.answer.judged.step_ms:.4g} ms a step (predicted), most of")
    assert "lookup backward" in phases
    assert memory == f"  tables take {4 * 64 * 450_000 / 2**30:.3g} GiB of rank 3, the fullest"
    tables = [line.split() for line in rest[-3:]]
    assert tables[0] == ["table", "type", "kernel", "ranks", "GiB", "ms"]
    assert {tuple(row[:4]) for row in tables[1:]} == {(f"t{i}", "table_wise", "fused", "3") for i in range(2)}
    kernels = [float(row[5]) for row in tables[1:]]
    assert kernels == sorted(kernels, reverse=True)
    assert max(kernels) <= planner.answer.judged.embedding_ms.max()
    assert planner.statistics() in caplog.text


def test_a_plan_wherever_torchrec_has_one(caplog: pytest.LogCaptureFixture) -> None:
    rows = [50_000, 40_000]
    planner = asked_with(Declines())
    expected = theirs().plan(module(rows), SHARDERS)
    assert as_dict(planner.plan(module(rows), SHARDERS)) == as_dict(expected)
    assert planner.answer is not None
    assert planner.answer.judged.step_ms > 0
    with pytest.raises(PlannerError, match="declines: no plan of mine"):
        asked_with(Declines(), ask_torchrec=False).plan(module(rows), SHARDERS)
    # What no plan of ours keeps: it is returned unjudged.
    cached = {"constraints": {"t0": ParameterConstraints(num_poolings=[1.0], batch_sizes=[64])}}
    refused = ShardBenchPlanner(topology(), 64, **cached)
    assert as_dict(refused.plan(module([50_000]), SHARDERS)) == as_dict(
        theirs(**cached).plan(module([50_000]), SHARDERS)
    )
    assert (refused.taken, refused.answer) == ("torchrec", None)
    assert "constraint batch_sizes cannot be kept" in caplog.text


def test_where_torchrecs_plan_cannot_be_compared_ours_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = theirs().plan(module([50_000]), SHARDERS)
    made.plan["tables"]["t0"].compute_kernel = "key_value"
    planner = asked_with(OnRank3())
    monkeypatch.setattr(planner, "_theirs", lambda *_: made)
    assert as_dict(planner.plan(module([50_000]), SHARDERS))["t0"][:3] == ("table_wise", "fused", [3])
    assert planner.taken == "on-rank-3"
    declines = asked_with(Declines())
    monkeypatch.setattr(declines, "_theirs", lambda *_: made)
    assert declines.plan(module([50_000]), SHARDERS) is made
    made.plan["others"] = made.plan["tables"]
    assert planner.plan(module([50_000]), SHARDERS) is made
    assert planner.taken == "torchrec"


def test_a_profile_of_another_table_is_said_though_torchrec_has_a_plan() -> None:
    planner = ShardBenchPlanner(topology(), 64, profiles={"t0": even_profile(70, 1.0)})
    with pytest.raises(BadInput, match="profile of t0 has 70 rows, the table has 50000"):
        planner.plan(module([50_000]), SHARDERS)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_plan_of_ours_as_torchrecs_is_the_same_plan(pooled: bool) -> None:
    tables = tuple(
        Table(name=f"t{i}", rows=64, dim=32, pooling=Pooling.SUM if pooled else Pooling.NONE) for i in range(9)
    )
    machine = replace(
        load_machine("a100-40gb-2x8"),
        topology=Topology(nodes=2, devices_per_node=2, hbm_bytes=1 << 30, uvm_bytes=1 << 30, host_bytes=0),
    )
    problem = Problem.of("p", tables, tuple(even_profile(64, 2.0) for _ in tables), machine, batch_size=64)
    in_node: Any = RowWise(ranks=(2, 3)) if pooled else OnRank(rank=2)
    segments = [
        whole_table(tables[0], OnRank(rank=1)),
        whole_table(tables[1], OnRank(rank=2), (0, 12)),
        whole_table(tables[1], OnRank(rank=0), (12, 32)),
        whole_table(tables[2], RowWise(ranks=(0, 1, 2, 3))),
        whole_table(tables[3], in_node),
        whole_table(tables[4], Replicated(ranks=(0, 1, 2, 3))),
        whole_table(tables[5], OnRank(rank=3, tier=Tier.UVM)),
        whole_table(tables[6], OnRank(rank=3, tier=Tier.CACHED, cache_ratio=0.35)),
        whole_table(tables[7], RowWise(ranks=(0, 1, 2, 3), tier=Tier.UVM)),
        whole_table(tables[8], RowWise(ranks=(0, 1, 2, 3), tier=Tier.CACHED, cache_ratio=0.5)),
    ]
    plan = Plan(world_size=4, segments=tuple(segments))
    kind, config = (EmbeddingBagCollection, EmbeddingBagConfig) if pooled else (EmbeddingCollection, EmbeddingConfig)
    configs = [config(name=t.name, num_embeddings=64, embedding_dim=32, feature_names=[t.name]) for t in tables]
    model = torch.nn.ModuleDict({"tables": kind(tables=configs, device=torch.device("meta"))})
    made = sharding_plan(export(plan, devices_per_node=2, in_blocks=True), model)
    assert translate(made.plan["tables"], problem).segments == plan.segments
