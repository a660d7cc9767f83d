"""A race: plans in files, as a suite of measured trials that drops the slower ones."""

import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kept_folders import Silent, leave, results_of
from misbehaving import Honest
from records import control, ok, planned, timing

from shardbench.advice.best_plan import best_plan
from shardbench.advice.race_entry import entrants, gather_candidates
from shardbench.base.errors import BadInput, Infeasible
from shardbench.base.serialise import content_hash, to_toml
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.model.table import Precision
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Outcome, TrialSpec
from shardbench.report.compare.versions import other_versions
from shardbench.trials.discovery import HandedPlan, get_strategy
from shardbench.trials.measured_trial import collect, open_folders
from shardbench.trials.runner import RunOptions, SuiteWork, run_suite
from shardbench.trials.suite import Job, Suite, load_suite
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.workload import Workload

TABLES = """
batch_size = 256
dense = { bottom = [16], top = [16, 1] }
tables = [
  { name = "user", rows = 20_000, dim = 16 }, { name = "item", rows = 5_000, dim = 16, pooling = 8 },
  { name = "city", rows = 500, dim = 16 }, { name = "day", rows = 400, dim = 16 },
  { name = "ad", rows = 300, dim = 16 },
]
"""
Command = Callable[..., str]
NAMES = ("row-wise", "greedy-size")
pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def workload() -> Workload:
    given = {"dataset": "described", "name": "ours", **tomllib.loads(TABLES)}
    return workload_config(given, "ours").build(Path())


@pytest.fixture
def made(tmp_path: Path, workload: Workload) -> Callable[..., Suite]:
    """A race of plans with these names, which place tables in other ways each, with other settings of its job."""
    ways = itertools.product((0, 1), repeat=5)
    plans = [Plan(world_size=2, segments=whole_tables(workload.tables, ranks)) for ranks in ways]

    def suite(names: str, of: Sequence[Plan] = plans, **settings: Any) -> Suite:
        paths = [tmp_path / f"{name}.json" for name in names]
        for path, plan in zip(paths, of):
            path.write_text(plan.to_json())
        given = {"backend": "measured", "iterations": 2, "warmup": 1, "repeats": 2, "race_s": 300.0, **settings}
        job = Job(workload="ours", machine="cpu-1x2", strategies=tuple(map(str, paths)), **given)
        config = {"dataset": "described", "name": "ours", **tomllib.loads(TABLES)}
        return Suite(name="race-ours", description="a race", workloads=(config,), jobs=(job,))

    return suite


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(results=tmp_path / "results", data=tmp_path)


class Ranks:
    """Ranks that take no time: trials with the ratios to the control that they are told, and what was asked of them."""

    def __init__(self, ratios: Mapping[str, float], trial_s: float) -> None:
        self.ratios, self.trial_s = ratios, trial_s
        self.ran: list[tuple[int, str]] = []
        self.now = 0.0
        self.interrupted_at: int | None = None

    def run_trial(self, spec: TrialSpec, strategy: HandedPlan, context: Any, environment: str, begun: Any) -> Record:
        if len(self.ran) == self.interrupted_at:
            raise KeyboardInterrupt
        self.ran.append((spec.repeat, spec.strategy))
        self.now += self.trial_s
        ratio = self.ratios[spec.strategy] * (1.0 + 0.05 * (spec.repeat % 2))
        changes: dict[str, Any] = {
            "spec": spec, "key": spec.key, "environment": environment, "provenance": begun,
            "planned": planned(plan_hash=strategy.plan_hash), "control": control(10.0, 20.0),
            "timing": timing((10.0 * ratio, 20.0 * ratio), (1.0, 1.0)),
        }  # fmt: skip
        return Record.model_validate({**vars(ok()), **changes})


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    def fake(trial_s: float = 0.0, **ratios: float) -> Ranks:
        stand_in = Ranks({name.replace("_", "-"): ratio for name, ratio in ratios.items()}, trial_s)
        monkeypatch.setattr("shardbench.trials.runner.run_trial", stand_in.run_trial)
        monkeypatch.setattr("shardbench.trials.runner.monotonic", lambda: stand_in.now)
        return stand_in

    return fake


def plan_race(command: Command, tmp_path: Path, *given: object) -> Path:
    (tmp_path / "ours.toml").write_text(TABLES)
    asked = [part for name in NAMES for part in ("--strategy", name)]
    said = command("plan", tmp_path / "ours.toml", "cpu-1x2", "--race", tmp_path / "race", *asked, *given)
    path = tmp_path / "race" / "race.toml"
    assert f"race of 2 plans: shardbench run {path}" in said
    return path


def test_plan_makes_a_race_that_runs_from_any_folder(
    tmp_path: Path, command: Command, ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = plan_race(command, Path(), "--precision", "fp16", "--batch-size", 128)
    monkeypatch.chdir(tmp_path / "race")
    suite = load_suite(path.name)
    (job,) = suite.jobs
    assert {Path(entry).name for entry in job.strategies} == {f"{name}.json" for name in NAMES}
    assert (job.precision, job.race_s, job.repeats) == (Precision.FP16, 300.0, 20)
    assert suite.workload(job).build(Path()).batch_size == 128
    assert suite.name.startswith("race-ours-cpu-1x2-")
    ranks(row_wise=1.0, greedy_size=3.0)
    said = command("run", path.name, "--results", "results")
    for part in ("best: row-wise, ", "slower: greedy-size +", "40 trials: 3 ok; not ok: 37 skipped"):
        assert part in said
    records = trial_store(Path("results"), suite.name).read()
    assert all(record.of_given_plan for record in records if record.outcome is Outcome.OK)
    assert other_versions(records).other == {}
    assert command("run", path.name, "--results", "results", "--fresh", "--strategy", "row-wise")
    assert "unknown strategy 'row'" in command("run", path.name, "--fresh", "--strategy", "row", code=2)


def test_other_plans_are_another_race(tmp_path: Path, command: Command) -> None:
    names = {load_suite(str(plan_race(command, tmp_path, *given))).name for given in ((), ("--batch-size", 64), ())}
    assert len(names) == 1, "the same plans"
    kept = tmp_path / "keep.toml"
    kept.write_text('same_device = [["user", "item"]]\n')
    names.add(load_suite(str(plan_race(command, tmp_path, "--constraints", kept))).name)
    assert len(names) == 2


def test_an_interrupted_race_goes_on_and_a_changed_plan_runs_again(
    made: Callable[..., Suite], options: RunOptions, ranks: Callable[..., Ranks]
) -> None:
    fake, ratios = ranks(a=1.0, b=1.001, c=1.25), {"a": 1.0, "b": 1.001, "c": 1.25}
    fake.interrupted_at = 4
    with pytest.raises(KeyboardInterrupt):
        run_suite(made("abc", repeats=3), options, Silent())
    again = ranks(**ratios)
    run_suite(made("abc", repeats=3), options, Silent())
    assert again.ran == [(1, "b"), (1, "c"), (2, "a"), (2, "b")]
    plans = [HandedPlan("", Plan.from_json(Path(p).read_text())) for p in made("abc").jobs[0].strategies]
    changed = [replace(plans[0].fixed_plan, notes={"took": 1.5}), plans[1].fixed_plan, plans[2].fixed_plan]
    last = ranks(**ratios)
    run_suite(made("abc", changed, repeats=3), options, Silent())
    assert last.ran == [(0, "a"), (1, "a"), (2, "a")]


def test_the_first_group_runs_whole_and_no_later_trial_begins_when_the_time_is_up(
    made: Callable[..., Suite], options: RunOptions, ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Silent, "noted", lambda _, line: notes.append(line))
    fake = ranks(trial_s=10.0, a=1.0, b=1.1)
    assert len(run_suite(made("ab", race_s=5.0), options, Silent())) == 2
    assert fake.ran == [(0, "a"), (0, "b")]
    assert notes == ["2 trials are left for later: the same command goes on"]
    fake = ranks(trial_s=10.0, a=1.0, b=1.1)
    assert len(run_suite(made("ab", race_s=5.0), options, Silent())) == 3
    assert fake.ran == [(1, "a")]


def test_ranks_elsewhere_run_group_by_group(made: Callable[..., Suite], options: RunOptions, tmp_path: Path) -> None:
    suite, work = made("ab", iterations=1), tmp_path / "work"
    away = replace(options, work=work, launch=False)
    assert [one.outcome for one in run_suite(suite, away, Silent())] == [Outcome.SKIPPED] * 2
    first = open_folders(work)
    assert len(first) == 2
    leave(first[0], results_of(first[0]))
    assert [one.state.value for one in collect(work, options.results)].count("recorded") == 1
    assert len(run_suite(suite, away, Silent())) == 2
    # All have the times of the made-up ranks, a millisecond each; the first group is followed by the second.
    for number in (4, 4):
        for folder in open_folders(work):
            leave(folder, results_of(folder))
        list(collect(work, options.results))
        assert len(run_suite(suite, away, Silent())) == number
    records = trial_store(options.results, "race-ours").read()
    assert [record.outcome for record in records].count(Outcome.SKIPPED) == 4
    hashes = {record.planned.plan_hash for record in records if record.planned}
    assert all((options.results / "plans" / f"{one}.json").is_file() for one in hashes)


def test_a_plan_that_is_not_there_is_refused(made: Callable[..., Suite], options: RunOptions) -> None:
    suite = made("a")
    (job,) = suite.jobs
    Path(job.strategies[0]).unlink()
    with pytest.raises(BadInput, match=r"plan .*a\.json does not exist"):
        SuiteWork(suite, options)


def test_the_machine_file_is_corrected(
    tmp_path: Path, command: Command, ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def update_file(machine: str, out: Path, question: Any, raced: Sequence[tuple[Plan, Record]]) -> list[str]:
        hashes = [(content_hash(plan), record.planned.plan_hash) for plan, record in raced if record.planned]
        asked.append((machine, out, question.problem.name, question.iterations, hashes))
        return ["corrected"]

    monkeypatch.setattr("shardbench.calibrate.correction.update_file", update_file)
    path, results = plan_race(command, tmp_path), tmp_path / "results"
    fake = ranks(row_wise=1.0, greedy_size=1.5)
    for entry in load_suite(str(path)).jobs[0].strategies:
        plan = Plan.from_json(Path(entry).read_text())
        (results / "plans").mkdir(parents=True, exist_ok=True)
        (results / "plans" / f"{content_hash(plan)}.json").write_text(plan.to_json())
    said = command("run", path, "--results", results, "--update", tmp_path / "new.toml")
    assert "corrected" in said.splitlines()
    ((machine, out, name, iterations, hashes),) = asked
    assert (machine, out, name, iterations) == ("cpu-1x2", tmp_path / "new.toml", "ours", 10)
    assert len(hashes) == len(fake.ran) == 3
    assert all(plan == record for plan, record in hashes)
    assert "of one measured job" in command("run", "measured", "--update", tmp_path / "new.toml", code=2)


def test_real_ranks(tmp_path: Path, command: Command) -> None:
    path = plan_race(command, tmp_path)
    path.write_text(path.read_text().replace("race_s = 300", "race_s = 0.001"))
    command("run", path, "--results", tmp_path / "results")
    records = trial_store(tmp_path / "results", load_suite(str(path)).name).read()
    assert [(record.spec.repeat, record.outcome) for record in records] == [(0, Outcome.OK)] * 2
    assert all(record.control is not None and record.of_given_plan for record in records)


def test_toml_has_what_was_written() -> None:
    text = 'o"\u00e4\\\n\U0001f600'
    config = {"name": text, "dims": [1, 2.5e-7], "b": True, "t": [{"a b": [1], "c": {"d": "x"}}, {}]}
    assert tomllib.loads(f"value = {to_toml(config)}")["value"] == config


class Several(Honest):
    """Gives three plans, of which the second is the first with another note and the third breaks a rule."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return self.plans(problem, budget, seed, 1)[0]

    def plans(self, problem: Problem, budget: Budget, seed: int, most: int) -> tuple[Plan, ...]:
        if seed == 1 and most > 1:
            raise Infeasible("no more")
        tables = problem.tables
        first = Plan(world_size=2, segments=whole_tables(tables, [i % 2 for i in range(len(tables))]))
        broken = replace(first, segments=first.segments[1:])
        other = Plan(world_size=2, segments=whole_tables(tables, [0] * len(tables)))
        return (first, replace(first, notes={"again": 1}), broken, other)[:most]


def test_runners_up_enter(workload: Workload, caplog: pytest.LogCaptureFixture) -> None:
    asked = [Several(), get_strategy("row-wise")]
    for seed, names in ((0, {"several", "several-4", "row-wise"}), (1, {"several", "row-wise"})):
        search = best_plan(workload, load_machine("cpu-1x2"), asked, budget_s=60.0, seed=seed)
        found = gather_candidates(search, workload, asked, budget_s=60.0, seed=seed)
        assert {one.name for one in found} == names
        assert [one.step_ms for one in found] == sorted(one.step_ms for one in found)
    assert caplog.messages == ["several gives no runners-up: Infeasible: no more"]
    assert {"joint", "autoshard", "hybrid"} <= {strategy.name for strategy in entrants()}
    assert not any(strategy.role.named_only for strategy in entrants())
