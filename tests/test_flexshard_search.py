"""FlexShard's search: within its memory, and no better than the best plan, with latencies and without."""

from dataclasses import replace

import numpy as np
import pytest
from flexshard_problems import problem_of, quick_machine, tiers, zipf
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.baselines.flexshard import FlexShard
from shardbench.baselines.flexshard.reproduction.studies import best_of_all
from shardbench.baselines.flexshard.rule import RowTiers
from shardbench.baselines.flexshard.search import TieredPlan, _Search, communication_s, search
from shardbench.baselines.flexshard.shape import cold_bytes, find_homes, least_bytes, make_plan
from shardbench.model.validate import memory_bytes, validate

COUNTS = st.lists(st.lists(st.integers(0, 200), min_size=5, max_size=40), min_size=1, max_size=4)


@settings(max_examples=12)
@given(COUNTS, st.floats(0.8, 6.0), st.booleans())
def test_memory_stays_within_the_limit_and_tiers_are_ranges(counts: list[list[int]], ratio: float, warm: bool) -> None:
    problem = problem_of(counts, batch=256)
    least = cold_bytes(problem, find_homes(problem, over_all=True))
    limit = int(ratio * least)
    found = search(problem, limit, with_warm=warm)
    plan = make_plan(problem, found.homes, found.tiers)
    validate(plan, problem, FlexShard.moves)
    assert memory_bytes(plan, problem).hbm.max() <= max(limit, least)
    assert found.seconds == pytest.approx(communication_s(problem, found.homes, found.tiers))
    none = np.zeros(len(counts), dtype=np.int64)
    assert found.seconds <= communication_s(problem, found.homes, RowTiers(hot=none, warm=none))
    if not warm:
        assert not found.tiers.warm.any()


@settings(max_examples=8)
@given(st.lists(st.integers(0, 300), min_size=12, max_size=24), st.sampled_from([1.0, 1.3, 2.0, 4.0]))
def test_no_plan_of_the_rule_is_below_the_best(counts: list[int], ratio: float) -> None:
    problem = problem_of([sorted(counts, reverse=True)], batch=256)
    limit = int(ratio * cold_bytes(problem, find_homes(problem, over_all=False)))
    found = search(problem, limit, with_warm=True).seconds
    best, _ = best_of_all(problem, limit, step=1)
    assert best <= found * (1 + 1e-9)


LATENCY = st.sampled_from([0.0, 1e-3, 1e-2, 0.1, 1.0])
"""Of the toy machine's: from none over about the time of the bytes to most of it."""


@settings(max_examples=8)
@given(
    st.lists(st.integers(0, 300), min_size=4, max_size=8),
    st.lists(st.integers(0, 20), min_size=4, max_size=6),
    LATENCY,
    st.sampled_from([1.0, 1.5, 4.0]),
    st.sampled_from([(16, 16), (16, 8)]),
    st.sampled_from([(2, 2), (1, 4), (4, 1)]),
)
def test_no_plan_of_the_rule_is_below_the_best_with_latencies(
    one: list[int], other: list[int], latency: float, ratio: float, dims: tuple[int, int], shape: tuple[int, int]
) -> None:
    counts = [sorted(one, reverse=True), sorted(other, reverse=True)]
    problem = problem_of(counts, on=quick_machine(*shape, latency=latency), dim=dims, batch=256)
    limit = int(ratio * least_bytes(problem))
    found = search(problem, limit, with_warm=True).seconds
    best, _ = best_of_all(problem, limit, step=1)
    assert best <= found * (1 + 1e-9)


def test_the_latency_of_every_call_counts() -> None:
    # Room for every copy, and lookups that make one worthless: row-wise's calls are all there is to it, but one.
    on = quick_machine(latency=1.0)
    problem = problem_of([[9] * 12, [9] * 12], on=on, dim=(16, 8))
    homes = find_homes(problem, over_all=False)
    world, node, cross = 3e-5 + 3e-6, 1e-5 + 1e-6, 3e-5 + 1e-6

    def latencies(hot: list[int], warm: list[int]) -> float:
        moved = tiers(hot, warm)
        without = replace(problem, machine=quick_machine())
        return communication_s(problem, homes, moved) - communication_s(without, homes, moved)

    # Splits, lengths, indices, vectors, gradients of two widths; an all-reduce a width of replicas, one for all copies.
    assert latencies([0, 0], [0, 0]) == pytest.approx(10 * world)
    assert latencies([4, 0], [0, 0]) == pytest.approx(11 * world)
    assert latencies([0, 0], [4, 4]) == pytest.approx(10 * world + 10 * node + cross)
    assert latencies([0, 4], [12, 0]) == pytest.approx(5 * world + 5 * node + world + cross)
    assert latencies([12, 12], [0, 0]) == pytest.approx(2 * world)
    _, chosen = best_of_all(problem, 10**6, step=4)
    assert (chosen.hot.tolist(), chosen.warm.tolist()) == ([12, 12], [0, 0])


@settings(max_examples=8)
@given(COUNTS, st.floats(1.0, 6.0), LATENCY)
def test_a_warm_tier_never_makes_the_plan_worse(counts: list[list[int]], ratio: float, latency: float) -> None:
    problem = problem_of(counts, on=quick_machine(latency=latency), batch=256)
    limit = int(ratio * least_bytes(problem))
    with_warm, without = (search(problem, limit, with_warm=w) for w in (True, False))
    assert with_warm.seconds <= without.seconds


def test_plans_without_a_warm_tier_are_searched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def best(of: _Search) -> TieredPlan:
        none = np.zeros(1, dtype=np.int64)
        homes = find_homes(of.problem, over_all=False)
        return TieredPlan(homes=homes, tiers=RowTiers(hot=none, warm=none), seconds=2.0 if of.with_warm else 1.0)

    monkeypatch.setattr(_Search, "best", best)
    problem = problem_of([zipf(40, 60)])
    assert search(problem, 10**6, with_warm=True).seconds == 1.0
    assert search(problem, 10**6, with_warm=False).seconds == 1.0


def test_a_tier_that_costs_calls_is_emptied_in_all_tables_at_once() -> None:
    # Without its cold rows one table saves lengths and pays for copies of rows that are hardly looked up; only where
    # both have none are four calls over the cluster saved.
    first = [7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 3, 3, 2, 1, 1]
    other = [6, 6, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 2, 2, 1, 1, 1, 0, 0]
    problem = problem_of([first, other], on=quick_machine(latency=0.01), batch=256)
    found = search(problem, 2 * least_bytes(problem), with_warm=True)
    assert found.tiers == tiers([0, 0], [15, 20])
