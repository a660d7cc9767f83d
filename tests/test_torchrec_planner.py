"""TorchRec's planner as a strategy: its description of our machine, and its plans as segments."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from problems import RandomWorkload
from problems import machine as small
from unsharded import on_ranks

from shardbench.base.errors import Infeasible, Unsupported
from shardbench.baselines.torchrec_planner import Offer
from shardbench.conformance.problems import cases
from shardbench.cost.costmodel import estimate
from shardbench.model.machine import Topology
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import (
    GroupSharded,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    Tier,
    tier_of,
    whole_table,
)
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget, Move
from shardbench.model.table import Optimizer, Pooling, Table
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

pytest.importorskip("torchrec")
planner = importlib.import_module("shardbench.baselines.torchrec_planner.planner")
groups = importlib.import_module("shardbench.baselines.torchrec_planner")
types = importlib.import_module("torchrec.distributed.types")
translate = importlib.import_module("shardbench.engine.torchrec.sharding").translate

EVERYONE = (0, 1, 2, 3)


def problem(
    shapes: list[tuple[int, int]], *, hbm: int = 1 << 30, uvm: int = 1 << 30, optimizer: Optimizer = Optimizer.SGD
) -> Problem:
    """Tables of (rows, dim) on two nodes of two devices."""
    topology = Topology(nodes=2, devices_per_node=2, hbm_bytes=hbm, uvm_bytes=uvm, host_bytes=0)
    machine = replace(load_machine("a100-40gb-2x8"), topology=topology)
    tables = tuple(Table(name=f"t{i}", rows=rows, dim=dim) for i, (rows, dim) in enumerate(shapes))
    profiles = tuple(AccessProfile.from_counts(np.array([500]), rows=t.rows, samples=100, present=100) for t in tables)
    return Problem.of("p", tables, profiles, machine, batch_size=256, optimizer=optimizer)


def sharding(kind: str, ranks: list[int], shards: list[tuple[int, int, int, int]], kernel: str = "fused") -> Any:
    """A ParameterSharding; a shard is (row, column, rows, columns)."""
    metadata = [
        types.ShardMetadata(shard_offsets=[r, c], shard_sizes=[rows, columns], placement=f"rank:{rank}/cpu")
        for rank, (r, c, rows, columns) in zip(ranks, shards)
    ]
    spec = types.EnumerableShardingSpec(metadata) if kind != "data_parallel" else None
    return types.ParameterSharding(sharding_type=kind, compute_kernel=kernel, ranks=ranks, sharding_spec=spec)


def segment(column: int, stop: int, placement: OnRank | RowWise | Replicated) -> Segment:
    return Segment(table="t0", row_stop=100, column_start=column, column_stop=stop, placement=placement)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            sharding("table_column_wise", [2, 2], [(0, 0, 100, 128), (0, 128, 100, 128)]),
            [segment(0, 128, OnRank(rank=2)), segment(128, 256, OnRank(rank=2))],
        ),
        (
            sharding("table_wise", [3], [(0, 0, 100, 256)], "fused_uvm_caching"),
            [segment(0, 256, OnRank(rank=3, tier=Tier.CACHED, cache_ratio=0.2))],
        ),
        (
            sharding("grid_shard", [2, 3, 0, 1], [(50 * (i % 2), 128 * (i // 2), 50, 128) for i in range(4)]),
            [segment(0, 128, RowWise(ranks=(2, 3))), segment(128, 256, RowWise(ranks=(0, 1)))],
        ),
    ],
    ids=lambda v: v.sharding_type if isinstance(v, types.ParameterSharding) else None,
)
def test_translation_of_what_no_plan_of_ours_becomes(given: Any, expected: list[Segment]) -> None:
    """What ours becomes is translated back in test_torchrec_drop_in."""
    asked = problem([(100, 256)])
    plan = translate({"t0": given}, asked)
    assert list(plan.segments) == expected
    validate(plan, asked, frozenset(Move))


def test_an_unknown_sharding_type_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"'t0'.*'hexagonal'"):
        translate({"t0": sharding("hexagonal", [0], [(0, 0, 100, 256)])}, problem([(100, 256)]))


def test_blocks_of_unlike_sizes_are_refused_by_name() -> None:
    starts = (0, 53_333_333, 80_000_000, 100_000_000, 100_000_000)
    shards = [(start, 0, stop - start, 256) for start, stop in zip(starts, starts[1:])]
    says = "table 't0' has 53333333 of its 100000000 rows on rank 0, where an even share is 33333334"
    with pytest.raises(Unsupported, match=says):
        translate({"t0": sharding("row_wise", [0, 1, 2, 3], shards)}, problem([(100_000_000, 256)]))


def test_the_machine_as_torchrec_sees_it() -> None:
    asked = problem([(100, 64)], hbm=123456, uvm=654321)
    topology = planner.describe(asked)
    constants = asked.machine.constants
    assert (topology.world_size, topology.local_world_size, topology.compute_device) == (4, 2, "cuda")
    assert {(d.storage.hbm, d.storage.ddr, d.storage.ssd) for d in topology.devices} == {(123456, 654321, 0)}
    assert topology.hbm_mem_bw == pytest.approx(constants.hbm_bytes_per_s / 1e3)
    assert topology.hbm_to_ddr_mem_bw == pytest.approx(10 * constants.uvm_bytes_per_s / 1e3)
    assert topology.comms_bandwidths.intra_host_bw == pytest.approx(constants.intra_bytes_per_s / 1e3)
    assert topology.comms_bandwidths.inter_host_bw == pytest.approx(constants.inter_bytes_per_s / 1e3)


def test_storage_equals_our_memory() -> None:
    asked = problem([(10, 64)], optimizer=Optimizer.ROWWISE_ADAGRAD)
    shards = [SimpleNamespace(size=[rows, 64], storage=None) for rows in (3, 3, 3, 1)]
    tensor = np.zeros((10, 64))
    option = SimpleNamespace(shards=shards, sharding_type="row_wise", compute_kernel="fused", tensor=tensor, name="t0")
    planner.WeightStorage(asked).estimate([option], None)
    plan = Plan(world_size=4, segments=(replace(segment(0, 64, RowWise(ranks=EVERYONE)), row_stop=10),))
    memory = validate(plan, asked, frozenset(Move))
    # 64 fp32 weights and one fp32 moment a row; three, two, two and three rows.
    assert [s.storage.hbm for s in shards] == memory.hbm.tolist() == [780, 520, 520, 780]
    assert {s.storage.ddr for s in shards} == {0}


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_storage_of_a_cache_is_at_least_our_memory(optimizer: Optimizer) -> None:
    shapes = [(1000, 64), (777, 64), (1230, 16), (33, 64)]
    asked = problem(shapes, optimizer=optimizer)
    options = [
        SimpleNamespace(
            shards=[SimpleNamespace(size=[rows, dim], storage=None)], sharding_type="table_wise", name=f"t{i}",
            compute_kernel="fused_uvm_caching", tensor=np.zeros((rows, dim)), cache_params=None,
        )
        for i, (rows, dim) in enumerate(shapes)
    ]  # fmt: skip
    planner.WeightStorage(asked).estimate(options, None)
    here = OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.2)
    plan = Plan(world_size=4, segments=tuple(whole_table(table, here) for table in asked.tables))
    memory = validate(plan, asked, frozenset(Move))
    storage = [option.shards[0].storage for option in options]
    # Each alone rounds up to whole sets of 32 slots; in the host there is nothing to round.
    assert 0 <= sum(s.hbm for s in storage) - memory.hbm[0] <= len(shapes) * 32 * (64 * 4 + 16)
    assert sum(s.ddr for s in storage) == memory.uvm[0]


@pytest.mark.parametrize("name", ["torchrec-table-wise", "torchrec-fused"])
def test_what_does_not_fit_is_cached_where_devices_have_hbm(name: str) -> None:
    size, strategy = 20_000 * 128 * 4, get_strategy(name)
    asked = problem([(20_000, 128)] * 8, hbm=int(1.5 * size), uvm=8 * size)
    plan = strategy.plan(asked, Budget(), 0)
    memory = validate(plan, asked, strategy.moves)
    tiers = {tier_of(s.placement) for s in plan.segments}
    assert Tier.CACHED in tiers
    assert memory.hbm.max() <= 1.5 * size
    assert estimate(plan, asked).step_ms > 0
    on_cpus = replace(asked, machine=replace(asked.machine, device="cpu"))
    without = strategy.plan(on_cpus, Budget(), 0)
    assert Tier.CACHED not in {tier_of(s.placement) for s in without.segments}


def test_table_wise_uses_whole_tables_and_balances(capfd: pytest.CaptureFixture[str]) -> None:
    strategy = get_strategy("torchrec-table-wise")
    asked = problem([(1000, 64)] * 8)
    plan = strategy.plan(asked, Budget(), 0)
    validate(plan, asked, strategy.moves)
    ranks = [s.placement.rank for s in plan.segments if isinstance(s.placement, OnRank)]
    assert np.bincount(ranks, minlength=4).tolist() == [2, 2, 2, 2]
    assert plan.notes == {"tables_table_wise": 8}
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_table_wise_spills_to_host_memory_and_declines() -> None:
    strategy = get_strategy("torchrec-table-wise")
    size = 1000 * 64 * 4
    asked = problem([(1000, 64)] * 6, hbm=size, uvm=size)
    memory = validate(strategy.plan(asked, Budget(), 0), asked, strategy.moves)
    assert memory.hbm.tolist() == [size] * 4
    assert memory.uvm.sum() == 2 * size
    with pytest.raises(Infeasible, match=r"TorchRec's planner: .*insufficient storage") as caught:
        strategy.plan(problem([(1000, 64)] * 6, hbm=size, uvm=0), Budget(), 0)
    assert "\n" not in str(caught.value)


def test_fused_splits_a_table_that_fits_no_device() -> None:
    strategy = get_strategy("torchrec-fused")
    asked = problem([(10_000, 256), (50, 64), (3, 64)], hbm=10_000 * 256 * 4 // 3, uvm=0)
    plan = strategy.plan(asked, Budget(), 0)
    memory = validate(plan, asked, strategy.moves)
    assert memory.uvm.sum() == 0
    by_table = plan.by_table()
    assert len(by_table["t0"]) > 1 or isinstance(by_table["t0"][0].placement, RowWise)
    assert not isinstance(by_table["t2"][0].placement, RowWise) or len(by_table["t2"][0].placement.ranks) == 2


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (1, ["table_wise"]),
        (3, ["table_wise", "table_row_wise"]),  # 1, 1, 1, 0 on four ranks
        (5, ["table_wise", "table_row_wise"]),  # 2, 2, 1, 0
        (9, ["table_wise", "table_row_wise"]),  # 3, 3, 3, 0
        (8, ["table_wise", "row_wise", "table_row_wise"]),
    ],
)
def test_row_wise_is_offered_only_where_no_rank_is_left_empty(rows: int, expected: list[str]) -> None:
    offered = planner.offered_types(rows, ("table_wise", "row_wise", "table_row_wise"), problem([(8, 64)]).topology)
    assert offered == expected


def test_a_table_with_no_type_left_is_declined() -> None:
    planner.ask(problem([(8, 64)]), Offer(types=("row_wise",)))
    with pytest.raises(Infeasible, match=r"'t0' has too few rows .9. for row_wise"):
        planner.ask(problem([(9, 64)]), Offer(types=("row_wise",)))


@pytest.mark.parametrize("name", ["torchrec-table-wise", "torchrec-fused"])
def test_sequences_and_bags_of_several_widths_are_planned_together(name: str) -> None:
    asked = problem([(1000, 64), (5000, 64), (2000, 32), (800, 16)])
    tables = tuple(replace(t, pooling=Pooling.NONE) if i < 3 else t for i, t in enumerate(asked.tables))
    mixed = replace(asked, tables=tables)
    strategy = get_strategy(name)
    plan = strategy.plan(mixed, Budget(), 0)
    validate(plan, mixed, strategy.moves)
    for part in plan.segments:
        if isinstance(part.placement, RowWise) and part.table != "t3":
            assert len(part.placement.ranks) == 4, "sequences are dealt over all ranks or none"


def test_in_2d_every_group_has_the_plan_of_one_group() -> None:
    shapes = [(1000, 64)] * 4 + [(1, 64)]
    asked = problem(shapes)
    strategy = get_strategy("torchrec-2d-table-wise")
    plan = strategy.plan(asked, Budget(), 0)
    memory = validate(plan, asked, strategy.moves)
    places = [s.placement for s in plan.segments]
    assert all(isinstance(place, OnLocalRank) for place in places)
    assert sorted(p.local_rank for p in places[:4] if isinstance(p, OnLocalRank)) == [0, 0, 1, 1]
    assert memory.hbm[0::2].tolist() == memory.hbm[1::2].tolist()
    assert memory.hbm.sum() == 2 * sum(rows * dim * 4 for rows, dim in shapes)
    assert plan.groups == ShardingGroups(size=2, interleaved=True)
    assert (plan.notes["group_size"], plan.notes["sync_every"]) == (2, 1)
    # One group is asked about: as many devices as a node has, and their samples alone.
    alone = groups.one_group(asked, 2)
    assert (alone.world_size, alone.batch_size, alone.machine.topology) == (2, 128, alone.topology)


@pytest.mark.parametrize(
    ("nodes", "devices", "hbm", "sizes"),
    [
        (2, 8, 1000, [8]),
        (4, 8, 1000, [8, 16]),
        (16, 8, 1000, [16, 32, 64]),
        (16, 8, 4, [32, 64]),  # 96 bytes of tables do not fit 16 devices
        (16, 8, 1, [64]),  # nor 64 of these: the largest group, whose host memory helps
        (3, 8, 1000, [12]),  # three copies would not lie inside nodes of eight
        (1, 8, 1000, []),
        (4, 1, 1000, []),
    ],
)
def test_groups_are_no_smaller_than_a_node_and_copies_lie_inside_one(
    nodes: int, devices: int, hbm: int, sizes: list[int]
) -> None:
    asked = problem([(1, 24)], hbm=hbm)
    shape = replace(asked.topology, nodes=nodes, devices_per_node=devices)
    shaped = replace(asked, topology=shape, machine=replace(asked.machine, topology=shape))
    assert groups.group_sizes(shaped) == sizes
    for size in sizes:
        copies = ShardingGroups(size=size, interleaved=True).ranks(nodes * devices).T
        assert (copies // devices == copies[:, :1] // devices).all()


def test_asked_as_mlperf_does_the_planner_knows_neither_batch_nor_lengths_nor_host_memory() -> None:
    small, strategy = problem([(400_000, 64)] * 6), get_strategy("torchrec-as-mlperf")
    hot = AccessProfile.from_counts(np.array([500_000]), rows=400_000, samples=100, present=100)
    long = replace(small, batch_size=1 << 14, profiles=(hot, *small.profiles[1:]))
    plan = strategy.plan(small, Budget(), 0)
    validate(plan, small, strategy.moves)
    assert strategy.plan(long, Budget(), 0).segments == plan.segments
    assert get_strategy("torchrec-fused").plan(long, Budget(), 0).segments != plan.segments
    with pytest.raises(Infeasible):
        strategy.plan(problem([(40_000, 256)], hbm=1 << 20), Budget(), 0)


def test_in_2d_rows_are_dealt_inside_each_node_where_there_are_enough() -> None:
    asked = problem([(1000, 64), (1, 64)])
    strategy = get_strategy("torchrec-2d-row-wise")
    plan = strategy.plan(asked, Budget(), 0)
    validate(plan, asked, strategy.moves)
    dealt, whole = (s.placement for s in plan.segments)
    assert dealt == GroupSharded()
    assert isinstance(whole, OnLocalRank)


def test_in_2d_tiers_columns_and_replicas_keep_their_meaning() -> None:
    asked = problem([(100, 256)] * 3)
    inside = sharding("row_wise", [0, 1], [(0, 0, 50, 256), (50, 0, 50, 256)], "fused_uvm")
    columns = sharding("column_wise", [1, 0], [(0, 0, 100, 128), (0, 128, 100, 128)])
    replicas = sharding("data_parallel", [0, 1], [], "dense")
    one = translate({"t0": inside, "t1": columns, "t2": replicas}, groups.one_group(asked, 2))
    plan = groups.copy_to_groups(one, asked)
    validate(plan, asked, frozenset(Move))
    assert [s.placement for s in plan.segments] == [
        GroupSharded(tier=Tier.UVM), OnLocalRank(local_rank=1), OnLocalRank(local_rank=0), Replicated(ranks=EVERYONE),
    ]  # fmt: skip
    assert [(s.column_start, s.column_stop) for s in plan.segments[1:3]] == [(0, 128), (128, 256)]


def test_in_2d_one_node_is_one_group_without_copies() -> None:
    asked = groups.one_group(problem([(1000, 64)] * 4), 2)
    plans = [get_strategy(name).plan(asked, Budget(), 0) for name in ("torchrec-2d-table-wise", "torchrec-table-wise")]
    assert plans[0] == plans[1]


def test_in_2d_what_fits_all_devices_may_not_fit_one_node() -> None:
    size = 1000 * 64 * 4
    asked = problem([(1000, 64)] * 4, hbm=size, uvm=0)
    assert len(get_strategy("torchrec-table-wise").plan(asked, Budget(), 0).segments) == 4
    with pytest.raises(Infeasible, match="TorchRec's planner"):
        get_strategy("torchrec-2d-table-wise").plan(asked, Budget(), 0)


def test_a_2d_plan_trains_the_unsharded_model_and_sends_what_is_counted(tmp_path: Path) -> None:
    workload = RandomWorkload([(600, 16), (50, 16), (1, 16), (300, 8)], 32)
    asked = workload.problem(small(2, 2))
    strategy = get_strategy("torchrec-2d-row-wise")
    plan = strategy.plan(asked, Budget(), 0)
    validate(plan, asked, strategy.moves)
    assert {type(s.placement) for s in plan.segments} == {GroupSharded, OnLocalRank}
    ran = on_ranks(tmp_path, workload, asked, plan, warmup=0, iterations=1)
    ran.check_sent()
    ran.check_trained()
    # Copies lie side by side, so that none of their averaging leaves a node; what crosses is lookups and vectors.
    sent = ran.measured.sent
    assert sent["rows_all_reduce"][0] > 0 == sent["rows_all_reduce"][1]
    assert sent["input_all_to_all"][1] > 0


PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import torchrec
warnings.simplefilter("error")
from shardbench.conformance.problems import cases
from shardbench.trials.discovery import get_strategy
from shardbench.model.strategy import Budget
print(get_strategy("torchrec-fused").plan(cases()[4].problem, Budget(), 0).to_json())
"""


def test_the_plan_does_not_depend_on_the_hash_seed() -> None:
    # The planner takes its options out of sets of strings; two processes must still agree.
    own = get_strategy("torchrec-fused").plan(cases()[4].problem, Budget(), 0)
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == own.to_json()
