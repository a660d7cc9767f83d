"""Predicted peaks of ranks: by hand, as properties of any plan, beside real ranks, and where plans fail."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import memory_peaks
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from memory_peaks import BATCHES, COLUMNS, WORKLOADS, cases, errors, fits, measured, slack_needed, worst
from peak_ranks import PeakClock
from problems import bags, machine
from random_plans import random_plans

from shardbench.advice.peak import MOST_TIMES, DeviceMemory, first_above
from shardbench.base.errors import Unsupported
from shardbench.base.memory import GIB
from shardbench.cli.plan_answer import _peak_lines
from shardbench.cost.lookups import CountedLookups
from shardbench.cost.memory.fullest import STATED, Peak, device_bytes, predicted_peak
from shardbench.cost.memory.peak import CPU, CUDA, TERMS, Term
from shardbench.cost.memory.step import peak_memory
from shardbench.cost.phases import StepPhase
from shardbench.cost.published.memory import published_memory, published_plans
from shardbench.model.constraints import Constraints
from shardbench.model.plan import (
    BatchSchedule,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Segment,
    whole_table,
)
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Optimizer, Pooling, Precision, StepSchedule, Table
from shardbench.model.validate import memory_bytes
from shardbench.workloads.kinds import workload_config

PEAKS = Path(__file__).parent.parent / "results" / "tables" / "memory"
NOTHING = replace(CPU, context_bytes=0.0, segment_bytes=0.0, slack_ratio=0.0, sort_bytes=0.0, table_sort_bytes=0.0,
                  row_bytes=0.0, map_bytes=0.0)  # fmt: skip
DENSE = DenseShape(features=1, bottom=(8,), top=(1,))
EVERYONE = (0, 1)


def one_table(pooling: Pooling, plan_of, *, distinct=False, **training):
    """A table of 100 rows of 8 numbers and a batch of 4 samples, each of which asks for rows 0, 1 and 2."""
    table = Table(name="t", rows=100, dim=8, pooling=pooling, distinct=distinct)
    profile = AccessProfile(rows=100, samples=4, present=4, counts=(4,), row_counts=(3,))
    problem = Problem.of("hand", (table,), (profile,), machine(1, 2), batch_size=4, **training)
    lookups = CountedLookups(bags(*[[0, 1, 2]] * 4), 100, 2, distinct=distinct)
    plan = Plan(world_size=2, segments=tuple(plan_of(table)))
    return peak_memory(plan, problem, DENSE, lambda i: lookups, constants=NOTHING), problem, plan


def most(peaks, phase: StepPhase, term: Term):
    """The most bytes of a term in a phase, [world]."""
    of = np.array(peaks.moments) == phase
    return peaks.bytes[of, TERMS.index(term)].max(axis=0).tolist()


def on_first(table):
    return [whole_table(table, OnRank(rank=0))]


def dealt(table):
    return [whole_table(table, RowWise(ranks=EVERYONE))]


def copied(table):
    return [whole_table(table, Replicated(ranks=EVERYONE))]


def test_a_pooled_table_on_one_rank_by_hand():
    peaks, _, _ = one_table(Pooling.SUM, on_first)
    assert most(peaks, StepPhase.INPUT, Term.TABLES) == [100 * 8 * 4, 0]
    # Rank 0 gets 12 indices and 4 lengths, has them in the order of ranks and of tables, and keeps 12 of before.
    assert most(peaks, StepPhase.INPUT, Term.LOOKUPS) == [2 * (12 * 8 + 4 * 4) + 12 * 8, 0]
    # 4 bags of 8 numbers are looked up.
    assert most(peaks, StepPhase.LOOKUP, Term.VECTORS) == [4 * 8 * 4, 0]
    # Beside them a copy, which gloo lets go late, and 2 bags twice: as they arrive, and joined.
    assert most(peaks, StepPhase.OUTPUT, Term.VECTORS) == [4 * 32 + 4 * 32 + 2 * 64, 2 * 64]
    # 6 indices, 2 lengths, and 2 dense features and labels.
    assert most(peaks, StepPhase.INPUT, Term.BATCHES) == [6 * 8 + 2 * 4 + 2 * 2 * 4] * 2
    assert most(peaks, StepPhase.INPUT, Term.DENSE) == [2 * 4 * DENSE.parameters((Table(name="t", rows=9, dim=8),))] * 2


def test_vectors_of_a_sequence_are_as_many_as_its_rows_are_asked_for():
    whole, _, _ = one_table(Pooling.NONE, on_first)
    assert most(whole, StepPhase.LOOKUP, Term.VECTORS) == [12 * 32, 0]
    # Rank 0 permutes 12 vectors and gets 6; gloo lets go late of what was sent.
    assert most(whole, StepPhase.OUTPUT, Term.VECTORS) == [12 * 32 + 12 * 32 + 6 * 32, 6 * 32]
    rows, _, _ = one_table(Pooling.NONE, dealt)
    # Of rows 0, 1 and 2 one rank has two and the other one.
    assert sorted(most(rows, StepPhase.LOOKUP, Term.VECTORS)) == [4 * 32, 8 * 32]


def test_vectors_of_distinct_ids_are_copied_to_all_their_places_by_hand():
    peaks, _, _ = one_table(Pooling.NONE, on_first, distinct=True)
    # Each rank asks for 6 rows, 3 of them distinct, and keeps these, the 8-byte lengths of 2 bags, and 6 places.
    assert most(peaks, StepPhase.INPUT, Term.WORKSPACE) == [6 * 6 * 8] * 2
    kept = 6 * 8 + 3 * 8 + 2 * 8
    # Rank 0 gets those of both twice, as they arrive and in order, beside the 6 of the lookup before.
    assert most(peaks, StepPhase.INPUT, Term.LOOKUPS) == [kept + 2 * 2 * (3 * 8 + 2 * 8) + 6 * 8, kept]
    assert most(peaks, StepPhase.LOOKUP, Term.VECTORS) == [6 * 32, 0]
    # Rank 1 gets 3 vectors and copies them to 6 places; of rank 0's 6 gloo lets go late.
    assert most(peaks, StepPhase.OUTPUT, Term.VECTORS) == [(6 + 3 + 6) * 32, (3 + 6) * 32]
    assert most(peaks, StepPhase.DENSE, Term.VECTORS) == [2 * 6 * 32] * 2
    # Backward they are added up by distinct row, in the place of each rank's own 6.
    assert most(peaks, StepPhase.OUTPUT_BACKWARD, Term.WORKSPACE) == [6 * 6 * 8] * 2
    replicas, _, _ = one_table(Pooling.NONE, copied, distinct=True)
    # Rows that every rank has are looked up as often as samples ask.
    assert most(replicas, StepPhase.LOOKUP, Term.VECTORS) == [6 * 32] * 2
    assert most(replicas, StepPhase.INPUT, Term.WORKSPACE) == [0, 0]


def test_padding_of_dealt_rows_is_in_the_tables():
    table = Table(name="t", rows=101, dim=8)
    profile = AccessProfile(rows=101, samples=4, present=4, counts=(4,), row_counts=(3,))
    problem = Problem.of("hand", (table,), (profile,), machine(1, 2), batch_size=4)
    peaks = peak_memory(Plan(world_size=2, segments=tuple(dealt(table))), problem, DENSE, constants=NOTHING)
    assert most(peaks, StepPhase.INPUT, Term.TABLES) == [51 * 32] * 2


def test_a_codec_clamps_into_a_second_fp32_tensor_before_it_converts():
    peaks, _, _ = one_table(Pooling.SUM, on_first, exchange=Precision.FP16)
    assert most(peaks, StepPhase.OUTPUT, Term.CODEC)[0] == 1.5 * 4 * 32
    assert most(one_table(Pooling.SUM, on_first)[0], StepPhase.OUTPUT, Term.CODEC) == [0, 0]


def test_a_pipeline_holds_the_next_batchs_lookups_beside_this_ones():
    pipelined, _, _ = one_table(Pooling.SUM, dealt, schedule=StepSchedule.PIPELINED)
    sequential, _, _ = one_table(Pooling.SUM, dealt)
    more = np.subtract(*(most(one, StepPhase.DENSE, Term.LOOKUPS) for one in (pipelined, sequential)))
    assert (more > 6 * 8).all()
    one, three = (most(peaks, StepPhase.INPUT, Term.BATCHES)[0] for peaks in (sequential, pipelined))
    assert three == 3 * one


@settings(max_examples=40, deadline=None)
@given(random_plans())
def test_peaks_hold_the_tables_and_grow_with_the_batch_and_with_a_replicated_table(drawn):
    workload, problem, plan = drawn
    before = peak_memory(plan, problem, workload.dense)
    tables = before.bytes[:, TERMS.index(Term.TABLES)]
    assert (before.bytes >= -1e-6).all()
    assert (before.peak >= tables.max(axis=0)).all()
    larger = peak_memory(plan, replace(problem, batch_size=2 * problem.batch_size), workload.dense)
    assert (larger.peak >= before.peak * (1.0 - 1e-12)).all()
    new = Table(name="new", rows=50, dim=8)
    with_new = replace(
        problem,
        tables=(*problem.tables, new),
        profiles=(*problem.profiles, AccessProfile(rows=50, samples=9, present=9, counts=(3,), row_counts=(3,))),
    )
    copy = whole_table(new, Replicated(ranks=tuple(range(problem.world_size))))
    beside = peak_memory(replace(plan, segments=(*plan.segments, copy)), with_new, workload.dense)
    assert (beside.peak >= before.peak).all()


def test_the_worst_batch_is_each_ranks_own():
    few, problem, plan = one_table(Pooling.NONE, on_first)
    many = CountedLookups(bags(*[[7] * 60] * 4), 100, 2)
    peaks = [few, peak_memory(plan, problem, DENSE, lambda i: many, constants=NOTHING)]
    assert worst(peaks).peak.tolist() == np.max([one.peak for one in peaks], axis=0).tolist()
    assert sum(worst(peaks).terms(0).values()) == worst(peaks).peak[0]


def test_a_batch_schedule_has_no_predicted_peak():
    _, problem, _ = one_table(Pooling.SUM, on_first)
    copy = whole_table(problem.tables[0], Replicated(ranks=EVERYONE))
    schedule = BatchSchedule(phases=(Phase(kind=PhaseKind.HOT, batches=1),))
    plan = Plan(world_size=2, segments=(copy,), schedule=schedule)
    with pytest.raises(Unsupported, match="of no batch schedule"):
        peak_memory(plan, problem, DENSE)
    assert predicted_peak(plan, problem, DENSE) is None


WORLD = 32
OWNERS_SHARE = 2.8 / WORLD
"""Lookups that one of the equal blocks of a table's rows has: 2.8 times the mean, as of MLPerf's album_id."""


def with_hot_block(name: str, share: float) -> tuple[Table, AccessProfile]:
    """A history of 2,627 lookups a sample, drawn so that the first block of the rows has this share of them."""
    rows, mean, scale = 3_200_000, 2627, 10_000_000
    block = rows // WORLD
    counts = int(scale * share), int(scale * (1 - share) / (WORLD - 1))
    samples = (counts[0] + (WORLD - 1) * counts[1]) * block // mean
    profile = AccessProfile(
        rows=rows, samples=samples, present=samples, counts=counts, row_counts=(block, rows - block)
    )  # fmt: skip
    return Table(name=name, rows=rows, dim=512, pooling=Pooling.NONE), profile


def in_blocks(table: Table) -> list[Segment]:
    """TorchRec's row-wise: equal blocks of rows, one a rank."""
    block = table.rows // WORLD
    return [
        Segment(
            table=table.name, row_start=i * block, row_stop=(i + 1) * block, column_stop=table.dim,
            placement=OnRank(rank=i),
        )
        for i in range(WORLD)
    ]  # fmt: skip


def in_columns(table: Table) -> list[Segment]:
    width = table.dim // WORLD
    return [whole_table(table, OnRank(rank=i), (i * width, (i + 1) * width)) for i in range(WORLD)]


def hot_owners() -> tuple[Problem, tuple[Table, ...]]:
    """Three histories on 32 devices of 96 GiB, two of which have a hot block of rows."""
    tables, profiles = zip(
        with_hot_block("item", 1.01 / WORLD), with_hot_block("album", OWNERS_SHARE),
        with_hot_block("artist", OWNERS_SHARE),
    )  # fmt: skip
    # 96 GiB each, of which tables get 80 %.
    stated = {"hbm_bytes": f"{STATED} memory"}
    on = replace(machine(4, 8, hbm=int(0.8 * 96 * 2**30)), device="cuda", sources=stated)
    training = {"optimizer": Optimizer.ROWWISE_ADAGRAD, "exchange": Precision.FP16}
    return Problem.of("hot owners", tables, profiles, on, batch_size=1024 * WORLD, **training), tables


def placed_on_all(*placed: list[Segment]) -> Plan:
    return Plan(world_size=WORLD, segments=tuple(segment for one in placed for segment in one))


THERE = 96 * 2.0**30


def test_row_wise_with_a_hot_owner_does_not_fit_and_column_wise_does():
    problem, tables = hot_owners()
    rows = predicted_peak(placed_on_all(*map(in_blocks, tables)), problem, DENSE, device_bytes(problem.machine))
    in_part = placed_on_all(in_blocks(tables[0]), *map(in_columns, tables[1:]))
    columns = predicted_peak(in_part, problem, DENSE, THERE)
    assert rows.fits is False
    assert rows.device_bytes == pytest.approx(THERE)
    assert (rows.device, rows.moment) == (0, StepPhase.OUTPUT)
    assert rows.terms_bytes["vectors"] + rows.terms_bytes["codec"] > 0.8 * rows.bytes
    assert columns.fits is True
    assert not columns.judged
    # A capacity of another source says nothing of the device.
    assert device_bytes(replace(problem.machine, sources={"hbm_bytes": "stated by RecShard"})) is None
    unknown = predicted_peak(placed_on_all(*map(in_blocks, tables)), problem, DENSE)
    assert (unknown.bytes, unknown.device_bytes, unknown.fits) == (rows.bytes, None, None)
    assert columns.bytes < 0.75 * rows.bytes
    # Where devices differ, the one that has least left is told of.
    unequal = np.full(WORLD, THERE)
    unequal[7] = 1.0
    assert predicted_peak(in_part, problem, DENSE, unequal).device == 7


def memory_of(problem: Problem, there_bytes: float = THERE, **limits) -> DeviceMemory:
    return DeviceMemory(problem=problem, dense=DENSE, there_bytes=there_bytes, limits=Constraints(**limits))


@pytest.mark.parametrize("power", [0.3, 1.0, 4.0])
def test_the_first_batch_that_fails_is_found_in_few_steps_whatever_grows_how(power):
    sizes, looked_at = [3 * n for n in range(1, 300)], list[int]()

    def height(size: int, limit: float) -> float:
        looked_at.append(size)
        return size**power - limit

    for last_that_fits in (2, 3, 10, 500, 895, 896):
        limit = (last_that_fits + 0.5) ** power
        expected = next(size for size in sizes if size > last_that_fits)
        looked_at.clear()
        assert first_above(sizes, lambda size: height(size, limit)) == expected  # noqa: B023
        assert len({*looked_at}) <= (5 if power == 1.0 else 16)
    assert first_above(sizes, lambda size: height(size, 897.0**power)) is None


@pytest.mark.parametrize("now", [256, 1024])
def test_the_batch_that_fails_its_cause_and_what_would_help(now):
    problem, tables = hot_owners()
    problem = replace(problem, batch_size=now * WORLD)
    plan = placed_on_all(*map(in_blocks, tables))
    answer = SimpleNamespace(plan=plan, planned=SimpleNamespace(plan_hash="hash"))
    left = memory_of(problem).batch_left(answer)
    below = predicted_peak(plan, replace(problem, batch_size=int(0.95 * left.batch_size)), DENSE)
    above = predicted_peak(plan, replace(problem, batch_size=int(1.01 * left.batch_size)), DENSE)
    assert below.bytes < THERE < above.bytes
    assert (left.device, left.table) in {(0, "album"), (0, "artist")}
    assert left.lookups_ratio == pytest.approx(2.8, rel=0.02)
    assert (left.instead, left.instead_bytes < 0.9 * THERE) == ("column_wise", True)
    assert "2.8 times the mean of its lookups; column_wise would need" in left.words
    # What is not allowed is not advised, and a batch that may grow manifold is not spoken of.
    types = dict.fromkeys(("album", "artist"), ("table_row_wise",))
    assert not memory_of(problem, sharding_types=types).batch_left(answer).instead
    assert memory_of(problem, 2.0 * MOST_TIMES * THERE).batch_left(answer) is None


def test_tables_get_the_room_that_a_step_leaves_and_all_of_it_where_they_need_that():
    problem, _ = hot_owners()
    moves = [frozenset({Move.TABLE})]
    # A step of this batch takes more beside tables than the fifth that the machine's file leaves.
    room_bytes = memory_of(problem).room(moves).applied(problem).topology.hbm_bytes
    assert 0 < room_bytes < 0.5 * THERE
    # Of what would not hold the tables nothing is kept back.
    assert memory_of(problem, THERE - 0.99 * room_bytes).room(moves) == Constraints()
    few = replace(problem, batch_size=WORLD)
    assert memory_of(few).room(moves) == Constraints()
    assert memory_of(problem, None).room(moves) == Constraints()
    wide = replace(problem, topology=replace(problem.topology, hbm_bytes=1 << 40))
    assert memory_of(wide, 0.3 * THERE).room(moves) == Constraints()


def test_a_dense_model_that_nobody_stated_is_not_in_the_peak():
    problem, tables = hot_owners()
    plan, large = placed_on_all(*map(in_blocks, tables)), DenseShape(bottom=(8192, 8192), top=(8192, 1))
    stated, unstated = predicted_peak(plan, problem, large), predicted_peak(plan, problem, None)
    assert {"dense", "activations"} & stated.terms_bytes.keys()
    assert not {"dense", "activations"} & unstated.terms_bytes.keys()
    assert (stated.has_dense, unstated.has_dense) == (True, False)


def test_tables_of_published_plans_take_what_is_published_of_each_rank():
    data = published_memory()
    problem = Problem.of(
        "published",
        tuple(Table(name=name, rows=n, dim=data["dim"], pooling=Pooling.NONE) for name, n in data["rows"].items()),
        tuple(AccessProfile(rows=n, samples=1, present=0, counts=(), row_counts=()) for n in data["rows"].values()),
        machine(devices=8),
        batch_size=8,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
    )
    plans = published_plans(problem.tables)
    assert list(plans) == ["dlrm4.mi350x.8", "dlrm4.b200.8"]
    for one in data["plans"]:
        counted = memory_bytes(plans[one["point"]], problem).hbm / GIB
        assert counted == pytest.approx(np.array(one["hbm_gib"]), rel=0.02), one["point"]


def test_an_answer_says_what_the_peak_consists_of_and_where_it_does_not_fit():
    peak = Peak(
        device=3, bytes=50 * 2.0**30, device_bytes=40 * 2.0**30, moment="output", fits=False, judged=False,
        terms_bytes={"tables": 30 * 2.0**30, "vectors": 19.8 * 2.0**30, "dense": 0.2 * 2.0**30},
    )  # fmt: skip
    first, second = _peak_lines(SimpleNamespace(peak=peak, batch_left=None))
    assert "device 3 holds 50 of 40 GiB, in output: tables 30, vectors 19.8; judged by no measurement" in first
    assert second.startswith("  DOES NOT FIT: device 3")
    assert len(_peak_lines(SimpleNamespace(peak=replace(peak, fits=True, judged=True), batch_left=None))) == 1
    (unknown,) = _peak_lines(SimpleNamespace(peak=replace(peak, device_bytes=None, fits=None), batch_left=None))
    assert "device 3 holds 50 GiB, in output" in unknown
    assert "not predicted" in _peak_lines(SimpleNamespace(peak=None))[0]


@pytest.mark.parametrize(
    ("number", "batch_size", "name"),
    [
        (0, 4096, "hot replicated, others row-wise"), (0, 4096, "whole, row-wise and halves, pipelined, fp16"),
        (3, 1024, "whole, row-wise and halves"),
    ],
)  # fmt: skip
def test_real_ranks_hold_what_is_predicted(tmp_path, monkeypatch, number, batch_size, name):
    # Twice on each of the batches: what ranks hold most is there by then.
    monkeypatch.setattr(memory_peaks, "STEPS", 2 * BATCHES)
    description = WORKLOADS[number] | {"batch_size": batch_size, "test_batches": BATCHES}
    workload = workload_config(description, "test").build(Path())
    case = next(one for one in cases(workload.tables) if one.name == name)
    result = measured(workload, case, tmp_path, fitted=False)
    assert result.predicted.judged
    errors = result.predicted.peak / result.peaks - 1.0
    assert (errors > -0.05).all(), (result.peaks, result.predicted.peak)
    assert (errors < 0.15).all(), (result.peaks, result.predicted.peak)
    # Attention holds most; what ids made distinct change is held before it.
    output = np.array(result.predicted.moments) == StepPhase.OUTPUT
    predicted = result.predicted.bytes[output].sum(axis=1).max(axis=0)
    assert predicted == pytest.approx([held[StepPhase.OUTPUT] for held in result.measured], rel=0.1)


def test_the_committed_peaks_are_20_plans_for_4_workloads_and_hold():
    rows = pd.read_csv(PEAKS / "peaks.csv")
    assert tuple(rows) == COLUMNS
    assert rows.groupby("workload")["plan"].nunique().tolist() == [20] * 4
    assert (rows[[f"{term}_mib" for term in TERMS]].sum(axis=1) - rows["predicted_mib"]).abs().max() < 0.7
    assert rows["error_pct"].between(-5.0, 15.0).all()
    # It covers most ranks, and was not chosen for those that are held out.
    assert slack_needed(rows) == pytest.approx(CPU.slack_ratio, abs=0.01)
    pd.testing.assert_frame_equal(errors(rows), pd.read_csv(PEAKS / "errors.csv"), check_dtype=False)


def test_the_committed_fits_are_those_of_the_tables_beside_them():
    rows = fits(PEAKS.parent)
    pd.testing.assert_frame_equal(rows, pd.read_csv(PEAKS / "fits.csv", keep_default_na=False))
    assert (rows["fail"] <= rows["judged"]).all()
    assert (rows["judged"] <= rows["peaks"]).all()
    assert (rows["peaks"] <= rows["plans"]).all()
    quick = rows[rows["suite"] == "quick"].set_index("strategy")
    assert not quick["fail"].any()
    # Of batch schedules no peak is predicted.
    assert quick.loc[quick["peaks"] < quick["plans"]].index.tolist() == ["fae"]


def test_a_plan_fails_whose_peak_is_more_than_its_devices_have(tmp_path):
    for folder, text in {
        "quick/traffic": "peak_bytes_max\nw,2080ti-1x4,simulated,s,ok,,1e9\nx,2080ti-1x4,simulated,s,ok,,2e10\n"
        "w,cpu-1x2,simulated,s,ok,,2e10\nw,2080ti-1x4,measured,s,ok,,2e10\nw,2080ti-1x4,simulated,s,oom,,\n",
        "leaderboard/steps": "peak_gib\nw,2080ti-1x4,simulated,s,infeasible,peak: too much,\n"
        "w,2080ti-1x4,simulated,s,infeasible,plan: no room,\nw,2080ti-1x4,simulated,t,ok,,\n",
    }.items():
        path = tmp_path / f"{folder}.csv"
        path.parent.mkdir()
        path.write_text("workload,machine,backend,strategy,outcome,cause," + text)
    assert fits(tmp_path).to_numpy().tolist() == [
        ["leaderboard", "simulated", "s", 1, 1, 1, 1, "w"],
        ["leaderboard", "simulated", "t", 1, 0, 0, 0, ""],
        ["quick", "simulated", "s", 3, 3, 2, 1, "x"],
    ]


def test_terms_that_a_counter_does_not_see_can_be_left_out():
    peaks, _, _ = one_table(Pooling.SUM, on_first)
    without = peaks.without(Term.TABLES, Term.CONTEXT)
    assert not {Term.TABLES, Term.CONTEXT} & without.terms(0).keys()
    assert without.peak.tolist() == (peaks.peak - [100 * 8 * 4, 0]).tolist()


def test_a_gpus_peaks_are_those_of_torchs_allocator(monkeypatch):
    held = iter([10, 70, 30])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(held))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    clock = PeakClock(torch.device("cuda", 0))
    first, second, third = (clock.now() for _ in range(3))
    assert clock.ms(first, second) == 70
    assert clock.ms(first, third) == 70
    assert clock.ms(second, third) == 30


def test_what_no_measurement_judges_says_so():
    assert CPU.judged
    assert not CUDA.judged
    assert "judged by no measurement" in CUDA.source
