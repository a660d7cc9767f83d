"""Trials end in records, whatever goes wrong; suites resume, retry and force."""

import re
import socket
from dataclasses import replace
from pathlib import Path

import misbehaving
import numpy as np
import pytest
from problems import RandomWorkload

from shardbench.base.errors import BadInput, Infeasible
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash, from_json
from shardbench.cost.phases import MEASURED_PHASES
from shardbench.engine.job import RankJob, RankResult
from shardbench.engine.measure import write_job
from shardbench.model.plan import Plan, RowWise, whole_table
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome, TrialSpec
from shardbench.report.tables import throughput
from shardbench.runs.run_trial import JobContext, run_trial
from shardbench.runs.runner import RunOptions, SuiteWork, list_trials, run_suite
from shardbench.runs.suite import Job, load_suite

MACHINE = """
name = "toy"
description = "two made-up devices"
device = "cpu"
nodes = 1
devices_per_node = 2
[constants]
"""
CONSTANTS = {
    "hbm_capacity": (100, "MB"), "uvm_capacity": (100, "MB"), "host_capacity": (1, "GB"),
    "hbm_bandwidth": (10, "GB/s"), "cache_bandwidth": (40, "GB/s"), "cache_capacity": (1, "MB"),
    "uvm_bandwidth": (10, "GB/s"), "host_bandwidth": (10, "GB/s"), "gather_efficiency": (0.5, "ratio"),
    "access_overhead": (32, "B"), "sort_traffic": (32, "B"), "launch": (10, "us"), "intra_bandwidth": (1, "GB/s"),
    "inter_bandwidth": (1, "GB/s"), "intra_latency": (10, "us"), "inter_latency": (10, "us"),
    "dense_rate": (1, "GFLOP/s"), "cache_reach": (2, "ratio"), "dispatch": (20, "us"), "bag_step": (100, "ns"),
    "peer_latency": (1, "us"), "table_call": (1, "us"), "bag_call": (10, "ns"), "page_walk": (10, "ns"),
    "sequence_row": (10, "ns"), "sequence_half": (1000, "rows"), "host_launch": (10, "us"),
    "host_table_call": (1, "us"), "dense_step": (10, "us"), "dense_layer": (1, "us"),
}  # fmt: skip


def machine_file(folder: Path) -> str:
    known = 'error = 1.2, error_source = "made up for tests"'
    lines = [
        f'{k} = {{ value = {v}, unit = "{u}", source = "made up for tests"'
        f"{'' if k.endswith('capacity') else ', ' + known} }}"
        for k, (v, u) in CONSTANTS.items()
    ]
    path = folder / "toy.toml"
    path.write_text(MACHINE + "\n".join(lines))
    return str(path)


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


def test_an_honest_trial_is_simulated_and_measured(context):
    simulated = outcome(context, misbehaving.Honest)
    assert simulated.outcome is Outcome.OK
    assert simulated.timing == simulated.predicted
    assert min(simulated.draws.step_ms) < simulated.timing.step_ms[0] < max(simulated.draws.step_ms)
    assert 0 < simulated.whole_table_bound_ms <= max(simulated.timing.embedding_ms)
    assert 0 < simulated.bound_fixed_ms < simulated.bound_ms <= simulated.whole_table_bound_ms
    measured = outcome(context, misbehaving.Honest, Backend.MEASURED)
    assert measured.outcome is Outcome.OK
    assert measured.predicted.model_copy(update={"ranks": None}) == simulated.predicted
    assert len(measured.timing.step_ms) == len(measured.control.step_ms) == 2
    assert measured.control.plan_hash == content_hash(context.control)
    assert (simulated.control, measured.draws) == (None, None)
    forward, backward = (
        [rank.phases_ms[phase] for rank in measured.predicted.ranks] for phase in ("lookup", "lookup_backward")
    )
    assert np.add(forward, backward) == pytest.approx(simulated.timing.embedding_ms)
    assert all(rank.phases_cpu_ms is None for rank in measured.predicted.ranks)
    assert all(rank.phases_cpu_ms["lookup"] > 0 for rank in measured.timing.ranks)
    counted = {name: sum(links) for name, links in measured.traffic.collectives.items() if sum(links)}
    assert {name: sent for name, sent in measured.measured_bytes.items() if sent} == pytest.approx(counted)


def test_ranks_that_send_other_bytes_than_counted_end_in_error(context, monkeypatch):
    # Real ranks, which run another plan than the one that was counted.
    def written(job, folder):
        everywhere = tuple(whole_table(table, RowWise(ranks=(0, 1))) for table in job.tables)
        write_job(job.model_copy(update={"plan": replace(job.plan, segments=everywhere)}), folder)

    monkeypatch.setattr("shardbench.engine.measure.write_job", written)
    record = outcome(context, misbehaving.Honest, Backend.MEASURED)
    assert (record.outcome, record.failure.phase) == (Outcome.ERROR, "bytes")
    assert re.search(r"_reduce_scatter|_all_gather|_all_to_all", record.failure.cause)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (None, None, None),
        ("input_all_to_all", lambda sent: sent + 1.0, "ranks sent {0:.0f} bytes, the counter says {1:.0f}"),
        ("dense_all_reduce", lambda sent: sent * (1 - 1e-5), "ranks sent {0:.0f} bytes, the counter says {1:.0f}"),
        ("backward_all_to_all", lambda _: None, "ranks sent 0 bytes, the counter says {1:.0f}"),
        ("output_reduce_scatter", lambda _: 8.0, "ranks sent 8 bytes, the counter says 0"),
        ("gossip", lambda _: 8.0, "ranks sent 8 bytes, the counter says 0"),
    ],
)
def test_bytes_are_compared_collective_by_collective(context, monkeypatch, name, change, said):
    traffic = outcome(context, misbehaving.Honest).traffic
    counted = {known: sum(links) for known, links in traffic.collectives.items()}
    changed = {} if name is None else {name: change(counted.get(name, 0.0))}
    sent = {known: size for known, size in {**counted, **changed}.items() if size is not None}

    def ran(folder, world_size, timeout_s):
        # Rank 1 sent everything.
        ms = {phase: [1.0, 1.0] for phase in (*MEASURED_PHASES, "step")}
        for rank in range(world_size):
            bytes_ = {known: (size * rank, 0.0) for known, size in sent.items()}
            result = RankResult(rank=rank, ms=ms, sent=[bytes_, bytes_], calls=[{}, {}], shares=[0.5, 0.5])
            (folder / f"rank{rank}.json").write_text(result.model_dump_json())

    monkeypatch.setattr("shardbench.engine.measure.run_ranks", ran)
    record = outcome(context, misbehaving.Honest, Backend.MEASURED)
    if name is None:
        assert (record.outcome, record.failure) == (Outcome.OK, None)
        return
    assert (record.outcome, record.failure.phase) == (Outcome.ERROR, "bytes")
    assert record.failure.cause == f"{name}: {said.format(sent.get(name), counted.get(name))}"
    # What was sent and counted is kept for whoever looks into it.
    assert record.measured_bytes == pytest.approx(sent)


def test_fitting_time_is_recorded(context):
    record = outcome(context, misbehaving.Learner)
    assert record.planned.fit_s >= 0.2


FAILURES = [
    (misbehaving.Slow, Outcome.TIMEOUT, "plan", "its budget is 1 s"),
    (misbehaving.Declines, Outcome.INFEASIBLE, "plan", "nothing fits"),
    (misbehaving.Raises, Outcome.ERROR, "plan", "ZeroDivisionError: one two (misbehaving.py:"),
    (misbehaving.Dies, Outcome.ERROR, "plan", "killed by signal 15"),
    (misbehaving.IsKilled, Outcome.OOM, "plan", "killed by signal 9"),
    (misbehaving.Peeks, Outcome.INVALID, "plan", "without declaring Sees.ACCESS_PROFILE"),
    (misbehaving.PeeksAtTest, Outcome.INVALID, "plan", "test trace is never handed"),
    (misbehaving.Mutates, Outcome.INVALID, "plan", "changed the problem"),
    (misbehaving.NoPlan, Outcome.INVALID, "plan", "returned dict, not a Plan"),
    (misbehaving.Undeclared, Outcome.INVALID, "validate", "does not declare: uvm"),
    (misbehaving.BadPlan, Outcome.INVALID, "validate", "world_size: "),
    (misbehaving.Unpicklable, Outcome.ERROR, "plan", "cannot be pickled for a process of its own: "),
    (misbehaving.OnlyPicklesHere, Outcome.ERROR, "plan", "ValueError: invalid literal"),
    (misbehaving.NeedsMore, Outcome.SKIPPED, "start", "a_module_that_is_not_there"),
    (misbehaving.CannotRun, Outcome.SKIPPED, "count", "row-wise runs over all ranks or all ranks of one node"),
]


@pytest.mark.parametrize(("kind", "ended", "phase", "cause"), FAILURES, ids=lambda v: getattr(v, "name", None))
def test_failures_are_outcomes(context, kind, ended, phase, cause):
    record = outcome(context, kind)
    assert (record.outcome, record.failure.phase) == (ended, phase)
    assert cause in record.failure.cause
    assert "\n" not in record.failure.cause
    assert record.timing is None


def test_fitting_has_a_budget(context):
    record = outcome(context, misbehaving.SlowFit, fit_s=0.1)
    assert (record.outcome, record.failure.phase) == (Outcome.TIMEOUT, "plan")
    assert re.fullmatch(r"fitting took \d+\.\d s, its budget is 0\.1 s", record.failure.cause)


@pytest.mark.parametrize("kind", [misbehaving.FollowsItsLog, misbehaving.UsesProcesses])
def test_what_a_planner_may_do(context, kind):
    assert outcome(context, kind).outcome is Outcome.OK


def test_the_test_batches_are_sealed_and_made_again_when_changed(context):
    honest = outcome(context, misbehaving.Honest)
    found = outcome(context, lambda: misbehaving.FindsBatches(context.folder))
    assert (found.outcome, found.failure.phase) == (Outcome.INVALID, "plan")
    assert "test trace" in found.failure.cause
    changed = outcome(context, lambda: misbehaving.ChangesBatches(context.folder))
    assert (changed.outcome, changed.failure.phase) == (Outcome.INVALID, "plan")
    assert changed.failure.cause == "the strategy changed the test batches"
    assert outcome(context, misbehaving.Honest).traffic == honest.traffic


def test_repeats_are_of_one_plan_which_is_made_once(context):
    first, second = (outcome(context, misbehaving.Counting, repeat=repeat) for repeat in (0, 1))
    assert (first.spec.repeat, second.spec.repeat) == (0, 1)
    assert first.planned == second.planned
    assert "asked_at" in first.planned.notes
    other = outcome(context, misbehaving.Counting, seed=1)
    assert other.planned.plan_hash != first.planned.plan_hash
    failures = [outcome(context, misbehaving.Raises, repeat=repeat).failure for repeat in (0, 1)]
    assert failures[0] == failures[1] is not None


def test_where_no_control_fits_a_measured_trial_says_so(context, monkeypatch):
    def fail(problem):
        raise Infeasible("no control plan: 7 rows of table 'table0' fit nowhere")

    monkeypatch.setattr("shardbench.runs.run_trial.control_plan", fail)
    record = outcome(context, misbehaving.Honest, Backend.MEASURED)
    assert (record.outcome, record.failure.phase) == (Outcome.INFEASIBLE, "control")
    assert "7 rows of table 'table0'" in record.failure.cause


def test_a_fault_of_the_harness_ends_one_trial(context, monkeypatch):
    def fail(*_):
        raise RuntimeError("one\ntwo")

    monkeypatch.setattr("shardbench.runs.evaluate.validate", fail)
    record = outcome(context, misbehaving.Honest)
    assert (record.outcome, record.failure.phase) == (Outcome.ERROR, "harness")
    assert re.fullmatch(r"RuntimeError: one two \(test_runner\.py:\d+\)", record.failure.cause)


def test_a_fault_of_the_users_files_ends_the_run(context, monkeypatch):
    def fail(*_):
        raise BadInput("the trace is cut off")

    monkeypatch.setattr(context.workload, "_profile", fail)
    with pytest.raises(BadInput, match="the trace is cut off"):
        outcome(context, misbehaving.Honest)


def test_plans_and_logs_are_kept(context, tmp_path):
    context.results = tmp_path / "kept"
    good = outcome(context, misbehaving.Honest)
    kept = context.results / "plans" / f"{good.planned.plan_hash}.json"
    assert content_hash(Plan.from_json(kept.read_text())) == good.planned.plan_hash
    assert not (context.results / "logs").exists()
    bad = outcome(context, misbehaving.Raises)
    assert "ZeroDivisionError" in (context.results / "logs" / f"{bad.key}.log").read_text()
    assert len(list((context.results / "plans").iterdir())) == 1


@pytest.fixture
def cuda_context(tmp_path):
    path = Path(machine_file(tmp_path))
    path.write_text(path.read_text().replace('device = "cpu"', 'device = "cuda"'))
    job = Job(workload="random", machine=str(path), backend=Backend.MEASURED, iterations=2)
    return JobContext(job, RandomWorkload([(100, 8), (40, 8)], 16), tmp_path / "job")


def test_missing_devices_skip_measured_trials(cuda_context, monkeypatch):
    monkeypatch.setattr("shardbench.runs.jobcheck.cuda_devices", lambda: 1)
    record = outcome(cuda_context, misbehaving.Honest, Backend.MEASURED)
    assert (record.outcome, record.failure.phase) == (Outcome.SKIPPED, "start")
    assert record.failure.cause == "needs 2 CUDA devices, this machine has 1"
    assert outcome(cuda_context, misbehaving.Honest).outcome is Outcome.OK


def test_a_kept_job_folder_is_made_even_where_devices_are_missing(cuda_context, monkeypatch):
    monkeypatch.setattr("shardbench.runs.jobcheck.cuda_devices", lambda: 0)
    cuda_context.folder_stays = True
    record = outcome(cuda_context, misbehaving.Honest, Backend.MEASURED)
    assert record.outcome is Outcome.SKIPPED
    job = from_json(RankJob, (cuda_context.folder / record.key / "job.json").read_text())
    assert job.device == "cuda"
    assert Path(job.batches).is_dir()


def test_ranks_do_not_stand_in_for_missing_devices(cuda_context, monkeypatch):
    # Hides real ones from the ranks, which are spawned where there are any.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("shardbench.runs.jobcheck.cuda_devices", lambda: 2)
    record = outcome(cuda_context, misbehaving.Honest, Backend.MEASURED)
    assert record.outcome is Outcome.SKIPPED
    assert "needs 2 CUDA devices" in record.failure.cause


def test_a_hanging_planner_is_killed(context, monkeypatch):
    monkeypatch.setattr("shardbench.runs.evaluate.START_S", 1.0)
    record = outcome(context, misbehaving.Hangs)
    assert record.outcome is Outcome.TIMEOUT
    assert "no result from plan after 2 s" in record.failure.cause


def test_ranks_that_hang_are_killed_and_their_logs_kept(context, tmp_path):
    context.results = tmp_path / "kept"
    # Long enough for ranks to begin on a busy machine, where importing torch alone takes ten seconds.
    record = outcome(context, misbehaving.Honest, Backend.MEASURED, iterations=10**7, timeout_s=20)
    assert (record.outcome, record.failure.phase) == (Outcome.TIMEOUT, "time")
    assert "== rank1.log" in (context.results / "logs" / f"{record.key}.log").read_text()


SUITE = """
name = "tiny"
description = "a made-up trace on a made-up machine"
[[workloads]]
name = "made-up"
dataset = "trace"
files = ["{trace}"]
dim = 8
pooling = 4
batch_size = 32
test_batches = 2
dense = {{ features = 4, bottom = [8], top = [8, 1] }}
[[grids]]
machines = ["{machine}"]
backends = ["simulated"]
iterations = 2
strategies = ["shuffle", "greedy-size"]
[[grids]]
machines = ["{machine}"]
backends = ["measured"]
iterations = 3
warmup = 1
repeats = 2
strategies = ["greedy-size"]
"""


class Log:
    """Listener that remembers."""

    def __init__(self):
        self.calls = []

    def planned(self, work, unit, total, settled):
        self.calls.append(("planned", total, settled))

    def started(self, piece):
        self.calls.append(("started", piece.split()[3]))

    def finished(self, number, record):
        self.calls.append(("finished", number, record.outcome.value))


@pytest.fixture
def tiny(tmp_path):
    rows = np.random.default_rng(0).integers(0, 500, 2000)
    (tmp_path / "trace.txt").write_text("\n".join(map(str, rows)) + "\n")
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE.format(trace=tmp_path / "trace.txt", machine=machine_file(tmp_path)))
    return load_suite(str(suite)), RunOptions(results=tmp_path / "results", data=tmp_path)


def test_a_suite_runs_resumes_retries_and_forces(tiny):
    suite, options = tiny
    log = Log()
    records = run_suite(suite, options, log)
    assert [r.outcome for r in records] == [Outcome.OK] * 4
    assert log.calls[0] == ("planned", 4, 0)
    assert log.calls[1:3] == [("started", "shuffle"), ("finished", 1, "ok")]
    lines = trial_store(options.results, "tiny").path.read_text().splitlines()
    assert len(lines) == 4
    assert all(len(line) < 20_000 for line in lines)
    environments = list((options.results / "environments").glob("*.json"))
    assert [path.stem for path in environments] == [records[0].environment]

    again = Log()
    assert run_suite(suite, options, again) == records
    assert again.calls == [("planned", 4, 4)]
    forced = Log()
    run_suite(suite, replace(options, force=True, backend=Backend.SIMULATED), forced)
    assert forced.calls[0] == ("planned", 2, 0)
    assert len(trial_store(options.results, "tiny").read()) == 6

    spec = records[0].spec
    failed = records[0].model_dump(mode="json") | {
        "outcome": "oom",
        "failure": {"outcome": "oom", "cause": "made up", "phase": "time"},
    }
    trial_store(options.results, "tiny").append(Record.model_validate(failed))
    retried = Log()
    retry = replace(options, retry=frozenset({Outcome.OOM}))
    assert run_suite(suite, retry, retried)[0].outcome is Outcome.OK
    assert retried.calls == [("planned", 4, 3), ("started", spec.strategy), ("finished", 1, "ok")]


def test_a_measurement_counts_only_where_it_was_taken(tiny, monkeypatch):
    suite, options = tiny
    run_suite(suite, options, Log())
    elsewhere = Environment.here().model_copy(update={"cpu": "another one"})
    work = SuiteWork(suite, options)
    assert [trial.backend for trial in work.settled(work.store.latest(), elsewhere.hash)] == ["simulated"] * 2
    monkeypatch.setattr("shardbench.runs.session.Environment.here", lambda: elsewhere)
    again = Log()
    run_suite(suite, options, again)
    assert again.calls[0] == ("planned", 4, 2)


def test_job_folders_may_be_kept(tiny, tmp_path):
    suite, options = tiny
    kept = replace(options, backend=Backend.MEASURED, work=tmp_path / "work")
    records = run_suite(suite, kept, Log())
    for record in records:
        (path,) = (tmp_path / "work").glob(f"*/{record.key}/job.json")
        assert from_json(RankJob, path.read_text()).device == "cpu"
    assert (path.parents[1] / "batches" / "0.values").is_file()
    assert path.parents[1].name == "made-up-toy-measured-fp32-sgd-32"


def test_an_impossible_pair_is_infeasible_rows_and_the_rest_runs(tiny):
    suite, options = tiny
    small = suite.jobs[0].model_copy(
        update={"override": dict.fromkeys(("hbm_capacity", "uvm_capacity", "host_capacity"), "1 B")}
    )
    jobs = (suite.jobs[0].model_copy(update={"batch_size": 31}), small, suite.jobs[0])
    impossible = suite.model_copy(update={"jobs": jobs})
    log = Log()
    records = run_suite(impossible, options, log)
    assert log.calls[0] == ("planned", 6, 0)
    assert [record.outcome.value for record in records] == ["infeasible"] * 4 + ["ok"] * 2
    causes = [record.failure.cause for record in records[:4]]
    assert all("batch size 31 is not a multiple of the 2 devices; set batch_size = 30" in one for one in causes[:2])
    assert all("the tables need " in one for one in causes[2:])
    assert {record.failure.phase for record in records[:4]} == {"start"}
    again = Log()
    assert run_suite(impossible, options, again) == records
    assert again.calls == [("planned", 6, 6)]
    outcomes = throughput(trial_store(options.results, "tiny").read())["outcome"]
    assert sorted(outcomes) == ["infeasible"] * 4 + ["ok"] * 2


def test_a_file_that_cannot_be_read_ends_the_run_before_the_first_trial(tiny, tmp_path):
    suite, options = tiny
    broken = tmp_path / "broken.txt"
    broken.write_text("no number\n")
    (config,) = suite.workloads
    workloads = (config, {**config, "name": "broken", "files": [str(broken)]})
    jobs = (*suite.jobs, suite.jobs[0].model_copy(update={"workload": "broken"}))
    log = Log()
    with pytest.raises(BadInput, match=r"broken.txt line 1: 'no number' is not a row index"):
        run_suite(suite.model_copy(update={"workloads": workloads, "jobs": jobs}), options, log)
    assert log.calls == []
    assert not options.results.exists()


def test_trials_are_interleaved_and_selected(tiny):
    suite, options = tiny
    listed = list_trials(suite, options)
    assert [(t.backend.value, t.strategy, t.repeat) for t in listed] == [
        ("simulated", "shuffle", 0),
        ("simulated", "greedy-size", 0),
        ("measured", "greedy-size", 0),
        ("measured", "greedy-size", 1),
    ]
    assert len({t.key for t in listed}) == 4
    chosen = replace(options, strategies=("shuffle",), seeds=(3, 4))
    assert [(t.strategy, t.seed) for t in list_trials(suite, chosen)] == [("shuffle", 3), ("shuffle", 4)]
    with pytest.raises(BadInput, match="unknown strategy 'nope'; known: "):
        list_trials(suite, replace(options, strategies=("nope",)))


def test_all_strategies_are_no_variants_and_none_that_the_job_leaves_out(tiny):
    suite, options = tiny
    job = suite.jobs[0].model_copy(update={"strategies": ("*",), "without": ("shuffle",)})
    every = suite.model_copy(update={"jobs": (job,)})
    named = {trial.strategy for trial in list_trials(every, options)}
    assert "greedy-size" in named
    assert "shuffle" not in named
    assert "greedy-cost" not in named, "a variant"
    for one in ("shuffle", "greedy-cost"):
        assert [t.strategy for t in list_trials(every, replace(options, strategies=(one,)))] == [one]
    misspelt = every.model_copy(update={"jobs": (job.model_copy(update={"without": ("shufle",)}),)})
    with pytest.raises(BadInput, match="unknown strategy 'shufle'"):
        list_trials(misspelt, options)


def test_a_quick_run_has_the_jobs_marked_so(tiny):
    suite, options = tiny
    quick = suite.jobs[1].model_copy(update={"quick": True})
    marked = suite.model_copy(update={"jobs": (suite.jobs[0], quick)})
    assert {t.backend.value for t in list_trials(marked, replace(options, quick=True))} == {"measured"}
    assert list_trials(suite, replace(options, quick=True)) == []


def test_an_overridden_machine_is_another_trial_with_another_name(tiny):
    suite, options = tiny
    job = suite.jobs[0].model_copy(update={"override": {"uvm_bandwidth": "3 GB/s"}})
    both = suite.model_copy(update={"jobs": (suite.jobs[0], job)})
    names = {t.machine for t in list_trials(both, options)}
    assert len({t.key for t in list_trials(both, options)}) == 4
    assert any(name.endswith("+uvm_bandwidth-3GBps") for name in names)
    (record, *_) = run_suite(suite.model_copy(update={"jobs": (job,)}), options, Log())
    assert record.outcome is Outcome.OK


def test_same_simulated_trial_gives_the_same_numbers(tiny):
    suite, options = tiny
    simulated = replace(options, backend=Backend.SIMULATED)
    first = run_suite(suite, simulated, Log())
    second = run_suite(suite, replace(simulated, force=True), Log())
    for a, b in zip(first, second, strict=True):
        assert (a.timing, a.traffic, a.bound_ms, a.draws) == (b.timing, b.traffic, b.bound_ms, b.draws)
        assert a.planned.plan_hash == b.planned.plan_hash


def test_a_changed_workload_or_machine_is_another_trial(tiny, tmp_path):
    suite, options = tiny
    before = {t.key for t in list_trials(suite, options)}
    path = tmp_path / "toy.toml"
    path.write_text(path.read_text().replace("value = 32", "value = 33"))
    assert before.isdisjoint(t.key for t in list_trials(suite, options))


def test_keys_depend_on_everything_in_a_spec(context):
    base = spec_of(context, misbehaving.Honest())
    assert content_hash(base) == base.key
    for change in ({"seed": 1}, {"repeat": 1}, {"iterations": 3}, {"plan_s": 2.0}, {"machine_hash": "x"}):
        assert base.model_copy(update=change).key != base.key


def test_records_hold_no_path_and_no_host(tiny):
    suite, options = tiny
    run_suite(suite, replace(options, backend=Backend.SIMULATED), Log())
    text = trial_store(options.results, "tiny").path.read_text()
    text += "".join(path.read_text() for path in (options.results / "environments").iterdir())
    assert str(options.results.parent) not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
