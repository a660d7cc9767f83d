"""A batch schedule on real ranks: equal to unsharded training in its order, bytes and copies as counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from problems import RandomWorkload, machine
from unsharded import read_sharded, train_unsharded

from shardbench.base.errors import BadInput, Unsupported
from shardbench.engine.clock import clock_of
from shardbench.engine.inputs import in_schedule, in_turn, seeded_inputs, seeded_weights
from shardbench.engine.lower import lower
from shardbench.engine.measure import measure, rank_job
from shardbench.engine.processes.job import TO_DEVICE, TO_HOST
from shardbench.engine.processes.launch import call_in_child
from shardbench.engine.step import LocalBatch, StepSettings, TrainingStep, local_shards, set_weights
from shardbench.model.plan import (
    BatchSchedule,
    DenseHome,
    Host,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    row_ranges,
    whole_table,
)
from shardbench.model.strategy import Move
from shardbench.model.table import Optimizer, Precision
from shardbench.model.validate import validate
from shardbench.trials.simulate import simulate
from shardbench.workloads.hotness import PureBatch
from shardbench.workloads.materialise import materialise
from shardbench.workloads.trace import Split

KINDS = {"h": PhaseKind.HOT, "c": PhaseKind.COLD}
ORDER = "ccchhhhcchcchhhhh" + "hc" * 4
SHAPES = [(40, 8), (7, 8), (300, 16), (60, 8)]
HOT = (30, 7, 200, 45)
RATES = {Optimizer.SGD: 1.0, Optimizer.ROWWISE_ADAGRAD: 0.05}


def schedule_of(order):
    return BatchSchedule(phases=tuple(Phase(kind=KINDS[kind], batches=1) for kind in order))


def plan_of(workload, world, nodes=1, hot=HOT, order=ORDER):
    everyone, segments = Replicated(ranks=tuple(range(world))), []
    for i, (table, rows) in enumerate(zip(workload.tables, hot)):
        segments += row_ranges(table, (rows, everyone), (table.rows, Host(node=i % nodes)))
    return Plan(world_size=world, segments=tuple(segments), schedule=schedule_of(order))


def run(
    tmp_path, nodes, devices, *,
    workload=None, plan=None, optimizer=Optimizer.SGD, exchange=Precision.FP32, **settings,
):  # fmt: skip
    workload = workload or RandomWorkload(SHAPES, 24, pooling=2)
    problem = replace(workload.problem(machine(nodes, devices)), optimizer=optimizer, exchange=exchange)
    plan = plan or plan_of(workload, nodes * devices, nodes)
    validate(plan, problem, frozenset(Move))
    batches = materialise(workload, tmp_path / "batches", range(3))
    options = {"warmup": 1, "iterations": 5, "seed": 1, "timeout_s": 100, "learning_rate": RATES[optimizer], **settings}
    job = rank_job(plan, problem, workload.dense, tmp_path / "batches", **options)
    simulated = simulate(plan, problem, batches, workload.dense, 3)
    return job, measure(job, tmp_path / "job"), simulated


@pytest.mark.parametrize(
    ("optimizer", "nodes", "devices"),
    [
        (Optimizer.SGD, 1, 3),
        (Optimizer.SGD, 2, 2),
        (Optimizer.ROWWISE_ADAGRAD, 1, 1),
        (Optimizer.ROWWISE_ADAGRAD, 2, 2),
    ],
)
def test_phases_on_ranks_train_as_the_unsharded_model_does(tmp_path, optimizer, nodes, devices):
    job, measured, simulated = run(tmp_path, nodes, devices, optimizer=optimizer, dump=True)
    assert {*simulated.kinds} == {*PhaseKind}
    sharded, reference = read_sharded(job, tmp_path / "job"), train_unsharded(job)
    assert len(reference.logits) == len(ORDER)
    for ours, theirs in zip(sharded.logits, reference.logits, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    for ours, theirs in zip(sharded.weights, reference.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    assert (sharded.moments is None) == (optimizer is Optimizer.SGD)
    for ours, theirs in zip(sharded.moments or [], reference.moments or [], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-6)
    still = train_unsharded(job.model_copy(update={"learning_rate": 1e-12})).weights
    assert max(np.abs(a - b).max() for a, b in zip(still, sharded.weights)) > 0.05
    dumps = [np.load(tmp_path / "job" / f"rank{rank}.npz") for rank in range(nodes * devices)]
    replicas = [name for name in dumps[0].files if name.startswith("replica_")]
    assert len(replicas) == 2 * (1 + (optimizer is Optimizer.ROWWISE_ADAGRAD))
    for name in replicas:
        assert {dump[name].tobytes() for dump in dumps} == {dumps[0][name].tobytes()}
    assert_bytes(measured, simulated, nodes * devices)


def test_cold_mini_batches_exchange_in_two_bytes_and_hot_rows_gather_in_four(tmp_path):
    job, measured, simulated = run(tmp_path, 1, 2, exchange=Precision.FP16, dump=True)
    assert_bytes(measured, simulated, 2)
    exact = train_unsharded(job.model_copy(update={"exchange": Precision.FP32}))
    for ours, theirs in zip(read_sharded(job, tmp_path / "job").logits, exact.logits, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-2, atol=5e-3)


def assert_sent(measured, simulated):
    counted = {name: pytest.approx(pair) for name, pair in simulated.totals.collectives.items() if sum(pair)}
    assert {name: pair for name, pair in measured.sent.items() if sum(pair)} == counted
    return counted


def assert_bytes(measured, simulated, world):
    assert bool(assert_sent(measured, simulated)) == (world > 1)
    copies = simulated.traffic.synchronisation
    assert measured.copied == pytest.approx({TO_DEVICE: copies.to_device_bytes, TO_HOST: copies.to_host_bytes})
    assert copies.to_device_bytes == pytest.approx(world * copies.to_host_bytes)
    assert copies.to_host_bytes > 0


@pytest.mark.parametrize(("order", "shared"), [("cchc", {}), ("c", {}), ("h", {}), ("cchc", {0: 2, 1: 3, 2: 2})])
def test_sequences_silent_tables_and_schedules_of_one_kind(tmp_path, order, shared):
    # Few lookups of a sample, so that some samples are hot.
    pooling = 1 if shared else 2
    shapes = [(40, 8), (7, 8), (30, 8)]
    workload = RandomWorkload(shapes, 24, pooling=pooling, unpooled=frozenset({1}), shared=shared)
    hot = (40, 7, 30) if order == "h" else (30, 7, 0)
    if order == "c":
        hot = (0, 0, 0)
    plan = plan_of(workload, 2, hot=hot, order=order)
    job, measured, simulated = run(tmp_path, 1, 2, workload=workload, plan=plan, dump=True)
    assert {*simulated.kinds} == {KINDS[kind] for kind in order}
    sharded, reference = read_sharded(job, tmp_path / "job"), train_unsharded(job)
    for ours, theirs in zip(sharded.weights, reference.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    if order == "cchc":
        assert_bytes(measured, simulated, 2)
        return
    assert not measured.copied
    assert "synchronise" not in measured.timing.phases_ms
    assert assert_sent(measured, simulated)


def test_a_step_is_the_mean_over_samples_and_its_share_of_the_copies(tmp_path):
    control = replace(plan_of(RandomWorkload(SHAPES, 24), 2, hot=(0, 0, 0, 0)), schedule=None)
    _, measured, simulated = run(tmp_path, 1, 2, iterations=6, control=control)
    assert len(measured.control_ms) == 6
    timing = measured.timing
    assert len(timing.step_ms) == 6
    assert timing.phases_ms["synchronise"] > 0
    assert 0 < simulated.share(PhaseKind.HOT) < 1
    for rank in measured.ranks:
        phases = np.sum([ms for name, ms in rank.ms.items() if name != "step"], axis=0)
        assert np.all(phases <= np.multiply(rank.ms["step"], 1.001))
        assert sum(rank.shares) == pytest.approx(1)


def test_mini_batches_come_up_as_often_as_they_have_fresh_samples():
    def pure(kind, fresh):
        return PureBatch(kind=kind, samples=np.zeros(10, dtype=np.int64), fresh=fresh)

    batches = [pure(PhaseKind.COLD, 10), pure(PhaseKind.COLD, 10), pure(PhaseKind.COLD, 2), pure(PhaseKind.HOT, 3)]
    taken = in_turn(batches, PhaseKind.COLD, 22)
    assert [taken.count(n) for n in range(3)] == [10, 10, 2]
    assert taken[:4] == [0, 1, 2, 0]
    assert in_turn(batches, PhaseKind.HOT, 3) == [3, 3, 3]
    assert in_turn(batches[:3], PhaseKind.HOT, 3) == []
    kinds = [batch.kind for batch in batches]
    assert list(in_schedule(schedule_of("cchc"), kinds)) == [0, 1, 3, 2]
    assert list(in_schedule(schedule_of("hh"), kinds[:3])) == []


def test_cpu_only_trains_whole_batches_on_one_rank_and_sends_nothing(tmp_path):
    workload = RandomWorkload(SHAPES, 24)
    segments = plan_of(workload, 2, hot=(0, 0, 0, 0)).segments
    plan = Plan(world_size=2, segments=segments, dense=DenseHome.HOSTS)
    # All ranks hold the control, though one of them trains the plan.
    control = Plan(world_size=2, segments=tuple(whole_table(t, RowWise(ranks=(0, 1))) for t in workload.tables))
    job, measured, simulated = run(tmp_path, 1, 2, workload=workload, plan=plan, control=control, dump=True)
    assert all(step > 0 for step in measured.control_ms)
    sharded, reference = read_sharded(job, tmp_path / "job"), train_unsharded(job)
    for ours, theirs in zip(sharded.logits, reference.logits, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for ours, theirs in zip(sharded.weights, reference.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert not assert_sent(measured, simulated)
    assert all(step > 0 for step in measured.timing.step_ms)
    assert measured.timing.embedding_ms[1] == 0.0


def test_a_schedule_is_lowered_phase_by_phase_and_nothing_else_is():
    workload = RandomWorkload(SHAPES, 24)
    problem, plan = workload.problem(machine(1, 2)), plan_of(workload, 2)
    for chosen, phase in ((plan, None), (replace(plan, schedule=None), PhaseKind.HOT)):
        with pytest.raises(BadInput, match="a plan with a batch schedule, and no other, is lowered for one of"):
            lower(chosen, workload.tables, problem.topology, problem.precision, phase=phase)


def beside_gpus(folder, device):
    """Weights after two steps on hosts' tables, lowered for a kind of device, run by this process on its CPU."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder / device}", rank=0, world_size=1)
    workload = RandomWorkload(SHAPES, 24, pooling=2, unpooled=frozenset({1}))
    problem = workload.problem(machine(1, 1))
    lowered = lower(
        plan_of(workload, 1), workload.tables, problem.topology, problem.precision, device=device, phase=PhaseKind.COLD
    )
    settings = StepSettings(dense=workload.dense, optimizer=Optimizer.SGD, learning_rate=0.5, dense_seed=0)
    cpu = torch.device("cpu")
    step = TrainingStep(lowered, settings, cpu, clock_of(cpu))
    set_weights(step, lambda i: seeded_weights(workload.tables[i], i, 0))
    dense, labels = seeded_inputs(workload.dense, 24, 0, 0)
    sparse = lowered.local_lookups(lambda i: workload.bags(Split.TEST, 0, i))
    for _ in range(2):
        step(LocalBatch(dense=dense, sparse=sparse, labels=labels))
    names = sorted(type(module).__name__ for module in step.modules)
    return names, [tensor.numpy() for shards in local_shards(step.modules).values() for _, tensor in shards]


def test_hosts_tables_beside_gpus_train_as_ranks_tables_do(tmp_path):
    found = {
        device: call_in_child(beside_gpus, (tmp_path, device), timeout_s=100, phase="time", log=tmp_path / "log")
        for device in ("cpu", "cuda")
    }
    assert found["cpu"][0] == ["ShardedModule"] * 2
    assert found["cuda"][0] == ["HostTables"] * 2
    for a, b in zip(found["cpu"][1], found["cuda"][1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_beside_gpus_whole_tables_are_all_on_hosts_or_none():
    workload = RandomWorkload(SHAPES, 24)
    topology, precision = machine(1, 2).topology, workload.problem(machine(1, 2)).precision
    places = [Host(node=0), OnRank(rank=1), Host(node=0), Host(node=0)]
    plan = Plan(world_size=2, segments=tuple(whole_table(t, place) for t, place in zip(workload.tables, places)))
    assert lower(plan, workload.tables, topology, precision)
    with pytest.raises(Unsupported, match="table 'table1': beside GPUs, whole tables are all on hosts or all on dev"):
        lower(plan, workload.tables, topology, precision, device="cuda")
