"""The search that stands above the strategies: exact numbers, between the bound and its starts, work and not time."""

import importlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from bound_problems import WORLD, enumerated_ms, random_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_tasks import random_problem as many_tables
from problems import machine, table_loads

from shardbench.base.errors import BadInput, Infeasible
from shardbench.cost.bounds.embedding import expected_table_loads
from shardbench.cost.costmodel import embedding_ms
from shardbench.cost.kernel_numbers import KernelNumbers
from shardbench.cost.load import Load, in_uvm
from shardbench.cost.traffic import expect
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Role
from shardbench.model.table import Pooling
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

FOLDER = "shardbench.baselines.search"
held = importlib.import_module(f"{FOLDER}.tables")
begins = importlib.import_module(f"{FOLDER}.starts")
search = importlib.import_module(f"{FOLDER}.local_search")
SEARCH = importlib.import_module(FOLDER)
searcher = get_strategy("search")


def some_sequences(problem: Problem, every: int) -> Problem:
    """The same problem with each ``every``-th table unpooled."""
    tables = tuple(replace(t, pooling=Pooling.NONE) if i % every == 0 else t for i, t in enumerate(problem.tables))
    return replace(problem, tables=tables)


def crowded(seed: int, tables: int) -> Problem:
    """A problem whose tables do not fit HBM, with slow host memory."""
    problem, _ = random_problem(seed, tables)
    sizes = [problem.weight_bytes(t) for t in problem.tables]
    tight = replace(problem.topology, hbm_bytes=max(*sizes, sum(sizes) // 6))
    constants = replace(problem.machine.constants, uvm_bytes_per_s=1e6)
    return replace(problem, topology=tight, machine=replace(problem.machine, topology=tight, constants=constants))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 9), every=st.integers(1, 4), uvm=st.booleans())
def test_kernel_numbers_are_exact(seed: int, count: int, every: int, uvm: bool) -> None:
    problem, _ = random_problem(seed, count)
    problem = some_sequences(problem, every)
    loads, rng = expected_table_loads(problem), np.random.default_rng(seed)
    tiers = Load(np.stack([loads.values, in_uvm(loads).values][: 1 + uvm]))
    few = KernelNumbers.needed(tiers, problem.machine.constants)
    values = few.of(tiers)
    rank, tier = rng.integers(0, WORLD, count), rng.integers(0, 1 + uvm, count)
    sums = Load.zeros(WORLD)
    sums.add_at(rank, Load(np.stack([loads.values, in_uvm(loads).values])[tier, np.arange(count)]))
    state_sums = np.zeros((few.count, WORLD))
    np.add.at(state_sums.T, rank, values[:, tier, np.arange(count)].T)
    busy = sums.bags > 0
    assert few.ms(state_sums)[busy] == pytest.approx(embedding_ms(sums, problem.machine.constants)[busy], rel=1e-9)
    assert len(values) == few.count <= 2 + 2 * (2 + uvm) + 1
    # All numbers, needed or not, say the same.
    every_number = KernelNumbers(problem.machine.constants)
    assert every_number.work_ms(every_number.of(tiers)) == pytest.approx(few.work_ms(values), rel=1e-9)


def test_pooled_tables_in_hbm_have_six_numbers_and_counted_loads_are_refused() -> None:
    problem, bags = random_problem(5, 6)
    constants = replace(problem.machine.constants, cache_bytes_per_s=1e12)
    assert KernelNumbers.needed(expected_table_loads(problem), constants).count == 6
    with pytest.raises(BadInput, match="longest bag"):
        KernelNumbers(constants).of(table_loads(problem, lambda i: bags[i]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_rated_changes_are_what_comes_of_them(seed: int) -> None:
    problem = crowded(seed, 9)
    tables = held.Tables(problem, uvm=True)
    rng = np.random.default_rng(seed)
    state = held.TablePlacement(tables, rng.integers(0, WORLD, 9), rng.integers(0, 2, 9))
    giver, tops = int(state.ms.argmax()), []
    for targets in search._neighbours(state, giver):
        out = np.flatnonzero((state.rank == giver) & (state.tier == targets.from_tier))
        around = search.Surroundings(state, giver, targets)
        if not len(out) or not len(targets.rank):
            continue
        here, there = around.after(out)
        fits = around.fits(out)
        for i, at in itertools.product(range(len(out)), range(len(targets.rank))):
            moved = state.copy()
            change = [(int(out[i]), int(targets.rank[at]), targets.to_tier)]
            if targets.back[at] >= 0:
                change.append((int(targets.back[at]), giver, targets.from_tier))
            moved.put(change)
            fresh = moved.copy()
            assert moved.ms == pytest.approx(fresh.ms, rel=1e-12)
            assert (moved.used == fresh.used).all()
            assert here[i, at] == pytest.approx(fresh.ms[giver], rel=1e-9)
            if not targets.inside:
                assert there[i, at] == pytest.approx(fresh.ms[targets.rank[at]], rel=1e-9)
            # Room is asked of the two places that change: others of a random placement may be too full.
            places = {(targets.to_tier, int(targets.rank[at])), (targets.from_tier, giver)}
            assert fits[i, at] == all(fresh.used[place] <= tables.capacity[place[0]] for place in places)
            tops.append(fresh.slowest_ms)
    assert tops


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 5))
def test_bound_search_and_start_are_ordered(seed: int, tables: int) -> None:
    problem, _ = random_problem(seed, tables)
    plan = searcher.plan(problem, Budget(), 0)
    load = expected_table_loads(problem)
    found = float(embedding_ms(expect(plan, problem).load, problem.machine.constants).max())
    optimum = enumerated_ms(load, problem.machine.constants, WORLD, uvm=tables < 5).min()
    assert found == pytest.approx(plan.notes["slowest_ms"], rel=1e-9)
    assert plan.notes["lower_bound_ms"] <= optimum
    assert found <= float(plan.notes["start_ms"]) * (1 + 1e-9)
    if tables < 5:
        assert optimum <= found * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_small_problems_are_solved(seed: int) -> None:
    problem, _ = random_problem(seed, 7)
    slow_host = replace(problem.machine.constants, uvm_bytes_per_s=1e6)
    problem = replace(problem, machine=replace(problem.machine, constants=slow_host))
    plan = searcher.plan(problem, Budget(), 0)
    optimum = enumerated_ms(expected_table_loads(problem), slow_host, WORLD, uvm=False).min()
    assert plan.notes["slowest_ms"] == pytest.approx(optimum, rel=1e-6)


def test_search_beats_its_starts_and_every_greedy_strategy() -> None:
    problem, _ = random_problem(3, 30)
    slowest = {}
    for name in ("search", "greedy-size", "greedy-lookup", "greedy-size-lookup", "shuffle"):
        plan = get_strategy(name).plan(problem, Budget(), 0)
        slowest[name] = float(embedding_ms(expect(plan, problem).load, problem.machine.constants).max())
    assert slowest["search"] == min(slowest.values())
    begun = [state.slowest_ms for state in begins.starts(held.Tables(problem))]
    assert len(begun) >= 3
    assert slowest["search"] <= min(begun)


def test_hundreds_of_tables_of_several_widths_come_near_the_bound() -> None:
    problem = many_tables(300, on=machine(devices=8), batch_size=65_536, rows=200_000)
    plan = searcher.plan(problem, Budget(), 0)
    bound_ms = float(plan.notes["lower_bound_ms"])
    assert float(plan.notes["start_ms"]) > 1.02 * bound_ms
    assert float(plan.notes["slowest_ms"]) < 1.008 * bound_ms
    # The last chunk is rated whole.
    assert int(plan.notes["rated"]) < SEARCH.CANDIDATES + 2 * search.CHUNK


def test_alike_working_sets_share_a_cache_better_than_tables_dealt_by_time() -> None:
    problem, _ = random_problem(12, 40)
    constants = replace(problem.machine.constants, cache_bytes_per_s=1e11, uvm_bytes_per_s=1e6, cache_bytes=1e3)
    tables = held.Tables(replace(problem, machine=replace(problem.machine, constants=constants)))
    rows, _ = tables.numbers.working_sets(tables.values)
    alike = begins.pieces(tables, (rows,))
    dealt = begins.greedy(tables, np.argsort(-tables.alone[0], kind="stable"))
    assert alike.ms.mean() < dealt.ms.mean()
    # Pieces follow one another along the order.
    edges = [(rows[0, alike.rank == d].min(), rows[0, alike.rank == d].max()) for d in range(WORLD)]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(edges))


def test_search_keeps_to_the_capacity_and_uses_both_tiers() -> None:
    problem = crowded(8, 12)
    plan = searcher.plan(problem, Budget(), 0)
    memory = validate(plan, problem, searcher.moves)
    assert memory.uvm.sum() > 0
    tables = held.Tables(problem)
    begun = begins.greedy(tables, np.arange(12))
    assert begun is not None
    after = search.descend(begun, search.WorkLimit(10**6, float("inf")), limit=10**6)
    assert after.slowest_ms < begun.slowest_ms
    assert (after.used <= tables.capacity[:, None]).all()
    assert float(plan.notes["slowest_ms"]) <= after.slowest_ms * (1 + 1e-9)


def test_local_optimum_has_no_better_neighbour() -> None:
    problem, _ = random_problem(11, 7)
    tables = held.Tables(problem)
    begun = begins.greedy(tables, np.arange(7))
    assert begun is not None
    best, effort = begun.copy(), search.WorkLimit(10**6, float("inf"))
    while search._step(best, 64, effort):
        pass
    assert best.slowest_ms < begun.slowest_ms

    def total(state: "held.TablePlacement") -> float:
        return float(((state.ms / best.slowest_ms) ** 64).sum())

    for table, rank in itertools.product(range(7), range(WORLD)):
        moved = best.copy()
        moved.put([(table, rank, 0)])
        assert total(moved) >= total(best) - 1e-8
    for one, two in itertools.combinations(range(7), 2):
        moved = best.copy()
        moved.put([(one, int(best.rank[two]), 0), (two, int(best.rank[one]), 0)])
        assert total(moved) >= total(best) - 1e-8


class Clock:
    """A clock that goes on by so many seconds whenever it is read."""

    def __init__(self, each_s: float) -> None:
        self.each_s, self.now_s = each_s, 0.0

    def monotonic(self) -> float:
        self.now_s += self.each_s
        return self.now_s


def planned(monkeypatch: pytest.MonkeyPatch, each_s: float, seed: int = 0, plan_s: float = 60.0) -> Plan:
    """A plan of one problem under such a clock."""
    clock = Clock(each_s)
    monkeypatch.setattr(search.time, "monotonic", clock.monotonic)
    problem, _ = random_problem(7, 40)
    return searcher.plan(problem, Budget(plan_s=plan_s), seed)


def test_a_seed_gives_one_plan_however_fast_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, slow = planned(monkeypatch, 0.0), planned(monkeypatch, 1e-4)
    assert stopped == slow
    assert stopped.notes["ended_by"] == "work"
    assert int(stopped.notes["rated"]) > 0


def test_a_clock_that_ends_a_search_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried = planned(monkeypatch, 1.0)
    assert hurried.notes["ended_by"] == "clock"
    assert float(hurried.notes["slowest_ms"]) <= float(hurried.notes["start_ms"])


def test_search_does_not_compete_and_declines_what_fits_nowhere() -> None:
    assert searcher.role is Role.SEARCH
    problem, _ = random_problem(2, 4)
    nothing = replace(problem.topology, hbm_bytes=8, uvm_bytes=8)
    problem = replace(problem, topology=nothing, machine=replace(problem.machine, topology=nothing))
    with pytest.raises(Infeasible, match="none of"):
        searcher.plan(problem, Budget(), 0)
