"""Measured and recorded oracles: every different table set once, and nothing that was not measured."""

import numpy as np
import pytest
from learned_tasks import random_problem, random_task
from problems import machine

from shardbench.base.errors import BadInput
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.recorded_oracle import Conditions, RecordedOracle, SetOracle, SetTime, SetTimes, read, set_key
from shardbench.tasks.task import Task
from shardbench.workloads.trace import Bags

CONDITIONS = Conditions(environment="e", device="cpu", lookups="l", batch_size=240, precision="fp16", warmups=1, runs=1)


class Counting(SetOracle):
    """Answers with the number of tables, and remembers what was asked."""

    asked: list[tuple[int, ...]]

    @property
    def identity(self):
        return "counting"

    def _find(self, task, wanted):
        self.asked = [*getattr(self, "asked", []), *wanted.values()]
        self.sets.add(
            [
                SetTime(key=k, tables=tuple(map(str, m)), forward_ms=float(len(m)), backward_ms=10.0 * sum(m))
                for k, m in wanted.items()
            ]
        )


def test_each_set_is_asked_once_and_empty_devices_cost_nothing(tmp_path):
    task = random_task(4, on=machine(devices=2))
    oracle = Counting(SetTimes(CONDITIONS, tmp_path / "times.jsonl"))
    placements = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    costs = oracle.measure(task, placements)
    assert sorted(oracle.asked) == [(0, 1), (0, 1, 2, 3), (2, 3)]
    assert costs.forward_ms.tolist() == [[2.0, 2.0], [2.0, 2.0], [4.0, 0.0]]
    assert costs.backward_ms.tolist() == [[10.0, 50.0], [50.0, 10.0], [60.0, 0.0]]
    modelled = SimulatedOracle().measure(task, placements)
    np.testing.assert_allclose(costs.forward_comm_ms, modelled.forward_comm_ms)
    oracle.measure(task, placements)
    assert len(oracle.asked) == 3

    recorded = RecordedOracle(tmp_path / "times.jsonl")
    np.testing.assert_array_equal(recorded.measure(task, placements).device_ms, costs.device_ms)
    with pytest.raises(BadInput, match=r"has no cost of the tables t\d, t\d together \(2 sets are unknown\)"):
        recorded.measure(task, np.array([[0, 1, 0, 1]]))


def test_a_file_goes_on_only_under_its_own_conditions(tmp_path):
    path = tmp_path / "times.jsonl"
    task = random_task(2, on=machine(devices=2))
    Counting(SetTimes(CONDITIONS, path)).measure(task, np.array([[0, 1]]))
    again = Counting(SetTimes(CONDITIONS, path))
    again.measure(task, np.array([[1, 0]]))
    assert not hasattr(again, "asked")
    others = Conditions(**{**CONDITIONS.__dict__, "lookups": "other"})
    with pytest.raises(BadInput, match="measured under other conditions"):
        SetTimes(others, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("{}\n", "line 1"), (None, "cannot be read")],
)
def test_broken_files_are_refused(tmp_path, text, message):
    path = tmp_path / "times.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read(path)


def test_another_batch_or_precision_is_refused():
    task = random_task(2, batch_size=480)
    with pytest.raises(BadInput, match="batches of 480 in fp16, the times are for 240 in fp16"):
        Counting(SetTimes(CONDITIONS)).measure(task, np.array([[0, 1]]))


def test_the_order_of_a_set_does_not_count():
    assert set_key(["a", "b"]) == set_key(["b", "a"]) != set_key(["ab"])


def test_real_kernels_are_timed_and_kept(tmp_path):
    pytest.importorskip("fbgemm_gpu")
    from shardbench.tasks.measured_oracle import MeasuredOracle  # noqa: PLC0415

    problem = random_problem(3, on=machine(devices=2))
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 240 * 3 + 1, 3)

    def bags(table):
        return Bags(values=rng.integers(0, table.rows, 720), offsets=offsets)

    path = tmp_path / "times.jsonl"
    oracle = MeasuredOracle(bags, "made up", 240, problem.precision, path, warmups=0, runs=2)
    costs = oracle.measure(Task.of(problem), np.array([[0, 1, 0], [1, 1, 1]]))
    assert (costs.forward_ms > 0).tolist() == [[True, True], [False, True]]
    assert (costs.backward_ms > 0).tolist() == [[True, True], [False, True]]
    conditions, times = read(path)
    assert {time.tables for time in times.values()} == {("t0", "t2"), ("t1",), ("t0", "t1", "t2")}
    assert conditions.precision == "fp16"
    again = RecordedOracle(path).measure(Task.of(problem), np.array([[1, 1, 1]]))
    np.testing.assert_array_equal(again.device_ms, costs.device_ms[1:])


def test_sets_are_asked_as_placements_are():
    task, oracle = random_task(4, on=machine(devices=2)), Counting(SetTimes(CONDITIONS))
    oracle.measure(task, np.array([[0, 0, 1, 1]]))
    forward_ms, backward_ms = oracle.measure_sets(task, np.array([[1, 0, -1], [0, 1, 2], [-1, -1, -1], [2, 1, 0]]))
    assert oracle.asked[2:] == [(0, 1, 2)]
    assert forward_ms.tolist() == [2.0, 3.0, 0.0, 3.0]
    assert backward_ms.tolist() == [10.0, 30.0, 0.0, 30.0]
