"""Sharding groups as a move of the joint planner: never worse, where they pay by hand, within memory and time."""

import time
from dataclasses import replace

import numpy as np
import pytest
from joint_problems import random_problem
from problems import RandomWorkload, machine, without_placing

from shardbench.advice.constrained import Constrained
from shardbench.baselines.joint import Joint, course
from shardbench.baselines.joint.copies import WholePlan, groupings
from shardbench.baselines.joint.course import Found
from shardbench.cost.collectives import CollectiveName, collective_s
from shardbench.cost.costmodel import estimate
from shardbench.cost.phases import StepPhase
from shardbench.cost.traffic import expect
from shardbench.model.constraints import Constraints, sharding_type
from shardbench.model.expected import as_expected
from shardbench.model.plan import Plan, ShardingGroups
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Move
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

pytestmark = pytest.mark.usefixtures("stopped_clock")


def step_ms(plan: Plan, problem: Problem) -> float:
    return estimate(plan, as_expected(problem)).step_ms


def far_peers(nodes: int = 1, devices: int = 8, **changes: float) -> Problem:
    """Two sequence tables, of which a device has room for one, where a call takes a millisecond for each peer."""
    problem = RandomWorkload([(2000, 8)] * 2, 64, unpooled=frozenset({0, 1})).problem(
        without_placing(machine(nodes, devices, hbm=3000 * 8 * 4, uvm=0))
    )
    waits = {"peer_latency_s": 1e-3, "intra_latency_s": 0.0, "inter_latency_s": 0.0} | changes
    constants = replace(problem.machine.constants, **waits)
    return replace(problem, machine=replace(problem.machine, constants=constants))


def free_plan(problem: Problem, budget: Budget, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan without sharding groups."""
    with monkeypatch.context() as without:
        without.setattr(course, "groupings", lambda problem: iter(()))
        return get_strategy("joint").plan(problem, budget, 0)


def variant(moves: frozenset[Move]) -> Joint:
    strategy = Joint()
    strategy.moves = moves
    return strategy


def test_groups_win_where_a_call_waits_for_each_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, budget = far_peers(), Budget(plan_s=2.0)
    plan = Joint().plan(problem, budget, 0)
    validate(plan, problem, Joint.moves)
    # A device has no room for both tables, so that lookups are exchanged. In pairs five calls (splits, lengths, ids,
    # vectors, their gradients) wait for a peer each, the averaging of four copies and the dense all-reduce for three
    # and seven.
    assert plan.groups == ShardingGroups(size=2, interleaved=False)
    assert 15.0 < step_ms(plan, problem) < 15.5
    assert plan.notes["predicted_ms"] == pytest.approx(step_ms(plan, problem) - 7.0, abs=0.5)
    # Without groups each of the five calls waits for seven.
    assert 42.0 < step_ms(free_plan(problem, budget, monkeypatch), problem) < 43.0
    # Where averaging is dear, all else is better.
    dear = far_peers(intra_bytes_per_s=1e6)
    assert Joint().plan(dear, budget, 0).groups is None


@pytest.mark.parametrize("seed", [2, 4, 5, 7, 8])
def test_no_plan_is_worse_or_larger_than_without_groups(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, budget = ((1, 4), (2, 2), (3, 4), (4, 1))[seed % 4], Budget(plan_s=0.3)
    problem = random_problem(np.random.default_rng(seed), *shape)
    if seed >= 4:
        sizes = sum(map(problem.weight_bytes, problem.tables))
        topology = replace(problem.topology, hbm_bytes=sizes // 3, uvm_bytes=sizes)
        problem = replace(problem, topology=topology, machine=replace(problem.machine, topology=topology))
    plan, free = Joint().plan(problem, budget, 0), free_plan(problem, budget, monkeypatch)
    validate(plan, problem, Joint.moves)
    if seed == 8:
        assert plan.groups is not None
    assert plan == free or (plan.groups is not None and 1.005 * step_ms(plan, problem) < step_ms(free, problem))


@pytest.mark.parametrize(("nodes", "devices", "size"), [(1, 8, 4), (2, 4, 2), (4, 2, 4)])
def test_a_groups_problem_has_the_step_of_its_copies_but_for_all_reduces(nodes: int, devices: int, size: int) -> None:
    problem = replace(far_peers(nodes, devices, intra_bytes_per_s=1e9), batch_size=320)
    (grouping,) = (one for one in groupings(problem) if one.groups.size == size)
    assert grouping.groups.interleaved == (nodes > 1)
    # Whole tables and dealt ones: a copy on every device is shared with other groups.
    (*_, found) = variant(frozenset({Move.TABLE, Move.ROWS}))._course(grouping.one, Budget(plan_s=0.3)).run()
    copied = WholePlan(grouping.whole, found.forms[0], grouping)
    plan = Plan(world_size=problem.world_size, segments=copied.segments, groups=grouping.groups)
    validate(plan, problem, Joint.moves)
    phases_ms = estimate(plan, problem).phases_ms
    for phase, ms in estimate(Plan(world_size=size, segments=found.forms[0].segments), grouping.one).phases_ms.items():
        assert phase is StepPhase.ALL_REDUCE or phases_ms[phase] == pytest.approx(ms, rel=1e-9)
    # A call of the averaging waits for as many peers as there are other copies.
    averaged_ms = 1e3 * collective_s(expect(plan, problem).collectives[CollectiveName.ROWS_ALL_REDUCE], problem.machine)
    assert averaged_ms == pytest.approx(grouping.averaging_ms + problem.world_size // size - 1, rel=1e-9)


def test_after_the_deadline_no_groups_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    way, seen = Joint()._course(far_peers(), Budget(plan_s=2.0)), list[Found]()
    for found in way.run():
        seen.append(found)
        if found.ended_by == "finished":
            monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    assert len(seen) > 1 and way.finished(seen[-1]).groups is None


def test_groups_whose_step_is_not_estimated_in_time_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "ESTIMATE_S", 1.0)
    assert Joint().plan(far_peers(), Budget(plan_s=2.0), 0).groups is None


def test_constraints_that_allow_copies_have_them_and_others_have_none() -> None:
    problem, budget, strategy = far_peers(), Budget(plan_s=4.0), Joint()
    free = strategy.plan(problem, budget, 0)
    kinds = {t.name: sharding_type(free.by_table()[t.name], t, problem.topology) for t in problem.tables}
    assert set(kinds.values()) == {"node_copies"}

    def kept(**constraints: object) -> Plan:
        plan = Constrained(strategy, Constraints(**constraints)).inner.plan(problem, budget, 0)
        Constraints(**constraints).check(plan, problem)
        return plan

    assert kept(sharding_types={"table0": ("node_copies", "row_wise")}).groups == free.groups
    assert kept(sharding_types={"table0": ("row_wise",)}).groups is None
    assert kept(same_device=(("table0",), ("table1",))).groups is None
    assert kept(tiers={"table0": ("hbm",)}).groups == free.groups
