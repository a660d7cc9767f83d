"""The joint planner: its sums are the cost model's, and its plans are no worse than the simple ones."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import RandomWorkload, machine, without_placing

from shardbench.advice.constrained import Constrained
from shardbench.base.errors import Infeasible
from shardbench.baselines.joint import planner as planning
from shardbench.baselines.joint import relaxation
from shardbench.baselines.joint import ruler as ruling
from shardbench.baselines.joint.limits import type_of
from shardbench.baselines.joint.memory import hot_rows
from shardbench.baselines.joint.menu import BRIEF_MENU, EXCHANGES, LEAN_MENU, Menu
from shardbench.baselines.joint.pieces import Holders
from shardbench.baselines.joint.planner import Planner, TablePlaces, TimeIsOver, WorkLeft
from shardbench.baselines.joint.priced import by_table, cheapest, filled
from shardbench.baselines.joint.relaxation import Choice, OptionRelaxation
from shardbench.baselines.joint.robust import (
    PHASES,
    Rating,
    SeenPlan,
    best_first,
    drawn_form,
    drawn_machines,
    pooled,
    ranked,
)
from shardbench.baselines.joint.ruler import PROMISING, Ruler
from shardbench.baselines.joint.state import PlanState
from shardbench.baselines.joint.strategy import Joint
from shardbench.cost.collectives import CollectiveName, collective_s
from shardbench.cost.costmodel import estimate
from shardbench.cost.phases import StepPhase
from shardbench.cost.traffic import expect
from shardbench.cost.uncertainty import deviations
from shardbench.cost.uncertainty import drawn_machines as judging_machines
from shardbench.model.constraints import TYPES, Constraints, nodes_of, sharding_type
from shardbench.model.expected import as_expected, expected
from shardbench.model.machine import NcclConstants, Trust
from shardbench.model.machine_file import load_machine, uncertain
from shardbench.model.plan import Plan, Replicated, Segment, Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Move
from shardbench.model.table import Precision, StepSchedule
from shardbench.model.validate import memory_bytes, validate
from shardbench.trials.discovery import get_strategy
from shardbench.trials.handed import HandedPlan
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.materialise import DrawnBatches


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let counted work alone end a search: with short budgets a busy machine's clock would."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)


MOVES = get_strategy("joint").moves
SHAPES = ((1, 4), (2, 2), (3, 4), (1, 1), (4, 1))


def random_problem(rng: np.random.Generator, nodes: int, devices: int) -> Problem:
    shapes = [(int(rng.integers(40, 5000)), int(rng.choice([8, 16, 32]))) for _ in range(int(rng.integers(1, 7)))]
    unpooled = frozenset(int(i) for i in np.flatnonzero(rng.random(len(shapes)) < 0.4))
    problem = RandomWorkload(shapes, 240, unpooled=unpooled, seed=int(rng.integers(99))).problem(
        machine(nodes, devices)
    )
    return replace(problem, exchange=Precision.FP32 if rng.random() < 0.5 else Precision.FP16)


def scheduled(problem: Problem, device: str, schedule: StepSchedule) -> Problem:
    """The problem under a schedule, on a machine of such devices."""
    nccl = NcclConstants(call_s=0.0, switch_ratio=1.0) if device == "cuda" else None
    return replace(problem, machine=replace(problem.machine, device=device, nccl=nccl), schedule=schedule)


def some_menu(problem: Problem, rng: np.random.Generator) -> Menu:
    """All options, some tables with only a part of their rows in HBM."""
    hot = [None if rng.random() < 0.6 else int(rng.integers(table.rows)) for table in problem.tables]
    return Menu(problem, hot, MOVES)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES), st.sampled_from(["cpu", "cuda"]), st.sampled_from(StepSchedule))
def test_sums_give_the_cost_models_step_and_the_plans_memory(
    seed: int, shape: tuple[int, int], device: str, schedule: StepSchedule
) -> None:
    rng = np.random.default_rng(seed)
    nodes, devices = shape
    problem = scheduled(random_problem(rng, nodes, devices), device, schedule)
    # Links that are now waited for longer than all kernels, now not.
    rates = replace(problem.machine.constants, intra_bytes_per_s=10 ** rng.uniform(8, 12), bucketise_s=1e-7)
    problem = replace(problem, machine=replace(problem.machine, constants=rates))
    menu, state, segments = some_menu(problem, rng), PlanState(problem), list[Segment]()
    for index, table in enumerate(problem.tables):
        # Parts of a table that each have a device are on different ones.
        ranks = rng.permutation(nodes * devices).tolist()
        for group in menu.form(int(rng.choice(menu.of(index)))):
            place = ranks.pop() if group[0].scope is Holders.RANK else int(rng.integers(nodes))
            for piece in group:
                # What is put and taken away leaves nothing behind.
                for sign in (1, -1, 1):
                    state.add(piece, place, sign)
                segments.append(
                    piece.cut.segment(table, range(nodes * devices)[state.ranks(piece, place)], piece.columns[0])
                )
    plan = Plan(world_size=nodes * devices, segments=tuple(segments))
    step, times = estimate(plan, problem), state.times()
    told = {phase: ms + step.hidden_ms.get(phase, 0.0) for phase, ms in step.phases_ms.items()}
    rows = expect(plan, problem).collectives[CollectiveName.ROWS_ALL_REDUCE]
    # What a rank puts in place around its kernels is theirs in a state, and a part of the exchanges in the step.
    forward = sum(told[phase] for phase in (StepPhase.INPUT, StepPhase.LOOKUP, StepPhase.OUTPUT))
    backward = sum(told[phase] for phase in (StepPhase.OUTPUT_BACKWARD, StepPhase.LOOKUP_BACKWARD))
    expected = [forward, backward, sum(step.hidden_ms.values())]
    own = [times.input + times.forward + times.output + times.added, times.backward + times.output]
    own = [*(ms + converted for ms, converted in zip(own, times.converted)), times.hidden]
    np.testing.assert_allclose(own, expected, rtol=1e-9, atol=1e-9)
    reduced_ms = 1e3 * collective_s(rows, problem.machine, all_reduce=True) if nodes * devices > 1 else 0.0
    assert times.all_reduce == pytest.approx(reduced_ms, rel=1e-9, abs=1e-9)
    overlap = state.overlap
    assert times.step_ms + overlap.dense_ms + overlap.reduced_ms == pytest.approx(step.step_ms, rel=1e-9)
    memory = memory_bytes(plan, problem)
    np.testing.assert_allclose(state.held_bytes, [memory.hbm, memory.uvm], atol=1e-3)


def placed(problem: Problem, name: str = "joint", plan_s: float = 0.5) -> float:
    """Predicted step of a strategy's plan, which is valid."""
    strategy = get_strategy(name)
    plan = strategy.plan(problem, Budget(plan_s=plan_s), 0)
    validate(plan, problem, strategy.moves)
    return estimate(plan, problem).step_ms


@pytest.mark.parametrize("schedule", StepSchedule)
@pytest.mark.parametrize(("shape", "device"), [((1, 4), "cpu"), ((1, 4), "cuda"), ((2, 2), "cpu"), ((2, 4), "cuda")])
def test_no_simple_strategy_is_better(shape: tuple[int, int], device: str, schedule: StepSchedule) -> None:
    rng = np.random.default_rng(0)
    for _ in range(2):
        problem = scheduled(random_problem(rng, *shape), device, schedule)
        others = ("greedy-lookup", "row-wise", "table-row-wise", "column-wise", "flexshard", "recshard")
        assert placed(problem) <= 1.005 * min(placed(problem, name) for name in others)


def test_a_pipelines_plan_is_another_and_under_it_no_slower_than_the_sequential_one() -> None:
    rng, differ = np.random.default_rng(4), 0
    for _ in range(4):
        problem = scheduled(random_problem(rng, 1, 4), "cuda", StepSchedule.PIPELINED)
        plans = [
            get_strategy("joint").plan(replace(problem, schedule=schedule), Budget(plan_s=0.5), 0)
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


def planner_of(seed: int, shape: tuple[int, int] = (2, 2)) -> tuple[Problem, Menu, Planner]:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, *shape)
    menu = Menu(problem, [None] * len(problem.tables), MOVES)
    return problem, menu, Planner(problem, menu, WorkLeft(nominal_s=3.0, deadline=float("inf")))


def relaxation_of(problem: Problem, menu: Menu) -> OptionRelaxation:
    return OptionRelaxation(menu, float(problem.world_size * problem.topology.hbm_bytes))


def sum_ms(menu: Menu, option: int) -> float:
    """What an option adds to the means, where all wait for the link between nodes."""
    parts = menu.contributions
    return float(parts.kernels[option].sum() + parts.links[option][:, 1] @ EXCHANGES)


@pytest.mark.parametrize("seed", range(6))
def test_the_relaxation_takes_the_least_sum_that_the_kinds_leave(seed: int) -> None:
    problem, menu, _ = planner_of(seed)
    relaxation, parts = relaxation_of(problem, menu), menu.contributions
    rank = np.array([kind[0] is Holders.RANK for kind in parts.kinds])
    choice = relaxation.choose(rank, np.inf)
    assert choice is not None
    for index in range(len(problem.tables)):
        allowed = [option for option in menu.of(index) if not (parts.needs[option] & ~rank).any()]
        best = min(sum_ms(menu, option) for option in allowed)
        assert sum_ms(menu, int(choice.options[index])) == pytest.approx(best)


def test_prices_of_links_that_are_not_waited_for_find_a_shorter_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(rounds: int) -> list[float]:
        monkeypatch.setattr(relaxation, "ROUNDS", rounds)
        found = []
        for seed in (2, 12, 16, 29):
            problem, menu, _ = planner_of(seed, (2, 8))
            every = np.ones(len(menu.contributions.kinds), dtype=np.bool_)
            choice = relaxation_of(problem, menu).choose(every, np.inf)
            assert choice is not None
            found.append(choice.ms)
        return found

    once, again = chosen(1), chosen(3)
    assert all(b < a * (1.0 - 1e-5) for a, b in zip(once, again, strict=True))


def test_a_limit_on_lumps_splits_the_table_that_is_one() -> None:
    problem = RandomWorkload([(5000, 32), *[(200, 8)] * 6], 240).problem(machine(1, 4))
    menu = Menu(problem, [None] * 7, MOVES)
    relaxation = relaxation_of(problem, menu)
    rank = np.array([kind[0] is Holders.RANK for kind in menu.contributions.kinds])
    free, limited = relaxation.choose(rank, np.inf), relaxation.choose(rank, 1.0)
    assert free is not None and limited is not None
    assert len(menu.form(int(free.options[0]))) == 1 < len(menu.form(int(limited.options[0])))


@settings(max_examples=100)
@given(st.data())
def test_the_cheapest_choices_fit_and_no_cheaper_ones_at_any_price_do(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 4))
    table = np.repeat(np.arange(number), [data.draw(st.integers(1, 4)) for _ in range(number)])
    whole = st.integers(0, 50)
    cost = np.array([data.draw(whole) for _ in table], dtype=np.float64)
    size = np.array([data.draw(whole) for _ in table], dtype=np.float64)
    room = float(data.draw(st.integers(0, 150)))
    chosen = cheapest(cost, size, by_table(table), room)
    assert table[chosen].tolist() == list(range(number))
    smallest = sum(size[table == one].min() for one in range(number))
    assert size[chosen].sum() <= max(room, smallest) + 1e-9
    # Lagrange: what is cheaper than these takes more bytes.
    for combination in product(*[np.flatnonzero(table == one) for one in range(number)]):
        at = list(combination)
        if cost[at].sum() < cost[chosen].sum() - 1e-6:
            assert size[at].sum() > size[chosen].sum()
    more = filled(chosen, cost, size, table, max(room, smallest))
    assert table[more].tolist() == list(range(number)) and size[more].sum() <= max(room, smallest) + 1e-9
    # No other choice of one table is better and fits.
    for at in range(len(table)):
        other = more.copy()
        other[table[at]] = at
        assert cost[other].sum() >= cost[more].sum() or size[other].sum() > max(room, smallest)
    assert cost[more].sum() <= cost[chosen].sum()


@pytest.mark.parametrize("seed", range(6))
def test_ratings_of_an_exchange_are_what_it_changes(seed: int) -> None:
    problem, menu, planner = planner_of(seed, (2, 2) if seed % 2 else (1, 4))
    options = np.array([menu.of(index)[0] for index in range(len(problem.tables))])
    assert planner.construct(options)
    parts = planner._placed_parts(Holders.RANK)
    before, part = planner.ruler.base, 0
    here, there = int(parts.places[part]), (int(parts.places[part]) + 1) % planner.state.world
    rated = planner.ruler.exchange_growth(here, np.array([there]), -parts.parcels[[part]], 1)
    planner._move(parts, part, there)
    fresh = Ruler(planner.state)
    fresh.scale = planner.ruler.scale
    fresh.refresh()
    assert fresh.base - before == pytest.approx(float(rated[0]), abs=1e-9)


@pytest.mark.parametrize("scope", [Holders.RANK, Holders.NODE])
def test_the_rating_of_column_ranges_is_what_placing_them_changes(scope: Holders) -> None:
    problem = RandomWorkload([(5000, 32), *[(300, 8)] * 6], 240).problem(machine(4, 2))
    menu = Menu(problem, [None] * 7, MOVES)
    planner = Planner(problem, menu, WorkLeft(30.0, time.monotonic() + 30.0))
    assert planner.construct(np.array([menu.of(index)[0] for index in range(7)]))
    planner._put(0, planner.placed[0], -1)
    planner.ruler.refresh()
    ways = {
        menu.options[option].shards: option
        for option in menu.of(0)
        if {group[0].scope for group in menu.form(option)} == {scope} and len(menu.options[option].groups) == 1
    }
    assert {1, 2, 4} <= set(ways)
    before, scale = planner._score(), planner.ruler.scale
    for shards in (1, 2, 4):
        ((rated, placed),) = planner.rate([ways[shards]])
        assert placed is not None and len(set(placed.places)) == shards
        planner._put(0, placed)
        # The norms are rated as shares of the slowest device's times of before.
        fresh = Ruler(planner.state)
        fresh.scale = scale
        fresh.powers = fresh._power(fresh.phases)
        after = float(fresh._norm(fresh.powers.sum(axis=1))) + fresh.shared_ms() + planner.state.latencies_ms()
        assert after - before == pytest.approx(rated, abs=1e-9)
        planner._put(0, placed, -1)


def test_where_all_promising_places_are_used_the_other_tables_are_rated_together_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of four devices are promising, and four tables are placed at a time: none is left to be rated by itself."""
    problem = RandomWorkload([(1000 + 300 * i, 16) for i in range(12)], 240, seed=2).problem(machine(1, 4))
    menu = Menu(problem, [None] * 12, MOVES)
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


def test_parts_of_a_table_that_meet_on_a_device_need_room_together() -> None:
    _, menu, planner = planner_of(3)
    scopes = [{group[0].scope for group in menu.form(option)} for option in range(len(menu.options))]
    option = scopes.index({Holders.COPIES, Holders.RANK})
    copies, rest = (menu.groups.parcels[group, -2:] for group in menu.options[option].groups[:2])
    for bytes_less, fits in ((0.0, True), (1.0, False)):
        planner.state.capacity = np.array([[copies[0] + rest[0] - bytes_less], [np.inf]])
        ((_, placed),) = planner.rate([option])
        assert (placed is not None) == fits


def test_tables_of_few_rows_do_not_keep_the_others_from_being_dealt_in_their_nodes() -> None:
    """No table of fewer rows than a node has devices can be dealt: the rest is, if that is best for the rest."""
    shapes, kinds = [(5000, 32)] * 8, {Holders.NODE, Holders.COPIES, Holders.RANK}

    def scopes(few: int) -> set[Holders]:
        problem = RandomWorkload([*shapes, *[(few, 32)] * 2], 240).problem(machine(3, 4))
        menu = Menu(problem, [None] * 10, MOVES)
        relaxation = relaxation_of(problem, menu)
        dealt = np.array([kind[0] is Holders.NODE for kind in menu.contributions.kinds])
        alone = relaxation.choose(dealt, np.inf)
        assert (alone is None) == (few < 4)
        tried = [relaxation.choose(start, np.inf) for start in relaxation.starts(np.inf)]
        found = [choice for choice in tried if choice is not None]
        forms = [{group[0].scope for table in range(8) for group in menu.form(int(c.options[table]))} for c in found]
        assert {Holders.NODE} in forms
        return set().union(*forms)

    assert scopes(4) >= kinds and scopes(3) >= kinds


@pytest.mark.parametrize("seed", range(12))
def test_an_exchange_of_dealt_tables_between_full_nodes_overflows_no_device(seed: int) -> None:
    problem, menu, planner = planner_of(seed, (2, 2))
    nodes = [
        next((option for option in menu.of(index) if {g[0].scope for g in menu.form(option)} == {Holders.NODE}), None)
        for index in range(len(problem.tables))
    ]
    for index, option in enumerate(nodes):
        if option is not None:
            planner._put(index, TablePlaces(option, (index % 2,) * len(menu.form(option))))
    parts, state = planner._placed_parts(Holders.NODE), planner.state
    planner.ruler.refresh()

    def exchange(own: int, other: int, place: int) -> None:
        planner._move(parts, own, 1 - place)
        planner._move(parts, other, place)

    for own, other in product(np.flatnonzero(parts.places == 0), np.flatnonzero(parts.places == 1)):
        exchange(int(own), int(other), 0)
        state.capacity = np.array([[state.held_bytes[0].max() - 1.0], [np.inf]])
        exchange(int(own), int(other), 1)
        delta = parts.parcels[[other]] - parts.parcels[[own]]
        assert np.isinf(planner.ruler.exchange_growth(0, np.array([1]), delta, 2)), "a byte is missing afterwards"


@pytest.mark.parametrize("shape", [(1, 4), (2, 2)])
def test_improving_never_lengthens_the_step_and_keeps_every_table(shape: tuple[int, int]) -> None:
    for seed in range(4):
        problem, menu, planner = planner_of(seed, shape)
        choice = relaxation_of(problem, menu).choices()[-1]
        assert planner.construct(choice.options)
        first = planner.step_ms
        steps = [first, *(planner.step_ms for _ in planner.improve()), planner.step_ms]
        assert steps[:-1] == sorted(steps[:-1], reverse=True)
        assert steps[-1] == pytest.approx(steps[-2], rel=1e-12)
        validate(Plan(world_size=problem.world_size, segments=SeenPlan(planner).segments), problem, MOVES)


def test_lean_menus_are_parts_of_the_full_one_and_moves_are_obeyed() -> None:
    problem, full, _ = planner_of(3)
    hot = [None] * len(problem.tables)
    lean = Menu(problem, hot, MOVES, LEAN_MENU)
    assert len(Menu(problem, hot, MOVES, BRIEF_MENU).options) < len(lean.options) < len(full.options)
    scopes = {cut.scope for cut in Menu(problem, hot, frozenset({Move.TABLE}))._cuts}
    assert scopes == {Holders.RANK}
    no_copies = {cut.scope for cut in Menu(problem, hot, MOVES - {Move.REPLICATE})._cuts}
    assert Holders.COPIES not in no_copies and Holders.NODES not in no_copies


@pytest.mark.parametrize("seed", range(6))
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


def test_exchanges_that_have_no_room_are_not_among_the_promising() -> None:
    planner = planner_of(3)[2]
    ruler, state = planner.ruler, planner.state
    state.capacity = np.array([[100.0], [50.0]])
    state.held_bytes = np.zeros_like(state.held_bytes)
    state.held_bytes[0, :2] = 90.0, 20.0
    own, given = np.array([[30.0, 0.0], [5.0, 0.0]]), np.array([[10.0, 0.0], [50.0, 0.0], [0.0, 0.0]])
    found = ruler.fits(0, np.array([1, 1, 2]), own, given, 1)
    # The first device has 10 bytes free, the second 80, the third all.
    assert found.tolist() == [[True, False, True], [True, False, True]]
    state.held_bytes[0, 1] = 95.0
    assert ruler.fits(0, np.array([1, 1, 2]), own, given, 1).tolist() == [[False, False, True], [True, False, True]]


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
    late = OptionRelaxation(menu, relaxation_of(problem, menu).room, on_choice=work.check_clock)
    whole = relaxation_of(problem, menu).choices()
    assert all(map(Choice.same, late.choices(), whole))
    work.may_stop = True
    hot = [None] * len(problem.tables)
    with pytest.raises(TimeIsOver):
        late.choices()
    with pytest.raises(TimeIsOver):
        Menu(problem, hot, MOVES, on_table=work.check_clock)
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


def test_no_range_of_rows_ends_among_rows_never_seen() -> None:
    problem = RandomWorkload([(4000, 16)], 256).problem(machine(1, 4))
    # A third of the lookups is expected of rows never seen: a half of them is in the seen rows, a quarter is not.
    profile = replace(problem.profiles[0], counts=(60, 5, 1), row_counts=(1, 20, 80))
    problem, seen = replace(problem, profiles=(profile,)), profile.seen_rows
    menu = Menu(as_expected(problem), [None], MOVES, seen_rows=[seen])
    anywhere = Menu(as_expected(problem), [None], MOVES)

    def ends(of: Menu) -> set[int]:
        return {cut.stop for cut in of._cuts if cut.scope is Holders.RANK and cut.stop < 4000}

    assert max(ends(anywhere)) > seen
    assert ends(menu) == {end for end in ends(menu) if end <= seen} != set()


def test_not_more_is_kept_in_hbm_than_fits() -> None:
    problem = RandomWorkload([(4000, 16), (3000, 32), (2000, 8)], 256).problem(machine(1, 2, hbm=60_000, uvm=10**7))
    kept = hot_rows(problem, 1.0, Joint.moves)
    held = sum(
        (table.rows if rows is None else rows) * problem.weight_bytes(table) / table.rows
        for table, rows in zip(problem.tables, kept)
    )
    assert 0.8 * 120_000 < held <= 120_000
    roomy = replace(problem, topology=replace(problem.topology, hbm_bytes=10**9))
    assert hot_rows(roomy, 1.0, Joint.moves) == [None] * 3
    whole = hot_rows(problem, 1.0, Joint.moves - {Move.ROWS})
    assert {None, 0} == set(whole), "a table is in one tier"
    assert hot_rows(problem, 0.0, Joint.moves - {Move.ROWS}) == [0] * 3


def unsure(problem: Problem, error: float = 1.5, **known: float) -> Problem:
    """The problem on a machine whose constants have an error, some another one."""
    errors = dict.fromkeys(uncertain(problem.machine), error) | known
    return replace(problem, machine=replace(problem.machine, errors=errors))


def plan_of(seen: SeenPlan) -> Plan:
    return Plan(world_size=seen.state.world, segments=seen.segments)


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
    for at in drawn_machines(problem.machine, 3):
        drawn = replace(problem, machine=at)
        phases = seen.phases_ms(PlanState(drawn))
        assert phases.sum() == pytest.approx(estimate(before, drawn).step_ms, rel=1e-9)
        assert phases.min() >= -1e-9 and phases.shape == (PHASES,)
    # A search that goes on does not change what was seen.
    planner._put(0, planner.placed[0], -1)
    assert plan_of(seen) == before
    assert seen.phases_ms(PlanState(problem)).sum() == pytest.approx(estimate(before, problem).step_ms, rel=1e-9)


def test_all_plans_are_rated_under_the_same_draws_which_are_not_the_judges() -> None:
    at = unsure(random_problem(np.random.default_rng(0), 1, 4)).machine
    assert drawn_machines(at, 16) == drawn_machines(at, 16)
    assert all(one != two for one, two in zip(drawn_machines(at, 16), judging_machines(at, 16), strict=True))
    # Equal plans are rated alike, so that the first of them stays first.
    phases = np.broadcast_to(np.random.default_rng(1).random((1, 32, PHASES)), (3, 32, PHASES))
    assert best_first(phases, [(1.0, 1)] * 3, at, Rating.P90) == [0, 1, 2]
    form = drawn_form(at, 32, "all plans")
    assert (form[:, -1] == 1.0).all() and np.log(form[:, :-1]).mean(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert drawn_machines(replace(at, errors={}), 16) == []


def latency_problem(latency_s: float) -> tuple[Problem, list[SeenPlan]]:
    """A table of which only the latency inside nodes is not known, and it whole on a device and copied to both."""
    problem = RandomWorkload([(30_000, 32)], 64).problem(without_placing(machine(1, 2)))
    problem = unsure(problem, 1.0, intra_latency_s=4.0)
    constants = replace(problem.machine.constants, intra_latency_s=latency_s)
    problem = replace(problem, machine=replace(problem.machine, constants=constants))
    menu, seen = Menu(problem, [None], MOVES), list[SeenPlan]()
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
    assert ranked(problem, pool, Rating.NOMINAL, 10.0, float("inf")) == pool
    for by in (Rating.MEAN, Rating.P90):
        assert ranked(problem, pool, by, 10.0, float("inf")) == pool[::-1]
        # Too little time to draw, no time left, and nothing known of the errors.
        assert ranked(problem, pool, by, 0.01, float("inf")) == pool
        assert ranked(problem, pool, by, 10.0, -1.0) == pool
        known = replace(problem, machine=replace(problem.machine, errors={}))
        assert ranked(known, pool, by, 10.0, float("inf")) == pool


def test_ties_go_to_the_plan_of_fewer_calls_and_then_of_fewer_segments() -> None:
    at = unsure(random_problem(np.random.default_rng(0), 1, 4)).machine

    def first(steps: list[float], sizes: list[tuple[float, int]], pair_error: float | None = None) -> int:
        trust = Trust(step_error=1.2, pair_error=pair_error, plans=9, source="a test's own")
        phases = np.zeros((len(steps), 32, PHASES))
        phases[:, :, 0] = np.array(steps)[:, None]
        machine = at if pair_error is None else replace(at, trust=trust)
        order = best_first(phases, sizes, machine, Rating.MEAN)
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
    names = ("joint", "joint-nominal", "joint-p90")
    plans = [get_strategy(name).plan(problem, Budget(plan_s=0.2), 0) for name in names]
    assert plans == plans[:1] * len(names)


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
        assert np.isnan(improvement.step_ms) or improvement.step_ms == pytest.approx(steps[-1], rel=1e-9)
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


@pytest.mark.parametrize("seed", range(6))
def test_constraints_that_allow_the_best_plan_have_the_best_plan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, *SHAPES[seed % 3])
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


@pytest.mark.parametrize("seed", range(6))
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
    strategy, budget = get_strategy("joint-nominal"), Budget(plan_s=2.0)
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
