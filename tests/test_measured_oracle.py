"""The measured oracle: every different table set is timed once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from learned_tasks import random_problem, random_task
from problems import machine

from shardbench.base.errors import Unsupported
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task
from shardbench.model.table import Precision
from shardbench.workloads.trace import Bags

pytest.importorskip("fbgemm_gpu")
from shardbench.learned.tasks.measured_oracle import MeasuredOracle


class Counting(MeasuredOracle):
    """Answers with the number of tables in place of times, and remembers what was asked."""

    def __init__(self):
        super().__init__(lambda table: None, "l")
        self.asked = []

    def _time(self, tables, problem):
        numbers = [int(table.name[1:]) for table in tables]
        self.asked.append(tuple(numbers))
        return float(len(numbers)), 10.0 * sum(numbers)


def test_each_set_is_asked_once_and_empty_devices_cost_nothing():
    task = random_task(4, on=machine(devices=2))
    oracle = Counting()
    placements = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    costs = oracle.measure(task, placements)
    assert sorted(oracle.asked) == [(0, 1), (0, 1, 2, 3), (2, 3)]
    assert costs.forward_ms.tolist() == [[2.0, 2.0], [2.0, 2.0], [4.0, 0.0]]
    assert costs.backward_ms.tolist() == [[10.0, 50.0], [50.0, 10.0], [60.0, 0.0]]
    modelled = SimulatedOracle().measure(task, placements)
    np.testing.assert_allclose(costs.forward_comm_ms, modelled.forward_comm_ms)
    oracle.measure(task, placements)
    assert len(oracle.asked) == 3


def test_another_batch_or_precision_is_another_time():
    oracle, placement = Counting(), np.array([[0, 0]])
    for task in (random_task(2, on=machine(devices=2)), random_task(2, batch_size=480, on=machine(devices=2))):
        for precision in (Precision.FP16, Precision.FP32):
            oracle.measure(Task.of(replace(task.problem, precision=precision)), placement)
    assert oracle.asked == [(0, 1)] * 4
    if not torch.cuda.is_available():
        with pytest.raises(Unsupported):
            oracle.measure(Task.of(replace(task.problem, precision=Precision.BF16)), placement)


def test_real_kernels_are_timed(monkeypatch):
    monkeypatch.setattr("shardbench.learned.tasks.measured_oracle.WARMUPS", 0)
    monkeypatch.setattr("shardbench.learned.tasks.measured_oracle.RUNS", 2)
    problem = random_problem(3, on=machine(devices=2))
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 240 * 3 + 1, 3)

    def bags(table):
        return Bags(values=rng.integers(0, table.rows, 720), offsets=offsets)

    oracle = MeasuredOracle(bags, "made up")
    costs = oracle.measure(Task.of(problem), np.array([[0, 1, 0], [1, 1, 1]]))
    assert (costs.forward_ms > 0).tolist() == [[True, True], [False, True]]
    assert (costs.backward_ms > 0).tolist() == [[True, True], [False, True]]
    again = oracle.measure(Task.of(problem), np.array([[1, 1, 1]]))
    np.testing.assert_array_equal(again.device_ms, costs.device_ms[1:])


def test_sets_are_asked_as_placements_are():
    task, oracle = random_task(4, on=machine(devices=2)), Counting()
    oracle.measure(task, np.array([[0, 0, 1, 1]]))
    forward_ms, backward_ms = oracle.measure_sets(task, np.array([[1, 0, -1], [0, 1, 2], [-1, -1, -1], [2, 1, 0]]))
    assert oracle.asked[2:] == [(0, 1, 2)]
    assert forward_ms.tolist() == [2.0, 3.0, 0.0, 3.0]
    assert backward_ms.tolist() == [10.0, 30.0, 0.0, 30.0]
