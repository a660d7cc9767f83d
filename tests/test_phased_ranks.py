"""A batch schedule and FAE's phases on real ranks: equal to unsharded training in its order, bytes as counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from problems import RandomWorkload, machine
from torchrec.optim import RowWiseAdagrad
from unsharded import read_sharded, train_unsharded

from shardbench.base.errors import BadInput, Unsupported
from shardbench.engine.clock import clock_of
from shardbench.engine.dlrm import DenseModel
from shardbench.engine.inputs import in_schedule, in_turn, seeded_inputs, seeded_weights
from shardbench.engine.lower import lower
from shardbench.engine.measure import measure, rank_job
from shardbench.engine.phased.rowstore import RowStore, coalesce
from shardbench.engine.phased.training import GlobalBatch, PhasedModel, PhasedTrainer
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
from shardbench.model.table import DenseShape, Optimizer, Precision, Table
from shardbench.model.validate import validate
from shardbench.trials.simulate import simulate
from shardbench.workloads.hotness import PureBatch
from shardbench.workloads.materialise import materialise
from shardbench.workloads.trace import Bags, Split

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


TABLES = tuple(Table(name=f"t{i}", rows=rows, dim=8) for i, rows in enumerate((40, 7, 300)))
HOT_ROWS = (10, 7, 60)
MODEL = PhasedModel(
    tables=TABLES, hot=HOT_ROWS, dense=DenseShape(features=3, bottom=(8,), top=(6, 1)), learning_rate=1.0, dense_seed=0
)
LONG_ORDER = "ccchhhhcchhcchhhhh" + "hc" * 16


def batch(number, kind, samples=8):
    rng = np.random.default_rng([3, number])
    tables = []
    for table, hot in zip(TABLES, HOT_ROWS):
        lengths = rng.integers(0, 4, samples)
        rows = hot if kind is PhaseKind.HOT else table.rows
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tables.append(Bags(values=(rng.random(offsets[-1]) ** 2 * rows).astype(np.int64), offsets=offsets))
    labels = (rng.random(samples) < 0.4).astype(np.float32)
    return GlobalBatch(
        kind=kind, tables=tuple(tables), dense=rng.standard_normal((samples, 3), dtype=np.float32), labels=labels
    )


BATCHES = [batch(i, KINDS[kind]) for i, kind in enumerate(LONG_ORDER)]


def initial():
    return [seeded_weights(table, i, 0) for i, table in enumerate(TABLES)]


def unsharded(optimizer, batches):
    """The same batch order with whole tables, autograd and TorchRec's optimiser."""
    weights = [w.requires_grad_() for w in initial()]
    torch.manual_seed(0)
    dense = DenseModel(MODEL.dense, TABLES)
    kind = {Optimizer.SGD: torch.optim.SGD, Optimizer.ROWWISE_ADAGRAD: RowWiseAdagrad}[optimizer]
    rate = RATES[optimizer]
    optimizers = [torch.optim.SGD(dense.parameters(), lr=rate), kind(weights, lr=rate)]
    logits = []
    for one in batches:
        vectors = [
            torch.nn.functional.embedding_bag(
                torch.from_numpy(b.values.copy()), w, torch.from_numpy(b.offsets[:-1].copy()), mode="sum"
            )
            for b, w in zip(one.tables, weights)
        ]
        out = dense(torch.from_numpy(one.dense), vectors)
        for step in optimizers:
            step.zero_grad()
        torch.nn.BCEWithLogitsLoss()(out, torch.from_numpy(one.labels)).backward()
        for step in optimizers:
            step.step()
        logits.append(out.detach().numpy())
    moments = np.empty(0)
    if optimizer is Optimizer.ROWWISE_ADAGRAD:
        moments = torch.cat([optimizers[1].state[w]["sum"] for w in weights]).numpy().ravel()
    return logits, torch.cat(weights).detach().numpy(), moments


def alone(optimizer=Optimizer.ROWWISE_ADAGRAD):
    model = replace(MODEL, optimizer=optimizer, learning_rate=RATES.get(optimizer, 1.0))
    return PhasedTrainer(model, torch.cat(initial()))


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD])
def test_phases_train_as_the_unsharded_model_does(optimizer):
    assert len(BATCHES) == 50
    trainer, (logits, weights, moments) = alone(optimizer), unsharded(optimizer, BATCHES)
    for one, batch in zip(logits, BATCHES):
        np.testing.assert_allclose(trainer(batch).numpy(), one, rtol=2e-4, atol=2e-5)
    trainer.switch(PhaseKind.COLD)
    np.testing.assert_allclose(trainer.master.weights, weights, rtol=2e-4, atol=2e-5)
    if trainer.master.moments is not None:
        np.testing.assert_allclose(trainer.master.moments, moments, rtol=2e-4, atol=1e-6)
    # It is not the initial model that is compared.
    assert np.abs(weights - torch.cat(initial()).numpy()).max() > 0.05


def test_copies_keep_weights_and_moments_to_the_bit():
    trainer = alone()
    for one in BATCHES[:9]:
        trainer(one)
    trainer.switch(PhaseKind.COLD)
    weights, moments = trainer.master.weights.clone(), trainer.master.moments.clone()
    assert (moments > 0).any()
    trainer.switch(PhaseKind.HOT)
    slots = np.concatenate([np.arange(n) + start for n, start in zip(HOT_ROWS, (0, 40, 47))])
    assert torch.equal(trainer.replica.weights, weights[slots])
    assert torch.equal(trainer.replica.moments, moments[slots])
    trainer.switch(PhaseKind.COLD)
    assert torch.equal(trainer.master.weights, weights)
    assert torch.equal(trainer.master.moments, moments)
    assert trainer.switches == 4
    # What a hot batch learns is what comes back, nothing else moves.
    trainer(BATCHES[3])
    trainer.switch(PhaseKind.COLD)
    changed = (trainer.master.weights != weights).any(dim=1).nonzero().ravel().tolist()
    asked = {start + row for b, start in zip(BATCHES[3].tables, (0, 40, 47)) for row in b.values.tolist()}
    assert set(changed) <= asked
    assert len(changed) > 5


def test_duplicates_are_added_up_before_the_step():
    rows, summed = coalesce(torch.tensor([4, 1, 4]), torch.tensor([[1.0], [2.0], [3.0]]))
    assert rows.tolist() == [1, 4]
    assert summed.tolist() == [[2.0], [4.0]]
    store = RowStore(torch.zeros(5, 1), Optimizer.ROWWISE_ADAGRAD, 1.0)
    store.step(rows, summed)
    assert store.moments.tolist() == [0, 4, 0, 0, 16]  # (1 + 3)^2, not 1^2 + 3^2
    assert store.weights.ravel().tolist() == [0, -1, 0, 0, -1]


def test_wrong_batches_and_plans_are_refused():
    trainer = alone()
    bad = replace(BATCHES[0], kind=PhaseKind.HOT)
    with pytest.raises(BadInput, match=r"hot batch, table 't\d': lookup \d+ asks for row \d+, the table"):
        trainer(bad)
    beyond = Bags(values=np.array([300] * 8), offsets=np.arange(9))
    with pytest.raises(BadInput, match=r"cold batch, table 't2': lookup 0 asks for row 300"):
        trainer(replace(BATCHES[0], tables=(*BATCHES[0].tables[:2], beyond)))
    with pytest.raises(BadInput, match=r"cold batch, table 't2': lookup 0 asks for row 300"):
        trainer.predict(replace(BATCHES[0], tables=(*BATCHES[0].tables[:2], beyond)))
    short = Bags(values=np.array([1] * 7), offsets=np.arange(8))
    with pytest.raises(BadInput, match="table 't2': 7 bags for 8 labels"):
        trainer(replace(BATCHES[0], tables=(*BATCHES[0].tables[:2], short)))
    with pytest.raises(BadInput, match="bags of 2 tables, the model has 3"):
        trainer(replace(BATCHES[0], tables=BATCHES[0].tables[:2]))
    with pytest.raises(Unsupported, match="not adam"):
        alone(Optimizer.ADAM)
    with pytest.raises(BadInput, match="needs weights of 347 rows"):
        PhasedTrainer(MODEL, torch.cat(initial()[:2]))


def test_empty_batches_train_the_dense_model_alone():
    none = Bags(values=np.empty(0, dtype=np.int64), offsets=np.zeros(9, dtype=np.int64))
    empty = replace(BATCHES[3], tables=(none,) * 3)
    trainer = alone()
    for kind in PhaseKind:
        logits = trainer(replace(empty, kind=kind))
        assert torch.isfinite(logits).all()
    trainer.switch(PhaseKind.COLD)
    assert torch.equal(trainer.master.weights, torch.cat(initial()))
