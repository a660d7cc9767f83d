"""The control plan: valid wherever any plan is, made from the problem alone, and runnable; and cheap weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from problems import RandomWorkload, machine

from shardbench.base.errors import Infeasible
from shardbench.engine.lower import lower
from shardbench.engine.measure import measure, rank_job
from shardbench.engine.modules import Groups, make_modules
from shardbench.engine.operators import WEIGHT
from shardbench.engine.processes.launch import call_in_child
from shardbench.model.machine import Topology
from shardbench.model.plan import GroupSharded, Host, OnRank, Plan, Replicated, RowWise, Tier, whole_table
from shardbench.model.strategy import Move
from shardbench.model.table import Precision
from shardbench.model.validate import memory_bytes, validate
from shardbench.trials.control import control_plan
from shardbench.workloads.materialise import materialise

SHAPES = [(900, 16), (40, 8), (2000, 16), (70, 32), (500, 16), (1, 16), (3, 8)]
WORLDS = [(1, 1), (1, 2), (2, 2), (2, 4)]


def tight(nodes, devices, hbm, uvm, host):
    topology = Topology(nodes=nodes, devices_per_node=devices, hbm_bytes=hbm, uvm_bytes=uvm, host_bytes=host)
    return replace(machine(nodes, devices), topology=topology)


@pytest.mark.parametrize(("nodes", "devices"), WORLDS)
@pytest.mark.parametrize("unpooled", [frozenset(), frozenset({0, 3}), frozenset(range(7))])
def test_with_room_every_table_is_whole_and_reads_are_spread(nodes, devices, unpooled):
    problem = RandomWorkload(SHAPES, 64, unpooled=unpooled).problem(machine(nodes, devices))
    plan = control_plan(problem)
    validate(plan, problem, frozenset({Move.TABLE}))
    assert plan == control_plan(problem)
    read = {t.name: p.lookups * t.dim for t, p in zip(problem.tables, problem.profiles)}
    work = np.zeros(problem.world_size)
    for segment in plan.segments:
        work[segment.placement.rank] += read[segment.table]
    # Dearest first to the least loaded: no two ranks differ by more than the dearest table.
    assert np.ptp(work) <= max(read.values())


@pytest.mark.parametrize(("nodes", "devices"), WORLDS)
@pytest.mark.parametrize("seed", range(8))
def test_with_hardly_any_room_it_is_valid(nodes, devices, seed):
    rng = np.random.default_rng([seed, nodes, devices])
    shapes = [(int(rows), int(rng.choice([8, 16, 32]))) for rows in rng.integers(1, 4000, 6)]
    workload = RandomWorkload(shapes, 16 * nodes * devices, unpooled=frozenset({0}))
    world, roomy = nodes * devices, workload.problem(machine(nodes, devices))
    need, largest = sum(map(roomy.weight_bytes, roomy.tables)), max(t.dim * 4 for t in roomy.tables)
    # A tier holds a third of what is needed, and a row of each table more on every rank.
    hbm = uvm = need // (3 * world) + 8 * largest
    problem = workload.problem(tight(nodes, devices, hbm, uvm, need // (3 * nodes) + 8 * largest))
    plan = control_plan(problem)
    validate(plan, problem, frozenset(Move))
    tiers = {segment.placement.tier for segment in plan.segments if not isinstance(segment.placement, Host)}
    assert tiers == {Tier.HBM, Tier.UVM}


def test_what_fits_nowhere_is_said():
    problem = RandomWorkload(SHAPES, 64).problem(tight(1, 2, 1000, 1000, 1000))
    with pytest.raises(Infeasible, match=r"no control plan: [0-9]+ rows of table 'table[0-9]' fit nowhere"):
        control_plan(problem)


def test_a_device_keeps_half_of_its_memory_for_the_plan():
    on = replace(tight(1, 2, 200_000, 10**9, 0), device="cuda")
    problem = RandomWorkload(SHAPES, 64).problem(on)
    plan = control_plan(problem)
    memory = memory_bytes(plan, problem)
    assert 0 < memory.hbm.max() <= 100_000
    assert memory.uvm.sum() > 0


def test_a_control_that_is_cut_into_all_kinds_of_pieces_runs(tmp_path):
    workload = RandomWorkload(SHAPES[:5], 32, unpooled=frozenset({1}))
    problem = workload.problem(tight(2, 2, 30_000, 20_000, 70_000))
    control = control_plan(problem)
    assert {type(segment.placement) for segment in control.segments} == {OnRank, RowWise, Host}
    materialise(workload, tmp_path / "batches", range(1))
    settings = {"warmup": 1, "iterations": 1, "seed": 0, "timeout_s": 100}
    plan = Plan(world_size=4, segments=tuple(whole_table(t, OnRank(rank=0)) for t in workload.tables))
    job = rank_job(plan, problem, workload.dense, tmp_path / "batches", control=control, **settings)
    assert len(measure(job, tmp_path / "job").control_ms) == 1


def built_weights(store):
    """What modules of every kind start from, by logical table; a process of its own."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    workload = RandomWorkload([(50, 8)] * 6, 8, unpooled=frozenset({3, 4}))
    topology = machine(1, 1).topology
    places = [OnRank(rank=0), RowWise(ranks=(0,)), Replicated(ranks=(0,)), Replicated(ranks=(0,)), OnRank(rank=0)]
    segments = tuple(whole_table(t, place) for t, place in zip(workload.tables, [*places, GroupSharded()]))
    lowered = lower(Plan(world_size=1, segments=segments), workload.tables, topology, Precision.FP32)
    modules = make_modules(lowered, Groups(topology), (torch.optim.SGD, {"lr": 0.1}), torch.device("cpu"))
    weights = {name: t for m in modules for name, shards in m.shards().items() for _, t in shards}
    made = {name: t.detach().unique().tolist() for name, t in weights.items()}
    drawn = torch.empty(9).uniform_().unique().numel()
    dist.destroy_process_group()
    return made, drawn


def test_weights_are_written_and_not_drawn(tmp_path):
    made, drawn = call_in_child(
        built_weights, (str(tmp_path / "store"),), timeout_s=60, phase="build", log=tmp_path / "log"
    )
    assert made == {f"t{i}_s0": [pytest.approx(WEIGHT)] for i in range(6)}
    assert drawn == 9
