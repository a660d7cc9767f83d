"""Trials end in records, whatever goes wrong."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import misbehaving
import numpy as np
import pytest
from problems import RandomWorkload
from toy_machine import machine_file

from shardbench.base.errors import BadInput, Infeasible
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash, from_json
from shardbench.base.wall import Kind, kind
from shardbench.cost.phases import MEASURED_PHASES
from shardbench.engine.processes.job import RankJob, RankResult
from shardbench.engine.processes.trial_folder import read_job, result_text, write_job
from shardbench.model.calibrated import chip_of
from shardbench.model.plan import Plan, RowWise, whole_table
from shardbench.records.record import Record
from shardbench.records.store import KEPT_LOG_BYTES, keep_log
from shardbench.records.trial import Backend, Failure, Outcome, TrialSpec
from shardbench.trials import run_trial as run_trial_module
from shardbench.trials.run_trial import JobContext, run_trial
from shardbench.trials.suite import Job

pytestmark = pytest.mark.usefixtures("few_draws", "unconfined")
WALLED = ("raises two lines", "SIGKILL", "nearly all memory", "fills the disk")
"""Deeds of planners that are tried behind the wall: an exception, a signal, and limits of the kernel."""


@pytest.fixture
def context(tmp_path):
    workload = RandomWorkload([(100, 8), (40, 8)], 16)
    job = Job(workload="random", machine=machine_file(tmp_path), backend=Backend.SIMULATED, iterations=2, plan_s=1)
    return JobContext(job, workload, tmp_path / "job")


def spec_of(context, strategy, backend=Backend.SIMULATED, **changes):
    fields = {
        "suite": "s", "workload": "random", "workload_fingerprint": "f", "machine": "toy", "machine_hash": "m",
        "backend": backend, "strategy": strategy.name, "seed": 0, "batch_size": 16, "iterations": 2, "warmup": 1,
        "plan_s": context.job.plan_s, "fit_s": 5, "timeout_s": 60, **changes,
    }  # fmt: skip
    return TrialSpec(**fields)


def outcome(context, kind, backend=Backend.SIMULATED, **changes):
    context.folder.mkdir(exist_ok=True)
    strategy = kind()
    record = run_trial(spec_of(context, strategy, backend, **changes), strategy, context, "e")
    assert record == Record.model_validate_json(record.model_dump_json())
    return record


def test_a_want_of_memory_says_what_was_predicted(context):
    table = context.question.problem.tables[0]
    plan = Plan(
        world_size=2, segments=tuple(whole_table(each, RowWise(ranks=(0, 1))) for each in context.workload.tables)
    )
    full = Failure(outcome=Outcome.OOM, cause=f"rank 1 has no memory for {table.name}", phase="build", rank=1)
    said = run_trial_module._with_peak(full, plan, context)
    assert (said.outcome, said.phase, said.rank) == (Outcome.OOM, "build", 1)
    assert re.match(rf"{full.cause}; predicted: device \d holds [\d.e-]+ GiB, in \w+: context ", said.cause)
    other = Failure(outcome=Outcome.ERROR, cause="rank 1 raised", phase="time", rank=1)
    assert run_trial_module._with_peak(other, plan, context) == other


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("step_bound_ms", "the step, .* is below the bound proven for any device moves, "),
        ("own_step_bound_ms", "the step, .* is below the bound proven for the strategy's moves, "),
        ("bound_ms", "the slowest device's embedding time, .* is below the bound proven for any device moves, "),
    ],
)
def test_what_is_too_good_to_be_true_is_invalid(context, monkeypatch, field, what):
    honest = run_trial_module._predict

    def too_good(*arguments):
        return {**honest(*arguments), field: 99.0}

    monkeypatch.setattr(run_trial_module, "_predict", too_good)
    record = outcome(context, misbehaving.Honest)
    assert record.outcome is Outcome.INVALID
    assert record.timing is None
    assert re.search(f"{what}99 ms: too good to be true", record.failure.cause)
    assert record.failure.rule == "bound"


@pytest.mark.usefixtures("walled")
def test_an_honest_trial_is_simulated_and_measured(context):
    simulated = outcome(context, misbehaving.Honest)
    assert simulated.outcome is Outcome.OK
    assert simulated.timing == simulated.predicted
    assert min(simulated.draws.step_ms) < simulated.timing.step_ms[0] < max(simulated.draws.step_ms)
    assert 0 < simulated.whole_table_bound_ms <= max(simulated.timing.embedding_ms)
    assert 0 < simulated.bound_fixed_ms < simulated.bound_ms <= simulated.whole_table_bound_ms
    assert 0 < simulated.step_bound_ms <= simulated.own_step_bound_ms <= simulated.mean_step_ms
    assert simulated.peak_bytes > max(simulated.planned.hbm_memory_bytes)
    assert min(simulated.timing.step_ms) <= simulated.mean_step_ms <= max(simulated.timing.step_ms)
    measured = outcome(context, misbehaving.Honest, Backend.MEASURED)
    assert measured.outcome is Outcome.OK
    assert measured.predicted.model_copy(update={"ranks": None}) == simulated.predicted
    assert len(measured.timing.step_ms) == len(measured.control.step_ms) == 2
    assert measured.control.plan_hash == content_hash(context.control)
    assert simulated.control is None
    # The predictions of what was measured are drawn as well: their bands are held against the ranks' times.
    assert measured.draws == simulated.draws
    forward, backward = (
        [rank.phases_ms[phase] for rank in measured.predicted.ranks] for phase in ("lookup", "lookup_backward")
    )
    assert np.add(forward, backward) == pytest.approx(simulated.timing.embedding_ms)
    assert all(rank.phases_cpu_ms is None for rank in measured.predicted.ranks)
    assert all(rank.phases_cpu_ms["lookup"] > 0 for rank in measured.timing.ranks)
    counted = {name: sum(links) for name, links in measured.traffic.collectives.items() if sum(links)}
    assert {name: sent for name, sent in measured.measured_bytes.items() if sent} == pytest.approx(counted)


@pytest.mark.parametrize("backend", Backend)
def test_draws_are_on_record_once_for_the_repeats_of_a_measured_plan(context, backend):
    strategy, repeats = misbehaving.Honest(), range(3)
    context.make()
    made = [context.planning(spec_of(context, strategy, backend, repeat=i), strategy) for i in repeats]
    simulated = backend is Backend.SIMULATED
    assert [one.fields["draws"] is not None for one in made] == [True, simulated, simulated]
    assert len({content_hash(one.plan) for one in made}) == 1


@pytest.mark.parametrize("calibrated_here", [True, False])
def test_a_measured_step_too_short_for_its_bytes_is_invalid_where_links_are_known(
    context, monkeypatch, calibrated_here
):
    chip = chip_of(Environment.here(), "cpu") if calibrated_here else "another chip"
    monkeypatch.setattr(run_trial_module, "calibrated_on", lambda machine: chip)
    monkeypatch.setattr(run_trial_module, "least_step_ms", lambda traffic, machine: 1e9)
    measured = outcome(context, misbehaving.Honest, Backend.MEASURED)
    assert measured.least_step_ms == 1e9
    assert measured.timing.step_ms
    assert measured.outcome is (Outcome.INVALID if calibrated_here else Outcome.OK)
    assert not calibrated_here or (measured.failure.phase, measured.failure.rule) == ("bytes", "bandwidth")


def test_ranks_that_send_other_bytes_than_counted_end_in_error(context, monkeypatch):
    # Real ranks, which run another plan than the one that was counted.
    def written(job, folder):
        everywhere = tuple(whole_table(table, RowWise(ranks=(0, 1))) for table in job.tables)
        write_job(job.model_copy(update={"plan": replace(job.plan, segments=everywhere)}), folder)

    monkeypatch.setattr("shardbench.trials.measured_trial.write_job", written)
    record = outcome(context, misbehaving.Honest, Backend.MEASURED)
    assert (record.outcome, record.failure.phase) == (Outcome.ERROR, "bytes")
    assert re.search(r"_reduce_scatter|_all_gather|_all_to_all", record.failure.cause)


SENT = [
    ("input_all_to_all", lambda sent: sent + 1.0, "ranks sent {0:.0f} bytes, the counter says {1:.0f}"),
    ("dense_all_reduce", lambda sent: sent * (1 - 1e-5), "ranks sent {0:.0f} bytes, the counter says {1:.0f}"),
    ("backward_all_to_all", lambda _: None, "ranks sent 0 bytes, the counter says {1:.0f}"),
    ("output_reduce_scatter", lambda _: 8.0, "ranks sent 8 bytes, the counter says 0"),
    ("gossip", lambda _: 8.0, "ranks sent 8 bytes, the counter says 0"),
]


def test_bytes_are_compared_collective_by_collective(context, monkeypatch):
    traffic = outcome(context, misbehaving.Honest).traffic
    counted = {known: sum(links) for known, links in traffic.collectives.items()}
    sent = {}

    def ran(folder, world_size, timeout_s):
        # Rank 1 sent everything.
        ms = {phase: [1.0, 1.0] for phase in (*MEASURED_PHASES, "step")}
        left = {"ms": ms, "job": read_job(folder)[1], "took_s": 1.0, "control_ms": [1.0, 1.0]}
        for rank in range(world_size):
            bytes_ = {known: (size * rank, 0.0) for known, size in sent.items()}
            result = RankResult(rank=rank, **left, sent=[bytes_, bytes_], calls=[{}, {}], shares=[0.5, 0.5])
            (folder / f"rank{rank}.json").write_text(result_text(result))

    def measured(changed):
        sent.clear()
        sent.update({known: size for known, size in {**counted, **changed}.items() if size is not None})
        return outcome(context, misbehaving.Honest, Backend.MEASURED)

    monkeypatch.setattr("shardbench.trials.run_trial.run_on_ranks", ran)
    assert measured({}).outcome is Outcome.OK
    for name, change, said in SENT:
        record = measured({name: change(counted.get(name, 0.0))})
        assert (record.outcome, record.failure.phase) == (Outcome.ERROR, "bytes"), name
        assert record.failure.cause == f"{name}: {said.format(sent.get(name), counted.get(name))}"
        # What was sent and counted is kept for whoever looks into it.
        assert record.measured_bytes == pytest.approx(sent)


def test_fitting_time_is_recorded(context):
    record = outcome(context, misbehaving.Learner)
    # It sleeps 0.2 s; the first of the two messages that bound them may be late on a busy machine.
    assert record.planned.fit_s >= 0.1


FAILURES = [
    (misbehaving.Slow, Outcome.TIMEOUT, "plan", "its budget is 1 s"),
    ("declines", Outcome.INFEASIBLE, "plan", "nothing fits"),
    ("raises two lines", Outcome.ERROR, "plan", "ZeroDivisionError: one two (misbehaving.py:"),
    ("leaves", Outcome.ERROR, "plan", "SystemExit: 0 (misbehaving.py:"),
    ("what is neither", Outcome.ERROR, "plan", "NeitherExceptionNorText: (its text cannot be made) (misbehaving.py:"),
    (misbehaving.LeavesInPickling, Outcome.ERROR, "plan", "cannot be pickled for a process of its own: SystemExit"),
    (misbehaving.EndsInPickling, Outcome.ERROR, "plan", "cannot be pickled for a process of its own: Neither"),
    (misbehaving.LeavesWhenLookedAt, Outcome.ERROR, "start", "SystemExit: 0 (misbehaving.py:"),
    ("what is no text", Outcome.ERROR, "plan", r"ValueError: byte \udc80 of a name (misbehaving.py:"),
    ("SIGTERM", Outcome.ERROR, "plan", "killed by signal 15"),
    ("SIGKILL", Outcome.ERROR, "plan", "killed by signal 9 (not by the kernel for want of memory)"),
    (misbehaving.Peeks, Outcome.INVALID, "plan", "without declaring Sees.ACCESS_PROFILE"),
    ("opens the test batches", Outcome.INVALID, "plan", "test trace is never handed"),
    (misbehaving.Mutates, Outcome.INVALID, "plan", "changed the problem"),
    (misbehaving.NoPlan, Outcome.INVALID, "plan", "returned dict, not a Plan"),
    (misbehaving.Undeclared, Outcome.INVALID, "validate", "does not declare: uvm"),
    (misbehaving.BadPlan, Outcome.INVALID, "validate", "world_size: "),
    (misbehaving.Unpicklable, Outcome.ERROR, "plan", "cannot be pickled for a process of its own: "),
    (misbehaving.OnlyPicklesHere, Outcome.ERROR, "plan", "ValueError: invalid literal"),
    ("nearly all memory", Outcome.OOM, "plan", "Unable to allocate"),
    ("torch has no memory", Outcome.OOM, "plan", "can't allocate memory"),
    ("ends for want of memory", Outcome.OOM, "plan", "signal 6 for want of memory (std::bad_alloc)"),
    ("fills the disk", Outcome.ERROR, "plan", "OSError: [Errno 27] File too large"),
    (misbehaving.NotesWithoutEnd, Outcome.INVALID, "validate", "note 'all' is too long: 1000 characters at most"),
    (misbehaving.NotesNoNumber, Outcome.INVALID, "validate", "note 'gap' is inf: leave it out"),
    (misbehaving.SegmentsWithoutEnd, Outcome.INVALID, "validate", "segments; a plan has 100000 at most"),
    ("says much of its end", Outcome.INFEASIBLE, "plan", "xxx ..."),
    (misbehaving.NeedsMore, Outcome.SKIPPED, "start", "a_module_that_is_not_there"),
    (misbehaving.CannotRun, Outcome.SKIPPED, "count", "row-wise runs over all ranks or all ranks of one node"),
]


@pytest.mark.parametrize(("kind", "ended", "phase", "cause"), FAILURES, ids=lambda v: getattr(v, "name", None))
def test_failures_are_outcomes(context, request, kind, ended, phase, cause):
    if kind in WALLED:
        request.getfixturevalue("walled")
    record = outcome(context, partial(misbehaving.Does, kind) if isinstance(kind, str) else kind)
    assert (record.outcome, record.failure.phase) == (ended, phase)
    assert cause in record.failure.cause
    assert "\n" not in record.failure.cause
    assert len(record.failure.cause) <= 1_000
    assert record.timing is None


def test_fitting_has_a_budget(context):
    record = outcome(context, misbehaving.SlowFit, fit_s=0.1)
    assert (record.outcome, record.failure.phase) == (Outcome.TIMEOUT, "plan")
    assert re.fullmatch(r"fitting took \d+\.\d s, its budget is 0\.1 s", record.failure.cause)


@pytest.mark.usefixtures("walled")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            misbehaving.FollowsItsLog,
            marks=pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here"),
        ),
        misbehaving.UsesProcesses,
    ],
)
def test_what_a_planner_may_do(context, kind):
    assert outcome(context, kind).outcome is Outcome.OK


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
@pytest.mark.usefixtures("walled")
@pytest.mark.parametrize("kind", [misbehaving.FindsBatches, misbehaving.ChangesBatches])
def test_the_test_batches_are_out_of_a_planners_reach(context, kind):
    context.make()
    found = outcome(context, lambda: kind(context.folder))
    assert found.failure.phase == "plan"
    if kind is misbehaving.ChangesBatches:
        assert (found.outcome, found.failure.rule) == (Outcome.INVALID, "out-of-reach")
        assert str(context.folder) not in found.failure.cause
    else:
        assert (found.outcome, "holds no materialised" in found.failure.cause) == (Outcome.ERROR, True), found.failure


def test_without_a_wall_the_test_batches_are_sealed_and_a_change_is_seen(context):
    found = outcome(context, lambda: misbehaving.FindsBatches(context.folder))
    assert (found.outcome, found.failure.phase) == (Outcome.INVALID, "plan")
    assert "test trace" in found.failure.cause
    changed = outcome(context, lambda: misbehaving.ChangesBatches(context.folder))
    assert (changed.outcome, changed.failure.phase) == (Outcome.INVALID, "plan")
    assert changed.failure.cause == "the test batches were changed"
    assert outcome(context, misbehaving.Honest).failure.cause == changed.failure.cause, "nothing is judged on them"


def test_repeats_are_of_one_plan_which_is_made_once(context):
    first, second = (outcome(context, misbehaving.Counting, repeat=repeat) for repeat in (0, 1))
    assert (first.spec.repeat, second.spec.repeat) == (0, 1)
    assert first.planned == second.planned
    assert "asked_at" in first.planned.notes
    other = outcome(context, misbehaving.Counting, seed=1)
    assert other.planned.plan_hash != first.planned.plan_hash
    failures = [outcome(context, partial(misbehaving.Does, "raises"), repeat=repeat).failure for repeat in (0, 1)]
    assert failures[0] == failures[1] is not None


def test_where_no_control_fits_a_measured_trial_says_so(context, monkeypatch):
    def fail(problem):
        raise Infeasible("no control plan: 7 rows of table 'table0' fit nowhere")

    monkeypatch.setattr("shardbench.trials.run_trial.control_plan", fail)
    record = outcome(context, misbehaving.Honest, Backend.MEASURED)
    assert (record.outcome, record.failure.phase) == (Outcome.INFEASIBLE, "control")
    assert "7 rows of table 'table0'" in record.failure.cause


def test_a_fault_of_the_harness_ends_one_trial(context, monkeypatch):
    def fail(*_):
        raise RuntimeError("one\ntwo")

    monkeypatch.setattr("shardbench.trials.evaluate.validate", fail)
    record = outcome(context, misbehaving.Honest)
    assert (record.outcome, record.failure.phase) == (Outcome.ERROR, "harness")
    assert re.fullmatch(r"RuntimeError: one two \(test_run_trial\.py:\d+\)", record.failure.cause)


def test_a_fault_of_the_users_files_ends_the_run(context, monkeypatch):
    def fail(*_):
        raise BadInput("the trace is cut off")

    monkeypatch.setattr(context.workload, "_survey", fail)
    with pytest.raises(BadInput, match="the trace is cut off"):
        outcome(context, misbehaving.Honest)


def test_plans_and_logs_are_kept(context, tmp_path):
    context.results = tmp_path / "kept"
    good = outcome(context, misbehaving.Honest)
    kept = context.results / "plans" / f"{good.planned.plan_hash}.json"
    assert content_hash(Plan.from_json(kept.read_text())) == good.planned.plan_hash
    name = f"{good.planned.plan_hash}-{context.workload.fingerprint}.json"
    lookups = json.loads((context.results / "lookups" / name).read_text())
    assert sum(lookups) == pytest.approx(sum(profile.mean_pooling for profile in context.question.problem.profiles))
    assert not (context.results / "logs").exists()
    bad = outcome(context, partial(misbehaving.Does, "raises"))
    assert "ZeroDivisionError" in (context.results / "logs" / f"{bad.key}.log").read_text()
    assert len(list((context.results / "plans").iterdir())) == 1


@pytest.fixture
def cuda_context(tmp_path):
    path = Path(machine_file(tmp_path))
    path.write_text(path.read_text().replace('device = "cpu"', 'device = "cuda"'))
    job = Job(workload="random", machine=str(path), backend=Backend.MEASURED, iterations=2)
    return JobContext(job, RandomWorkload([(100, 8), (40, 8)], 16), tmp_path / "job")


def test_missing_devices_skip_measured_trials(cuda_context, monkeypatch):
    monkeypatch.setattr("shardbench.trials.jobcheck.cuda_devices", lambda: 1)
    record = outcome(cuda_context, misbehaving.Honest, Backend.MEASURED)
    assert (record.outcome, record.failure.phase) == (Outcome.SKIPPED, "start")
    assert record.failure.cause == "needs 2 CUDA devices, this machine has 1"
    assert outcome(cuda_context, misbehaving.Honest).outcome is Outcome.OK


def test_a_kept_job_folder_is_made_even_where_devices_are_missing(cuda_context, monkeypatch):
    monkeypatch.setattr("shardbench.trials.jobcheck.cuda_devices", lambda: 0)
    cuda_context.folder_stays = True
    record = outcome(cuda_context, misbehaving.Honest, Backend.MEASURED)
    assert record.outcome is Outcome.SKIPPED
    folder = cuda_context.folder / record.key
    job = from_json(RankJob, (folder / "job.json").read_text())
    assert job.device == "cuda"
    assert (folder / job.batches).is_dir()


def test_ranks_do_not_stand_in_for_missing_devices(cuda_context, monkeypatch):
    # Hides real ones from the ranks, which are spawned where there are any.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("shardbench.trials.jobcheck.cuda_devices", lambda: 2)
    record = outcome(cuda_context, misbehaving.Honest, Backend.MEASURED)
    assert record.outcome is Outcome.SKIPPED
    assert "needs 2 CUDA devices" in record.failure.cause


def test_a_hanging_planner_is_killed(context):
    record = outcome(context, misbehaving.Hangs)
    assert record.outcome is Outcome.TIMEOUT
    assert "no result from plan after 1 s" in record.failure.cause


def test_ranks_that_hang_are_killed_and_their_logs_kept(context, tmp_path):
    context.results = tmp_path / "kept"
    # On a busy machine ranks may need longer to begin. So many steps take minutes.
    for timeout_s in (1, 4, 16, 48):
        record = outcome(context, misbehaving.Honest, Backend.MEASURED, iterations=10**5, timeout_s=timeout_s)
        assert record.outcome is Outcome.TIMEOUT
        if record.failure.phase == "time":
            break
    assert record.failure.phase == "time"
    assert "== rank1.log" in (context.results / "logs" / f"{record.key}.log").read_text()


def test_keys_depend_on_everything_in_a_spec(context):
    base = spec_of(context, misbehaving.Honest())
    assert content_hash(base) == base.key
    for change in ({"seed": 1}, {"repeat": 1}, {"iterations": 3}, {"plan_s": 2.0}, {"machine_hash": "x"}):
        assert base.model_copy(update=change).key != base.key


def test_of_a_long_log_the_end_is_kept(tmp_path):
    printed = tmp_path / "k.log"
    printed.write_bytes(b"first" + bytes(KEPT_LOG_BYTES) + b"last")
    keep_log(tmp_path, "k", [printed, tmp_path / "none"])
    kept = (tmp_path / "logs" / "k.log").read_bytes()
    assert kept.startswith(b"== k.log\n(9 bytes before this are left out)\n\0")
    assert kept.endswith(b"last")
    assert len(kept) < KEPT_LOG_BYTES + 100
