"""Which place a strategy has: among trials on record elsewhere, on papers' tasks that it enters, on the leaderboard."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import records as make

from shardbench.base.code import JUDGE_VERSION
from shardbench.cli import compare, reproduce, run
from shardbench.leaderboard.places import board_places
from shardbench.leaderboard.studies import STEPS
from shardbench.model.strategy import Role
from shardbench.records.cell import Cell, CellRecord, Row, cell_key
from shardbench.records.provenance import Provenance
from shardbench.records.record import Record
from shardbench.records.store import cell_store, trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.report.compare.on_record import OnRecord, on_record, place
from shardbench.report.groups import groups
from shardbench.report.tables.leaderboard import ANY_PLAN, BOUND
from shardbench.studies.beside import CellComparison, compare_cells, reuse
from shardbench.studies.places import Place
from shardbench.studies.reproduction import Reproduction, find_reproduction
from shardbench.studies.session import SessionOptions, cell_version
from shardbench.studies.study import Study
from shardbench.studies.study_tables import study_tables
from shardbench.trials import runner

Command = Callable[..., str]
SIMULATED = {"backend": Backend.SIMULATED, "machine": "a100-40gb-2x8"}
OLD = JUDGE_VERSION + 1
NARROW = (0.99, 1.0, 1.0, 1.01)


def trial(name: str, step_ms: float, *, judge: int = JUDGE_VERSION, **spec: object) -> Record:
    """A simulated trial, as a version of the judge made it."""
    made = make.provenance(judge_version=judge)
    changes = {"draws": make.draws(step_ms, errors=NARROW), "provenance": made}
    return make.ok(name, (step_ms, step_ms), changes=changes, **{**SIMULATED, **spec})


def held(tmp_path: Path, own: list[Record], *records: Record) -> OnRecord:
    for one in records:
        trial_store(tmp_path, "quick").append(one)
    return on_record(tmp_path, "quick", own, own)


def test_trials_on_record_are_compared_where_they_are_of_one_problem_and_one_version(tmp_path: Path) -> None:
    mine = trial("mine", 5.0)
    alike = trial("a", 4.0), trial("b", 6.0)
    measured, own = make.ok("c"), trial("mine", 1.0)
    found = held(tmp_path / "1", [mine], *alike, measured, own, trial("d", 1.0, workload="another"))
    assert ([one.spec.strategy for one in found.records], found.moved) == (["a", "b"], 0)
    (line,) = found.lines
    assert line.startswith(f"compared with 2 trials in {tmp_path / '1'} (commit dddddddddd)")
    found = held(tmp_path / "2", [mine], trial("a", 4.0), trial("b", 6.0, judge=OLD))
    assert ([one.spec.strategy for one in found.records], found.moved) == (["a"], 1)
    assert found.lines[1].startswith("not compared with 1 trials in")
    found = held(tmp_path / "3", [mine], trial("a", 4.0, machine_hash="9" * 16))
    assert (found.records, found.moved) == ((), 1)
    assert held(tmp_path / "4", [mine]).lines[0].startswith("nothing to compare with in")


def test_a_place_counts_competitors_and_says_who_is_not_told_apart() -> None:
    wide = trial("wide", 5.1).model_copy(update={"draws": make.draws(5.1)})
    found = [trial("a", 4.0), trial("mine", 5.0), trial("same", 5.0), wide, trial("c", 9.0)]
    reference = make.ok("search", (1.0, 1.0), role=Role.SEARCH, **SIMULATED)
    (group,) = groups([*found, reference, make.failed(Outcome.OOM, "big", **SIMULATED)])
    assert place(group, "mine") == "mine: rank 2 of 5, not told apart from 2 of the others"
    assert place(group, "c") == "c: rank 5 of 5"
    assert place(group, "big") == "big: no rank, it ended in oom"
    assert place(group, "search") == "search: no rank, it does not compete"
    (group,) = groups([trial("mine", 5.0)])
    assert place(group, "mine") == "mine: no rank, no other strategy ran beside it"
    (group,) = groups([make.ok("mine")])
    assert place(group, "mine").endswith("and steps of other sessions are not compared")


def test_a_run_of_one_strategy_says_its_rank_among_the_committed_trials(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed, results = tmp_path / "results", tmp_path / "runs"
    for one in (trial("greedy-size", 4.0), trial("shuffle", 6.0)):
        trial_store(committed, "quick").append(one)

    def run_suite(suite: object, options: runner.RunOptions, listener: object) -> list[Record]:
        trial_store(options.results, "quick").append(trial("row-wise", 5.0))
        return [trial("row-wise", 5.0)]

    def said(folder: Path | None) -> str:
        for module in (compare, run):
            monkeypatch.setattr(module, "committed_folder", lambda: folder)
        return command("run", "quick", "--strategy", "row-wise", "--results", results)

    monkeypatch.setattr(runner, "run_suite", run_suite)
    out = said(committed)
    assert "  best: greedy-size, 4.00 ms a step" in out
    assert "  row-wise: rank 2 of 3\n" in out
    assert "shardbench explain" not in out, "the best one's record is not in the run's folder"
    assert f"compared with 2 trials in {committed} (commit dddddddddd)" in out
    assert "greedy-size" not in (results / "tables" / "quick" / "throughput.csv").read_text()
    alone = said(None)
    assert "  alone: row-wise, 5.00 ms a step" in alone
    assert "  row-wise: no rank, no other strategy ran beside it\n" in alone
    assert compare.NOTHING_COMMITTED in alone


def _never(folder: Path, **cell: object) -> Row:
    raise AssertionError("no test runs its cells: their records are written by hand")


STUDY = Study(
    name="posing",
    title="Poses two tasks to every strategy, and proves a bound about each.",
    strategies=("greedy-size", "shuffle"),
    cells=lambda quick: [
        {"task": task, "strategy": strategy, "seed": seed}
        for task in ("t1", "t2")
        for strategy in (None, "greedy-size", "shuffle")
        for seed in ((0, 1) if strategy == "shuffle" else (0,))
    ],
    judge=_never,
)
UNASKED = Study(name="unasked", title="Has cells of no strategy.", cells=lambda quick: [{"task": "t1"}], judge=_never)
FOUND = Reproduction(owner="posed", studies=(STUDY, UNASKED), claims=(), observe=None, defined={})
ENTERING = [{"task": task, "strategy": "row-wise", "seed": 0} for task in ("t1", "t2")]
BOUNDS = [{"task": task, "strategy": None, "seed": 0} for task in ("t1", "t2")]


def cell_record(cell: Cell, *, judge: int = JUDGE_VERSION, environment: str = "e", **row: object) -> CellRecord:
    begun = Provenance.begin(cell_version(STUDY, cell))
    begun = begun.model_copy(update={"judge_version": judge, "commit": "d" * 40})
    rows = ({"backend": "simulated", "infeasible": 0, "tasks": 5, **row},)
    return CellRecord(
        key=cell_key(STUDY.name, 1, cell), study=STUDY.name, version=1, cell=cell, wall_s=1.0, cpu_s=1.0, rows=rows,
        environment=environment, provenance=begun,
    )  # fmt: skip


def keep(results: Path, *records: CellRecord) -> None:
    for one in records:
        cell_store(results, FOUND.owner, STUDY.name).append(one)


def test_a_strategy_that_a_study_does_not_name_enters_each_task_once(tmp_path: Path) -> None:
    options = SessionOptions(results=tmp_path, strategies=("row-wise",))
    assert options.cells(STUDY) == [*BOUNDS, *ENTERING]
    assert options.cells(UNASKED) == [], "cells of others are not run for it"
    named = SessionOptions(results=tmp_path, strategies=("shuffle",)).cells(STUDY)
    assert [cell for cell in named if cell["strategy"]] == [c for c in STUDY.cells(False) if c["strategy"] == "shuffle"]
    assert SessionOptions(results=tmp_path).cells(STUDY) == STUDY.cells(False)
    keep(tmp_path, cell_record(ENTERING[0], cost_ms=2.0, task_cost_ms=(1.0, 2.0)))
    tables = study_tables(FOUND, tmp_path)
    assert list(tables) == ["posing_alone"], "it is in no table of the strategies that the study names"
    assert tables["posing_alone"][["strategy", "cost_ms"]].to_numpy().tolist() == [["row-wise", 2.0]]
    assert "task_cost_ms" not in tables["posing_alone"]


def test_tasks_of_papers_and_no_others_can_be_entered() -> None:
    entered = {
        (owner, study.name): len(cells)
        for owner in ("autoshard", "dreamshard", "neuroshard", "recshard")
        for study in find_reproduction(owner).studies
        if (cells := SessionOptions(results=Path(), strategies=("row-wise",)).cells(study))
    }
    assert entered == {
        ("autoshard", "table"): 2, ("autoshard", "equal"): 10, ("dreamshard", "table"): 10, ("dreamshard", "mixed"): 3,
        ("neuroshard", "table"): 1, ("neuroshard", "moves"): 1, ("neuroshard", "production"): 1,
    }  # fmt: skip


def test_a_paper_without_tasks_for_it_says_where_there_are_some(command: Command) -> None:
    for paper, says in (
        ("recshard", "add yours to a copy of benchmarks/suites/recshard.toml"),
        ("embark", "autoshard, dreams"),
    ):
        assert says in command("reproduce", paper, "--strategy", "row-wise", code=2)


def test_bounds_are_reused_where_this_version_proved_them(tmp_path: Path) -> None:
    options, committed = SessionOptions(results=tmp_path / "runs", strategies=("row-wise",)), tmp_path / "results"
    other = cell_record({"task": "t1", "strategy": "shuffle", "seed": 0}, cost_ms=1.0)
    keep(committed, cell_record(BOUNDS[0]), cell_record(BOUNDS[1], judge=OLD), other)
    (committed / "environments").mkdir()
    (committed / "environments" / "e.json").write_text("{}")
    assert reuse(FOUND, options, committed) == (1, 1)
    assert [one.cell for one in cell_store(options.results, "posed", "posing").read()] == BOUNDS[:1]
    assert (options.results / "environments" / "e.json").read_text() == "{}"
    assert reuse(FOUND, options, committed) == (0, 1), "what is there already stays"
    keep(options.results, cell_record(BOUNDS[0], judge=OLD), cell_record(BOUNDS[1], judge=OLD))
    assert reuse(FOUND, options, committed) == (1, 0), "unless another version made it"
    moved = replace(FOUND, studies=(replace(STUDY, holds=lambda record: False),))
    assert reuse(moved, SessionOptions(results=tmp_path / "3", strategies=("row-wise",)), committed) == (0, 2)


def test_places_on_tasks_are_among_competitors_of_one_version_who_placed_all(tmp_path: Path) -> None:
    options, committed = SessionOptions(results=tmp_path / "runs", strategies=("row-wise",)), tmp_path / "results"
    keep(options.results, *(cell_record(cell, cost_ms=5.0) for cell in ENTERING))
    theirs = [cell for cell in STUDY.cells(False) if cell["strategy"]]
    cost = {"greedy-size": 4.0, "shuffle": 6.0}
    keep(committed, *(cell_record(cell, cost_ms=cost[str(cell["strategy"])]) for cell in theirs))
    (found,) = compare_cells(FOUND, options, committed)
    assert (found.study, found.others, found.not_compared, found.commits) == ("posing", 2, 0, ("d" * 10,))
    best = "(best of the others: greedy-size, 4.00 ms)"
    assert found.places == tuple(Place(f"{task}: row-wise 5.00 ms, rank 2 of 3 {best}") for task in ("t1", "t2"))
    keep(committed, *(cell_record(cell, cost_ms=4.0, judge=OLD) for cell in theirs))
    keep(options.results, cell_record(ENTERING[1], cost_ms=5.0, infeasible=2, tasks=3))
    (found,) = compare_cells(FOUND, options, committed)
    assert (found.others, found.not_compared) == (0, 2)
    assert found.places == (
        Place("t1: row-wise 5.00 ms, no rank: no other strategy has rows of this version"),
        Place("t2: row-wise 5.00 ms, no rank: it placed 3 tasks and not all"),
    )
    keep(options.results, cell_record(ENTERING[1], cost_ms=5.0, judge=OLD))
    (found,) = compare_cells(FOUND, options, committed)
    (stale,) = found.places
    assert stale.words.startswith("no rank: 1 cells of this run are of another version than this")


def board_row(strategy: str | None, step_ms: float | None, workload: str = "w", **changes: object) -> dict:
    outcome = Outcome.TIMEOUT if step_ms is None else Outcome.OK
    return {
        "workload": workload, "machine": "m", "backend": "simulated", "strategy": strategy, "budget": "60 s",
        "outcome": outcome.value, "step_ms": step_ms, "draws_ms": (), "bounded_by": ANY_PLAN, "role": "competitor",
        **changes,
    }  # fmt: skip


def proven(ms: float, workload: str = "w", **changes: object) -> dict:
    return board_row(None, ms, workload, budget=BOUND, ordered_ms=ms, **changes)


def said_of_board(own: list[dict], others: list[dict]) -> list[Place]:
    return list(board_places(pd.DataFrame(own), pd.DataFrame(others), "mine", 1))


def test_a_place_on_the_leaderboard_is_by_the_problems_that_it_solved_beside_others() -> None:
    own = [proven(8.0), board_row("mine", 10.0), proven(4.0, "x"), board_row("mine", None, "x")]
    others = [
        proven(8.0), board_row("a", 9.9), board_row("b", 20.0), board_row("ref", 9.0, role="search"),
        proven(4.0, "x"), board_row("a", 5.0, "x"), board_row("b", 5.0, "x"), board_row("a", 1.0, "elsewhere"),
    ]  # fmt: skip
    place, losses = said_of_board(own, others)
    assert place.words == "60 s: mine has rank 3 of 3 on 2 problems"
    assert place.rows == (("mine", "2", "1", "-", "0", "0.00", "0.00", "0.50", "0.50", "1.25"),)
    assert losses.words == "surely behind on 1 of 2, the widest distance first:", "the other difference may be an error"
    assert losses.rows == (("x on m", "timeout", "-", "a", "5.00", "-", "-"),)
    (place,) = said_of_board(own[:2], [])
    assert place.words == "60 s: mine has no rank on 1 problem"
    assert place.rows == (("mine", "1", "1", *["-"] * 6, "1.25"),)
    assert said_of_board([proven(8.0)], others) == [Place("mine has no rows: all its cells failed")]


def test_a_strategy_is_told_where_it_loses_by_how_much_and_what_binds_either_step() -> None:
    narrow = {"draws_ms": (1.0,), "bound_by": "exchange"}
    own = [
        board_row("mine", ms, name, draws_ms=(ms,), bound_by="kernels")
        for name, ms in (("u", 3.0), ("v", 7.4), ("w", 1.0), ("x", 0.9))
    ]
    others = [board_row("a", 1.0, name, **narrow) for name in "uvwx"]
    others += [board_row("search", 0.1, name, role="search", **narrow) for name in "uvwx"]
    _, losses = said_of_board(own, others)
    assert losses.lines() == [
        "surely behind on 2 of 4, the widest distance first:",
        "  problem  step ms  bound by  best of the others  its step ms  bound by  times it",
        "  v on m      7.40   kernels                   a         1.00  exchange    7.40 x",
        "  u on m      3.00   kernels                   a         1.00  exchange    3.00 x",
    ]
    assert said_of_board(own[2:], others[2:])[-1] == Place("surely behind on none of 2")


def test_a_record_of_the_leaderboard_is_of_the_machine_file_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"version": 1, "workload": "kaggle", "machine": "a100-40gb-1x8", "strategy": None, "effort": BOUND}
    kept = cell_record(cell)
    assert not STEPS.holds(kept), "it does not say"
    monkeypatch.setattr("shardbench.leaderboard.studies.content_hash", lambda machine: machine.name)
    assert STEPS.holds(cell_record(cell, machine_hash="a100-40gb-1x8"))
    assert not STEPS.holds(cell_record(cell, machine_hash="another"))


def test_a_study_is_said_to_stand_beside_others_of_its_version() -> None:
    found = CellComparison(study="posing", others=2, not_compared=1, commits=("abc",), places=(Place("t1: a line"),))
    assert list(reproduce._place_lines(found, Path("results"))) == [
        "posing, beside 2 others in results (commit abc; 1 are of other versions and left out):",
        "  t1: a line",
    ]
