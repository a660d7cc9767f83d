"""The best plan: strategies are asked within a time and under constraints, and of their plans one is the answer."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from misbehaving import Honest

from shardbench.advice.best_plan import (
    LOOKUP_S,
    TABLE_S,
    PlanSearch,
    _complexity,
    _profiled,
    best_plan,
    default_strategies,
    tied_ms,
)
from shardbench.advice.machines import on_machines
from shardbench.base.errors import BadInput
from shardbench.cli.plan_answer import _binding_line, _sharder_lines, lines
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.cost.collectives import EXCHANGES
from shardbench.cost.memory.fullest import Peak
from shardbench.model.constraints import ANY_PLAN, Constraints
from shardbench.model.machine import Machine, Trust
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import OnRank, Plan, Tier, row_ranges, whole_table, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Improvement, Move
from shardbench.model.table import StepSchedule
from shardbench.trials.discovery import get_strategy
from shardbench.trials.simulate import CountedQuestion, ExpectedQuestion
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.trace import Bags


class Stubborn(Honest):
    """Puts all tables on the first device, whatever it is told, and fails where there are three."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        segments = whole_tables(problem.tables, [0] * len(problem.tables))
        return Plan(world_size=problem.world_size, segments=segments)


def described(**changes: Any) -> Any:
    tables = [{"name": name, "rows": 10_000} for name in "abc"]
    data = {"dataset": "described", "name": "w", "batch_size": 64, "tables": tables, **changes}
    return workload_config(data, "test").build(Path())


class LongBag(DrawnBatches):
    """The test batches with one very long bag in the first table."""

    def bags(self, iteration: int, table: int) -> Bags:
        found, more = super().bags(iteration, table), 20_000
        if table:
            return found
        longer = np.concatenate([np.zeros(more, dtype=found.values.dtype), found.values])
        return Bags(values=longer, offsets=np.concatenate([found.offsets[:1], found.offsets[1:] + more]))


def test_a_long_test_bag_is_no_room_under_the_profile() -> None:
    workload, machine = described(), load_machine("a100-40gb-2x8")
    found = best_plan(workload, machine, [get_strategy("joint")], budget_s=10.0).best
    assert found is not None and found.over_bound_pct is not None
    question = CountedQuestion.of_batches(workload, machine, LongBag(workload))
    bound = question.bounds().of_step(found.plan)
    assert bound is not None
    assert 100 * (question.judge(found.plan).step_ms / bound.ms - 1) > found.over_bound_pct + 5
    assert question.over_profile_bound_pct(found.plan) == pytest.approx(found.over_profile_bound_pct, rel=0.01)


@pytest.fixture
def asked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have strategies of these tests asked in the program, as those of the repository are."""
    monkeypatch.setattr("shardbench.advice.asking.ours", lambda _: True)


@pytest.mark.usefixtures("asked_here")
def test_a_plan_that_does_not_fit_is_refused_and_said() -> None:
    machine = load_machine("a100-40gb-2x8")
    sizes = (3_000_000, *(10_000_000,) * 15)  # a table has 2,560,000 bytes
    unequal = Constraints(device_hbm_bytes=sizes)
    found = best_plan(described(), machine, [Stubborn(), get_strategy("greedy-size")], constraints=unequal)
    assert found.best is not None
    assert found.best.strategy == "greedy-size"
    assert found.best.hbm_room_bytes == sizes
    assert max(found.best.hbm_used_bytes) <= 3_000_000
    assert found.tried[-1].strategy == "stubborn"
    assert found.tried[-1].cause.startswith("invalid: device 0 needs 7680000 bytes of HBM but has 3000000")
    types = Constraints(sharding_types={"a": ("by_frequency",)})
    refused = best_plan(described(), machine, [Stubborn()], constraints=types)
    assert refused.tried[0].cause.startswith("infeasible: constraints: table 'a' (10000 x 64) may be by_frequency")
    nobody = best_plan(described(), machine, [Stubborn()], constraints=unequal)
    assert (nobody.best, nobody.candidates) == (None, ())
    there = f"16 devices have 48000000 of HBM (3000000 each; beside it {16 * machine.topology.uvm_bytes} of UVM; "
    assert nobody.memory.startswith(f"tables need 7680000 bytes (weights and sgd state), {there}")
    assert nobody.memory.endswith("; the largest is 'a' with 2560000")


@pytest.mark.usefixtures("asked_here")
def test_a_plan_that_does_not_fit_by_its_peak_is_best_only_where_none_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*failing: str) -> tuple[PlanSearch, str]:
        def peak(plan: Plan, *rest: Any) -> Peak:
            name = "stubborn" if plan.segments[-1].placement == OnRank(rank=0) else "greedy-size"
            return Peak(
                device=3, bytes=2.0**31, device_bytes=2.0**30, moment="output", terms_bytes={}, judged=True,
                fits=name not in failing,
            )  # fmt: skip

        monkeypatch.setattr("shardbench.advice.peak.predicted_peak", peak)
        search = best_plan(described(), load_machine("a100-40gb-2x8"), [Stubborn(), get_strategy("greedy-size")])
        return search, "\n".join(lines(search, ANY_PLAN, 30.0, None))

    (shorter, text), names = asked(), {"stubborn", "greedy-size"}
    assert shorter.best is not None
    assert "DOES NOT FIT" not in text
    (longer, text), (other,) = asked(shorter.best.strategy), names - {shorter.best.strategy}
    assert longer.best is not None
    assert longer.best.strategy == other
    assert longer.best.step_ms > shorter.best.step_ms
    assert [one.strategy for one in longer.tried if not one.fits] == [shorter.best.strategy]
    assert len([line for line in text.splitlines() if "DOES NOT FIT" in line]) == 1
    none, text = asked(*names)
    assert none.best is not None
    assert none.best.strategy == shorter.best.strategy
    assert "DOES NOT FIT: device 3 is predicted to run out of memory, and no other plan fits" in " ".join(text.split())


def test_strategies_see_the_room_that_a_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, table_bytes = load_machine("a100-40gb-2x8"), 2_560_000
    dense = {"bottom": [16], "top": [16, 1]}
    roomy = best_plan(described(dense=dense), machine, [get_strategy("greedy-size")]).best
    assert roomy is not None and roomy.peak is not None
    assert roomy.hbm_room_bytes[0] == machine.topology.hbm_bytes
    # A device has room for a step and two tables of three.
    tight_bytes = roomy.peak.bytes + 1.5 * table_bytes
    monkeypatch.setattr("shardbench.advice.best_plan.device_bytes", lambda machine: tight_bytes)
    search = best_plan(described(dense=dense), machine, [get_strategy("greedy-size")])
    assert search.best is not None and search.best.peak is not None
    assert 2 * table_bytes < search.best.hbm_room_bytes[0] < 3 * table_bytes
    assert search.best.peak.fits
    assert search.memory.endswith("; that is what a step leaves of it")


@pytest.mark.usefixtures("asked_here")
def test_without_constraints_a_plan_is_left_alone() -> None:
    found = best_plan(described(), load_machine("a100-40gb-2x8"), [Stubborn()])
    assert found.best is not None
    assert {segment.placement for segment in found.best.plan.segments} == {OnRank(rank=0)}


def test_those_that_are_asked_unless_some_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {strategy.name for strategy in default_strategies()}
    assert {"joint", "greedy-lookup", "recshard", "row-wise"} <= names
    assert {"torchrec-table-wise", "torchrec-2d", "torchrec-fused"} <= names
    assert not {"fae", "dreamshard", "search", "cpu-only"} & names
    monkeypatch.setattr("shardbench.advice.best_plan.missing_modules", lambda strategy: strategy.requires)
    assert names - {strategy.name for strategy in default_strategies()} == {
        "torchrec-table-wise", "torchrec-2d", "torchrec-fused",
    }  # fmt: skip
    with pytest.raises(BadInput, match="no strategy is asked"):
        best_plan(described(), load_machine("a100-40gb-2x8"), [])


class Slow(Stubborn):
    """Does as Stubborn, a while later, and keeps what it was given."""

    def __init__(self, name: str, moves: frozenset[Move], seconds: float = 0.0) -> None:
        self.name, self.moves, self.seconds = name, moves, seconds  # type: ignore[misc]
        self.given: list[float] = []

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        time.sleep(self.seconds)
        self.given.append(budget.plan_s)
        return replace(super().plan(problem, budget, seed), notes={"made by": self.name})


class Planner(Slow):
    """Needs a process of its own."""

    requires = ("json",)


class Growing(Slow):
    """Has ever better plans: all tables on one device, on two, and so on."""

    def improvements(self, problem: Problem, budget: Budget, seed: int) -> Iterator[Improvement]:
        for devices in range(1, 4):
            segments = whole_tables(problem.tables, [at % devices for at in range(len(problem.tables))])
            plan = Plan(world_size=problem.world_size, segments=segments, notes={"devices": devices})
            yield Improvement(step_ms=lambda devices=devices: 1.0 / devices, make_plan=lambda plan=plan: plan)
            time.sleep(self.seconds)
            self.given.append(budget.plan_s)


@pytest.mark.usefixtures("asked_here")
def test_who_overruns_leaves_the_others_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbench.advice.best_plan.ASKED_S", 60.0)
    one, two = frozenset({Move.TABLE}), frozenset({Move.TABLE, Move.UVM})
    late, other, first = Slow("late", one, 0.5), Slow("other", two), Growing("growing", DEVICE_MOVES)
    found = best_plan(described(), load_machine("a100-40gb-2x8"), [other, late, first], budget_s=0.2)
    assert [tried.strategy for tried in found.tried if tried.late] == ["late"]
    # Who has ever better plans comes first, with all of it; the others share what is left.
    assert first.given == [0.2] * 3
    assert (late.given, other.given) == ([0.1], [0.2])
    # A plan that came late is there.
    assert None not in {tried.step_ms for tried in found.tried}
    alone = best_plan(described(), load_machine("a100-40gb-2x8"), [Slow("late", one, 0.5)], budget_s=0.1)
    assert alone.best is not None
    assert alone.tried[0].late


@pytest.mark.usefixtures("asked_here")
def test_who_is_stopped_answers_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbench.advice.best_plan.ASKED_S", 0.0)
    monkeypatch.setattr("shardbench.advice.asking.OTHERS_SHARE", 0.0)
    machine, endless = load_machine("a100-40gb-2x8"), Growing("endless", DEVICE_MOVES, 600.0)
    steps: list[float] = []
    other = Slow("other", frozenset({Move.TABLE}))
    found = best_plan(
        described(), machine, [other, endless], budget_s=1.0, on_step=lambda _, step_ms: steps.append(step_ms)
    )
    assert [(tried.strategy, tried.cause) for tried in found.tried] == [
        ("endless", ""), ("other", "timeout: stopped: the time for all is over"),
    ]  # fmt: skip
    assert found.best is not None
    assert (found.best.plan.notes, steps, found.interrupted) == ({"devices": 1}, [1.0], False)

    def interrupt(_: str, step_ms: float) -> None:
        if step_ms < 1.0:
            raise KeyboardInterrupt

    quick = Growing("quick", DEVICE_MOVES)
    found = best_plan(described(), machine, [other, quick], budget_s=60.0, on_step=interrupt)
    assert found.best is not None
    assert (found.best.plan.notes, found.interrupted) == ({"devices": 2}, True)
    assert (found.best.bound_ms, found.best.band_ms) == (None, None)
    # Before there is a plan nothing can be answered.
    with pytest.raises(KeyboardInterrupt):
        best_plan(described(), machine, [Interrupted("stopped", DEVICE_MOVES)], budget_s=60.0)


@pytest.mark.parametrize(
    ("machine", "more", "schedule"),
    [
        *(("a100-40gb-2x8", {"sequence_flops": 1e9}, schedule) for schedule in StepSchedule),
        ("cpu-1x2", {}, StepSchedule.SEQUENTIAL),
    ],
)
def test_steps_on_the_way_are_of_the_stated_dense_model(machine: str, more: Any, schedule: StepSchedule) -> None:
    """The backward pass of a GPU hides a part of the all-reduce of so large a model."""
    workload, on = described(dense={"top": [2048, 1024, 1], **more}), load_machine(machine)
    joint, told = get_strategy("joint"), list[float]()
    found = best_plan(
        workload, on, [joint], budget_s=1.0, schedule=schedule, on_step=lambda _, step_ms: told.append(step_ms)
    )
    question = ExpectedQuestion(found.problem, DrawnBatches(workload), workload.dense)
    assert found.best is not None
    assert told[-1] == pytest.approx(question.judge(found.best.plan).step_ms, rel=1e-9)
    ways = [(one.step_ms(), one) for one in joint.improvements(found.problem, Budget(plan_s=1.0), 0)]
    assert math.isnan(ways[0][0])
    assert len(ways) > 1
    for step_ms, one in ways[1:]:
        assert step_ms == pytest.approx(question.judge(one.make_plan()).step_ms, rel=1e-9)


class Interrupted(Slow):
    """Is interrupted before it has a plan."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise KeyboardInterrupt


def test_no_other_strategy_takes_from_the_plan_of_joint_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    # The kernel's own clock would interrupt a search on a busy machine.
    monkeypatch.setattr("shardbench.advice.asking.within", lambda limit_s, call: call())
    machine, joint = load_machine("a100-40gb-2x8"), get_strategy("joint")
    others = [strategy for strategy in default_strategies() if not strategy.requires]
    tables = [{"name": f"t{n}", "rows": 1000 * 3**n, "pooling": 1 + 5 * n} for n in range(9)]
    workload = described(tables=tables, batch_size=2048)
    alone, beside = (best_plan(workload, machine, asked, budget_s=1.0) for asked in ([joint], others))
    plans = [{one.name: one.plan for one in found.candidates}["joint"] for found in (alone, beside)]
    assert plans[0] == plans[1]
    steps = [min(one.step_ms for one in found.candidates) for found in (alone, beside)]
    assert steps[1] <= steps[0]


def test_with_many_tables_the_budget_bounds_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, one = load_machine("a100-40gb-2x8"), get_strategy("greedy-size")
    whole = best_plan(described(), machine, [one], budget_s=5.0)
    assert (whole.hurried, whole.phases_s.keys()) == ("", {"profiles", "asking", "comparing", "bound"})
    # As if three tables had so many lookups that counting them took longer than there is time.
    monkeypatch.setattr("shardbench.advice.best_plan.COUNT_S", 1.0)
    found = best_plan(described(), machine, [one], budget_s=5.0)
    assert (
        found.hurried == "for want of time or memory plans are judged by what profiles let expect, not on a test batch"
    )
    assert found.best is not None
    assert found.best.bound_ms is not None
    monkeypatch.setattr("shardbench.advice.best_plan.LOOKUP_S", 1e-3)
    found = best_plan(described(), machine, [one], budget_s=5.0)
    assert "profiles are of 333 samples, not of 65536, and plans are judged by" in found.hurried
    monkeypatch.setattr("shardbench.advice.best_plan.LOOKUP_S", 1.0)
    monkeypatch.setattr("shardbench.advice.best_plan.SPILL_S", -9.0)
    found = best_plan(described(), machine, [one], budget_s=5.0)
    assert "profiles are of 64 samples" in found.hurried
    assert found.best is not None
    assert (found.best.bound_ms, found.best.band_ms) == (None, None)
    assert "no time left" in found.best.unbounded


def test_rows_that_no_profile_saw_are_expected_to_be_asked_for() -> None:
    workload = described(tables=[{"name": "a", "rows": 1_000_000, "alpha": 0.5}]).quicker(64)
    machine = load_machine("a100-40gb-2x8")
    problem = Problem.of("w", workload.tables, workload.profiles, machine, batch_size=64)
    (table,), (profile,) = problem.tables, problem.profiles
    assert profile.unseen_share > 0.5
    ends = (profile.seen_rows, OnRank(rank=0)), (table.rows, OnRank(rank=0, tier=Tier.UVM))
    judged = ExpectedQuestion(problem, DrawnBatches(workload), workload.dense)
    plan = Plan(world_size=16, segments=row_ranges(table, *ends))
    assert judged.judge(plan).off_hbm_share == pytest.approx(profile.unseen_share, rel=0.05)


def test_lookups_that_go_up_and_down_regularly_along_a_list_are_not_misjudged() -> None:
    """Every 125th of 2,000 tables has a bag of one lookup, all others one of six."""
    tables = [{"name": f"t{n}", "rows": 1000, "pooling": 1.0 if n % 125 == 0 else 6.0} for n in range(2000)]
    samples = _profiled(described(tables=tables), 30.0).profile_samples
    assert samples == pytest.approx((0.15 * 30.0 - 2000 * TABLE_S) / (LOOKUP_S * 2000 * 6.0), rel=0.15)


def test_more_than_all_memory_is_said_before_anything_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbench.advice.best_plan._profiled", lambda *_: pytest.fail("profiled"))
    machine = load_machine("a100-40gb-2x8")
    topology = replace(machine.topology, hbm_bytes=300_000, uvm_bytes=100_000)
    machine = replace(machine, topology=topology)
    # 16 devices have 6,400,000 bytes, the tables need 7,680,000.
    found = best_plan(described(), machine, [get_strategy("joint"), get_strategy("row-wise")])
    assert found.best is None
    assert {tried.cause for tried in found.tried} == {"infeasible: all memory together is too small"}
    assert found.memory.startswith("tables need 7680000 bytes")


@pytest.mark.usefixtures("asked_here")
def test_who_plans_in_a_process_of_its_own_is_killed_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, machine = frozenset({Move.TABLE}), load_machine("a100-40gb-2x8")
    never, other = Planner("never", moves, 600.0), Slow("other", moves)
    found = best_plan(described(), machine, [never, other], budget_s=1.0)
    causes = {tried.strategy: tried.cause for tried in found.tried}
    assert causes == {"never": "timeout: not asked with less than 5 s", "other": ""}
    monkeypatch.setattr("shardbench.advice.asking.STARTS_S", 0.0)
    found = best_plan(described(), machine, [never, other], budget_s=1.0)
    causes = {tried.strategy: tried.cause for tried in found.tried}
    # Its own limit and that of all end it within the same second.
    ended = (
        "timeout: stopped: the time for all is over",
        "timeout: no plan in a process of its own within 1 s: killed",
    )
    assert causes.pop("never") in ended
    assert causes == {"other": ""}
    assert found.best is not None
    assert never.given == []


def test_constraints_hold_in_a_process_of_its_own() -> None:
    quick, machine = Planner("quick", frozenset({Move.TABLE})), load_machine("a100-40gb-2x8")
    by_row = Constraints(sharding_types={"a": ("row_wise",)})
    found = best_plan(described(), machine, [quick], constraints=by_row, budget_s=120.0)
    assert found.best is not None
    # A table that must be on every device is set aside first, and so not placed anew.
    assert (found.best.placed_anew, found.best.sharding_types) == (0, {"row_wise": 1, "table_wise": 2})
    assert quick.given == []


def test_torchrecs_planner_is_asked_beside_the_others() -> None:
    asked = [get_strategy(name) for name in ("torchrec-table-wise", "greedy-size")]
    found = best_plan(described(), load_machine("a100-40gb-2x8"), asked, budget_s=120.0)
    steps = {one.strategy: one.step_ms for one in found.tried}
    assert steps.keys() == {"torchrec-table-wise", "greedy-size"}
    assert None not in steps.values()


class Split(Honest):
    """Whole tables, or the first one's columns on two devices."""

    moves = frozenset({Move.TABLE, Move.COLUMNS})

    def __init__(self, name: str, *, split: bool) -> None:
        self.name, self.split = name, split

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        first, *rest = problem.tables
        halves = [(0, 32), (32, 64)] if self.split else [(0, 64)]
        segments = [whole_table(first, OnRank(rank=rank), columns) for rank, columns in enumerate(halves)]
        segments += whole_tables(rest, range(2, len(rest) + 2))
        return Plan(world_size=problem.world_size, segments=tuple(segments))


@pytest.mark.usefixtures("asked_here")
def test_of_plans_that_are_not_told_apart_the_simplest_is_the_answer() -> None:
    asked = [Split("split", split=True), Split("whole", split=False)]
    # The first table is what takes longest, by a little.
    tables = [{"name": name, "rows": rows} for name, rows in {"a": 10_000, "b": 2_000, "c": 2_000}.items()]
    found = best_plan(described(tables=tables, batch_size=4096), load_machine("a100-40gb-2x8"), asked)
    steps = {one.strategy: one.step_ms for one in found.tried}
    assert steps["split"] is not None
    assert steps["whole"] is not None
    assert steps["split"] < steps["whole"] < 1.001 * steps["split"]
    assert [one.strategy for one in found.tried] == ["whole", "split"]
    assert found.best is not None
    assert found.best.strategy == "whole"
    said = f"split is predicted {steps['split']:.4g} ms, which the model cannot tell apart, with "
    assert found.best.simpler_than == said + "5 exchange calls and 4 parts, against 5 and 3"


def test_a_plan_is_as_complex_as_its_calls_and_then_its_parts() -> None:
    def answer(parts: int, *calls: float) -> Any:
        # Of a collective the last number is not one of calls, and one that sends nothing is not called.
        sent = {name: SimpleNamespace(calls=(*calls, 100.0), sent=np.array([0.0])) for name in EXCHANGES}
        sent[EXCHANGES[0]] = SimpleNamespace(calls=(*calls, 100.0), sent=np.array([0.0, 1.0]))
        judged = SimpleNamespace(traffic=SimpleNamespace(collectives=sent))
        return SimpleNamespace(judged=judged, plan=SimpleNamespace(segments=(None,) * parts))

    assert _complexity(answer(5, 1.0, 2.0)) == (3.0, 5)
    told = [_complexity(answer(*one)) for one in ((4, 1.0, 2.0), (5, 1.0, 2.0), (1, 2.0, 2.0))]
    assert told == sorted(told)


def test_a_longer_plan_is_the_answer_only_within_the_error_of_pairs() -> None:
    machine = load_machine("a100-40gb-2x8")

    def near(step_ms: float, pair_error: float | None) -> bool:
        trust = Trust(step_error=1.2, pair_error=pair_error, plans=2, source="of a test")
        return step_ms <= tied_ms(1.0, replace(machine, trust=trust))

    assert [near(1.004, error) for error in (None, 1.2, 1.003, 1.005)] == [True, True, False, True]
    assert not near(1.011, 1.2)
    assert near(1.009, None)


@pytest.mark.usefixtures("asked_here")
def test_what_binds_the_step_is_said() -> None:
    asked = [Split("whole", split=False)]
    best = best_plan(described(), load_machine("a100-40gb-2x8"), asked).best
    assert best is not None
    assert best.host_ms > best.step_ms
    assert _binding_line(best).startswith(f"  bound by the host, which takes about {best.host_ms:.2g} ms")
    large = best_plan(described(batch_size=1 << 20), load_machine("a100-40gb-2x8"), asked).best
    assert large is not None
    assert large.host_ms == best.host_ms < large.step_ms
    assert _binding_line(large) == f"  most of the step: {large.bound_by}"


def test_the_answer_says_what_sharders_need_that_no_exported_plan_holds() -> None:
    parameters = {"dataset": "sequence", "form": "production", "tables": 3, "row_scale": 0.001, "batch_size": 64}
    told = []
    for distinct in (False, True):
        workload = workload_config({"name": "histories", **parameters, "distinct": distinct}, "test").build(Path())
        on = load_machine("cpu-1x2")
        problem = Problem.of("histories", workload.tables, workload.profiles, on, batch_size=64)
        names = ", ".join(table.name for table in problem.tables if table.distinct)
        told.append((names, _sharder_lines(problem)))
    (_, nothing), (names, needs) = told
    assert nothing == []
    assert f"ids of {names} are made distinct" in " ".join(needs)
    assert needs[-1].strip() == "EmbeddingCollectionSharder(use_index_dedup=True)"


def test_the_fewest_devices_of_a_short_enough_step() -> None:
    """A step of 64 ms over the devices is at most 3 ms on 24 devices, three nodes, and not on two."""
    asked: list[tuple[int, float]] = []

    def ask(machine: Machine, seconds: float) -> PlanSearch:
        devices = machine.topology.world_size
        asked.append((devices, seconds))
        best: Any = SimpleNamespace(step_ms=64.0 / devices, peak=None)
        problem = Problem.of("w", workload.tables, workload.profiles, machine, batch_size=48)
        return PlanSearch(problem=problem, best=best, tried=(), took_s=0.0, interrupted=devices == stopped_at)

    workload, machine, stopped_at = described(), load_machine("a100-40gb-2x8"), 0
    others = load_machine("h100-1x8")
    (one, other) = on_machines([machine, others], ask, 32.0, batch_size=48, most_ms=3.0)
    assert (one.search.problem.machine.name, one.good) == ("a100-40gb-2x8+3x8", True)
    sizes = [1, 2, 8, 16, 24, 48]
    assert list(one.steps_ms.items()) == [(n, 64.0 / n) for n in sizes]
    assert other.search.problem.machine.name == "h100-1x8+3x8"
    assert set(asked) == {(n, 16.0 / 6) for n in sizes}
    # What is never reached is said; a size that shares no batch out evenly is not asked.
    (one,) = on_machines([machine], ask, 32.0, batch_size=48, most_ms=0.1)
    assert (one.search.problem.world_size, one.good) == (48, False)
    (one,) = on_machines([machine], ask, 32.0, batch_size=48, most_ms=4.0)
    assert one.search.problem.machine is machine
    stopped_at = 2
    (one,) = on_machines([machine, others], ask, 32.0, batch_size=48, most_ms=3.0)
    assert (one.good, one.search.interrupted, list(one.steps_ms)) == (False, True, [1, 2])
