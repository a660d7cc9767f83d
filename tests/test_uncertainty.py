"""Draws of the constants: their spread, that trials compare draw by draw, and what a record keeps of them."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput
from shardbench.cost.costmodel import step_time
from shardbench.cost.traffic import count
from shardbench.cost.uncertainty import DRAWS, deviations, drawn_machines
from shardbench.model.machine import HostConstants, load_machine, uncertain
from shardbench.model.plan import OnRank, Plan, Segment, Tier
from shardbench.model.problem import Problem
from shardbench.runs.simulate import simulate
from shardbench.workloads.materialise import materialise

TOY = machine()
KNOWN = replace(TOY, errors=dict.fromkeys(uncertain(TOY), 1.2))
WORKLOAD = RandomWorkload([(300, 32), (200, 16)], 64, pooling=8)


def problem_on(device) -> Problem:
    return Problem.of("random", WORKLOAD.tables, WORKLOAD.profiles, device, batch_size=64)


def plan(*placed: tuple[int, Tier]) -> Plan:
    segments = tuple(
        Segment(table=t.name, row_start=0, row_stop=t.rows, column_stop=t.dim, placement=OnRank(rank=rank, tier=tier))
        for t, (rank, tier) in zip(WORKLOAD.tables, placed, strict=True)
    )
    return Plan(world_size=2, segments=segments)


def test_deviations_are_standard_normal_and_of_the_name_alone():
    drawn = deviations("hbm_bytes_per_s")
    assert sorted(drawn) == pytest.approx([NormalDist().inv_cdf((i + 0.5) / DRAWS) for i in range(DRAWS)])
    assert np.array_equal(drawn, deviations("hbm_bytes_per_s"))
    # Independent of one another: no correlation beyond five times what chance gives.
    others = [deviations(name) for name in uncertain(load_machine("v100-16gb-1x4"))]
    correlations = np.corrcoef(others) - np.eye(len(others))
    assert np.abs(correlations).max() < 5 / np.sqrt(DRAWS)


def test_constants_spread_by_their_stated_error_and_shares_stay_shares():
    known = {"launch_s": 1.5, "gather_efficiency_ratio": 2.0, "uvm_bytes_per_s": 1.0}
    drawn = [m.constants for m in drawn_machines(replace(KNOWN, errors=KNOWN.errors | known))]
    logs = np.log([c.launch_s / TOY.constants.launch_s for c in drawn])
    assert logs.std() == pytest.approx(np.log(1.5), rel=0.02)
    assert np.median(logs) == pytest.approx(0.0, abs=0.01)
    assert max(c.gather_efficiency_ratio for c in drawn) == 1.0
    assert {c.uvm_bytes_per_s for c in drawn} == {TOY.constants.uvm_bytes_per_s}
    assert {c.cache_bytes for c in drawn} == {TOY.constants.cache_bytes}


def test_a_host_has_draws_of_its_own():
    known = replace(KNOWN, host=HostConstants(link_bytes_per_s=1e10, dense_flop_per_s=1e12))
    with pytest.raises(BadInput, match="toy does not say how well 'host_dense_rate' is known"):
        drawn_machines(known)
    drawn = drawn_machines(replace(known, errors=known.errors | {"host_dense_rate": 1.5, "host_link": 1.0}))
    hosts = [m.host for m in drawn if m.host is not None]
    assert len({h.dense_flop_per_s for h in hosts}) == DRAWS
    assert {h.link_bytes_per_s for h in hosts} == {1e10}


def test_machines_with_the_same_constants_err_alike():
    two, sixteen = (drawn_machines(load_machine(f"a100-40gb-{n}x8")) for n in (2, 16))
    assert [m.constants for m in two] == [m.constants for m in sixteen]


def test_draws_are_the_step_under_each_machine_and_certain_where_constants_are(tmp_path):
    batches = materialise(WORKLOAD, tmp_path / "b", range(2))
    problem, dense = problem_on(KNOWN), WORKLOAD.dense
    found = simulate(plan((0, Tier.HBM), (1, Tier.UVM)), problem, batches, dense, 2)
    draws = found.draws(problem, dense)
    assert draws is not None
    assert len(draws.step_ms) == len(draws.embedding_ms) == DRAWS
    chosen = drawn_machines(KNOWN)[17]
    placed = plan((0, Tier.HBM), (1, Tier.UVM))
    times = [
        step_time(count(placed, problem, lambda i, n=n: batches.bags(n, i), dense), chosen, dense, problem.tables, 64)
        for n in range(2)
    ]
    assert draws.step_ms[17] == pytest.approx(np.mean([t.step_ms for t in times]), rel=1e-5)
    assert draws.embedding_ms[17] == pytest.approx(np.mean([t.embedding_ms for t in times], axis=0).max(), rel=1e-5)
    assert min(draws.step_ms) < found.step_ms < max(draws.step_ms)
    exact = problem_on(replace(KNOWN, errors=dict.fromkeys(KNOWN.errors, 1.0)))
    certain = found.draws(exact, dense)
    assert certain is not None
    assert set(certain.step_ms) == {float(f"{found.step_ms:.6g}")}
    assert found.draws(problem_on(TOY), dense) is None
