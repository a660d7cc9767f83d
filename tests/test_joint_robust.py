"""How the joint planner chooses among its plans under machines that are known with errors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_problems import MOVES, SHAPES, plan_of, random_problem, scheduled, some_menu
from problems import RandomWorkload, machine, without_placing

from shardbench.baselines.joint.limits import Space
from shardbench.baselines.joint.menu import Menu
from shardbench.baselines.joint.pieces import Holders
from shardbench.baselines.joint.planner import Planner, WorkLeft
from shardbench.baselines.joint.robust import (
    OWN,
    PHASES,
    SeenPlan,
    best_first,
    drawn_form,
    pooled,
    ranked,
)
from shardbench.baselines.joint.state import PlanState
from shardbench.cost.costmodel import estimate
from shardbench.cost.uncertainty import deviations, drawn_machines
from shardbench.model.machine import Trust
from shardbench.model.machine_file import uncertain
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.model.table import StepSchedule
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

pytestmark = pytest.mark.usefixtures("stopped_clock")


def unsure(problem: Problem, error: float = 1.5, **known: float) -> Problem:
    """The problem on a machine whose constants have an error, some another one."""
    errors = dict.fromkeys(uncertain(problem.machine), error) | known
    return replace(problem, machine=replace(problem.machine, errors=errors))


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES), st.sampled_from(["cpu", "cuda"]), st.sampled_from(StepSchedule))
def test_a_plans_sums_give_the_cost_models_step_under_drawn_machines(
    seed: int, shape: tuple[int, int], device: str, schedule: StepSchedule
) -> None:
    rng = np.random.default_rng(seed)
    problem = unsure(scheduled(random_problem(rng, *shape), device, schedule))
    menu = some_menu(problem, rng)
    planner = Planner(problem, menu, WorkLeft(nominal_s=3.0, deadline=float("inf")))
    assert planner.construct(np.array([int(rng.choice(menu.of(index))) for index in range(len(problem.tables))]))
    seen, before = SeenPlan(planner), plan_of(SeenPlan(planner))
    for at in drawn_machines(problem.machine, 3, OWN):
        drawn = replace(problem, machine=at)
        phases = seen.phases_ms(PlanState(drawn))
        dense_ms = PlanState(drawn).overlap.dense_ms
        assert phases.sum() + dense_ms == pytest.approx(estimate(before, drawn).step_ms, rel=1e-9)
        assert phases.min() >= -1e-9 and phases.shape == (PHASES,)
    # A search that goes on does not change what was seen.
    planner._put(0, planner.placed[0], -1)
    assert plan_of(seen) == before
    nominal = PlanState(problem)
    step_ms = float(seen.phases_ms(nominal).sum()) + nominal.overlap.dense_ms
    assert step_ms == pytest.approx(estimate(before, problem).step_ms, rel=1e-9)


def test_all_plans_are_rated_under_the_same_draws_which_are_not_the_judges() -> None:
    at = unsure(random_problem(np.random.default_rng(0), 1, 4)).machine
    own = drawn_machines(at, 16, OWN)
    assert own == drawn_machines(at, 16, OWN)
    assert all(one != two for one, two in zip(own, drawn_machines(at, 16), strict=True))
    # Equal plans are rated alike, so that the first of them stays first.
    phases = np.broadcast_to(np.random.default_rng(1).random((1, 32, PHASES)), (3, 32, PHASES))
    assert best_first(phases, [(1.0, 1)] * 3, at) == [0, 1, 2]
    form = drawn_form(at, 32, "all plans")
    assert (form[:, -1] == 1.0).all() and np.log(form[:, :-1]).mean(axis=0) == pytest.approx(0.0, abs=1e-9)


def latency_problem(latency_s: float) -> tuple[Problem, list[SeenPlan]]:
    """A table of which only the latency inside nodes is not known, and it whole on a device and copied to both."""
    problem = RandomWorkload([(30_000, 32)], 64).problem(without_placing(machine(1, 2)))
    problem = unsure(problem, 1.0, intra_latency_s=4.0)
    constants = replace(problem.machine.constants, intra_latency_s=latency_s)
    problem = replace(problem, machine=replace(problem.machine, constants=constants))
    menu, seen = Menu(Space(problem, MOVES), [None]), list[SeenPlan]()
    for scope in (Holders.RANK, Holders.COPIES):
        option = next(o for o in menu.of(0) if [group[0].scope for group in menu.form(o)] == [scope])
        planner = Planner(problem, menu, WorkLeft(nominal_s=3.0, deadline=float("inf")))
        assert planner.construct(np.array([option]))
        seen.append(SeenPlan(planner))
    return problem, seen


def test_of_two_plans_the_one_of_fewer_calls_is_taken_where_latencies_may_be_longer() -> None:
    def steps(latency_s: float) -> list[float]:
        problem, seen = latency_problem(latency_s)
        return [float(plan.phases_ms(PlanState(problem)).sum()) for plan in seen]

    # Steps are linear in the latency, a call of each plan costs one: at this latency copies are 3 % slower.
    free, second = np.array(steps(0.0)), np.array(steps(1.0))
    calls_ms = second - free
    latency_s = (free[1] - 1.03 * free[0]) / (1.03 * calls_ms[0] - calls_ms[1])
    problem, seen = latency_problem(float(latency_s))
    assert calls_ms[0] > 2.0 * calls_ms[1] and latency_s > 0.0
    assert (seen[0].size, seen[1].size) == ((5, 1), (1, 1))
    # The mean of the latency's factor by hand: the form is off alike for both but for small shares.
    factor = float(np.mean(4.0 ** deviations("planned: intra_latency_s", 64)))
    means = free + calls_ms * latency_s * factor
    assert means[1] < 0.95 * means[0]
    pool = pooled(problem, seen)
    assert pool == seen
    assert ranked(problem, pool, 10.0, float("inf")) == pool[::-1]
    # Too little time to draw, no time left, and nothing known of the errors.
    assert ranked(problem, pool, 0.01, float("inf")) == pool
    assert ranked(problem, pool, 10.0, -1.0) == pool
    known = replace(problem, machine=replace(problem.machine, errors={}))
    assert ranked(known, pool, 10.0, float("inf")) == pool


def test_ties_go_to_the_plan_of_fewer_calls_and_then_of_fewer_segments() -> None:
    at = unsure(random_problem(np.random.default_rng(0), 1, 4)).machine

    def first(steps: list[float], sizes: list[tuple[float, int]], pair_error: float | None = None) -> int:
        trust = Trust(step_error=1.2, pair_error=pair_error, plans=9, source="a test's own")
        phases = np.zeros((len(steps), 32, PHASES))
        phases[:, :, 0] = np.array(steps)[:, None]
        machine = at if pair_error is None else replace(at, trust=trust)
        order = best_first(phases, sizes, machine)
        assert sorted(order) == list(range(len(steps)))
        return order[0]

    assert first([1.0, 1.004], [(6, 3), (5, 9)]) == 1
    assert first([1.0, 1.004], [(5, 9), (5, 3)]) == 1
    assert first([1.0, 1.004], [(5, 3), (5, 3)]) == 0
    # Beyond the share of a tie, or where the draws tell them apart, the best one stays.
    assert first([1.0, 1.006], [(6, 3), (5, 9)]) == 0
    assert first([1.0, 1.004], [(6, 3), (5, 9)], pair_error=1.1) == 1
    assert first([1.0, 1.004], [(6, 3), (5, 9)], pair_error=1.0001) == 0


def test_runners_up_are_other_valid_plans_and_the_first_is_the_plan() -> None:
    problem = RandomWorkload([(9000 * (1 + n), 8 << n % 3) for n in range(6)], 240).problem(machine(2, 2))
    problem = unsure(problem)
    for name in ("joint", "joint-nominal"):
        strategy, budget = get_strategy(name), Budget(plan_s=0.2)
        plans = strategy.plans(problem, budget, 0, 5)
        assert plans[0] == strategy.plan(problem, budget, 0) and 1 < len(plans) <= 5
        assert all(one.segments != two.segments for at, one in enumerate(plans) for two in plans[:at])
        for plan in plans:
            validate(plan, problem, strategy.moves)
        assert strategy.plans(problem, budget, 0, 2) == plans[:2]
    steps = [estimate(plan, problem).step_ms for plan in get_strategy("joint-nominal").plans(problem, budget, 0, 5)]
    assert steps == sorted(steps)


@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_states_no_errors_has_the_nominal_plan(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), 1, 4)
    names = ("joint", "joint-nominal")
    plans = [get_strategy(name).plan(problem, Budget(plan_s=0.2), 0) for name in names]
    assert plans == plans[:1] * len(names)
