"""A plan for another machine, and a trace whose row exceeds its table: one clear line each."""

import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import InvalidPlan
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.strategy import Move
from shardbench.model.validate import validate

TRACE_SUITE = """
name = "own"
description = "a trace that asks for too much"
[[workloads]]
name = "mine"
dataset = "trace"
files = ["rows.txt"]
rows = [10]
batch_size = 2
pooling = 1
[[grids]]
machines = ["cpu-1x2"]
backends = ["simulated"]
iterations = 1
"""


def test_a_plan_for_another_machine():
    workload = RandomWorkload([(100, 16), (50, 16)], batch_size=8)
    plan = Plan(world_size=4, segments=whole_tables(workload.tables, [0, 3]))
    with pytest.raises(InvalidPlan, match=r"^plan is for 4 devices, the machine has 2$"):
        validate(plan, workload.problem(machine(devices=2)), frozenset())


def test_a_plan_that_does_not_fit_the_machine():
    workload = RandomWorkload([(100, 16), (50, 16)], batch_size=8)
    plan = Plan(world_size=2, segments=whole_tables(workload.tables, [0, 0]))
    with pytest.raises(InvalidPlan, match=r"^device 0 needs 9600 bytes of HBM but has 5000 "):
        validate(plan, workload.problem(machine(hbm=5000)), frozenset({Move.TABLE}))


def test_a_trace_row_beyond_its_table(tmp_path, command):
    (tmp_path / "rows.txt").write_text("0\n9\n10\n3\n4\n5\n6\n7\n")
    (tmp_path / "suite.toml").write_text(TRACE_SUITE)
    said = command("run", tmp_path / "suite.toml", "--data", tmp_path, "--results", tmp_path / "results", code=2)
    assert said == "error: rows.txt line 3: '10' is not a row index below 10: one index a line\n"
    assert not (tmp_path / "results").exists()
