"""The search that stands above the strategies: between the bound and its start, and at a local optimum."""

import importlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from bound_problems import WORLD, enumerated_ms, random_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.base.errors import Infeasible
from shardbench.cost.bounds import (
    expected_table_loads,
)
from shardbench.cost.costmodel import embedding_ms
from shardbench.cost.traffic import expect
from shardbench.model.discovery import get_strategy
from shardbench.model.strategy import Budget, Role
from shardbench.model.validate import validate

search = importlib.import_module("shardbench.baselines.search.local_search")
searcher = get_strategy("search")


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


def test_search_beats_its_greedy_start_and_every_greedy_strategy() -> None:
    problem, _ = random_problem(3, 30)
    slowest = {}
    for name in ("search", "greedy-size", "greedy-lookup", "greedy-size-lookup", "shuffle"):
        plan = get_strategy(name).plan(problem, Budget(), 0)
        slowest[name] = float(embedding_ms(expect(plan, problem).load, problem.machine.constants).max())
    assert slowest["search"] == min(slowest.values())


def test_search_keeps_to_the_capacity_and_swaps_tiers() -> None:
    problem, _ = random_problem(8, 12)
    sizes = [problem.weight_bytes(t) for t in problem.tables]
    tight = replace(problem.topology, hbm_bytes=max(*sizes, sum(sizes) // 6))
    constants = replace(problem.machine.constants, uvm_bytes_per_s=1e6)
    slow_host = replace(problem.machine, topology=tight, constants=constants)
    problem = replace(problem, topology=tight, machine=slow_host)
    plan = searcher.plan(problem, Budget(), 0)
    memory = validate(plan, problem, searcher.moves)
    assert memory.uvm.sum() > 0
    tables = search.Tables(expected_table_loads(problem), problem, constants)
    begun = search.start(tables, np.arange(12))
    assert begun is not None
    before = begun.slowest_ms
    after = search.improve(begun, search.Effort(candidates=10**6, deadline=float("inf")))
    assert after.slowest_ms < before
    assert float(plan.notes["slowest_ms"]) <= after.slowest_ms * (1 + 1e-9)


def test_local_optimum_has_no_better_neighbour() -> None:
    problem, _ = random_problem(11, 7)
    tables = search.Tables(expected_table_loads(problem), problem, problem.machine.constants)
    begun = search.start(tables, np.arange(7))
    assert begun is not None
    best = search.improve(begun, search.Effort(candidates=10**6, deadline=float("inf")))
    for table, rank, tier in itertools.product(range(7), range(WORLD), range(2)):
        moved = search.State(tables, best.rank.copy(), best.tier.copy())
        moved.put(table, rank, tier)
        assert moved.refresh().slowest_ms >= best.slowest_ms * (1 - 1e-9)


def test_search_does_not_compete_and_declines_what_fits_nowhere() -> None:
    assert searcher.role is Role.SEARCH
    problem, _ = random_problem(2, 4)
    nothing = replace(problem.topology, hbm_bytes=8, uvm_bytes=8)
    problem = replace(problem, topology=nothing, machine=replace(problem.machine, topology=nothing))
    with pytest.raises(Infeasible, match="none of"):
        searcher.plan(problem, Budget(), 0)
