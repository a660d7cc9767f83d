"""RecShard plans on real ranks: hot rows and cold rows pooled together equal the unsplit table."""

from dataclasses import replace
from pathlib import Path

import pytest
from problems import RandomWorkload, machine
from unsharded import on_ranks

from shardbench.model.machine import Machine
from shardbench.model.plan import OnRank, Plan, Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.model.table import Optimizer
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

SHAPES = [(1000, 16), (37, 16), (500, 16), (50, 16), (999, 16)]
SCARCE = machine(1, 2, hbm=10_000, uvm=200_000)


def planned(workload: RandomWorkload, on: Machine) -> tuple[Problem, Plan]:
    strategy = get_strategy("recshard")
    problem = workload.problem(on)
    plan = strategy.plan(problem.restricted_to(strategy.sees), Budget(), 0)
    validate(plan, problem, strategy.moves)
    return problem, plan


def test_two_ranks_equal_the_unsplit_tables_and_send_what_is_counted(tmp_path: Path):
    workload = RandomWorkload(SHAPES, 32)
    problem, plan = planned(workload, SCARCE)
    tiers = [{s.placement.tier for s in segments} for segments in plan.by_table().values()]
    assert sum(len(t) == 2 for t in tiers) >= 3
    for segments in plan.by_table().values():
        assert len({s.placement.rank for s in segments if isinstance(s.placement, OnRank)}) == 1
    ran = on_ranks(tmp_path, workload, problem, plan, batches=2)
    ran.check_trained()
    ran.check_sent()


def test_lookups_of_a_batch_fall_into_the_tiers_as_predicted():
    # The training batch itself: the shares of the plan's notes are those of the sample.
    workload = RandomWorkload(SHAPES, 256)
    _, plan = planned(workload, SCARCE)
    split = {name: sum(s.rows for s in own if s.placement.tier is Tier.HBM) for name, own in plan.by_table().items()}
    profiles = dict(zip((t.name for t in workload.tables), workload.profiles))
    hot = sum(p.lookups * float(p.cdf(split[name])) for name, p in profiles.items())
    assert plan.notes["expected_hbm_share"] == pytest.approx(hot / sum(p.lookups for p in profiles.values()))
    # Far fewer accesses than rows are cold.
    rows = sum(t.rows for t in workload.tables)
    assert 1.0 - plan.notes["expected_hbm_share"] < 1.0 - sum(split.values()) / rows


@pytest.mark.parametrize("optimizer", [Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAM])
def test_optimiser_state_counts_against_the_capacity(optimizer: Optimizer):
    strategy = get_strategy("recshard")
    workload = RandomWorkload(SHAPES, 32)
    roomy = machine(1, 2, hbm=10_000, uvm=1_000_000)
    plain = strategy.plan(workload.problem(roomy), Budget(), 0)
    problem = replace(workload.problem(roomy), optimizer=optimizer)
    plan = strategy.plan(problem, Budget(), 0)
    validate(plan, problem, strategy.moves)
    assert plan.notes["expected_hbm_share"] < plain.notes["expected_hbm_share"]
