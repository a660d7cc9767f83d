"""ShardBenchPlanner with sizes of sharding groups: plans for TorchRec's 2D parallelism."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchrec")
import dmp_ranks
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec_cells.models import managed
from torchrec_modules import MIB, SHARDERS, Declines, OnRank3, module

from shardbench.advice.torchrec.groups import group_topology, in_all_groups
from shardbench.base.errors import BadInput
from shardbench.cost.collectives import CollectiveName
from shardbench.cost.traffic import expect
from shardbench.model.plan import Plan, ShardingGroups, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.torchrec import ShardBenchPlanner

WEIGHT_BYTES = 1_000 * 64 * 4


class OnFirst(OnRank3):
    """Puts all tables on the first rank, of however many there are."""

    name = "on-first"

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, [0] * len(problem.tables)))


def nodes(count: int = 2, local: int = 2, hbm: int = 4096 * MIB) -> TorchRecTopology:
    return TorchRecTopology(
        world_size=count * local, local_world_size=local, compute_device="cuda", hbm_cap=hbm, ddr_cap=1 << 30
    )


def grouped(*sizes: int, strategy: Any = None, rows: Any = (1_000,), **rest: Any) -> tuple[ShardBenchPlanner, Any]:
    planner = ShardBenchPlanner(nodes(), 64, **{"ask_torchrec": False, "sharding_group_sizes": sizes, **rest})
    planner.strategies = [strategy or OnFirst()]
    return planner, planner.plan(module(list(rows)), SHARDERS).plan["tables"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("inter_host", [False, True])
def test_dmp_collection_trains_by_the_plan_as_the_unsharded_model(tmp_path: Path, inter_host: bool) -> None:
    seen = dmp_ranks.train_in_groups(tmp_path, inter_host=inter_host)
    assert not [one["error"] for one in seen if "error" in one]
    groups = [[0, 1], [0, 1], [2, 3], [2, 3]] if inter_host else [[0, 2], [1, 3], [0, 2], [1, 3]]
    for one, group in zip(seen, groups, strict=True):
        assert (one["size"], one["group"]) == (2, group)
        assert one["types"] == ["column_wise", "data_parallel", "row_wise", "table_wise"]
        *averaged, alone = one["off"]
        assert max(averaged) < 2e-6 < 0.01 < one["moved"]
        assert alone > 1e-4  # copies that are not averaged go their own ways


@pytest.mark.parametrize("inter_host", [False, True])
def test_the_averaging_is_judged_on_the_links_of_the_layout(inter_host: bool) -> None:
    planner, tables = grouped(2, use_inter_host_allreduce=inter_host)
    assert (planner.taken, planner.sharding_group_size) == ("on-first", 2)
    assert list(tables["t0"].ranks) == [0]
    assert planner.answer is not None
    plan, problem = planner.answer.plan, planner.answer.question.problem
    assert plan.groups == ShardingGroups(size=2, interleaved=not inter_host)
    assert (problem.world_size, problem.batch_size) == (4, 4 * 64)
    # The first ranks of groups are 0 and 1 on one node, or 0 and 2 on two: each sends half of its copy, twice.
    averaged = expect(plan, problem).collectives[CollectiveName.ROWS_ALL_REDUCE]
    holders = [1.0, 0.0, 1.0, 0.0] if inter_host else [1.0, 1.0, 0.0, 0.0]
    sent = [WEIGHT_BYTES * holds for holds in holders]
    assert (averaged.sent_inter if inter_host else averaged.sent_intra).tolist() == sent
    assert not (averaged.sent_intra if inter_host else averaged.sent_inter).any()


def test_the_size_of_the_shortest_step_is_stated_and_no_groups_without_being_asked() -> None:
    alone = {size: grouped(size, rows=(1_000, 200_000))[0] for size in (2, 4)}
    steps = {size: one.answer.judged.step_ms for size, one in alone.items() if one.answer is not None}
    both, _ = grouped(2, 4, rows=(1_000, 200_000))
    assert both.sharding_group_size == min(steps, key=lambda size: steps[size]) == 4  # averaging 51 MB takes long
    assert both.answer is not None
    assert both.answer.plan.groups is None  # one group of all ranks
    usual, _ = grouped(rows=(1_000, 200_000))
    assert usual.answer is not None
    assert (usual.sharding_group_size, usual.answer.plan) == (None, both.answer.plan)


def test_the_text_says_the_groups_whatever_dmp_collection_makes_of_the_plan() -> None:
    planner, tables = grouped(2)
    text = planner.statistics()
    assert "  for one sharding group of 2 ranks; 2 copies are averaged after every step\n" in text
    tables["t0"].ranks = [3]
    assert planner.statistics() == text


def test_torchrecs_plan_for_a_group_is_one_of_the_candidates() -> None:
    planner, tables = grouped(2, strategy=Declines(), rows=(1_000, 2_000, 3_000), ask_torchrec=True)
    assert (planner.taken, planner.sharding_group_size) == ("torchrec", 2)
    assert {rank for how in tables.values() for rank in how.ranks} <= {0, 1}
    assert {how.compute_kernel for how in tables.values()} <= {"fused", "dense"}
    joint, _ = grouped(2, rows=(1_000, 2_000, 3_000), ask_torchrec=True, strategy=OnFirst())
    assert joint.answer is not None
    assert planner.answer is not None
    assert joint.answer.judged.step_ms <= planner.answer.judged.step_ms


@pytest.mark.parametrize(
    ("count", "local", "size", "interleaved", "beside"),
    [(2, 4, 4, True, 2), (2, 4, 4, False, 4), (2, 4, 2, True, 1), (2, 4, 2, False, 2), (4, 2, 4, False, 2)],
)
def test_a_groups_topology_has_its_ranks_and_their_least_memory(
    count: int, local: int, size: int, interleaved: bool, beside: int
) -> None:
    whole, groups = nodes(count, local), ShardingGroups(size=size, interleaved=interleaved)
    for rank, device in enumerate(whole.devices):
        device.storage.hbm = 1_000 - rank
    one = group_topology(whole, groups)
    assert (one.world_size, one.local_world_size, one.intra_group_size) == (size, beside, beside)
    # The last group has the least: its ranks are the last of each number, or the last ones.
    copies = 8 // size
    last = [copies * (number + 1) - 1 if interleaved else 8 - size + number for number in range(size)]
    assert [device.storage.hbm for device in one.devices] == [1_000 - rank for rank in last]
    assert len(whole.devices) == 8


@pytest.mark.parametrize(
    ("sizes", "world", "text"),
    [((3,), (2, 2), "sharding groups of 3 ranks do not divide"), ((3,), (3, 2), "unlike each other on nodes of 2")],
)
def test_groups_that_cannot_be_are_refused(sizes: tuple[int, ...], world: tuple[int, int], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        ShardBenchPlanner(nodes(*world), 64, sharding_group_sizes=sizes, use_inter_host_allreduce=True)


@pytest.mark.parametrize("name", ["plan_loader", "enumerator"])
def test_what_is_made_for_all_ranks_and_groups_are_refused_together(name: str) -> None:
    arguments: Any = {name: object()}
    with pytest.raises(BadInput, match=f"{name} is for all ranks"):
        ShardBenchPlanner(nodes(), 64, sharding_group_sizes=[2], **arguments)


@pytest.mark.parametrize(
    "constraint",
    [
        ParameterConstraints(sharding_types=["table_row_wise"]),
        ParameterConstraints(compute_kernels=["fused_uvm_caching"]),
    ],
)
def test_what_copies_cannot_be_is_refused(constraint: ParameterConstraints) -> None:
    with pytest.raises(PlannerError, match=r"groups of 2: table 't0': .* is not planned within sharding groups"):
        grouped(2, constraints={"t0": constraint})


def test_managed_collisions_and_dense_kernels_have_no_copies() -> None:
    planner = ShardBenchPlanner(nodes(), 64, sharding_group_sizes=[2])
    model = torch.nn.ModuleDict(managed(torch.device("meta")))
    with pytest.raises(PlannerError, match="is not planned within sharding groups"):
        planner.plan(model, get_default_sharders())
    planner, tables = grouped(2)
    tables["t0"].compute_kernel = "dense"
    plan: Any = type("Plan", (), {"plan": {"tables": tables}})
    assert planner.answer is not None
    with pytest.raises(PlannerError, match="table 't0': copies by kernel dense are not averaged"):
        in_all_groups(plan, planner.answer.plan, 4, ShardingGroups(size=2, interleaved=True))
