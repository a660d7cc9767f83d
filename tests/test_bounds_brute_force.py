"""The proven bounds against very many plans: random ones, and those that a descent towards the fastest meets."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from bound_plans import Instance, Plans

from shardbench.cost.bounds.embedding import keeps_order, split_bound, whole_table_bound_ms
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.cost.traffic import count
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
    held = hold_all(range(60))
    assert held["any rows"].plans > 5_000
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
