"""RecShard's plan of 397 made-up tables on 16 devices: a proven gap of 1 % well within its budget of 60 s."""

import importlib
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ratios import beside
from workloads import greedy_plan

from shardbench.model.discovery import get_strategy
from shardbench.model.strategy import Budget
from shardbench.model.validate import validate

pytestmark = pytest.mark.benchmark(timer=time.process_time)
made_up = importlib.import_module("shardbench.baselines.recshard.reproduction.production_like")
BUDGET = Budget(plan_s=60.0)


@pytest.mark.parametrize("size_gib", made_up.SIZES_GIB)
def test_a_gap_of_one_percent_within_its_budget(benchmark, size_gib):
    problem, strategy = made_up.production_like(size_gib), get_strategy("recshard")
    plan = benchmark.pedantic(strategy.plan, (problem.restricted_to(strategy.sees), BUDGET, 0), rounds=1, iterations=1)
    validate(plan, problem, strategy.moves)
    beside(benchmark, "a greedy-lookup plan", greedy_plan(problem))
    assert plan.notes["gap_pct"] <= 1.0
    assert benchmark.stats["max"] <= BUDGET.plan_s
