"""The joint planner's search: its sums are the cost model's, its ratings what a move changes, its choices cheapest."""

import time
from collections import deque
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_problems import MOVES, SHAPES, plan_of, planner_of, random_problem, relaxation_of, scheduled, some_menu
from problems import RandomWorkload, machine

from shardbench.baselines.joint import Joint, relaxation
from shardbench.baselines.joint.contributions import EXCHANGES
from shardbench.baselines.joint.limits import Space
from shardbench.baselines.joint.memory import by_table, cheapest, filled, hot_rows
from shardbench.baselines.joint.menu import BRIEF_MENU, LEAN_MENU, Menu
from shardbench.baselines.joint.pieces import Holders
from shardbench.baselines.joint.planner import Planner, TablePlaces, WorkLeft
from shardbench.baselines.joint.robust import SeenPlan
from shardbench.baselines.joint.ruler import Ruler
from shardbench.baselines.joint.state import PlanState
from shardbench.cost.collectives import CollectiveName, collective_s
from shardbench.cost.costmodel import estimate
from shardbench.cost.phases import StepPhase
from shardbench.cost.traffic import expect
from shardbench.model.expected import as_expected
from shardbench.model.plan import Plan, Segment
from shardbench.model.strategy import Move
from shardbench.model.table import StepSchedule
from shardbench.model.validate import memory_bytes, validate

pytestmark = pytest.mark.usefixtures("stopped_clock")


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
    menu = Menu(Space(problem, MOVES), [None] * 7)
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
    menu = Menu(Space(problem, MOVES), [None] * 7)
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
        menu = Menu(Space(problem, MOVES), [None] * 10)
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
        validate(plan_of(SeenPlan(planner)), problem, MOVES)


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES))
def test_shaking_never_lengthens_the_step_and_its_sums_are_those_of_its_places(
    seed: int, shape: tuple[int, int]
) -> None:
    problem, menu, planner = planner_of(seed, shape)
    assert planner.construct(np.array([menu.first[unit] for unit in range(len(menu.units))]))
    steps = [planner.step_ms]
    shaken = Planner.of(problem, menu, planner.placed, WorkLeft(nominal_s=0.1, deadline=float("inf")))
    assert shaken.step_ms == pytest.approx(steps[0], rel=1e-9)
    for _ in shaken.shake():
        steps.append(shaken.step_ms)
    assert steps == sorted(steps, reverse=True) and shaken.step_ms == pytest.approx(steps[-1], rel=1e-9)
    assert shaken.placed.keys() == planner.placed.keys()
    plan = plan_of(SeenPlan(shaken))
    validate(plan, problem, MOVES)
    assert shaken.state.whole_ms == pytest.approx(estimate(plan, problem).step_ms, rel=1e-9)


def test_what_improving_leaves_shaking_betters() -> None:
    rng = np.random.default_rng(0)
    shapes = [(int(rng.integers(40, 5000)), int(rng.choice([8, 16, 32, 64]))) for _ in range(24)]
    problem = RandomWorkload(shapes, 2400).problem(machine(2, 4))
    menu = Menu(Space(problem, frozenset({Move.TABLE, Move.COLUMNS})), [None] * len(shapes))
    planner = Planner(problem, menu, WorkLeft(nominal_s=5.0, deadline=float("inf")))
    assert planner.construct(relaxation_of(problem, menu).choices()[0].options)
    deque(planner.improve(), maxlen=0)
    shaken = Planner.of(problem, menu, planner.placed, WorkLeft(nominal_s=1.0, deadline=float("inf")))
    deque(shaken.shake(), maxlen=0)
    assert shaken.step_ms < 0.995 * planner.step_ms


def test_lean_menus_are_parts_of_the_full_one_and_moves_are_obeyed() -> None:
    problem, full, _ = planner_of(3)
    hot = [None] * len(problem.tables)
    lean = Menu(Space(problem, MOVES), hot, LEAN_MENU)
    assert len(Menu(Space(problem, MOVES), hot, BRIEF_MENU).options) < len(lean.options) < len(full.options)
    scopes = {cut.scope for cut in Menu(Space(problem, frozenset({Move.TABLE})), hot)._cuts}
    assert scopes == {Holders.RANK}
    no_copies = {cut.scope for cut in Menu(Space(problem, MOVES - {Move.REPLICATE}), hot)._cuts}
    assert Holders.COPIES not in no_copies and Holders.NODES not in no_copies


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


def test_no_range_of_rows_ends_among_rows_never_seen() -> None:
    problem = RandomWorkload([(4000, 16)], 256).problem(machine(1, 4))
    # A third of the lookups is expected of rows never seen: a half of them is in the seen rows, a quarter is not.
    profile = replace(problem.profiles[0], counts=(60, 5, 1), row_counts=(1, 20, 80))
    problem, seen = replace(problem, profiles=(profile,)), profile.seen_rows
    menu = Menu(Space(as_expected(problem), MOVES, seen_rows=[seen]), [None])
    anywhere = Menu(Space(as_expected(problem), MOVES), [None])

    def ends(of: Menu) -> set[int]:
        return {cut.stop for cut in of._cuts if cut.scope is Holders.RANK and cut.stop < 4000}

    assert max(ends(anywhere)) > seen
    assert ends(menu) == {end for end in ends(menu) if end <= seen} != set()


def test_not_more_is_kept_in_hbm_than_fits() -> None:
    problem = RandomWorkload([(4000, 16), (3000, 32), (2000, 8)], 256).problem(machine(1, 2, hbm=60_000, uvm=10**7))
    kept = hot_rows(Space(problem, Joint.moves), 1.0)
    held = sum(
        (table.rows if rows is None else rows) * problem.weight_bytes(table) / table.rows
        for table, rows in zip(problem.tables, kept)
    )
    assert 0.8 * 120_000 < held <= 120_000
    roomy = replace(problem, topology=replace(problem.topology, hbm_bytes=10**9))
    assert hot_rows(Space(roomy, Joint.moves), 1.0) == [None] * 3
    whole = hot_rows(Space(problem, Joint.moves - {Move.ROWS}), 1.0)
    assert {None, 0} == set(whole), "a table is in one tier"
    assert hot_rows(Space(problem, Joint.moves - {Move.ROWS}), 0.0) == [0] * 3
