"""Seconds of one plan of every strategy that makes one in time."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from workloads import random_problem

from shardbench.model.discovery import missing_modules, strategies
from shardbench.model.strategy import Budget, Strategy
from shardbench.model.validate import validate

PROBLEM = random_problem(40, 16)


@pytest.mark.parametrize("name", sorted(strategies()))
def test_planning(benchmark, name):
    strategy = strategies()[name]
    assert not missing_modules(strategy), "nox -s micro installs the engine"
    seen = PROBLEM.restricted_to(strategy.sees)
    if type(strategy).fit is not Strategy.fit:
        strategy.fit((seen,), Budget(fit_s=5), 0)
    plan = benchmark.pedantic(strategy.plan, (seen, Budget(plan_s=120), 0), rounds=3, iterations=1)
    validate(plan, PROBLEM, strategy.moves)
