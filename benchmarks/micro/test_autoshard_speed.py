"""CPU seconds to place with AutoShard, and to train it: an eighth of the paper's steps on 80 tables and 8 devices."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ratios import beside
from workloads import greedy_plan, random_problem

pytest.importorskip("torch")
from shardbench.baselines.autoshard.policy import place
from shardbench.baselines.autoshard.settings import AutoShardSettings
from shardbench.baselines.autoshard.training import AutoShardTraining
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.task import Task

STEPS = 12_000
TABLES = (80, 400, 856)

# CPU seconds: the reference beside is timed by the same clock.
pytestmark = pytest.mark.benchmark(timer=time.process_time)


@pytest.mark.parametrize("tables", TABLES)
def test_placing(benchmark, tables):
    """Features of the tables not included, beside the greedy plan of the same problem."""
    problem = random_problem(tables, 8)
    task = Task.of(problem)
    drawn = AutoShardTraining([task], SimulatedOracle(), 0, AutoShardSettings()).untrained()
    (placement,) = benchmark(place, drawn, [task])
    task.check(placement[None])
    beside(benchmark, "a greedy-lookup plan", greedy_plan(problem))


def test_training(benchmark):
    task = Task.of(random_problem(80, 8))
    settings = AutoShardSettings(total_steps=STEPS)

    def train():
        return AutoShardTraining([task], SimulatedOracle(), 0, settings).train()

    trained = benchmark.pedantic(train, rounds=2, iterations=1)
    benchmark.extra_info["steps"] = trained.updates * settings.update_steps
    assert trained.updates == settings.updates
    beside(benchmark, "a greedy-lookup plan", greedy_plan(task.problem))
