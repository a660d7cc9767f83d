"""Real TorchRec ranks: equal to the unsharded model, and sending the bytes that are counted."""

import os
import re
import runpy
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
import torch.distributed as dist
from problems import RandomWorkload, machine
from unsharded import OnRanks, on_ranks, train_unsharded

from shardbench.base.errors import Unsupported
from shardbench.base.serialise import to_json
from shardbench.engine.lower import lower
from shardbench.engine.measure import gather, measure, rank_job
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.job import JOB
from shardbench.engine.processes.launch import call_in_child
from shardbench.engine.processes.trial_folder import result_text
from shardbench.engine.sent_bytes import SentBytes
from shardbench.model.plan import (
    GroupSharded,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    row_ranges,
    whole_table,
    whole_tables,
)
from shardbench.model.table import Optimizer, Precision
from shardbench.records.trial import Outcome
from shardbench.workloads.materialise import materialise

SHAPES = [(1000, 16), (37, 16), (500, 16), (50, 16), (999, 16)]


def columns(table, pieces, ranks):
    edges = np.linspace(0, table.dim, pieces + 1).astype(int)
    return [whole_table(table, OnRank(rank=r), (int(a), int(b))) for a, b, r in zip(edges, edges[1:], ranks)]


def plan_of(kind: str, workload: RandomWorkload, nodes: int, devices: int) -> Plan:
    tables, world = workload.tables, nodes * devices
    everyone = tuple(range(world))
    node = tuple(range(world - devices, world))
    if kind == "table_wise":
        segments = whole_tables(tables, [i % world for i in range(len(tables))])
    elif kind == "one_rank":
        segments = whole_tables(tables, [world - 1] * len(tables))
    elif kind == "row_wise":
        segments = [whole_table(t, RowWise(ranks=everyone)) for t in tables]
    elif kind == "table_row_wise":
        segments = [whole_table(t, RowWise(ranks=node)) for t in tables]
    elif kind == "column_wise":
        segments = [s for t in tables for s in columns(t, 2, [0, world - 1])]
    elif kind == "node_sharded":
        segments = [whole_table(t, GroupSharded()) for t in tables]
    elif kind == "whole_copies":
        segments = [whole_table(t, OnLocalRank(local_rank=i % devices)) for i, t in enumerate(tables)]
    elif kind == "replicated":
        segments = [whole_table(t, Replicated(ranks=everyone)) for t in tables]
    else:
        last = world - 1
        ends = (100, Replicated(ranks=everyone)), (800, OnRank(rank=last)), (999, RowWise(ranks=everyone))
        segments = [
            whole_table(tables[0], OnRank(rank=0)),
            whole_table(tables[1], RowWise(ranks=everyone)),
            whole_table(tables[2], Replicated(ranks=everyone)),
            *columns(tables[3], 2, [last, 0]),
            *row_ranges(tables[4], *ends),
        ]
    return Plan(world_size=world, segments=tuple(segments))


def run(
    tmp_path: Path, kind: str, nodes: int, devices: int,
    precision=Precision.FP32, exchange=Precision.FP32, unpooled=frozenset(), **settings,
) -> OnRanks:  # fmt: skip
    workload = RandomWorkload(SHAPES, 32, unpooled=unpooled)
    problem = replace(workload.problem(machine(nodes, devices)), precision=precision, exchange=exchange)
    return on_ranks(tmp_path, workload, problem, plan_of(kind, workload, nodes, devices), batches=2, **settings)


KINDS = ["table_wise", "one_rank", "row_wise", "column_wise", "replicated", "mixed"]
CASES = [
    *((kind, 2, 2) for kind in ("mixed", "table_row_wise", "whole_copies")),
    *(pytest.param(kind, 2, 2, marks=pytest.mark.slow) for kind in KINDS[:-1]),
    ("one_rank", 1, 1),
    ("mixed", 1, 4),
    *(pytest.param(kind, *world, marks=pytest.mark.slow) for kind in KINDS[:-1] for world in ((1, 2), (1, 4))),
]
"""Plans of one kind on one node, and of kinds that are in the mixed plan, are slow tests: random plans
(test_random_plans.py) are on every shape."""


@pytest.mark.parametrize(("kind", "nodes", "devices"), CASES)
def test_ranks_equal_the_unsharded_model_and_send_what_is_counted(tmp_path, kind, nodes, devices):
    ran = run(tmp_path, kind, nodes, devices)
    ran.check_trained()
    ran.check_sent()


def test_steps_change_the_weights(tmp_path):
    # Guards the comparison above: a reference that did not learn would also "equal" a frozen model.
    ran = run(tmp_path, "table_wise", 1, 2, learning_rate=1.0)
    still = train_unsharded(ran.job.model_copy(update={"learning_rate": 1e-12})).weights
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(still, ran.sharded.weights, strict=True))


def test_row_wise_adagrad_equals_the_reference(tmp_path):
    # The first Adagrad steps are lr * sign(gradient): rounding of tiny gradients is amplified.
    ran = run(tmp_path, "row_wise", 1, 2, optimizer=Optimizer.ROWWISE_ADAGRAD, learning_rate=0.1)
    ran.check_trained(logits=1e-4, weights=1e-4)


@pytest.mark.parametrize("kind", ["table_wise", "row_wise", "replicated", "node_sharded", "whole_copies", "mixed"])
def test_half_precision_sends_what_is_counted(tmp_path, kind):
    unpooled = frozenset({1, 2}) if kind == "replicated" else frozenset[int]()
    ran = run(tmp_path, kind, 2, 1, precision=Precision.FP16, unpooled=unpooled)
    ran.check_trained(logits=1e-3, weights=1e-3)
    ran.check_sent()


EXCHANGED = [
    ("table_wise", 1, 2, Precision.FP16, frozenset()),
    ("column_wise", 1, 2, Precision.BF16, frozenset()),
    ("table_wise", 1, 2, Precision.BF16, frozenset({0, 2})),
    ("row_wise", 1, 2, Precision.FP16, frozenset({1})),
    ("row_wise", 1, 2, Precision.BF16, frozenset()),
    ("mixed", 1, 2, Precision.FP16, frozenset()),
    ("table_row_wise", 2, 2, Precision.FP16, frozenset()),
    ("node_sharded", 2, 2, Precision.BF16, frozenset({0})),
]


@pytest.mark.parametrize(("kind", "nodes", "devices", "exchange", "unpooled"), EXCHANGED)
def test_exchanges_in_two_bytes_are_counted_and_round_the_vectors(tmp_path, kind, nodes, devices, exchange, unpooled):
    ran = run(tmp_path, kind, nodes, devices, exchange=exchange, unpooled=unpooled)
    ran.check_sent()
    exact = train_unsharded(ran.job.model_copy(update={"exchange": Precision.FP32}))
    off = 1e-3 if exchange is Precision.FP16 else 8e-3
    assert 1e-6 < np.abs(np.concatenate(ran.sharded.logits) - np.concatenate(exact.logits)).max() < off
    if kind in ("table_wise", "column_wise"):
        # Whole rows are rounded once each way, on any rank: no parts of sums are.
        ran.check_trained(logits=1e-6, weights=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("kind", [*KINDS, "node_sharded", "whole_copies"])
def test_gpus_equal_the_unsharded_model(tmp_path, kind, gpus):
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} CUDA devices")
    workload = RandomWorkload(SHAPES, 32)
    problem = workload.problem(replace(machine(1, gpus), device="cuda"))
    plan = plan_of(kind, workload, 1, gpus)
    on_ranks(tmp_path, workload, problem, plan, batches=2, timeout_s=300).check_trained(logits=1e-3, weights=1e-4)


def test_phases_are_there_and_fit_the_step(tmp_path):
    measured = run(tmp_path, "mixed", 1, 2, iterations=5).measured
    for rank in measured.ranks:
        phases = np.sum([ms for name, ms in rank.ms.items() if name != "step"], axis=0)
        assert np.all(phases <= np.multiply(rank.ms["step"], 1.001))
        assert np.all(np.array(rank.ms["lookup"]) > 0)
        assert np.all(np.array(rank.ms["lookup_backward"]) > 0)
    assert len(measured.timing.step_ms) == 5
    timing = measured.timing
    assert len(timing.embedding_ms) == len(timing.embedding_cpu_ms) == len(timing.ranks) == 2
    assert measured.control_ms == ()
    for rank, result in zip(timing.ranks, measured.ranks, strict=True):
        assert rank.phases_ms["lookup"] == np.median(result.ms["lookup"])
        assert rank.phases_cpu_ms["lookup"] == np.median(result.cpu_ms["lookup"]) > 0
    # No control plan was asked for.
    other = measured.ranks[1].model_copy(update={"control_ms": [1.0] * 5})
    (tmp_path / "job" / "rank1.json").write_text(result_text(other))
    with pytest.raises(TrialFailed, match=r"rank1\.json has steps of a control plan, the job has none"):
        gather(tmp_path / "job")


def test_a_control_takes_its_turns_and_changes_neither_the_training_nor_the_bytes(tmp_path):
    control = plan_of("row_wise", RandomWorkload(SHAPES, 32), 2, 2)
    ran = run(tmp_path, "mixed", 2, 2, control=control, iterations=5)
    assert len(ran.measured.control_ms) == 5 == len(ran.measured.timing.step_ms)
    assert min(ran.measured.control_ms) > 0
    ran.check_sent()
    ran.check_trained()


def test_slow_ranks_are_a_timeout_with_their_phase_and_nobodys_fault(tmp_path, monkeypatch):
    workload = RandomWorkload(SHAPES, 32)
    problem = workload.problem(machine(1, 2))
    materialise(workload, tmp_path / "batches", range(1))
    plan = plan_of("table_wise", workload, 1, 2)
    # On a busy machine ranks may need longer to begin.
    for timeout_s in (1, 4, 16, 48):
        settings = {"warmup": 0, "iterations": 10_000_000, "seed": 0, "timeout_s": timeout_s}
        job = rank_job(plan, problem, workload.dense, tmp_path / "batches", **settings)
        with pytest.raises(TrialFailed) as caught:
            measure(job, tmp_path / f"job{timeout_s}")
        assert caught.value.failure.outcome is Outcome.TIMEOUT
        if caught.value.failure.phase == "time":
            break
    assert caught.value.failure.phase == "time"
    assert re.search(
        r"rank 0 time \(stamp \d+\), rank 1 time \(stamp \d+\); all go on: slow, not stuck$", caught.value.failure.cause
    )
    assert caught.value.failure.rank is None


def test_a_dead_rank_is_an_error_not_a_hang(tmp_path):
    workload = RandomWorkload(SHAPES, 32)
    problem = workload.problem(machine(1, 2))
    plan = plan_of("table_wise", workload, 1, 2)
    settings = {"warmup": 0, "iterations": 1, "seed": 0, "timeout_s": 60}
    job = rank_job(plan, problem, workload.dense, tmp_path / "no-such-folder", **settings)
    with pytest.raises(TrialFailed) as caught:
        measure(job, tmp_path / "job")
    assert caught.value.failure.outcome is Outcome.ERROR
    assert "no materialised batches" in caught.value.failure.cause
    assert caught.value.failure.phase == "start"


def broadcast_alone(store: str) -> None:
    """A group of one rank that waits, then broadcasts, under the eyes of the counter."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    with SentBytes(machine(1, 1).topology, "dense"):
        dist.barrier()
        dist.broadcast(torch.zeros(1), 0)


def test_a_collective_that_nobody_counts_is_not_passed_over(tmp_path):
    with pytest.raises(TrialFailed, match="used collective 'broadcast_', which the counter does not know"):
        call_in_child(broadcast_alone, (str(tmp_path / "store"),), timeout_s=60, phase="bytes", log=tmp_path / "log")


@pytest.mark.parametrize("started", ["as_torchrun_does", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_runs_under_torchrun(tmp_path, started):
    workload = RandomWorkload(SHAPES, 32)
    problem = workload.problem(machine(1, 2))
    materialise(workload, tmp_path / "batches", range(2))
    plan = plan_of("mixed", workload, 1, 2)
    settings = {"warmup": 1, "iterations": 2, "seed": 0, "timeout_s": 60}
    job = rank_job(plan, problem, workload.dense, tmp_path / "batches", **settings)
    (tmp_path / JOB).write_text(to_json(job))
    call_in_child(
        {"torchrun": _torchrun, "as_torchrun_does": _as_torchrun_does}[started], (tmp_path,), timeout_s=100,
        phase="torchrun", log=tmp_path / "log",
    )  # fmt: skip
    assert len(gather(tmp_path).timing.step_ms) == 2


def _torchrun(folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, "-m", "shardbench.engine.rank", str(folder)], check=True)


def _as_torchrun_does(folder: Path) -> None:
    """Torchrun starts two Pythons that import the engine, and imports it itself; these are forks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [os.fork() or _rank(folder, number, port) for number in range(2)]
    assert [os.waitpid(rank, 0)[1] for rank in ranks] == [0, 0]


def _rank(folder: Path, number: int, port: str) -> NoReturn:
    code = 1
    try:
        os.environ.update(
            RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )  # fmt: skip
        sys.argv = ["rank", str(folder)]
        sys.modules.pop("shardbench.engine.rank")
        runpy.run_module("shardbench.engine.rank", run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        os._exit(code)


def test_what_cannot_run_is_named():
    workload = RandomWorkload(SHAPES, 32)
    on = machine(2, 2)
    copies = Plan(world_size=4, segments=tuple(whole_table(t, GroupSharded()) for t in workload.tables))
    with pytest.raises(Unsupported, match="table 'table0': copies by group are kept equal by averaging, exact for sgd"):
        lower(copies, workload.tables, on.topology, Precision.FP32, optimizer=Optimizer.ADAM)
    with pytest.raises(Unsupported, match="FBGEMM's CPU kernels have no fused adam"):
        lower(
            plan_of("row_wise", workload, 2, 2), workload.tables, on.topology, Precision.FP32, optimizer=Optimizer.ADAM
        )
    with pytest.raises(Unsupported, match="row-wise Adagrad needs whole rows"):
        optimizer = Optimizer.ROWWISE_ADAGRAD
        lower(plan_of("column_wise", workload, 2, 2), workload.tables, on.topology, Precision.FP32, optimizer=optimizer)
    partly = Plan(world_size=4, segments=tuple(whole_table(t, RowWise(ranks=(0, 2))) for t in workload.tables))
    with pytest.raises(Unsupported, match="row-wise runs over all ranks or all ranks of one node"):
        lower(partly, workload.tables, on.topology, Precision.FP32)
    whole = plan_of("table_wise", workload, 2, 2)
    with pytest.raises(Unsupported, match="FBGEMM looks up no bf16 weights on a CPU"):
        lower(whole, workload.tables, on.topology, Precision.BF16)
    assert lower(whole, workload.tables, on.topology, Precision.BF16, device="cuda").precision is Precision.BF16
