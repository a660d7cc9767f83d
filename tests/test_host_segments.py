"""Hybrid and CPU-only training: where tables go, and what the CPUs' part costs, by hand."""

from dataclasses import replace

import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput, Infeasible, InvalidPlan, Unsupported
from shardbench.base.serialise import content_hash, to_json
from shardbench.cost.costmodel import (
    backward_s,
    dense_s,
    forward_s,
    host_backward_s,
    host_forward_s,
    step_time,
    synchronisation_s,
)
from shardbench.cost.traffic import Synchronisation, count
from shardbench.model.machine import HostConstants
from shardbench.model.machine_file import load_machine, machine_files, overridden, parse_machine
from shardbench.model.plan import DenseHome, Host, OnRank, Plan, whole_table
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Move
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy
from shardbench.workloads.trace import Split

WORKLOAD = RandomWorkload([(300, 8), (50, 8), (900, 8)], batch_size=16)
HOST = HostConstants(link_bytes_per_s=2e10, dense_flop_per_s=1e11, dense_step_s=1e-3, dense_layer_s=1e-4)


def on(nodes=1, devices=2, host=HOST):
    return WORKLOAD.problem(replace(machine(nodes, devices), host=host))


def counted(name, problem):
    plan = get_strategy(name).plan(problem, Budget(), 0)
    validate(plan, problem, frozenset({Move.HOST}))
    return count(plan, problem, lambda i: WORKLOAD.bags(Split.TEST, 0, i), WORKLOAD.dense)


def test_cpu_only_moves_nothing_and_computes_on_the_cpus():
    problem = on()
    traffic = counted("cpu-only", problem)
    assert traffic.dense is DenseHome.HOSTS
    assert not traffic.host_to_device_bytes.any()
    assert not any(c.sent.any() for c in traffic.collectives.values())
    time = step_time(traffic, problem.machine, WORKLOAD.dense, WORKLOAD.tables, 16)
    flop = 3 * 16 * WORKLOAD.dense.flops_per_sample(WORKLOAD.tables)
    assert time.phases_ms["dense"] == pytest.approx(
        1e3 * (flop / 1e11 + 1e-3 + 1e-4 * len(WORKLOAD.dense.layers(WORKLOAD.tables)))
    )
    constants = problem.machine.constants
    alone = [f(traffic.host, constants, float("inf"))[0] for f in (host_forward_s, host_backward_s)]
    alone[0] += constants.module_s
    assert [time.phases_ms["lookup"], time.phases_ms["lookup_backward"]] == pytest.approx([1e3 * s for s in alone])
    assert time.step_ms == pytest.approx(sum(time.phases_ms[p] for p in ("lookup", "dense", "lookup_backward")))


def test_the_hybrid_adds_copies_exchanges_and_a_faster_dense_model():
    problem = on()
    hybrid, alone = counted("hybrid", problem), counted("cpu-only", problem)
    assert hybrid.host.lookup_bytes.tolist() == alone.host.lookup_bytes.tolist()
    assert hybrid.host_to_device_bytes.tolist() == [16 * 3 * 8 * 4]
    assert hybrid.collectives["output_all_to_all"].sent.tolist() == [8 * 3 * 8 * 4, 0]
    times = [step_time(t, problem.machine, WORKLOAD.dense, WORKLOAD.tables, 16) for t in (hybrid, alone)]
    copied = 1e3 * 16 * 3 * 8 * 4 / 2e10
    assert times[0].phases_ms["lookup"] - times[1].phases_ms["lookup"] == pytest.approx(copied)
    # Without a stated link the UVM rate is used, as in a machine of before.
    bare = step_time(hybrid, replace(problem.machine, device="cuda", host=None), WORKLOAD.dense, WORKLOAD.tables, 16)
    slower = 1e3 * 16 * 3 * 8 * 4 / problem.machine.constants.uvm_bytes_per_s
    assert bare.phases_ms["lookup"] - times[1].phases_ms["lookup"] == pytest.approx(slower)
    assert synchronisation_s(Synchronisation(to_host_bytes=2e10), problem.machine) == pytest.approx(1.0)


def test_hosts_of_cpu_ranks_are_those_ranks():
    machine = replace(on().machine, device="cpu", host=None)
    hybrid = counted("hybrid", on())
    time = step_time(hybrid, machine, WORKLOAD.dense, WORKLOAD.tables, 16)
    kernels = [f(hybrid.host, machine.constants)[0] for f in (forward_s, backward_s)]
    kernels[0] += machine.constants.module_s
    assert [time.forward_ms[0], time.backward_ms[0]] == pytest.approx([1e3 * s for s in kernels])


def test_what_cannot_be_simulated_is_named():
    problem = on(host=None)

    # A CPU machine's devices are its CPUs; a GPU's are not.
    def seconds(name: str, of: Problem) -> float:
        traffic = counted(name, problem)
        return dense_s(traffic.history_columns, of.machine, WORKLOAD.dense, WORKLOAD.tables, 16, home=traffic.dense)

    assert seconds("cpu-only", problem) == seconds("hybrid", problem) > 0
    gpus = replace(problem, machine=replace(problem.machine, device="cuda"))
    with pytest.raises(BadInput, match=r"machine toy does not state its CPUs: add \[constants.host_dense_rate\]"):
        seconds("cpu-only", gpus)
    with pytest.raises(Unsupported, match="on one node only"):
        counted("cpu-only", on(nodes=2, devices=1))
    assert counted("hybrid", on(nodes=2, devices=1)).host.lookups.all()
    tables = tuple(whole_table(t, OnRank(rank=0) if i else Host(node=0)) for i, t in enumerate(WORKLOAD.tables))
    with pytest.raises(InvalidPlan, match="dense model is on hosts but table 'table1' is not"):
        validate(Plan(world_size=2, segments=tables, dense=DenseHome.HOSTS), problem, frozenset(Move))
    small = replace(problem.topology, host_bytes=300 * 8 * 4)
    with pytest.raises(Infeasible, match="table 'table2' needs 28800 bytes of host memory, at most 9600 are left"):
        get_strategy("hybrid").plan(replace(problem, topology=small), Budget(), 0)


def test_hosts_and_dense_homes_stay_out_of_the_hash_of_those_without():
    bare = machine(1, 2)
    assert '"host"' not in to_json(bare)
    assert content_hash(bare) != content_hash(replace(bare, host=HOST))
    plan = Plan(world_size=2, segments=(whole_table(WORKLOAD.tables[0], Host(node=0)),))
    assert '"dense"' not in plan.to_json()
    for home in DenseHome:
        moved = replace(plan, dense=home)
        assert Plan.from_json(moved.to_json()) == moved
    assert '"dense":"hosts"' in replace(plan, dense=DenseHome.HOSTS).to_json()


def test_machine_files_state_both_host_rates_or_none():
    stated = [name for name in machine_files() if load_machine(name).host is not None]
    assert "v100-16gb-1x4" in stated
    found = load_machine("v100-16gb-1x4")
    assert found.host.link_bytes_per_s == 12e9
    assert found.sources["host_dense_rate"].startswith("Intel ARK")
    faster = overridden(found, {"host_link": "48 GB/s"})
    assert (faster.host.link_bytes_per_s, faster.host.dense_flop_per_s) == (48e9, found.host.dense_flop_per_s)
    assert faster.name == "v100-16gb-1x4+host_link-48GBps"
    with pytest.raises(BadInput, match="unknown constant 'host_link' to override"):
        overridden(load_machine("a100-40gb-2x8"), {"host_link": "48 GB/s"})
    text = """
        name = "x"
        description = "x"
        device = "cuda"
        nodes = 1
        devices_per_node = 1
        constants.host_link = { value = 1, unit = "GB/s", source = "made up for a test" }
    """
    with pytest.raises(BadInput, match="constant 'access_overhead' is missing"):
        parse_machine(text, "x")
