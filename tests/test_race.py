"""The race: rounds, who drops out, what is run again and what is not, and its one-screen answer."""

import itertools
import json
import math
import sys
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kept_folders import Silent, leave, results_of
from records import control, ok, planned, timing

from shardbench.advice import race as race_module
from shardbench.advice import race_round
from shardbench.advice.asking import HandedPlan
from shardbench.advice.best_plan import Candidate, best_plan
from shardbench.advice.race import WIDE, Ending, RaceResult, race
from shardbench.advice.race_entry import entrants, gather_candidates
from shardbench.advice.race_round import RaceOptions
from shardbench.base.errors import BadInput, Infeasible
from shardbench.base.serialise import content_hash
from shardbench.base.statistics import t_quantile
from shardbench.cli import main as cli
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Failure, Outcome, TrialSpec
from shardbench.report.compare.versions import other_versions
from shardbench.trials.collect import collect, open_folders
from shardbench.trials.discovery import get_strategy
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
Ratios = Mapping[str, Callable[[int], float]]
"""By candidate the ratio to the control that its trial in a round (0, 1, ...) measures."""
Raced = Callable[..., RaceResult]
Command = Callable[..., str]


@pytest.fixture(scope="module")
def workload() -> Workload:
    given = {"dataset": "described", "name": "ours", **tomllib.loads(TABLES)}
    return workload_config(given, "ours").build(Path())


@pytest.fixture(scope="module")
def plans(workload: Workload) -> list[Plan]:
    """All 32 ways of placing five tables on two devices."""
    return [
        Plan(world_size=2, segments=whole_tables(workload.tables, ranks))
        for ranks in itertools.product((0, 1), repeat=5)
    ]


@pytest.fixture
def options(tmp_path: Path) -> RaceOptions:
    return RaceOptions(name="race-ours", results=tmp_path / "results", data=tmp_path, iterations=2, warmup=1)


class Ranks:
    """Ranks that take no time: trials with the ratios that they are told, and what was asked of them."""

    def __init__(self, ratios: Ratios, *, trial_s: float = 0.0) -> None:
        self.ratios, self.trial_s = ratios, trial_s
        self.ran: list[tuple[int, str]] = []
        self.now = 0.0
        self.interrupted_at: int | None = None
        self.failing: dict[str, Outcome] = {}

    def run_trial(self, spec: TrialSpec, strategy: HandedPlan, context: Any, environment: str, begun: Any) -> Record:
        if len(self.ran) == self.interrupted_at:
            raise KeyboardInterrupt
        self.ran.append((spec.repeat, spec.strategy))
        self.now += self.trial_s
        ratio = self.ratios[spec.strategy](spec.repeat)
        changes: dict[str, Any] = {
            "spec": spec, "key": spec.key, "environment": environment, "provenance": begun,
            "planned": planned(plan_hash=strategy.plan_hash), "control": control(10.0, 20.0),
            "timing": timing((10.0 * ratio, 20.0 * ratio), (1.0, 1.0)),
        }  # fmt: skip
        outcome = self.failing.get(spec.strategy)
        if outcome is not None:
            changes["failure"] = Failure(outcome=outcome, cause="no room", phase="build")
        return Record.model_validate({**vars(ok()), **changes, "outcome": outcome or Outcome.OK})


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    def made(ratios: Ratios, **given: Any) -> Ranks:
        fake = Ranks(ratios, **given)
        monkeypatch.setattr(race_round, "run_trial", fake.run_trial)
        for module in (race_round, race_module):
            monkeypatch.setattr(module, "monotonic", lambda: fake.now)
        return fake

    return made


def named(plans: Sequence[Plan], *names: str) -> list[Candidate]:
    return [Candidate(name=name, plan=plan, step_ms=1.0 + i) for i, (name, plan) in enumerate(zip(names, plans))]


@pytest.fixture
def raced(workload: Workload, plans: list[Plan], options: RaceOptions) -> Raced:
    """A race on two CPU ranks, under changed options, of candidates with these names and plans."""

    def run(names: Iterable[str], of: Sequence[Plan] = plans, **changes: Any) -> RaceResult:
        return race(workload, "cpu-1x2", named(of, *names), {}, replace(options, **changes), Silent())

    return run


def steady(**ratios: float) -> Ratios:
    return {name: lambda number, ratio=ratio: ratio for name, ratio in ratios.items()}  # type: ignore[misc]


def wobbling(**ratios: float) -> Ratios:
    """Ratios that are by turns 2 % above and below: e to the power of 0.02."""
    return {
        name: lambda number, ratio=ratio: ratio * math.exp(0.02 * (-1) ** number)  # type: ignore[misc]
        for name, ratio in ratios.items()
    }


def told(found: RaceResult) -> dict[str, tuple[int, int | None, bool]]:
    return {one.name: (one.n, one.dropped_in, one.ties) for one in found.standings}


def test_slower_ones_drop_out(raced: Raced, ranks: Callable[..., Ranks]) -> None:
    ratios = wobbling(best=1.0, near=1.01, slow=1.2, wide=WIDE + 0.01)
    ranks(ratios)
    found = raced(reversed(ratios), most_rounds=4)
    # Each of four has a deviation of 0.02 sqrt 2 after two rounds, pooled over three with two trials: three degrees.
    least = t_quantile(0.975, 3) * 0.02 * math.sqrt(2.0)
    assert math.log(1.01) < least < math.log(1.2)
    assert told(found) == {
        "best": (4, None, False), "near": (4, None, True), "slow": (2, 2, False), "wide": (1, 1, False)
    }  # fmt: skip
    assert [one.name for one in found.standings] == ["best", "near", "slow", "wide"]
    assert (found.rounds, found.ended_by, found.on_record) == (4, Ending.ROUNDS, 0)
    assert found.noise is not None
    assert found.noise.freedom == 3 + 3 + 1
    # The sum of squares of +-0.02 about their mean, 0: four, four and two of them.
    assert found.noise.deviation == pytest.approx(0.02 * math.sqrt(10 / 7))
    assert found.best is not None
    assert found.best.ratio is not None
    assert found.best.ratio.value == pytest.approx(1.0)
    reach = t_quantile(0.975, 7) * found.noise.deviation / math.sqrt(4)
    assert found.best.ratio.high == pytest.approx(math.exp(reach))
    assert found.best.step is not None
    assert found.best.step.value == pytest.approx(15.0)
    # All pairs but best and near are told apart; they were predicted the other way round.
    assert found.model_order() == (0, 5)


def test_one_that_is_left_runs_twice(raced: Raced, ranks: Callable[..., Ranks]) -> None:
    fake = ranks(steady(a=1.0, b=2.0))
    found = raced("ab")
    assert fake.ran == [(0, "a"), (0, "b"), (1, "a")]
    assert found.ended_by is Ending.ONE_LEFT


def test_the_rest_tie(raced: Raced, ranks: Callable[..., Ranks]) -> None:
    ranks(steady(a=1.0, b=1.0, c=1.1))
    found = raced("abc")
    assert (found.ended_by, found.rounds) == (Ending.TIE, 2)
    assert told(found) == {"a": (2, None, False), "b": (2, None, True), "c": (2, 2, False)}


def test_all_run_where_nobody_drops_and_turns_rotate(raced: Raced, ranks: Callable[..., Ranks]) -> None:
    fake = ranks(steady(a=1.0, b=9.0, c=1.0), trial_s=1e6)
    found = raced("abc", drops=False, most_rounds=4)
    turns = ["".join(name for number, name in fake.ran if number == one) for one in range(4)]
    assert turns == ["abc", "cba", "bca", "acb"]
    assert told(found) == {"a": (4, None, False), "c": (4, None, True), "b": (4, None, False)}
    assert found.ended_by is Ending.ROUNDS


def test_interrupted_and_resumed(raced: Raced, ranks: Callable[..., Ranks]) -> None:
    ratios = wobbling(a=1.0, b=1.001, c=1.3)
    fake = ranks(ratios)
    fake.interrupted_at = 5
    found = raced("abc", most_rounds=3)
    assert (found.ended_by, found.rounds) == (Ending.INTERRUPTED, 1)
    # Round 2 went c, b, and then a was interrupted.
    assert {one.name: one.n for one in found.standings} == {"a": 1, "b": 2, "c": 2}
    again = ranks(ratios)
    found = raced("abc", most_rounds=3)
    assert again.ran == [(1, "a"), (2, "b"), (2, "a")]
    assert (found.ended_by, found.on_record) == (Ending.ROUNDS, 5)
    last = ranks(ratios)
    assert told(raced("abc", most_rounds=3)) == told(found)
    assert last.ran == []


def test_a_changed_plan_runs_again(raced: Raced, plans: list[Plan], ranks: Callable[..., Ranks]) -> None:
    ratios = steady(a=1.0, b=1.0)
    ranks(ratios)
    raced("ab", most_rounds=2)
    fake = ranks(ratios)
    found = raced("ab", [plans[0], replace(plans[5], notes={"took": 1.5})], most_rounds=2)
    assert fake.ran == [(0, "b"), (1, "b")]
    (b,) = (one for one in found.standings if one.name == "b")
    assert {record.planned.plan_hash for record in b.records if record.planned} == {content_hash(plans[5])}
    fake = ranks(ratios)
    raced("ab", [plans[0], plans[5]], most_rounds=2)
    assert fake.ran == []


def test_a_failure_drops_with_its_cause(raced: Raced, ranks: Callable[..., Ranks]) -> None:
    fake = ranks(steady(a=1.0, b=1.0))
    fake.failing["b"] = Outcome.OOM
    found = raced("ab")
    assert [(one.name, one.cause, one.dropped_in) for one in found.standings] == [
        ("a", "", None), ("b", "oom in build: no room", 1)
    ]  # fmt: skip
    again = ranks(steady(a=1.0, b=1.0))
    found = raced("ab", retry=frozenset({Outcome.OOM}))
    assert again.ran == [(0, "b"), (1, "b")]
    assert found.ended_by is Ending.TIE
    fake = ranks(steady(a=1.0))
    fake.failing["a"] = Outcome.TIMEOUT
    found = raced("a", name="other")
    assert (found.ended_by, found.best) == (Ending.NONE_LEFT, None)


def test_the_first_round_runs_whole_and_no_trial_begins_too_late(raced: Raced, ranks: Callable[..., Ranks]) -> None:
    fake = ranks(steady(a=1.0, b=1.1), trial_s=10.0)
    found = raced("ab", race_s=5.0)
    assert fake.ran == [(0, "a"), (0, "b")]
    assert (found.ended_by, found.rounds, found.noise, found.seconds) == (Ending.TIME, 1, None, 20.0)
    assert not any(one.ties for one in found.standings)
    # A resumed race knows no trial's length until one ran; the next would end at 20 s.
    fake = ranks(steady(a=1.0, b=1.1), trial_s=10.0)
    found = raced("ab", race_s=19.0)
    assert (fake.ran, found.ended_by) == ([(1, "b")], Ending.TIME)


def test_ranks_elsewhere(raced: Raced, plans: list[Plan], options: RaceOptions, tmp_path: Path) -> None:
    away = {"work": tmp_path / "work", "launch": False, "most_rounds": 2, "iterations": 1}
    found = raced("ab", **away)
    assert (found.ended_by, found.waiting, found.rounds) == (Ending.WAITING, 2, 0)
    first = open_folders(tmp_path / "work")
    assert len(first) == 2
    leave(first[0], results_of(first[0]))
    assert [one.state.value for one in collect(tmp_path / "work", options.results)].count("recorded") == 1
    found = raced("ab", **away)
    assert (found.ended_by, found.waiting) == (Ending.WAITING, 1)
    # Both have the times of the made-up ranks, a millisecond each, and their round is followed by the next.
    for _ in range(2):
        for folder in open_folders(tmp_path / "work"):
            leave(folder, results_of(folder))
        list(collect(tmp_path / "work", options.results))
        found = raced("ab", **away)
    assert found.ended_by is Ending.TIE
    assert told(found) == {"a": (2, None, False), "b": (2, None, True)}
    records = trial_store(options.results, "race-ours").read()
    assert [record.outcome for record in records].count(Outcome.SKIPPED) == 4
    assert other_versions(records).other == {}
    assert all((options.results / "plans" / f"{content_hash(one)}.json").is_file() for one in plans[:2])


def test_devices_that_are_not_here(
    workload: Workload, raced: Raced, plans: list[Plan], options: RaceOptions, tmp_path: Path, command: Command
) -> None:
    with pytest.raises(BadInput, match=r"a100-40gb-1x8 cannot be raced on here: .* --work DIR --no-launch"):
        race(workload, "a100-40gb-1x8", named(plans, "a"), {}, options, Silent())
    with pytest.raises(BadInput, match="no candidate"):
        raced("")
    path = tmp_path / "ours.toml"
    path.write_text(TABLES)
    for given, said in (
        (["--race", "--no-launch"], "say where by --work DIR"),
        (["--work", "x"], "add --race"),
        (["--update", "x.toml"], "add --race"),
    ):
        assert said in command("plan", path, "cpu-1x2", *given, code=2)


class Several(Strategy):
    """Gives three plans, of which the second is the first with another note and the third breaks a rule."""

    name = "several"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

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
        search = best_plan(workload, load_machine("cpu-1x2"), asked, budget_s=5.0, seed=seed)
        found = gather_candidates(search, workload, asked, budget_s=5.0, seed=seed)
        assert {one.name for one in found} == names
        assert [one.step_ms for one in found] == sorted(one.step_ms for one in found)
    assert caplog.messages == ["several gives no runners-up: Infeasible: no more"]
    assert {"joint", "autoshard", "hybrid"} <= {strategy.name for strategy in entrants()}
    assert not any(strategy.role.named_only for strategy in entrants())


def ask(tmp_path: Path, *given: object, code: int = 0) -> None:
    (tmp_path / "ours.toml").write_text(TABLES)
    command = ["plan", tmp_path / "ours.toml", "cpu-1x2", "--race", "--results", tmp_path / "results", *given]
    assert cli.run_command(list(map(str, command))) == code


def test_one_screen(
    ranks: Callable[..., Ranks], plans: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    names = [f"strategy-{i:02}" for i in range(22)]
    fake = ranks({name: lambda n, i=i: 1.0 + 0.03 * i + 0.01 * (n + i) % 2 for i, name in enumerate(names)})  # type: ignore[misc]
    fake.failing["strategy-03"] = Outcome.OOM
    monkeypatch.setattr("shardbench.advice.race_entry.gather_candidates", lambda *_, **__: tuple(named(plans, *names)))
    monkeypatch.setattr(race_round.RaceOptions, "most_rounds", 3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.toml").write_text(TABLES)
    command = ["plan", "ours.toml", "cpu-1x2", "--race", "--strategy", "row-wise", "--out", "p.json"]
    assert cli.run_command(command) == 0
    text = capsys.readouterr().out
    said = text[text.index("ours: ") :].splitlines()
    assert len(said) <= 24
    assert all(len(line) <= 80 for line in said)
    for part in ("best: strategy-00, ", "one trial's noise is", "slower, by",
                 "failed: strategy-03, oom in build: no room", "the model had put strategy-00 first, too",
                 "22 distinct plans of 1 strategies",
                 "records: runs/records/race-ours-cpu-1x2.jsonl", "plan: p.json"):  # fmt: skip
        assert part in text
    assert Plan.from_json((tmp_path / "p.json").read_text(), "p") == plans[0]


def test_the_machine_file_is_corrected(
    ranks: Callable[..., Ranks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def update_file(machine: str, out: Path, question: Any, raced: Sequence[tuple[Plan, Record]]) -> list[str]:
        asked.append((machine, out, question.problem.name, [(content_hash(p), r.planned.plan_hash) for p, r in raced]))
        return ["corrected"]

    stub = types.ModuleType("shardbench.calibrate.correction")
    stub.update_file = update_file  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    fake = ranks(steady(**{"row-wise": 1.0, "greedy-size": 1.5}))
    ask(tmp_path, "--strategy", "row-wise", "--strategy", "greedy-size", "--update", tmp_path / "new.toml", "--json")
    ((machine, out, name, hashes),) = asked
    assert (machine, out, name) == ("cpu-1x2", tmp_path / "new.toml", "ours")
    assert len(hashes) == len(fake.ran) == 3
    assert all(plan == record for plan, record in hashes)
    read = json.loads(capsys.readouterr().out)
    assert (read["best"], read["updated"], read["ended_by"]) == ("row-wise", ["", "corrected"], "one_left")
    assert [len(one["trials"]) for one in read["standings"]] == [2, 1]


def test_ctrl_c_gives_the_answer_so_far(
    ranks: Callable[..., Ranks], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ranks(steady(**{"row-wise": 1.0, "greedy-size": 1.5}))
    fake.interrupted_at = 1
    ask(tmp_path, "--strategy", "row-wise", "--strategy", "greedy-size", code=130)
    printed = capsys.readouterr()
    for part in ("who ties is not known", "not run yet: ", "ended as it was interrupted"):
        assert part in printed.out
    assert "the same command goes on from there" in printed.err


def test_real_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(tmp_path, "--race-s", 0, "--strategy", "row-wise", "--strategy", "greedy-size", "--json")
    read = json.loads(capsys.readouterr().out)
    assert (read["rounds"], read["ended_by"], read["noise"]) == (1, "time", None)
    assert sorted(one["name"] for one in read["standings"]) == ["greedy-size", "row-wise"]
    records = trial_store(tmp_path / "results", "race-ours-cpu-1x2").read()
    assert [record.outcome for record in records] == [Outcome.OK] * 2
    assert all(record.control is not None and record.step_bound_ms is None for record in records)
