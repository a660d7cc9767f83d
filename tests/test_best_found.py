"""What best_found gives: a local optimum of the judged costs, never above its start, near the best of all."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from learned_tasks import random_task
from problems import machine

from shardbench.base.errors import Infeasible
from shardbench.cost.load import Load
from shardbench.learned.tasks.best_found import best_found
from shardbench.learned.tasks.bound import placement_bound_ms
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task


def _with_bags(task: Task, seed: int) -> Task:
    longest = np.random.default_rng(seed).integers(0, 4000, task.tables).astype(np.float64)
    counted = Load(task.expected.values.copy())
    counted.chain[:] = longest
    return replace(task, counted=counted)


@pytest.mark.parametrize("seed", range(6))
def test_no_single_move_or_swap_improves_it(seed: int) -> None:
    task = _with_bags(random_task(9, seed, on=machine(devices=3)), seed)
    found, oracle = best_found(task, counted=True), SimulatedOracle(counted=True)
    cost = oracle.measure(task, found[None]).overall_ms[0]
    neighbours = []
    for table, device in itertools.product(range(9), range(3)):
        neighbours.append(np.where(np.arange(9) == table, device, found))
    for a, b in itertools.combinations(range(9), 2):
        swapped = found.copy()
        swapped[[a, b]] = found[[b, a]]
        neighbours.append(swapped)
    costs = oracle.measure(task, np.array(neighbours)).overall_ms
    assert costs.min() >= cost * (1 - 1e-9)
    assert cost >= placement_bound_ms(task, counted=True)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_near_the_best_of_all_placements(seed: int) -> None:
    task = _with_bags(random_task(7, seed, on=machine(devices=2)), seed)
    oracle = SimulatedOracle(counted=True)
    every = np.array(list(itertools.product(range(2), repeat=7)))
    best = oracle.measure(task, every).overall_ms.min()
    assert oracle.measure(task, best_found(task, counted=True)[None]).overall_ms[0] <= 1.05 * best


def test_memory_is_kept_to() -> None:
    task = random_task(8, 1)
    largest = int(task.sizes_bytes.max())
    tight = machine(devices=4, hbm=max(largest, int(1.15 * task.sizes_bytes.sum() / 4)))
    squeezed = Task.of(replace(task.problem, machine=tight, topology=tight.topology))
    assert not squeezed.over_capacity(best_found(squeezed, counted=False)[None]).any()
    none = machine(devices=4, hbm=largest - 1)
    with pytest.raises(Infeasible, match="greedy starts"):
        best_found(Task.of(replace(task.problem, machine=none, topology=none.topology)), counted=False)
