"""Caches in HBM as a move of the joint planner: only where limits name them, and never for a longer step."""

import math
from dataclasses import replace

import numpy as np
import pytest
from joint_problems import MOVES, random_problem, scheduled
from problems import RandomWorkload, machine

from shardbench.advice.constrained import Constrained
from shardbench.baselines.joint import Joint, course
from shardbench.baselines.joint.limits import Limits, Space
from shardbench.baselines.joint.memory import AGES, hot_rows
from shardbench.baselines.joint.menu import Menu
from shardbench.baselines.joint.pieces import Cache, Counter, Holders, PieceCut
from shardbench.baselines.joint.state import PlanState
from shardbench.cost.costmodel import estimate
from shardbench.model.constraints import TORCHREC_TYPES, Constraints
from shardbench.model.machine import Topology
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan, Tier, tier_of
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Move, TableLimits
from shardbench.model.table import Optimizer, StepSchedule
from shardbench.model.validate import memory_bytes, validate

BATCH = 2048


@pytest.fixture(autouse=True)
def _without_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only counted work ends a search, so that both of two plans have as much."""
    monkeypatch.setattr(course, "LATEST_SHARE", math.inf)


def skewed(rows: int = 40_000, dim: int = 32, hbm: int = 1_000_000, tables: int = 2) -> Problem:
    """Tables whose hottest rows get most lookups, on two A100 that have memory for a part of them."""
    gpu = load_machine("a100-40gb-2x8")
    topology = Topology(nodes=1, devices_per_node=2, hbm_bytes=hbm, uvm_bytes=10**9, host_bytes=0)
    return RandomWorkload([(rows, dim)] * tables, BATCH).problem(replace(gpu, topology=topology))


def limits_of(problem: Problem, tiers: tuple[Tier, ...], ratios: dict[str, float] | None = None) -> Constraints:
    """What TorchRec's tables may be: of its sharding types, and in these kinds of memory."""
    names = [table.name for table in problem.tables]
    types = dict.fromkeys(names, tuple(kind for kind in TORCHREC_TYPES if kind != "data_parallel"))
    return Constraints(sharding_types=types, tiers=dict.fromkeys(names, tiers), cache_ratios=ratios or {})


def planned(problem: Problem, constraints: Constraints) -> Plan:
    strategy = Constrained(Joint(), constraints)
    plan = strategy.plan(problem, Budget(plan_s=0.5), 0)
    validate(plan, problem, strategy.moves)
    constraints.check(plan, problem)
    return plan


def shares(plan: Plan) -> set[float]:
    return {ratio for s in plan.segments if (ratio := getattr(s.placement, "cache_ratio", None)) is not None}


def test_a_cache_takes_whole_sets_of_slots_and_a_map_of_all_rows() -> None:
    """Of 1,000 rows of 16 fp32 numbers a tenth: 128 slots of 64 + 16 bytes, and 4 bytes a row for the map."""
    problem = replace(skewed(1_000, 16), optimizer=Optimizer.SGD)
    cut = PieceCut(0, Holders.RANK, 0, 1_000, 16, Tier.CACHED, cache=Cache(0.1, 1.0))
    counted = Counter(problem).count([cut])
    np.testing.assert_array_equal(counted.fullest, [[128 * 80 + 4_000, 64_000]])
    assert counted.size == [128 * 80 + 4_000]
    # Half of the rows on each device, and slots as wide as those of the table that shares them.
    dealt = PieceCut(0, Holders.WORLD, 0, 1_000, 16, Tier.CACHED, cache=Cache(0.1, 1.0))
    narrow = PieceCut(1, Holders.RANK, 0, 1_000, 8, Tier.CACHED, cache=Cache(0.1, 1.0))
    counted = Counter(problem).count([dealt, narrow])
    np.testing.assert_array_equal(counted.fullest, [[64 * 80 + 2_000, 32_000], [128 * 80 + 4_000, 32_000]])
    assert counted.size[0] == 2 * (64 * 80 + 2_000)


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAM])
def test_a_cache_of_one_table_is_what_the_cost_model_expects(optimizer: Optimizer) -> None:
    problem = replace(skewed(), optimizer=optimizer)
    counter, state = Counter(problem), PlanState(problem)
    caches = [counter.cache(index, ratio=ratio) for index, ratio in enumerate((0.02, 0.3))]
    counted = counter.count(
        [PieceCut(i, Holders.RANK, 0, 40_000, 32, Tier.CACHED, cache=c) for i, c in enumerate(caches)]
    )
    segments = []
    for rank in range(2):  # each on a device of its own
        piece = counter.piece(counted, rank)
        state.add(piece, rank)
        segments.append(piece.cut.segment(problem.tables[rank], [rank]))
    plan = Plan(world_size=2, segments=tuple(segments))
    assert state.whole_ms == pytest.approx(estimate(plan, problem).step_ms, rel=1e-9)
    memory = memory_bytes(plan, problem)
    np.testing.assert_allclose(state.held_bytes, [memory.hbm, memory.uvm])


def test_a_cache_of_an_age_has_slots_for_the_rows_of_so_many_batches() -> None:
    problem = skewed()
    counter, profile = Counter(problem), problem.profiles[0]
    for age in (1.0, 2.0):
        cache = counter.cache(0, age=age)
        assert cache.ratio * 40_000 == pytest.approx(profile.expected_distinct(age * profile.mean_pooling * BATCH))
    longest = 2.0 * profile.samples / BATCH
    steady = counter._steady(PieceCut(0, Holders.RANK, 0, 40_000, 32, cache=counter.cache(0, age=longest)))
    np.testing.assert_array_equal(steady.batch_counts(1e9), steady.batch_counts(longest), "no more is known")


def test_tables_that_share_a_cache_have_one_age_and_stated_shares_are_kept() -> None:
    problem = skewed(tables=3)
    constraints = limits_of(problem, (Tier.CACHED,), {problem.tables[2].name: 0.05})
    tiers = {name: frozenset(one) for name, one in constraints.tiers.items()}
    limits = Limits.of(TableLimits(tiers=tiers, caches=constraints.cache_ratios), problem)
    *chosen, stated = hot_rows(Space(problem, MOVES | {Move.CACHE}, limits), 1.0)
    assert isinstance(stated, Cache) and stated.ratio == 0.05
    assert len({kept.age for kept in chosen if isinstance(kept, Cache)}) == 1
    assert all(isinstance(kept, Cache) and kept.age <= max(AGES) for kept in chosen)
    menu = Menu(Space(problem, MOVES | {Move.CACHE}, limits), [*chosen, stated])
    assert {cut.tier for option in menu.options for cut in menu.cuts_of(option)} == {Tier.CACHED}
    assert not [option for option in menu.options if menu.groups.scope[option.groups[0]] >= Holders.NODES], "no copies"
    assert 0.05 in shares(planned(problem, constraints))


def test_where_a_table_cannot_be_cut_a_cache_keeps_its_hot_rows_in_hbm() -> None:
    problem = skewed()
    cached, without = (planned(problem, limits_of(problem, tiers)) for tiers in (tuple(Tier), (Tier.HBM, Tier.UVM)))
    assert shares(cached) and not shares(without)
    assert estimate(cached, problem).step_ms < 0.9 * estimate(without, problem).step_ms


def test_a_plan_with_the_move_is_never_worse_than_without() -> None:
    rng, gains = np.random.default_rng(8), 0
    for shape in ((1, 1), (2, 2)):
        problem = scheduled(random_problem(rng, *shape), "cuda", StepSchedule.SEQUENTIAL)
        size = sum(map(problem.weight_bytes, problem.tables))
        hbm = int(size * rng.uniform(0.2, 0.9) / problem.world_size)
        topology = replace(problem.topology, hbm_bytes=hbm, uvm_bytes=2 * size)
        problem = replace(problem, topology=topology, machine=replace(problem.machine, topology=topology))
        steps = [
            estimate(planned(problem, limits_of(problem, tiers)), problem).step_ms
            for tiers in (tuple(Tier), (Tier.HBM, Tier.UVM))
        ]
        assert steps[0] <= steps[1] * (1.0 + 1e-9)
        gains += steps[0] < steps[1]
    assert gains


def test_plans_without_need_of_caches_are_as_before() -> None:
    problem = skewed(hbm=20_000_000)
    with_caches, without = (
        planned(problem, limits_of(problem, tiers)) for tiers in (tuple(Tier), (Tier.HBM, Tier.UVM))
    )
    assert with_caches.segments == without.segments
    assert Move.CACHE not in Joint().moves
    free = Joint().plan(skewed(), Budget(plan_s=2.0), 0)
    assert Tier.CACHED not in {tier_of(segment.placement) for segment in free.segments}


def test_a_cpu_has_no_cache() -> None:
    problem = RandomWorkload([(40_000, 32)] * 2, 256).problem(machine(1, 2, hbm=1_000_000, uvm=10**9))
    assert problem.machine.device == "cpu"
    tiers = {table.name: frozenset(Tier) for table in problem.tables}
    kept = hot_rows(Space(problem, MOVES | {Move.CACHE}, Limits(tiers=tiers)), 1.0)
    assert not any(isinstance(one, Cache) for one in kept)
