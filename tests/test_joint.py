"""The joint planner's plans: no worse than the simple ones, within the memory, the time and the constraints."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from joint_problems import MOVES, SHAPES, planner_of, random_problem, relaxation_of, scheduled, some_menu
from problems import RandomWorkload, machine, without_placing

from shardbench.advice.constrained import Constrained
from shardbench.base.errors import Infeasible
from shardbench.baselines.joint import Joint
from shardbench.baselines.joint import planner as planning
from shardbench.baselines.joint import ruler as ruling
from shardbench.baselines.joint.limits import Space, type_of
from shardbench.baselines.joint.menu import Menu
from shardbench.baselines.joint.planner import Planner, TimeIsOver, WorkLeft
from shardbench.baselines.joint.relaxation import Choice
from shardbench.baselines.joint.ruler import PROMISING
from shardbench.cost.costmodel import estimate
from shardbench.model.constraints import TYPES, Constraints, nodes_of, sharding_type
from shardbench.model.expected import as_expected, expected
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Replicated, Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Move
from shardbench.model.table import StepSchedule
from shardbench.model.validate import validate
from shardbench.trials.discovery import HandedPlan, get_strategy
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.materialise import DrawnBatches

pytestmark = pytest.mark.usefixtures("stopped_clock")


def placed(problem: Problem, name: str = "joint", plan_s: float = 0.2) -> float:
    """Predicted step of a strategy's plan, which is valid."""
    strategy = get_strategy(name)
    plan = strategy.plan(problem, Budget(plan_s=plan_s), 0)
    validate(plan, problem, strategy.moves)
    return estimate(plan, problem).step_ms


@pytest.mark.parametrize("schedule", StepSchedule)
@pytest.mark.parametrize(("shape", "device"), [((1, 4), "cpu"), ((1, 4), "cuda"), ((2, 2), "cpu"), ((2, 4), "cuda")])
def test_no_simple_strategy_is_better(shape: tuple[int, int], device: str, schedule: StepSchedule) -> None:
    rng = np.random.default_rng(4 if schedule is StepSchedule.PIPELINED else 0)
    problem = scheduled(random_problem(rng, *shape), device, schedule)
    others = ("greedy-lookup", "row-wise", "table-row-wise", "column-wise", "flexshard", "recshard")
    assert placed(problem) <= 1.005 * min(placed(problem, name) for name in others)


def test_a_pipelines_plan_is_another_and_under_it_no_slower_than_the_sequential_one() -> None:
    rng, differ = np.random.default_rng(4), 0
    for _ in range(2):
        problem = scheduled(random_problem(rng, 1, 4), "cuda", StepSchedule.PIPELINED)
        plans = [
            get_strategy("joint").plan(replace(problem, schedule=schedule), Budget(plan_s=0.2), 0)
            for schedule in (StepSchedule.PIPELINED, StepSchedule.SEQUENTIAL)
        ]
        own, other = (estimate(plan, problem).step_ms for plan in plans)
        assert own <= other * (1.0 + 1e-3)
        differ += own < other * (1.0 - 1e-3)
    assert differ > 0


def test_tables_beyond_hbm_are_cut_by_frequency_and_the_plan_repeats() -> None:
    shapes = [(4000, 16), (3000, 32), (2000, 8)]
    # Of a table in both tiers all lookups are sent twice: three small tables would rather be in host memory.
    problem = RandomWorkload(shapes, 256).problem(without_placing(machine(1, 2, hbm=60_000, uvm=10**7)))
    strategy = get_strategy("joint")
    plan = strategy.plan(problem, Budget(plan_s=2.0), 0)
    assert plan == strategy.plan(problem, Budget(plan_s=2.0), 0)
    memory = validate(plan, problem, strategy.moves)
    assert memory.uvm.sum() > 0 and memory.hbm.max() > 0.6 * 60_000
    assert placed(problem) < placed(problem, "greedy-lookup")


def test_where_all_promising_places_are_used_the_other_tables_are_rated_together_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of four devices are promising, and four tables are placed at a time: none is left to be rated by itself."""
    problem = RandomWorkload([(1000 + 300 * i, 16) for i in range(12)], 240, seed=2).problem(machine(1, 4))
    menu = Menu(Space(problem, MOVES), [None] * 12)
    whole, steps = np.array([menu.of(index)[0] for index in range(12)]), list[float]()
    for apart, promising in ((planning.APART, PROMISING), (1, 2)):
        monkeypatch.setattr(planning, "APART", apart)
        for module in (planning, ruling):
            monkeypatch.setattr(module, "PROMISING", promising)
        planner = Planner(problem, menu, WorkLeft(nominal_s=3.0, deadline=float("inf")))
        if steps:
            monkeypatch.setattr(planner, "_put_best", None)
        assert planner.construct(whole)
        assert len(planner.placed) == 12
        steps.append(planner.step_ms)
    assert steps[1] <= 1.1 * steps[0]


@pytest.mark.parametrize("seed", range(3))
def test_starts_of_the_lean_menu_are_tried_beside_those_of_the_full_one(seed: int) -> None:
    problem = random_problem(np.random.default_rng([seed, 7]), 2, 2)
    packed = get_strategy("joint-packed-only")
    lean, both = (packed.plan(problem, Budget(plan_s=plan_s), 0).notes["predicted_ms"] for plan_s in (1e-3, 2.0))
    assert float(both) <= float(lean) * (1.0 + 1e-12)


def test_what_all_devices_have_finds_room_where_memory_is_short() -> None:
    # Small tables are best copied; the large ones, as many on each device, differ in size.
    rng = np.random.default_rng(3)
    shapes = [(int(rows), 32) for rows in 10 ** rng.uniform(3.5, 5.5, 80)] + [(50, 16)] * 40
    workload = RandomWorkload(shapes, 16_384, pooling=1, seed=3)
    problem = CountedQuestion.of_batches(workload, load_machine("a100-40gb-2x8"), DrawnBatches(workload)).problem
    sizes = {table.rows: problem.weight_bytes(table) for table in problem.tables}
    needed = sum(problem.weight_bytes(table) for table in problem.tables if table.rows > 50)
    hbm_bytes = int(1.1 * needed / problem.world_size) + 40 * sizes[50]
    topology = replace(problem.topology, hbm_bytes=max(hbm_bytes, *sizes.values()), uvm_bytes=0)
    problem = replace(problem, topology=topology, machine=replace(problem.machine, topology=topology))
    plan = get_strategy("joint").plan(problem, Budget(plan_s=1.0), 0)
    validate(plan, problem, Joint.moves)
    assert sum(isinstance(segment.placement, Replicated) for segment in plan.segments) >= 35


def test_the_wide_menu_is_tried_where_work_is_left_and_the_better_plan_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(np.random.default_rng(5), 1, 3)
    # Nothing but columns can spread the one table, whose width has no half or quarter of whole multiples.
    table, profile = replace(problem.tables[0], rows=1000, dim=108), replace(problem.profiles[0], rows=1000)
    rates = replace(problem.machine.constants, hbm_bytes_per_s=1e8, cache_bytes_per_s=1e8)
    machine = replace(problem.machine, constants=rates)
    problem = replace(problem, tables=(table,), profiles=(profile,), machine=machine)
    strategy = Joint()
    monkeypatch.setattr(Joint, "moves", frozenset({Move.TABLE, Move.COLUMNS}))
    plans = {plan_s: strategy.plan(problem, Budget(plan_s=plan_s), 0) for plan_s in (1e-4, 10.0)}
    assert {plan_s: len(plan.segments) for plan_s, plan in plans.items()} == {1e-4: 1, 10.0: 3}
    assert estimate(plans[10.0], problem).step_ms < estimate(plans[1e-4], problem).step_ms


def test_after_the_deadline_nothing_goes_on_where_there_is_a_plan() -> None:
    problem, menu, _ = planner_of(5)
    work = WorkLeft(nominal_s=3.0, deadline=-1.0)
    hot = [None] * len(problem.tables)
    late = relaxation_of(problem, Menu(Space(problem, MOVES, check=work.check_clock), hot))
    whole = relaxation_of(problem, menu).choices()
    assert all(map(Choice.same, late.choices(), whole))
    work.may_stop = True
    with pytest.raises(TimeIsOver):
        late.choices()
    with pytest.raises(TimeIsOver):
        Menu(Space(problem, MOVES, check=work.check_clock), hot)
    with pytest.raises(TimeIsOver):
        Planner(problem, menu, work).construct(whole[0].options)
    assert work.ended_by == "clock"


def test_the_clock_is_a_safety_net_and_the_plan_says_when_it_was_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _, _ = planner_of(1)
    strategy, budget = get_strategy("joint"), Budget(plan_s=1.0)
    plan = strategy.plan(problem, budget, 0)
    assert plan.notes["ended_by"] in ("finished", "work")
    monkeypatch.setattr(time, "monotonic", count(step=1e-6).__next__)
    assert strategy.plan(problem, budget, 0) == plan
    monkeypatch.setattr(time, "monotonic", count(step=10.0).__next__)
    late = strategy.plan(problem, budget, 0)
    assert late.notes["ended_by"] == "clock"
    validate(late, problem, MOVES)


def test_expected_profiles_give_rows_never_seen_their_share_and_keep_all_lookups() -> None:
    profile = RandomWorkload([(4000, 16)], 256).problem(machine(1, 2)).profiles[0]
    found = expected(profile)
    assert profile.unseen_share > 0.3
    assert found.seen_rows == profile.rows and found.mean_pooling == pytest.approx(profile.mean_pooling, rel=1e-2)
    # Rows seen once would be colder than rows never seen: both are alike.
    coldest = profile.row_counts[-1] + profile.rows - profile.seen_rows
    assert found.row_counts[-1] == coldest
    few = replace(profile, rows=400_000)
    assert 1.0 - expected(few).cdf(few.seen_rows) == pytest.approx(few.unseen_share, abs=0.02)
    # Hot rows lose at most one count of theirs.
    assert found.cdf(1) == pytest.approx(profile.cdf(1), abs=1.0 / profile.lookups + 0.01)
    # Nothing is expected of rows never seen where no row was met once, or where none is left.
    known = replace(profile, counts=profile.counts[:-1], row_counts=profile.row_counts[:-1])
    assert expected(known) is known
    # Where every row was met once, any row is as likely as any other.
    fresh = replace(profile, counts=(1,), row_counts=(100,))
    assert expected(fresh).share(100, 4000) == pytest.approx(3900 / 4000)


@pytest.mark.parametrize("seed", range(4))
def test_stopped_anywhere_it_has_a_valid_plan_and_a_later_one_is_never_worse(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), *((1, 4), (2, 2), (3, 4), (4, 1))[seed])
    if seed == 2:
        sizes = sum(map(problem.weight_bytes, problem.tables))
        topology = replace(problem.topology, hbm_bytes=sizes // 20, uvm_bytes=sizes)
        problem = replace(problem, topology=topology, machine=replace(problem.machine, topology=topology))
    if seed == 1:
        problem = scheduled(problem, "cuda", StepSchedule.PIPELINED)
    strategy, budget, steps = get_strategy("joint-nominal"), Budget(plan_s=0.3), list[float]()
    for improvement in strategy.improvements(problem, budget, 0):
        plan = improvement.make_plan()
        validate(plan, problem, strategy.moves)
        steps.append(estimate(plan, as_expected(problem)).step_ms)
        step_ms = improvement.step_ms()
        assert np.isnan(step_ms) or step_ms == pytest.approx(steps[-1], rel=1e-9)
    assert len(steps) > 2
    assert all(after <= before * (1.0 + 1e-12) for before, after in zip(steps, steps[1:]))
    assert plan == strategy.plan(problem, budget, 0)


def test_what_does_not_fit_is_said() -> None:
    problem = RandomWorkload([(4000, 16), (3000, 16)], 256).problem(machine(1, 2, hbm=3502 * 64, uvm=0))
    with pytest.raises(Infeasible, match="no start fits"):
        get_strategy("joint-whole-tables").plan(problem, Budget(plan_s=0.2), 0)
    validate(Joint().plan(problem, Budget(plan_s=0.2), 0), problem, Joint.moves)
    small = replace(problem, topology=replace(problem.topology, hbm_bytes=3499 * 64))
    with pytest.raises(Infeasible, match="all memory together is too small: tables need 448000 bytes"):
        Joint().plan(small, Budget(plan_s=0.2), 0)


@pytest.mark.parametrize("seed", range(12))
def test_an_options_type_is_that_of_its_segments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, *SHAPES[seed % len(SHAPES)])
    menu, world = some_menu(problem, rng), range(problem.world_size)
    for option in range(0, len(menu.options), 7):
        chosen, planner = menu.options[option], Planner(problem, menu, WorkLeft(1.0, np.inf))
        table = problem.tables[menu.units[chosen.unit][0]]
        places = planner.rate([option])[0][1]
        if places is None:
            continue
        segments = [
            piece.cut.segment(table, world[planner.state.ranks(piece, place)], piece.columns[0])
            for group, place in zip(menu.form(option), places.places)
            for piece in group
        ]
        kind = sharding_type(segments, table, problem.topology)
        # A world of one node is the node, and of one device the device.
        kinds = {"row_wise", "table_row_wise"} if kind in ("row_wise", "table_row_wise") else {kind}
        assert type_of(table, menu.cuts_of(chosen), chosen.shards) in kinds


@pytest.mark.parametrize("seed", range(3))
def test_constraints_that_allow_the_best_plan_have_the_best_plan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, *SHAPES[seed])
    strategy, budget = get_strategy("joint-nominal"), Budget(plan_s=4.0)
    free = strategy.plan(problem, budget, 0)
    by_table, topology = free.by_table(), problem.topology
    kinds = {t.name: sharding_type(by_table[t.name], t, topology) for t in problem.tables}
    whole = [name for name, kind in kinds.items() if kind == "table_wise"]
    constraints = Constraints(
        sharding_types={name: (kind, *rng.choice(TYPES, 2).tolist()) for name, kind in kinds.items()},
        same_device=together(whole, lambda name: by_table[name][0].placement.rank),
        same_node=together(set(kinds) - set(whole), lambda name: frozenset(nodes_of([by_table[name]], topology))),
    )
    kept = Constrained(strategy, constraints).inner.plan(problem, budget, 0)
    constraints.check(kept, problem)
    assert estimate(kept, as_expected(problem)).step_ms <= estimate(free, as_expected(problem)).step_ms * (1.0 + 1e-9)


def together(names: Iterable[str], place: Callable[[str], object]) -> tuple[tuple[str, ...], ...]:
    """Groups of tables that have the same place, of those whose place is one device or one node."""
    groups = defaultdict[object, list[str]](list)
    for name in sorted(names):
        groups[place(name)].append(name)
    return tuple(
        tuple(group)
        for at, group in groups.items()
        if len(group) > 1 and not (isinstance(at, frozenset) and len(at) > 1)
    )


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_groups_of_tables_are_kept_by_the_search_itself(seed: int) -> None:
    """In short memory as well, where what it plans freely cannot be mended; else that is longer when mended."""
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(500, 5000)), int(rng.choice([16, 32]))) for _ in range(9)]
    problem = RandomWorkload(shapes, 240, unpooled=frozenset({1, 5}), seed=seed).problem(
        machine(*((2, 2), (3, 4))[seed % 2])
    )
    if seed > 3:
        sizes = sum(map(problem.weight_bytes, problem.tables))
        topology = replace(problem.topology, hbm_bytes=sizes // 3, uvm_bytes=sizes)
        problem = replace(problem, topology=topology, machine=replace(problem.machine, topology=topology))
    names = [problem.tables[at].name for at in rng.permutation(9)]
    constraints = Constraints(same_device=(tuple(names[:3]),), same_node=(tuple(names[3:6]), tuple(names[6:8])))
    strategy, budget = get_strategy("joint-nominal"), Budget(plan_s=0.5)
    plan = Constrained(strategy, constraints).inner.plan(problem, budget, 0)
    validate(plan, problem, strategy.moves)
    constraints.check(plan, problem)
    if seed < 4:
        free = Constrained(HandedPlan("free", strategy.plan(problem, budget, 0)), constraints).plan(problem, budget, 0)
        assert estimate(plan, as_expected(problem)).step_ms < estimate(free, as_expected(problem)).step_ms


def test_types_and_memories_of_the_menu_alone_are_those_of_the_constraints() -> None:
    problem = random_problem(np.random.default_rng(8), 2, 2)
    topology = replace(problem.topology, uvm_bytes=10**9)
    problem = replace(problem, topology=topology, machine=replace(problem.machine, topology=topology))
    names = [table.name for table in problem.tables]
    asked = Constraints(
        sharding_types={names[0]: ("row_wise",), names[1]: ("table_row_wise", "data_parallel")},
        tiers={names[-1]: (Tier.UVM,)},
    )
    plan = Constrained(Joint(), asked).inner.plan(problem, Budget(plan_s=2.0), 0)
    asked.check(plan, problem)
