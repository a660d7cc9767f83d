"""CPU seconds of DreamShard's training with its default settings and a simulated oracle, and of placing."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ratios import beside
from workloads import greedy_plan, random_problem

from shardbench.model.discovery import get_strategy
from shardbench.model.strategy import Budget
from shardbench.model.validate import validate
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.subsets import part
from shardbench.tasks.task import Task

pytestmark = pytest.mark.benchmark(timer=time.process_time)
TABLES = (40, 80)


@pytest.mark.parametrize("tables", TABLES)
def test_training_on_4_devices(benchmark, tables):
    """With default settings, 50 tasks and a free oracle, beside the greedy plans of all its tasks."""
    pool, rng = Task.of(random_problem(428, 4)), np.random.default_rng(0)
    tasks = [part(pool, rng.permutation(pool.tables)[:tables]) for _ in range(50)]

    def train():
        return get_strategy("dreamshard").training(tasks, SimulatedOracle(), 0).train()

    trained = benchmark.pedantic(train, rounds=2, iterations=1)
    assert trained.oracle_calls == 100
    plans = [greedy_plan(task.problem) for task in tasks]
    beside(benchmark, "the greedy-lookup plans of its tasks", lambda: [plan() for plan in plans])


def test_placing_856_tables_on_8_devices(benchmark):
    """Features included, beside the greedy plan of the same problem."""
    strategy, problem = get_strategy("dreamshard"), random_problem(856, 8)
    strategy.fit((random_problem(20, 8), random_problem(30, 8, seed=1)), Budget(fit_s=1.0), 0)
    plan = benchmark.pedantic(strategy.plan, (problem, Budget(), 0), rounds=5, iterations=1)
    validate(plan, problem, strategy.moves)
    beside(benchmark, "a greedy-lookup plan", greedy_plan(problem))
