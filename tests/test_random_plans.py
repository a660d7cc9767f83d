"""Measured equals counted, and sharded equals unsharded: for random plans, and in TorchRec's pipeline."""

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from problems import RandomWorkload, machine
from random_plans import random_plans
from unsharded import OnRanks, on_ranks, train_unsharded

from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.serialise import from_data
from shardbench.cost.collectives import Calls, CollectiveName, group_calls
from shardbench.cost.phases import StepPhase
from shardbench.cost.traffic import count
from shardbench.engine.clock import clock_of
from shardbench.engine.contenders import build
from shardbench.engine.measure import rank_job
from shardbench.engine.processes import launch
from shardbench.engine.processes.job import RankJob
from shardbench.engine.processes.launch import run_ranks
from shardbench.engine.processes.trial_folder import write_job
from shardbench.engine.rank import SETTLING_STEPS, Rank
from shardbench.engine.sent_bytes import SentBytes
from shardbench.engine.step import Stamps
from shardbench.model.plan import (
    BatchSchedule,
    DenseHome,
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Tier,
    row_ranges,
    sharding_groups,
    whole_table,
)
from shardbench.model.table import Optimizer, Precision, StepSchedule
from shardbench.trials.simulate import simulate
from shardbench.trials.suite import TrialSettings
from shardbench.workloads.materialise import materialise

DEFAULT, MANY = 12, 200
"""Examples. All placements at once have a test of their own; these are of cuts by rows and by columns and of groups."""
ROUNDED = {Precision.FP32: 1, Precision.FP16: 50, Precision.BF16: 400}
"""Times by which results may be further off: a number has 24, 11 or 8 binary digits."""
SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck), "print_blob": True}


def without_copies(calls, plan, rank, topology) -> Calls:
    """The calls of the all-reduce of copies and replicas on a rank that has perhaps no copies."""
    places = [segment.placement for segment in plan.segments]
    groups = sharding_groups(plan.groups, topology)
    (_,), (own,) = np.nonzero(groups == rank)
    if any(isinstance(p, GroupSharded) or (isinstance(p, OnLocalRank) and p.local_rank == own) for p in places):
        return calls
    copied = any(isinstance(p, OnLocalRank) for p in places)
    return calls.plus(group_calls(groups.T, topology).times(-int(copied) / plan.sync_every))


def check(workload, problem, plan) -> None:
    """One step on one batch; bytes and calls are compared per rank, collective and link."""
    folder = Path(tempfile.mkdtemp(prefix="random-plan-"))
    try:
        ran = on_ranks(folder, workload, problem, plan, warmup=0, iterations=1)
        ran.check_sent()
        for rank in ran.measured.ranks:
            for name in CollectiveName:
                calls = ran.counted[0].collectives[name].calls
                if name is CollectiveName.ROWS_ALL_REDUCE:
                    calls = without_copies(calls, plan, rank.rank, problem.topology)
                assert rank.calls[0].get(name, Calls()) == calls, (rank.rank, name)
        # Parts of sums are rounded on ranks, and no two plans have the same.
        exact, times = (
            train_unsharded(ran.job.model_copy(update={"exchange": Precision.FP32})),
            ROUNDED[ran.job.exchange],
        )
        ran.check_trained(exact, logits=1e-5 * times, weights=5e-6 * times)
    finally:
        if "KEEP_RANDOM_PLANS" not in os.environ:
            shutil.rmtree(folder)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("features", "exchange", "distinct"),
    [
        (2, "fp32", True), (1, "fp16", False), pytest.param(1, "fp32", False, marks=SLOW),
        pytest.param(2, "bf16", True, marks=SLOW), pytest.param(2, "fp32", False, marks=SLOW),
    ],
)  # fmt: skip
def test_every_placement_at_once_on_two_nodes(features, exchange, distinct):
    everyone = (0, 1, 2, 3)
    places = [
        OnRank(rank=1), OnRank(rank=2, tier=Tier.UVM), RowWise(ranks=everyone), Replicated(ranks=everyone),
        GroupSharded(), OnLocalRank(local_rank=1), Host(node=1), RowWise(ranks=(2, 3)),
    ]  # fmt: skip
    # Table-row-wise sharding is of pooled tables only; the sequences are of two widths.
    shapes = [(40, 16)] * len(places) + [(40, 8), (40, 16)] * (len(places) - 1)
    sequences = range(len(places), len(shapes))
    shared = dict.fromkeys(range(len(shapes)), features)
    workload = RandomWorkload(
        shapes, 12, pooling=3, seed=1, unpooled=frozenset(sequences), shared=shared, distinct=distinct
    )
    homes = places + [place for place in places[:-1] for _ in range(2)]
    segments = tuple(map(whole_table, workload.tables, homes))
    problem = replace(workload.problem(machine(2, 2)), exchange=Precision(exchange))
    check(workload, problem, Plan(world_size=4, segments=segments))


@settings(max_examples=DEFAULT, **SETTINGS)
@given(random_plans())
def test_measured_equals_counted(case):
    check(*case)


@pytest.mark.slow
@settings(max_examples=MANY, **SETTINGS)
@given(random_plans())
def test_measured_equals_counted_over_many_plans(case):
    check(*case)


BATCHES = 3


def job_of(workload, problem, plan, folder: Path, **given) -> RankJob:
    options = {"warmup": 2, "iterations": 4, "seed": 1, "timeout_s": 100, "learning_rate": 0.5, "dump": True, **given}
    job = rank_job(plan, problem, workload.dense, folder / "batches", **options)
    return job.model_copy(update={"schedule": StepSchedule.PIPELINED})


def pipelined(folder: Path, workload, problem, plan, **given) -> OnRanks:
    settings = {"warmup": 2, "iterations": 4, "schedule": StepSchedule.PIPELINED, **given}
    return on_ranks(folder, workload, problem, plan, batches=BATCHES, **settings)


def check_pipelined(workload, problem, plan, **given) -> None:
    """A step on each of three batches equals the unsharded model, and sends of each batch what is counted of it."""
    folder, workload.test_batches = Path(tempfile.mkdtemp(prefix="pipelined-")), BATCHES
    try:
        ran = pipelined(folder, workload, problem, plan, **given)
        ran.check_sent()
        ran.check_trained(weights=1e-5)
    finally:
        shutil.rmtree(folder)


def everything(nodes: int, devices: int) -> tuple[RandomWorkload, Plan]:
    """Every placement, pooled and not, ranges of rows and columns, and a table of two features."""
    everyone = tuple(range(nodes * devices))
    last = len(everyone) - 1
    places = [OnRank(rank=last), RowWise(ranks=everyone), Replicated(ranks=everyone), GroupSharded(),
              OnLocalRank(local_rank=0)]  # fmt: skip
    shapes = [(40, 16)] * (2 * len(places) + 2)
    sequences = frozenset(range(len(places), 2 * len(places)))
    workload = RandomWorkload(shapes, 12, pooling=3, seed=1, unpooled=sequences, shared={0: 2, 5: 2})
    *whole, columns, rows = workload.tables
    segments = [whole_table(table, place) for table, place in zip(whole, places * 2)]
    segments += [whole_table(columns, OnRank(rank=r), (a, a + 8)) for a, r in ((0, 0), (8, last))]
    ends = (9, Replicated(ranks=everyone)), (20, OnRank(rank=0)), (40, RowWise(ranks=everyone))
    segments += row_ranges(rows, *ends)
    return workload, Plan(world_size=len(everyone), segments=tuple(segments))


@pytest.mark.parametrize(("nodes", "devices"), [(1, 2), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_every_placement_at_once(nodes, devices):
    workload, plan = everything(nodes, devices)
    # The control's own pipeline is stepped in between.
    control = Plan(
        world_size=plan.world_size,
        segments=tuple(whole_table(t, RowWise(ranks=tuple(range(plan.world_size)))) for t in workload.tables),
    )
    check_pipelined(workload, workload.problem(machine(nodes, devices)), plan, control=control)


@settings(max_examples=6, **SETTINGS)
@given(random_plans())
def test_a_pipeline_trains_and_sends_as_counted(case):
    check_pipelined(*case)


@pytest.mark.slow
@settings(max_examples=100, **SETTINGS)
@given(random_plans())
def test_a_pipeline_trains_and_sends_as_counted_over_many_plans(case):
    check_pipelined(*case)


def two_tables(kind) -> tuple[RandomWorkload, Plan]:
    workload = RandomWorkload([(90, 16), (40, 16)], 12, pooling=9)
    workload.test_batches = BATCHES
    return workload, Plan(world_size=2, segments=tuple(whole_table(table, kind) for table in workload.tables))


@pytest.mark.parametrize("kind", [Replicated(ranks=(0, 1)), RowWise(ranks=(0, 1))])
def test_row_wise_adagrad_keeps_its_moments(kind, tmp_path):
    workload, plan = two_tables(kind)
    given = {"optimizer": Optimizer.ROWWISE_ADAGRAD, "learning_rate": 0.1}
    pipelined(tmp_path, workload, workload.problem(machine(1, 2)), plan, **given).check_trained(
        logits=1e-4, weights=1e-4
    )


class Seen(SentBytes):
    """The counter, which also keeps the order of collectives."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.order: list[str] = []

    def _called(self, name, ranks) -> None:
        self.order.append(str(name))
        super()._called(name, ranks)


def in_order(folder: Path) -> int:
    """Write the collectives of three steps of a rank, and what the pipeline holds after each."""
    rank = Rank(folder)
    plan = build(rank.job, rank.job.plan, (rank.rank, rank.world, rank.device), clock_of(rank.device))
    step, found = plan.contender.step, []
    for iteration in range(SETTLING_STEPS):
        plan.contender.take(iteration)
    for iteration in range(SETTLING_STEPS, SETTLING_STEPS + BATCHES):
        seen = step.bytes = Seen(rank.job.topology, step.dense_group.group_name)
        with seen:
            plan.contender.take(iteration)
        batches = plan.contender.batches
        holds = [step.holds(batch) for batch in batches].index(True)
        waiting = len(step._pipeline.contexts[0].input_dist_tensors_requests)
        sent = seen.totals[CollectiveName.INPUT_ALL_TO_ALL][0], seen.totals[CollectiveName.OUTPUT_ALL_TO_ALL][0]
        found.append({"order": seen.order, "holds": holds, "waiting": waiting, "sent": sent})
    (folder / f"rank{rank.rank}.json").write_text(json.dumps(found))
    return 0


def test_the_next_batchs_lookups_are_sent_within_the_step(tmp_path, monkeypatch):
    # These ranks leave what they saw, and no result of a trial.
    monkeypatch.setattr(launch, "without_result", lambda folder, rank: None)
    workload, plan = two_tables(OnRank(rank=1))
    batches = materialise(workload, tmp_path / "batches", range(BATCHES))
    problem = workload.problem(machine(1, 2))
    write_job(job_of(workload, problem, plan, tmp_path), tmp_path / "job")
    run_ranks(in_order, tmp_path / "job", 2, 60.0)
    wanted = [count(plan, problem, lambda i, n=n: batches.bags(n, i), workload.dense) for n in range(BATCHES)]
    lookups = [traffic.collectives[CollectiveName.INPUT_ALL_TO_ALL].sent_intra for traffic in wanted]
    assert len({sent[0] for sent in lookups}) == BATCHES
    for rank in range(2):
        for at, seen in enumerate(json.loads((tmp_path / "job" / f"rank{rank}.json").read_text()), SETTLING_STEPS):
            following = (at + 1) % BATCHES
            # Numbers go out before this batch's vectors, the lookups themselves before the backward pass.
            first, *others = [name for name in seen["order"] if "reduce" not in name]
            assert first == "input_splits"
            assert others == ["output_all_to_all", "input_all_to_all", "input_all_to_all", "backward_all_to_all"]
            assert seen["holds"] == following
            assert seen["waiting"] == 1
            assert seen["sent"][0] == lookups[following][rank]


@pytest.mark.gpu
@pytest.mark.parametrize("gpus", [1, 2])
def test_gpus_train_in_a_pipeline_as_the_unsharded_model_does(tmp_path, gpus):
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} CUDA devices")
    workload, plan = everything(1, gpus)
    workload.test_batches = BATCHES
    problem = workload.problem(replace(machine(1, gpus), device="cuda"))
    pipelined(tmp_path, workload, problem, plan, timeout_s=300).check_trained(logits=1e-3, weights=1e-3)


def test_a_steps_pieces_add_up_to_its_phases():
    def between(start, stop):
        return float(stop - start)

    laps = [
        StepPhase.UPDATE, StepPhase.INPUT, StepPhase.INPUT, StepPhase.OUTPUT, StepPhase.LOOKUP, StepPhase.OUTPUT,
        StepPhase.OUTPUT, StepPhase.DENSE, StepPhase.INPUT, StepPhase.OUTPUT_BACKWARD, StepPhase.UPDATE,
        StepPhase.INPUT,
    ]  # fmt: skip
    marks = [0, 1, 3, 4, 5, 9, 10, 12, 20, 21, 40, 43, 48]
    stamps = Stamps(marks=marks, laps=laps, vectors_ready=[26, 27], lookups=[(28, 30), (33, 36)])
    assert stamps.read(SimpleNamespace(ms=between, process_ms=lambda *_: None))[0] == {
        "input": 2 + 1 + 1 + 5,
        "lookup": 4,
        "output": 1 + 1 + 2,
        "dense": 8 + 5,
        "output_backward": 40 - 26 - 5,
        "lookup_backward": 5,
        "update": 1 + 3,
        "step": 48,
    }


def test_an_unknown_schedule_is_one_clear_line():
    with pytest.raises(BadInput, match=r"^here: schedule: Input should be 'sequential' or 'pipelined'$"):
        from_data(TrialSettings, {"schedule": "piped"}, "here")


@pytest.mark.parametrize("why", ["a schedule", "a dense model on hosts", "a table on hosts beside GPUs"])
def test_what_no_pipeline_runs_is_refused_before_ranks_run(tmp_path, why):
    workload, plan = two_tables(Host(node=0) if "beside GPUs" in why else Replicated(ranks=(0, 1)))
    on = replace(machine(1, 2), device="cuda" if "beside GPUs" in why else "cpu")
    problem = replace(workload.problem(on), schedule=StepSchedule.PIPELINED)
    if why == "a schedule":
        plan = replace(plan, schedule=BatchSchedule(phases=(Phase(kind=PhaseKind.HOT, batches=1),)))
    elif "dense" in why:
        plan = replace(plan, dense=DenseHome.HOSTS)
    batches = materialise(workload, tmp_path / "batches", range(1))
    with pytest.raises(Unsupported, match=r'runs neither batch schedules nor .*: train them with schedule = "seq'):
        simulate(plan, problem, batches, workload.dense, 1)
