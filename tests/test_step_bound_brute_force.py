"""The bound on the step against many plans of small problems: random ones and those on a descent, of every move."""

from collections import defaultdict

import numpy as np
import pytest
from step_plans import DENSE, StepInstance

from shardbench.cost.bounds.embedding import ROUNDING
from shardbench.cost.bounds.step import DEVICE_MOVES, dense_all_reduce_s
from shardbench.cost.bounds.step_relaxation import Prices, Relaxation
from shardbench.model.plan import OnLocalRank, ShardingGroups

WEIGHTS = ("forward", "lookups", "vectors", "sums", "rows", "backward")
A_PROBLEM = 16
"""Random plans of one problem."""


def some_prices(relaxation: Relaxation) -> list[Prices]:
    """Any at all, none of them negative."""
    rng = np.random.default_rng(0)
    weights = [dict(zip(WEIGHTS, rng.random(len(WEIGHTS)).tolist())) for _ in range(6)]
    scales = relaxation.hbm_scale * rng.choice([0.0, 0.01, 1.0, 10.0], len(weights))
    return [Prices(**some, hbm_byte=float(scale)) for some, scale in zip(weights, scales)]


def some_groups(seed: int) -> ShardingGroups:
    """Sharding groups of any size and layout."""
    rng, world = np.random.default_rng(seed), StepInstance(seed).problem.world_size
    sizes = [size for size in range(1, world + 1) if world % size == 0]
    return ShardingGroups(size=int(rng.choice(sizes)), interleaved=bool(rng.random() < 0.6))


def hold_all(seeds: range, *, grouped: bool = False) -> tuple[int, dict[str, list[float]]]:
    """Plans that were held against their bounds, and by kind of bound the nearest plan's ratio of each problem."""
    held, nearest = 0, defaultdict[str, list[float]](list)
    for seed in seeds:
        groups = some_groups(seed) if grouped else None
        instance = StepInstance(seed, whole=seed % 4 == 0, expected=seed % 3 == 0, groups=groups)
        plans = instance.random(A_PROBLEM)
        if seed % 5:
            instance.limit(plans)
        plans = [rated for rated in plans if instance.fits(rated.plan)]
        if not plans:
            continue
        plans += instance.descended(min(plans, key=lambda rated: rated.step_ms))
        reduced_s = dense_all_reduce_s(instance.problem, DENSE)
        relaxation = Relaxation(instance.demand, instance.problem, DEVICE_MOVES, reduced_s=reduced_s, groups=groups)
        dense_ms = instance.dense_ms
        proven = max(dense_ms + relaxation.value_ms(prices) for prices in some_prices(relaxation))
        assert min(rated.step_ms for rated in plans) >= proven * (1.0 - ROUNDING), f"{seed} at any prices"
        ratios = defaultdict[str, list[float]](list)
        for rated in plans:
            for name, bound in instance.bounds(rated.plan).items():
                assert rated.step_ms >= bound.ms, f"{seed} {name}: {rated.chosen} takes {rated.step_ms}, {bound}"
                ratios[name].append(rated.step_ms / bound.ms)
        held += len(plans)
        for name, found in ratios.items():
            nearest[name].append(min(found))
    return held, nearest


def test_no_plan_of_small_problems_is_below_its_bound() -> None:
    held, nearest = hold_all(range(6))
    assert held > 200
    assert set(nearest) == {"any rows", "own", "hottest first"}


def test_no_plan_with_sharding_groups_is_below_its_bound() -> None:
    held, nearest = hold_all(range(100, 106), grouped=True)
    assert held > 200
    assert set(nearest) == {"any rows", "own", "hottest first"}


@pytest.mark.slow
def test_none_of_many_plans_with_sharding_groups_is_below_its_bound() -> None:
    held, nearest = hold_all(range(2_000, 2_400), grouped=True)
    assert held >= 20_000
    assert all(min(ratios) < 1.05 for ratios in nearest.values())


@pytest.mark.parametrize("seed", [33, 46])
def test_copies_on_one_device_a_node_keep_the_bound_of_their_own_moves(seed: int) -> None:
    # As for any plan; but they are few among random ones, and they alone have such a copy without splitting rows.
    instance = StepInstance(seed)
    assert instance.problem.topology.nodes > 1
    choices = [
        [k for k, (first, *_) in enumerate(cell.choices) if isinstance(first.placement, OnLocalRank)]
        for cell in instance.inner.cells
    ]
    for _ in range(A_PROBLEM):
        rated = instance.rated(np.array([int(instance.rng.choice(own)) for own in choices]))
        assert all(rated.step_ms >= bound.ms for bound in instance.bounds(rated.plan).values())


@pytest.mark.slow
def test_none_of_50_000_plans_is_below_its_bound() -> None:
    held, nearest = hold_all(range(1_000, 1_800))
    for name, ratios in nearest.items():
        print(f"{name}: {len(ratios)} problems of {held} plans, nearest {min(ratios):.6f}")
    assert held >= 50_000
    # A bound that nothing comes near would hold as well.
    assert all(min(ratios) < 1.01 for ratios in nearest.values())
