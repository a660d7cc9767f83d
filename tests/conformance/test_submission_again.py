"""Cells of a submission that are made anew: their plans are judged on test lookups that nobody knew."""

from functools import cached_property
from pathlib import Path

import pytest
from impostors import Honest
from impostors_reaching import AsksBehindTheSeal

from shardbench.leaderboard import problems, studies
from shardbench.leaderboard.problems import Posed, Version
from shardbench.leaderboard.studies import Steps
from shardbench.model.strategy import Strategy
from shardbench.model.table import Table
from shardbench.records.store import cell_store
from shardbench.runs.conformance_problems import round_machine
from shardbench.runs.discovery import get_strategy
from shardbench.runs.held_out import too_good
from shardbench.studies import submission
from shardbench.studies.session import run_cell
from shardbench.studies.submission import FRESH, SURE, Checked, check_submission
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


class KnowsTheLeaderboard(AsksBehindTheSeal):
    """Draws the test lookups of a problem of the leaderboard, whose parameters everyone can read."""

    name = "knows-the-leaderboard"
    tables = tuple(Table(name=f"t{i}", rows=ROWS, dim=DIM) for i in range(TABLES))

    @cached_property
    def workload(self) -> Workload:
        return workload_config({**DRAWN, "name": "drawn"}, "here").build(Path())


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaderboard of a problem that is drawn and one that is on record, with a strategy that knows the former."""
    posed = tuple(
        Posed(name=name, machines=("small",), parameters=parameters)
        for name, parameters in (("drawn", DRAWN), ("recorded", RECORDED))
    )
    version = Version(version=1, efforts=(30.0, 20.0), published_s=1.0, workloads=posed)
    machine = round_machine(2, hbm=int(HBM_SHARE * TABLES * ROWS * DIM * 4 / 2))

    own: dict[str, Strategy] = {one.name: one for one in (KnowsTheLeaderboard(), Honest())}

    def strategy(name: str) -> Strategy:
        return own.get(name) or get_strategy(name)

    for module, name, value in (
        (problems, "load", lambda *_: version), (studies, "load", lambda *_: version),
        (problems, "load_machine", lambda _: machine), (studies, "get_strategy", strategy),
        (submission, "get_strategy", strategy),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    for kept in (problems._drawn, problems._known, problems.question):
        kept.cache_clear()


def checked(folder: Path, strategy: str, workload: str = "drawn", outcome: str = "ok") -> Checked:
    """Somebody's submission of one cell, which is made anew."""
    cell = {"version": 1, "workload": workload, "machine": "small", "strategy": strategy, "effort": "timed"}
    store = cell_store(folder, "leaderboard", "steps")
    record = run_cell(Steps, cell, folder, "e")
    assert record.failure is None
    assert {row["outcome"] for row in record.rows} == {outcome}
    store.append(record)
    return check_submission(folder, again=1)


def of_lookups(found: Checked) -> list[str]:
    """Faults that are about lookups: nothing else of this checkout, or of cells that nobody made."""
    return [fault for fault in found.faults if "made for those" in fault]


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
