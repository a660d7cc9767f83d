"""The proven bounds against very many plans of small problems: random ones, and those on a descent to the fastest."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from bound_plans import Instance, Plans
from step_plans import DENSE, StepInstance

from shardbench.cost.bounds.embedding import ROUNDING, keeps_order, split_bound, whole_table_bound_ms
from shardbench.cost.bounds.step import DEVICE_MOVES, dense_all_reduce_s
from shardbench.cost.bounds.step_relaxation import Prices, Relaxation
from shardbench.cost.traffic import count
from shardbench.model.plan import OnLocalRank, ShardingGroups
from shardbench.model.table import DenseShape
from shardbench.model.validate import memory_bytes, validate
from shardbench.trials.evaluate import WHOLE_TABLE_MOVES

A_PROBLEM = 120
"""Random plans of one problem, before its memory is cut."""


@dataclass
class Held:
    """Plans that were held against a bound, and how near the fastest came."""

    plans: int = 0
    nearest: list[float] = field(default_factory=list)
    """Of each problem, the fastest plan's time over the bound."""

    def hold(self, plans: Plans, bound_ms: float, what: str) -> None:
        if not len(plans.chosen):
            return
        self.plans += len(plans.chosen)
        fastest = float(plans.slowest_ms.min())
        assert fastest >= bound_ms, f"{what}: {plans.chosen[int(plans.slowest_ms.argmin())]} takes {fastest}"
        if bound_ms > 0:
            self.nearest.append(fastest / bound_ms)


def hold_all(seeds: range) -> dict[str, Held]:
    """Every bound against the plans of these problems that it speaks about."""
    held = {"any rows": Held(), "hottest first": Held(), "whole tables": Held(), "memory binds": Held()}
    for seed in seeds:
        whole = seed % 4 == 0
        instance = Instance(seed, whole=whole)
        plans = instance.random(A_PROBLEM)
        # Memory of which some of these plans ask too much; the descents start from those that fit.
        room = np.quantile(plans.memory, instance.rng.uniform(0.02, 0.9), axis=0, method="higher")
        room[1] = max(room[1], np.quantile(plans.memory[:, 1], 0.5, method="higher"))
        plans = plans[(plans.memory <= room).all(axis=1)]
        if not len(plans.chosen):
            continue
        problem = instance.limited(max(1, int(room[0])), int(room[1]))
        met = [plans, instance.descended(plans.chosen[plans.slowest_ms.argmin()], room, ordered=False)]
        kept = plans[plans.ordered]
        if len(kept.chosen):
            met.append(instance.descended(kept.chosen[kept.slowest_ms.argmin()], room, ordered=True))
        counted = instance.counted
        anyhow = split_bound(counted.loads, problem, DEVICE_MOVES, counted.any_rows)
        first = split_bound(counted.loads, problem, DEVICE_MOVES, counted.hottest_first)
        unlimited = split_bound(counted.loads, problem, DEVICE_MOVES)
        assert 0.0 <= unlimited.ms <= anyhow.ms <= first.ms * (1 + 1e-9), seed
        for some in met:
            held["any rows"].hold(some, anyhow.ms, f"any rows {seed}")
            held["hottest first"].hold(some[some.ordered], first.ms, f"hottest first {seed}")
            if first.ms > 1.01 * unlimited.ms:
                held["memory binds"].hold(some[some.ordered], first.ms, f"memory {seed}")
            if whole:
                held["whole tables"].hold(
                    some, whole_table_bound_ms(counted.loads, problem, WHOLE_TABLE_MOVES), f"whole tables {seed}"
                )
    return held


def test_sums_of_cells_are_what_the_accounting_counts_and_validation_allows() -> None:
    for seed in range(12):
        instance = Instance(seed, whole=seed % 4 == 0)
        plans = instance.random(3)
        loads = instance.load(plans.chosen)
        for number, chosen in enumerate(plans.chosen):
            plan = instance.plan(chosen)
            validate(plan, instance.problem, DEVICE_MOVES)
            assert keeps_order(plan) == plans.ordered[number]
            memory = memory_bytes(plan, instance.problem)
            assert [memory.hbm.max(), memory.uvm.max()] == plans.memory[number].tolist()
            for n, bags in enumerate(instance.bags):
                traffic = count(plan, instance.problem, lambda i, b=bags: b[i], DenseShape())  # type: ignore[misc]
                np.testing.assert_allclose(loads.values[number, n], traffic.load.values)


def test_no_plan_of_small_problems_is_below_its_bound() -> None:
    held = hold_all(range(40))
    assert held["any rows"].plans > 3_000
    assert all(some.nearest for some in held.values())


@pytest.mark.slow
def test_none_of_100_000_plans_is_below_its_bound() -> None:
    held = hold_all(range(1_000, 2_200))
    for name, some in held.items():
        print(f"{name}: {some.plans} plans of {len(some.nearest)} problems, nearest {min(some.nearest):.6f}")
    assert held["any rows"].plans >= 100_000
    # A bound that nothing comes near would hold as well.
    assert min(held["any rows"].nearest) < 1.001
    assert min(held["whole tables"].nearest) < 1.001


WEIGHTS = ("forward", "lookups", "vectors", "sums", "rows", "backward")
PLANS = 16
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


def hold_steps(seeds: range, *, grouped: bool = False) -> tuple[int, dict[str, list[float]]]:
    """Plans that were held against their bounds, and by kind of bound the nearest plan's ratio of each problem."""
    held, nearest = 0, defaultdict[str, list[float]](list)
    for seed in seeds:
        groups = some_groups(seed) if grouped else None
        instance = StepInstance(seed, whole=seed % 4 == 0, expected=seed % 3 == 0, groups=groups)
        plans = instance.random(PLANS)
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


def test_no_plan_of_small_problems_takes_a_shorter_step_than_its_bound() -> None:
    held, nearest = hold_steps(range(6))
    assert held > 200
    assert set(nearest) == {"any rows", "own", "hottest first"}


def test_no_plan_with_sharding_groups_is_below_its_bound() -> None:
    held, nearest = hold_steps(range(100, 106), grouped=True)
    assert held > 200
    assert set(nearest) == {"any rows", "own", "hottest first"}


@pytest.mark.slow
def test_none_of_many_plans_with_sharding_groups_is_below_its_bound() -> None:
    held, nearest = hold_steps(range(2_000, 2_400), grouped=True)
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
    for _ in range(PLANS):
        rated = instance.rated(np.array([int(instance.rng.choice(own)) for own in choices]))
        assert all(rated.step_ms >= bound.ms for bound in instance.bounds(rated.plan).values())


@pytest.mark.slow
def test_none_of_50_000_plans_takes_a_shorter_step_than_its_bound() -> None:
    held, nearest = hold_steps(range(1_000, 1_800))
    for name, ratios in nearest.items():
        print(f"{name}: {len(ratios)} problems of {held} plans, nearest {min(ratios):.6f}")
    assert held >= 50_000
    # A bound that nothing comes near would hold as well.
    assert all(min(ratios) < 1.01 for ratios in nearest.values())
