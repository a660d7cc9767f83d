"""Submissions to a small leaderboard: what was submitted is made again from its plans, and by asking the strategy."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pytest
from impostors import Honest
from impostors_reaching import AsksBehindTheSeal

from shardbench.base.errors import BadInput
from shardbench.base.wall import Kind, kind
from shardbench.cli.check_submission import check_submission_command
from shardbench.conformance import submission
from shardbench.conformance.problems import round_machine, too_good
from shardbench.conformance.submission import FRESH, SURE, CheckReport, check_submission
from shardbench.leaderboard import problems, studies
from shardbench.leaderboard.problems import Posed, Version
from shardbench.leaderboard.studies import STEPS
from shardbench.model.plan import Plan
from shardbench.model.strategy import Strategy
from shardbench.model.table import Table
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.store import cell_store, keep_plan, plan_path
from shardbench.studies.session import run_cell
from shardbench.trials.discovery import get_strategy
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.workload import Workload

ROWS, DIM, TABLES = 8_000, 128, 4
DRAWN = {
    "dataset": "described", "batch_size": 512, "test_batches": 1, "profile_samples": 4096,
    "tables": [{"name": f"t{i}", "rows": ROWS, "dim": DIM, "pooling": 4.0, "alpha": 0.8} for i in range(TABLES)],
}  # fmt: skip
RECORDED = {"dataset": "trace", "batch_size": 64, "test_batches": 1}
HBM_SHARE = 0.3
"""Of all bytes: which rows are in HBM matters."""
PROBLEMS = ("drawn", "recorded")
COMPETING = ("greedy-lookup", "recshard", "honest", "knows-the-leaderboard")


class KnowsTheLeaderboard(AsksBehindTheSeal):
    """Draws the test lookups of a problem of the leaderboard, whose parameters everyone can read."""

    name = "knows-the-leaderboard"
    tables = tuple(Table(name=f"t{i}", rows=ROWS, dim=DIM) for i in range(TABLES))

    @cached_property
    def workload(self) -> Workload:
        return workload_config({**DRAWN, "name": "drawn"}, "here").build(Path())


@pytest.fixture(scope="module")
def board() -> Iterator[None]:
    """A leaderboard of a problem that is drawn and one that is on record, with a strategy that knows the former."""
    posed = tuple(
        Posed(name=name, machines=("small",), parameters=parameters)
        for name, parameters in (("drawn", DRAWN), ("recorded", RECORDED))
    )
    version = Version(version=problems.VERSION, efforts=(30.0, 20.0), published_s=1.0, workloads=posed)
    machine = round_machine(2, hbm=int(HBM_SHARE * TABLES * ROWS * DIM * 4 / 2))

    own: dict[str, Strategy] = {one.name: one for one in (KnowsTheLeaderboard(), Honest())}

    def strategy(name: str) -> Strategy:
        return own.get(name) or get_strategy(name)

    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (problems, "load", lambda *_: version), (studies, "load", lambda *_: version),
            (problems, "load_machine", lambda _: machine), (studies, "load_machine", lambda _: machine),
            (studies, "get_strategy", strategy),
            (submission, "get_strategy", strategy), (studies, "_competitors", lambda: dict.fromkeys(COMPETING, False)),
        ):  # fmt: skip
            patch.setattr(module, name, value)
        kept = (problems._workload, problems.question)
        for cache in kept:
            cache.cache_clear()
        yield
        for cache in kept:
            cache.cache_clear()


def submitted(folder: Path, strategy: str, *workloads: str) -> list[CellRecord]:
    """Somebody's submission of these problems, as a clean checkout would have made it."""
    store, found = cell_store(folder, "leaderboard", "steps"), []
    telling = STEPS.telling(lambda answer: keep_plan(folder, answer.plan))
    for workload in workloads:
        for name, effort in ((None, "bound"), (strategy, "timed")):
            cell = {
                "version": problems.VERSION,
                "workload": workload,
                "machine": "small",
                "strategy": name,
                "effort": effort,
            }
            record = run_cell(lambda: telling, cell, folder, "e")
            assert record.failure is None
            clean = record.provenance.model_copy(update={"commit": "0" * 40, "dirty": False})
            found.append(record.model_copy(update={"provenance": clean}))
            store.append(found[-1])
    return found


def checked(folder: Path, strategy: str, workload: str = "drawn", outcome: str = "ok") -> CheckReport:
    """A submission of one problem, which is made anew."""
    _, record = submitted(folder, strategy, workload)
    assert {row["outcome"] for row in record.rows} == {outcome}
    return check_submission(folder, again=1)


def of_lookups(found: CheckReport) -> list[str]:
    """Faults that are about lookups: nothing else of this checkout, or of cells that nobody made."""
    return [fault for fault in found.faults if "made for those" in fault]


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
def test_who_knows_the_test_lookups_is_caught_by_fresh_ones(board: None, tmp_path: Path) -> None:
    found = checked(tmp_path, "knows-the-leaderboard")
    (fault,) = of_lookups(found)
    assert "strategy=knows-the-leaderboard" in fault
    assert "30 s and 20 s: " in fault
    assert f"on {SURE} other draws of them" in fault
    again, line = found.again
    assert again.startswith("again: ")
    assert f"ms on {SURE} fresh draws of them" in line
    assert not any("made again" in fault for fault in found.faults), "its steps are as submitted"


@pytest.mark.parametrize("strategy", ["greedy-lookup", "recshard"])
def test_honest_plans_are_as_good_on_fresh_lookups(board: None, tmp_path: Path, strategy: str) -> None:
    found = checked(tmp_path, strategy)
    assert not of_lookups(found)
    assert f"ms on {FRESH} fresh draws of them" in found.again[1]


def test_where_there_are_no_others_it_is_said(board: None, tmp_path: Path) -> None:
    found = checked(tmp_path, "greedy-lookup", "recorded")
    assert not of_lookups(found)
    assert found.again[1].endswith("those of this problem are on record, there are no others")


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
def test_where_there_is_no_plan_it_is_said(board: None, tmp_path: Path) -> None:
    found = checked(tmp_path, "honest", outcome="infeasible")
    assert found.again[1:] == ("  no plan to judge on fresh test lookups",)


def test_a_suspicion_of_chance_goes_with_more_draws(
    board: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []

    def first_ones_are_slow(known_ms: float, fresh_ms: list[float]) -> str:
        heard.append(len(fresh_ms))
        return "slow" if len(fresh_ms) == FRESH else too_good(known_ms, fresh_ms)

    monkeypatch.setattr(submission, "too_good", first_ones_are_slow)
    found = checked(tmp_path, "greedy-lookup")
    assert not any("slow" in fault for fault in found.faults)
    assert not of_lookups(found)
    assert heard == [FRESH, SURE]


@pytest.fixture(scope="module")
def whole(board: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[CellRecord]]:
    """A whole submission of ``greedy-lookup``, without a fault, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, submitted(folder, "greedy-lookup", *PROBLEMS)


@pytest.fixture
def honest(whole: tuple[Path, list[CellRecord]], tmp_path: Path) -> list[CellRecord]:
    """That submission in ``tmp_path``."""
    folder, records = whole
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return list(records)


def rewritten(folder: Path, records: Iterable[CellRecord]) -> None:
    store = cell_store(folder, "leaderboard", "steps")
    for path in store.path.parent.glob(f"{store.path.name}*"):
        path.unlink()
    for record in records:
        store.append(record)


def with_rows(
    records: Iterable[CellRecord], change: Callable[[dict], dict], *, bounds: bool = False
) -> Iterator[CellRecord]:
    """The records, with the rows of all bounds or of all other cells changed."""
    for record in records:
        chosen = (record.cell["strategy"] is None) == bounds
        rows = tuple(change(dict(row)) for row in record.rows) if chosen else record.rows
        yield record.model_copy(update={"rows": rows})


def test_nothing_is_wrong_about_what_is_as_it_was_made(honest: list[CellRecord], tmp_path: Path) -> None:
    said: list[str] = []
    found = check_submission(tmp_path, tell=said.append)
    assert found.faults == found.again == ()
    assert (found.cells, found.plans, found.bounds_proven, found.bounds_on_record) == (4, 4, 2, 0)
    assert (found.made_again, found.not_made_again) == (0, 2)
    assert [line.split(":")[0] for line in said] == ["proves", "judges"] * 2
    found = check_submission(tmp_path, again=9)
    assert (found.faults, found.made_again, found.not_made_again) == ((), 2, 0)


def test_a_lowered_step_is_found_by_its_plan_and_where_its_cell_is_made_again(
    honest: list[CellRecord], tmp_path: Path
) -> None:
    lowered, told = [], 0
    for bound, record in zip(honest[::2], honest[1::2]):
        least_ms = bound.rows[0]["ordered_ms"]
        assert all(row["step_ms"] > 1.001 * least_ms for row in record.rows), [
            row["step_ms"] / least_ms for row in record.rows
        ]
        told += sum(row["step_ms"] > (1.0001 + submission.WORSE) * least_ms for row in record.rows)
        lowered += [bound, *with_rows([record], lambda row, ms=1.0001 * least_ms: {**row, "step_ms": ms})]
    rewritten(tmp_path, lowered)
    faults = check_submission(tmp_path).faults
    assert len(faults) == 4
    assert all("step_ms is" in fault and "checked here it is" in fault for fault in faults)
    found = check_submission(tmp_path, again=2)
    assert told and len([fault for fault in found.faults if "made again" in fault]) == told
    assert found.plans == 0


@pytest.mark.parametrize("on_record", [False, True])
def test_other_bounds_than_those_of_the_repository_are_a_fault(
    honest: list[CellRecord], tmp_path: Path, on_record: bool
) -> None:
    committed = tmp_path / "committed" if on_record else None
    for record in honest if committed else ():
        cell_store(committed, "leaderboard", "steps").append(record)
    tenth = {name: lambda row, name=name: {**row, name: row[name] / 10.0} for name in ("step_ms", "ordered_ms")}
    for name, change in tenth.items():
        rewritten(tmp_path, with_rows(honest, change, bounds=True))
        found = check_submission(tmp_path, committed=committed)
        assert [f"bound: {name} is" in fault for fault in found.faults] == [True, True]
        assert (found.bounds_on_record, found.bounds_proven) == ((2, 0) if on_record else (0, 2))


def test_bounds_of_another_version_are_proven_again(honest: list[CellRecord], tmp_path: Path) -> None:
    for record in honest:
        other = record.provenance.model_copy(update={"judge_version": 99})
        store = cell_store(tmp_path / "committed", "leaderboard", "steps")
        store.append(record.model_copy(update={"provenance": other, "rows": ({**record.rows[0], "step_ms": 0.1},)}))
    found = check_submission(tmp_path, committed=tmp_path / "committed")
    assert (found.faults, found.bounds_on_record, found.bounds_proven) == ((), 0, 2)


def test_a_step_below_the_bound_is_a_fault_of_its_own(honest: list[CellRecord], tmp_path: Path) -> None:
    for bound, record in zip(honest[::2], honest[1::2]):
        ms = 1.001 * max(row["step_ms"] for row in record.rows)
        (raised,) = with_rows([bound], lambda row, ms=ms: {**row, "step_ms": ms, "ordered_ms": ms}, bounds=True)
        cell_store(tmp_path / "committed", "leaderboard", "steps").append(raised)
    faults = check_submission(tmp_path, committed=tmp_path / "committed").faults
    assert sum(fault.endswith(" ms: no plan is that fast") for fault in faults) == 4


def test_the_draw_is_of_the_seed_and_not_of_what_was_submitted(honest: list[CellRecord], tmp_path: Path) -> None:
    keys = [f"{i:016x}" for i in range(43)]
    choose = submission._choose_cells
    assert choose(keys, 3, 5) == choose(keys[::-1], 3, 5) != choose(keys, 3, 6)
    before = [check_submission(tmp_path, again=1, seed=seed).again[0] for seed in range(4)]
    assert len(set(before)) == 2
    rewritten(tmp_path, honest[::-1])
    assert [check_submission(tmp_path, again=1, seed=seed).again[0] for seed in range(4)] == before
    assert len({check_submission(tmp_path).seed for _ in range(2)}) == 2, "a fresh one each time"


def test_each_strategy_has_cells_made_again(honest: list[CellRecord], tmp_path: Path) -> None:
    submitted(tmp_path, "recshard", *PROBLEMS)
    found = check_submission(tmp_path, again=1)
    made = [line for line in found.again if line.startswith("again: ")]
    assert [sum(f"strategy={name} " in line for line in made) for name in ("greedy-lookup", "recshard")] == [1, 1]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"plan_hash": "../../secret"}, "60 s: its plan ends in invalid: plan: '../../secret' is no hash of a plan"),
        ({"plan_hash": "0" * 16}, "does not exist"),
        ({"plan_s": -1.0}, "a row's plan_s is -1.0"),
        ({"plan_s": 1e-9}, "a row's plan_s is 1e-09: in less than 0.0001 s nobody plans"),
        ({"plan_s": 31.0}, "its plan ends in timeout: plan: planning took 31.0 s, its budget is"),
        ({"fit_s": 31.0}, "its plan ends in timeout: plan: planning took"),
        ({"bounded_by": ""}, "bounded_by is ; checked here it is plans in order"),
        ({"draws_ms": (1.0,)}, "draws_ms is of 1 numbers; checked here it is of"),
        ({"role": "search"}, "role is search; checked here it is competitor"),
        ({"budget": "5 s"}, "has rows of 5 s and 5 s; those of 30 s and 20 s are asked for"),
        ({"outcome": "great"}, "outcome is great; checked here it is error"),
        ({"outcome": "timeout"}, "step_ms is"),
    ],
)  # fmt: skip
def test_what_does_not_follow_from_the_plans_is_a_fault(
    honest: list[CellRecord], tmp_path: Path, change: dict, fault: str
) -> None:
    rewritten(tmp_path, with_rows(honest, lambda row: row | change))
    found = check_submission(tmp_path)
    assert found.plans == 0
    assert any(fault.removeprefix("60 s: ") in each for each in found.faults), found.faults
    assert {each.split("strategy=")[1].split()[0] for each in found.faults} == {"greedy-lookup"}


def test_a_file_of_another_plan_is_a_fault(honest: list[CellRecord], tmp_path: Path) -> None:
    hashes = [record.rows[0]["plan_hash"] for record in honest if record.cell["strategy"]]
    path = plan_path(tmp_path, hashes[0])
    other = Plan.from_json(path.read_text())
    path.write_text(replace(other, notes={"made": "otherwise"}).to_json())
    assert all(f"plan_hash is {hashes[0]}; checked here it is" in each for each in check_submission(tmp_path).faults)
    path.write_bytes(b"\xff")
    assert all("its plan ends in invalid: plan: " in each for each in check_submission(tmp_path).faults)
    path.unlink()
    assert len(check_submission(tmp_path).faults) == 2


def test_records_are_of_this_code_of_a_clean_checkout_and_of_cells_of_the_leaderboard(
    honest: list[CellRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faults(**changes: object) -> list[str]:
        *others, record = honest
        provenance = record.provenance.model_copy(update=changes)
        rewritten(tmp_path, [*others, record.model_copy(update={"provenance": provenance})])
        return [fault.rpartition(": ")[2] for fault in check_submission(tmp_path).faults]

    assert faults(dirty=True) == ["commit what was changed and make it again"]
    assert faults(wall=Kind.UNCONFINED) == [], "reviewed code needs no wall"
    with monkeypatch.context() as patch:
        patch.setattr(submission, "ours", lambda strategy: False)
        unconfined, walled = (faults(wall=wall) for wall in (Kind.UNCONFINED, Kind.BUBBLEWRAP))
        # Another record says nothing of a wall.
        assert set(unconfined) == {"make it again where bubblewrap is installed"}
        assert len(walled) == len(unconfined) - 1
    (other,) = faults(made_by="x")
    assert other.startswith("made by x, and ")
    assert faults(judge_version=99) == ["judged by another version than what is installed here"]
    failure = {"rows": (), "failure": "broke"}
    rewritten(tmp_path, [*honest[:-1], honest[-1].model_copy(update=failure)])
    (fault,) = check_submission(tmp_path).faults
    assert "failed: broke; run it again" in fault
    rewritten(tmp_path, honest[:-1])
    (fault,) = check_submission(tmp_path).faults
    assert "workload=recorded" in fault
    assert "has no record" in fault
    cell = {**honest[-1].cell, "machine": "another"}
    key = cell_key("steps", 1, cell)
    rewritten(tmp_path, [*honest, honest[-1].model_copy(update={"cell": cell, "key": key})])
    (fault,) = check_submission(tmp_path).faults
    assert "machine=another" in fault
    assert fault.endswith(": is no cell of the leaderboard")


def test_a_submission_without_records_or_edited_is_refused(honest: list[CellRecord], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no records of a strategy"):
        check_submission(tmp_path / "nothing")
    path = cell_store(tmp_path, "leaderboard", "steps").path
    path.write_text(path.read_text().replace('"workload":"drawn"', '"workload":"v"'))
    with pytest.raises(BadInput, match="the line was edited"):
        check_submission(tmp_path)


def test_steps_that_are_longer_when_made_again_are_a_fault(
    honest: list[CellRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = honest[-1]

    def faults(change: dict) -> list[str]:
        (made,) = with_rows([record], lambda row: row | {"step_ms": row["step_ms"] * change["factor"]} | change)
        return list(submission._worse(record, made))

    assert faults({"factor": 1.0}) == faults({"factor": 1.004}) == faults({"factor": 0.9}) == []
    assert all("ms, made again" in fault for fault in faults({"factor": 1.006}))
    late = {"factor": 1.0, "outcome": "timeout", "cause": "plan: late"}
    assert faults(late)[0].endswith("made again it ended in timeout: plan: late")


def test_the_command_says_what_was_not_checked(
    honest: list[CellRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_submission_command(tmp_path, again=1, seed=7) == 0
    said = capsys.readouterr().out
    assert "checked: 0 bounds by those on record here, 2 by proving them, 4 plans that give the submitted rows" in said
    assert "made again: 1 of 2 cells, drawn with seed 7 (again: --again 1 --seed 7)" in said
    assert "not made again: 1 of 2 cells; that the strategy made their plans" in said
    assert said.endswith("nothing to object to\n4 records of greedy-lookup: 0 faults\n")
    rewritten(tmp_path, with_rows(honest, lambda row: {**row, "step_ms": 1.0}))
    assert check_submission_command(tmp_path, again=0, as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["made_again"], found["not_made_again"], found["plans"], len(found["faults"])) == (0, 2, 0, 4)
