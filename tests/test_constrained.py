"""Constraints: what a plan breaks is placed anew, and what cannot be kept is refused by name."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from misbehaving import Honest

from shardbench.advice.constrained import evaluate_under
from shardbench.base.errors import BadInput, Infeasible, InvalidPlan, Undeclared
from shardbench.base.serialise import from_data
from shardbench.model.constraints import Constraints, nodes_of
from shardbench.model.machine import Topology
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import GroupSharded, OnRank, Plan, RowWise, Tier, whole_table, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.model.table import Table
from shardbench.model.validate import memory_bytes
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import RulesOnly


def posed(rows: Sequence[int], counts: Sequence[list[int]], dim: int, **topology: int) -> Problem:
    """Tables of so many rows, the first of which are looked up as often as ``counts`` says, on devices with HBM."""
    machine = replace(load_machine("a100-40gb-2x8"), topology=Topology(uvm_bytes=0, host_bytes=0, **topology))
    tables = tuple(Table(name=f"t{i}", rows=number, dim=dim) for i, number in enumerate(rows))
    profiles = tuple(
        AccessProfile.from_counts(np.array(counted), rows=table.rows, samples=100, present=100)
        for table, counted in zip(tables, counts, strict=True)
    )
    return Problem.of("p", tables, profiles, machine, batch_size=64)


def problem(hbm: int = 1 << 22) -> Problem:
    """Eight tables of 256 kB on two nodes of two devices."""
    counts = [[i + 1] * 100 for i in range(8)]
    return posed([1000] * 8, counts, 64, nodes=2, devices_per_node=2, hbm_bytes=hbm)


def planned(strategy: str, constraints: Constraints, asked: Problem) -> Plan | Failure:
    question = RulesOnly(constraints.applied(asked))
    made = evaluate_under(constraints, question, get_strategy(strategy), Budget(plan_s=5.0), 0, slack=9.0)
    return made if isinstance(made, Failure) else made.plan


KEPT = Constraints(
    same_device=(("t0", "t7"),),
    same_node=(("t1", "t2", "t3"),),
    sharding_types={"t4": ("row_wise",), "t5": ("column_wise",), "t6": ("table_wise", "data_parallel")},
    reserved_bytes=1 << 20,
    least_columns={"t5": 32},
)


@pytest.mark.parametrize("strategy", ["greedy-size", "row-wise", "joint", "column-wise", "recshard"])
def test_every_strategys_plan_keeps_them(strategy: str) -> None:
    plan = planned(strategy, KEPT, problem())
    assert isinstance(plan, Plan), plan
    KEPT.check(plan, problem())
    by_table = plan.by_table()
    assert by_table["t0"][0].placement == by_table["t7"][0].placement
    assert isinstance(by_table["t4"][0].placement, RowWise)
    assert [segment.columns for segment in by_table["t5"]] == [32, 32]


@pytest.mark.parametrize("strategy", ["greedy-size", "row-wise", "joint"])
def test_rows_are_in_the_memory_that_is_asked_for(strategy: str) -> None:
    """Host memory of one device has room for two tables of 256 kB; the caches' rows are there, too."""
    asked = problem()
    topology = replace(asked.topology, uvm_bytes=520_000)
    asked = replace(asked, topology=topology, machine=replace(asked.machine, topology=topology))
    keep = Constraints(
        tiers={"t0": (Tier.HBM,), "t1": (Tier.CACHED,), "t2": (Tier.CACHED,), "t3": (Tier.UVM,), "t4": (Tier.UVM,)},
        cache_ratios={"t2": 0.5},
        sharding_types={"t4": ("row_wise",), "t3": ("table_wise", "column_wise")},
    )
    plan = planned(strategy, keep, asked)
    assert isinstance(plan, Plan), plan
    keep.check(plan, asked)
    by_table = plan.by_table()
    own = {getattr(s.placement, "cache_ratio", None) for s in by_table["t1"]}
    assert own == {0.2} or (strategy == "joint" and len(own) == 1), "a share that nobody stated"
    assert {getattr(s.placement, "cache_ratio", None) for s in by_table["t2"]} == {0.5}
    assert isinstance(by_table["t4"][0].placement, RowWise)
    assert max(memory_bytes(plan, asked).uvm) <= 520_000
    many = Constraints(
        tiers={table.name: (Tier.UVM,) for table in asked.tables}, same_node=(("t0", "t1", "t2", "t3", "t4"),)
    )
    refused = planned(strategy, many, asked)
    assert isinstance(refused, Failure)
    assert "no node has room" in refused.cause
    with pytest.raises(InvalidPlan, match="table 't0' has rows in hbm, allowed are uvm"):
        Constraints(tiers={"t0": (Tier.UVM,)}).check(plan, asked)
    with pytest.raises(BadInput, match="table 't0' may be in no memory"):
        from_data(Constraints, {"tiers": {"t0": []}})


@pytest.mark.parametrize("moved", [{}, {"t0": ("column_wise",)}])
def test_what_is_reserved_is_taken_off_once(moved: dict[str, tuple[str, ...]]) -> None:
    """Each device must hold two tables of 256,000 bytes, which more than half of its memory has room for."""
    constraints = Constraints(reserved_bytes=500_000, sharding_types=moved)
    plan = planned("greedy-size", constraints, problem(1 << 20))
    assert isinstance(plan, Plan), plan
    constraints.check(plan, problem(1 << 20))


def test_where_a_plan_leaves_no_room_all_tables_are_placed_anew() -> None:
    """Two tables a device fill all of them: no device has room for three, nor one node for what must be together."""
    asked = problem(hbm=520_000)
    together = Constraints(same_device=(("t0", "t7"),), same_node=(("t1", "t2", "t3", "t4"),))
    plan = planned("greedy-size", together, asked)
    assert isinstance(plan, Plan), plan
    together.check(plan, asked)
    assert max(memory_bytes(plan, asked).hbm) <= 520_000
    too_many = planned("greedy-size", Constraints(same_device=(("t0", "t1", "t2"),)), asked)
    assert isinstance(too_many, Failure)
    assert too_many.outcome is Outcome.INFEASIBLE
    assert too_many.cause.startswith("constraints: no device has room for t0, t1, t2")


class Declines(Honest):
    """Never has a plan."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise Infeasible(f"{len(problem.tables)} tables in {problem.topology.hbm_bytes} bytes")


def test_what_every_device_has_a_part_of_comes_first() -> None:
    """Work keeps the others off the dear table's device: three on another one leave no room for its part of t0."""
    rows, counts = (250, 312, 312, 312, 312, 312, 312, 312, 313), [[1] * 100] * 8 + [[1000] * 100]
    asked = posed(rows, counts, 64, nodes=2, devices_per_node=2, hbm_bytes=250_000)
    dealt = Constraints(sharding_types={"t0": ("row_wise",)})
    plan = planned("greedy-lookup", dealt, asked)
    assert isinstance(plan, Plan), plan
    dealt.check(plan, asked)
    assert "placed_anew" not in plan.notes
    question = RulesOnly(dealt.applied(asked))
    made = evaluate_under(dealt, question, Declines(), Budget(plan_s=5.0), 0, slack=1.0)
    assert not isinstance(made, Failure), made
    dealt.check(made.plan, asked)
    assert made.plan.notes["placed_anew"] == 9
    free = evaluate_under(Constraints(), question, Declines(), Budget(plan_s=5.0), 0, slack=1.0)
    assert isinstance(free, Failure)
    assert "9 tables in 250000 bytes" in free.cause


def test_where_least_is_looked_up_is_no_room_so_that_all_go_where_most_is_left() -> None:
    """By lookups 400 and 200 rows fill a device of 600, which then has no room for its half of t3's columns."""
    counts = [[count] * 2 for count in (1, 9, 1, 1, 1)]
    asked = posed((400, 300, 200, 200, 2), counts, 8, nodes=1, devices_per_node=2, hbm_bytes=601 * 32)
    kinds = {f"t{i}": ("table_wise",) for i in range(3)} | {"t3": ("column_wise",), "t4": ("row_wise",)}
    kept = Constraints(sharding_types=kinds)
    made = evaluate_under(kept, RulesOnly(asked), Declines(), Budget(plan_s=5.0), 0, slack=1.0)
    assert not isinstance(made, Failure), made
    assert sorted(memory_bytes(made.plan, asked).hbm.tolist()) == [501 * 32, 601 * 32]


def test_a_plan_that_keeps_them_stays_as_it_is() -> None:
    free, bound = (
        planned("greedy-size", Constraints(sharding_types=types), problem()) for types in ({}, {"t0": ("table_wise",)})
    )
    assert isinstance(free, Plan)
    assert free == bound
    assert "placed_anew" not in free.notes


def test_tables_in_two_tiers_of_one_device_are_together() -> None:
    tables, tiers = problem().tables, [Tier.HBM, Tier.UVM] * 4
    segments = tuple(whole_table(table, OnRank(rank=2, tier=tier)) for table, tier in zip(tables, tiers))
    Constraints(same_device=(("t0", "t1"),)).check(Plan(world_size=4, segments=segments), problem())


class Learner(Honest):
    """Puts all tables on the device that it learned."""

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        with pytest.raises(Undeclared):
            len(problems[0].profiles)
        self.learned = 0

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        ranks = [self.learned] * len(problem.tables)
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


def learned(constraints: Constraints) -> Plan:
    question = RulesOnly(constraints.applied(problem()))
    made = evaluate_under(constraints, question, Learner(), Budget(plan_s=5.0), 0, slack=1.0)
    assert not isinstance(made, Failure), made
    return made.plan


def test_a_strategy_that_learns_has_learned_before_it_plans() -> None:
    plan = learned(Constraints(reserved_bytes=1))
    assert {segment.placement for segment in plan.segments} == {OnRank(rank=0)}


def test_a_type_moves_the_whole_group_of_a_node() -> None:
    """Alone, the table of another type would go to the empty node."""
    together = Constraints(same_node=(("t0", "t1"),), sharding_types={"t0": ("column_wise",)})
    plan = learned(together)
    assert plan.notes["placed_anew"] == 2
    assert nodes_of([plan.by_table()["t1"]], problem().topology) == {1}


def test_devices_of_unequal_memory() -> None:
    sizes = (1 << 22, 1 << 20, 1 << 22, 1 << 20)
    unequal = Constraints(device_hbm_bytes=sizes, reserved_bytes=100_000)
    plan = planned("greedy-lookup", unequal, problem())
    assert isinstance(plan, Plan)
    assert (memory_bytes(plan, problem()).hbm <= np.array(sizes) - 100_000).all()
    full = Plan(world_size=4, segments=tuple(whole_table(t, OnRank(rank=1)) for t in problem().tables))
    with pytest.raises(InvalidPlan, match="constraint not kept: device 1 needs 2048000 bytes of HBM but has 948576"):
        unequal.check(full, problem())


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        (Constraints(same_device=(("t0", "t1"),)), "tables t0, t1 do not lie whole on one device"),
        (Constraints(same_node=(("t0", "t2"),)), "tables t0, t2 lie on 2 nodes"),
        (Constraints(sharding_types={"t0": ("row_wise",)}), "table 't0' is table_wise, allowed are row_wise"),
        (Constraints(sharding_types={"t3": ("row_wise",)}), "table 't3' is node_copies, allowed are row_wise"),
    ],
)
def test_what_is_broken_is_said(constraints: Constraints, said: str) -> None:
    tables = problem().tables
    places = [OnRank(rank=i % 4) for i in range(3)] + [GroupSharded()] * 5
    plan = Plan(world_size=4, segments=tuple(whole_table(t, place) for t, place in zip(tables, places, strict=True)))
    with pytest.raises(InvalidPlan, match=f"constraint not kept: {said}"):
        constraints.check(plan, problem())


def test_wrong_constraints_are_bad_input() -> None:
    with pytest.raises(ValueError, match="table 'a': sharding type 'hexagonal'; known: table_wise"):
        Constraints(sharding_types={"a": ("hexagonal",)})
    with pytest.raises(ValueError, match="table 'b' is in two groups"):
        Constraints(same_device=(("a", "b"),), same_node=(("b", "c"),))
    with pytest.raises(BadInput, match="constraints name table 'x', which there is not"):
        Constraints(same_node=(("x",),)).check_tables(problem().tables)
    with pytest.raises(BadInput, match="memory of 1 devices is stated, the machine has 4"):
        Constraints(device_hbm_bytes=(5,)).device_bytes(problem().topology)
    with pytest.raises(BadInput, match="device 0 has 4194304 bytes, 4194305 are reserved"):
        Constraints(reserved_bytes=(1 << 22) + 1).device_bytes(problem().topology)


@pytest.mark.parametrize(
    ("constraint", "types"),
    [
        ({"same_device": [["t0", "t1"]]}, ["row_wise", "column_wise"]),
        ({"tiers": {"t0": ["uvm"]}}, ["data_parallel"]),
        ({"least_columns": {"t0": 48}}, ["column_wise"]),
    ],
)
def test_two_constraints_that_contradict_each_other_are_both_named(
    constraint: dict[str, object], types: list[str]
) -> None:
    asked = from_data(Constraints, {**constraint, "sharding_types": {"t0": types}}, "constraints")
    says = (
        f"table 't0': constraints sharding_types \\({', '.join(types)}\\) and {next(iter(constraint))} contradict each"
    )
    with pytest.raises(BadInput, match=says):
        asked.check_tables(problem().tables)
    from_data(Constraints, {**constraint, "sharding_types": {"t0": [*types, "table_wise"]}}, "").check_tables(
        problem().tables
    )


def test_constraints_that_leave_no_form_are_named() -> None:
    """The types of nodes need several devices a node."""
    asked = posed([100, 50], [[1], [1]], 64, nodes=2, devices_per_node=1, hbm_bytes=1 << 22)
    refused = planned("greedy-size", Constraints(sharding_types={"t0": ("table_row_wise",)}), asked)
    assert isinstance(refused, Failure)
    assert refused.cause == (
        "constraints: table 't0' (100 x 64) may be table_row_wise in hbm alone, which the strategy did not make of it "
        "and which cannot be placed here: allow it another type or memory"
    )
    whole = planned("greedy-size", Constraints(sharding_types={"t0": ("column_wise",)}), replace(
        asked, tables=(replace(asked.tables[0], dim=20), asked.tables[1])
    ))  # fmt: skip
    assert isinstance(whole, Plan), whole
    assert len(whole.by_table()["t0"]) == 1
