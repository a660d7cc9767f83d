"""Studies: every cell one record, resumed, failures recorded, tables and page from records only."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import study_cells
from study_cells import CLAIMS, DOUBLING, THREE, find_made, reproduction

from shardbench.base.errors import BadInput
from shardbench.records import base_record
from shardbench.records.store import cell_store
from shardbench.records.trial import Failure, Outcome
from shardbench.studies import ledger, session
from shardbench.studies import reproduction as found
from shardbench.studies.claim import parse_claims
from shardbench.studies.page import extras, write_reproduction_page
from shardbench.studies.regions.region import Knob, region_study
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.session import SessionOptions, run_studies
from shardbench.trials import discovery
from shardbench.trials.cluster import CallOutcome, Cluster, Engine
from shardbench.trials.session import WorkerOutcome

Command = Callable[..., str]

GROWING = region_study(
    title="A gain that one knob decides.",
    knobs=(Knob(name="size", low=1.0, high=9.0, reason="as seen"), Knob(name="age", reason="as seen")),
    outcomes=("gain_x",),
    measure=lambda folder, point, size, age: {"gain_x": size},
)


class Heard:
    """Listener that keeps what it is told."""

    def __init__(self) -> None:
        self.studies: list[tuple[str, int, int]] = []
        self.cells: list[str | None] = []

    def planned(self, work, unit, total, settled):
        assert unit == "cell"
        self.studies.append((work.removeprefix("study "), total, settled))

    def started(self, piece):
        """Nothing."""

    def noted(self, line):
        """See Listener."""

    def finished(self, number, record):
        self.cells.append(record.failure)


def find_here(owner: str) -> Reproduction:
    """That, with a study of a region."""
    return reproduction("mine", DOUBLING, GROWING) if owner == "mine" else find_made(owner)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    monkeypatch.setattr(session, "find_reproduction", find_made)
    mine = reproduction("mine", DOUBLING)
    monkeypatch.setattr(ledger, "find_reproduction", lambda owner: mine)
    monkeypatch.setattr(ledger, "reproduction_names", lambda: ["mine"])
    return mine


@pytest.fixture
def in_this_process(made: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs cells here: a process of their own imports for a second and a half, and few tests are about it."""

    def here(prepare, call, arguments, workers, *, timeout_s, logs):
        for number, given in enumerate(arguments):
            value = call(prepare(*given), *given)
            yield WorkerOutcome(number=number, value=value, log=Path(), wall_s=0.0, cpu_s=0.0)

    monkeypatch.setattr(session, "side_by_side", here)
    monkeypatch.setattr(session, "find_reproduction", find_here)


def run(reproduction: Reproduction, results: Path, **options: object) -> Heard:
    heard = Heard()
    run_studies(reproduction, SessionOptions(results=results, workers=1, **options), heard)
    return heard


@pytest.mark.usefixtures("in_this_process")
def test_cells_are_recorded_once_and_a_failure_is_a_record(made: Reproduction, tmp_path: Path) -> None:
    assert run(made, tmp_path, quick=True).studies == [("doubling", 2, 0)]
    heard = run(made, tmp_path)
    assert heard.studies == [("doubling", 4, 2)]
    # Cells that have ended by the time one looks are told in any order.
    assert sorted(heard.cells, key=str) == [None, f"ValueError: three is no good (study_cells.py:{_line(THREE)})"]
    assert run(made, tmp_path).studies == [("doubling", 4, 4)]
    assert run(made, tmp_path, retry=frozenset({Outcome.ERROR})).studies == [("doubling", 4, 3)]
    assert run(made, tmp_path, force=True).studies == [("doubling", 4, 0)]


@pytest.mark.usefixtures("in_this_process")
def test_a_cell_is_settled_only_for_the_code_of_its_study_and_of_the_strategies_it_names(
    made: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        run(find_made("shuffles"), tmp_path, quick=True).cells
        == ["study doubling used shuffle, which is not among its strategies: add it to uses"] * 2
    )
    made = find_made("uses")
    study = made.studies[0]
    run(made, tmp_path, quick=True)
    store = cell_store(tmp_path, "uses", "doubling")
    first = store.read()[-2]
    assert first.provenance is not None
    assert first.provenance.made_by == session.cell_version(study, first.cell)
    assert run(made, tmp_path, quick=True).studies == [("doubling", 2, 2)]

    with monkeypatch.context() as raised:
        raised.setattr(session, "strategy_version", lambda name: "99")
        assert run(made, tmp_path, quick=True).studies == [("doubling", 2, 0)]
    run(made, tmp_path, quick=True)

    unstated = store.latest()[first.key].model_copy(update={"provenance": None})
    store.append(unstated)
    assert run(made, tmp_path, quick=True).studies == [("doubling", 2, 1)]


@pytest.mark.usefixtures("in_this_process")
def test_tables_and_claims_come_from_the_records(made: Reproduction, tmp_path: Path) -> None:
    run(made, tmp_path)
    ledger.write_study_files(made, tmp_path)
    folder = tmp_path / "tables" / "mine"
    assert (folder / "doubling.csv").read_text() == "number,backend,twice\n1,counted,2\n2,counted,4\n4,counted,8\n"
    (row,) = pd.read_csv(tmp_path / "tables" / "claims.csv").to_dict("records")
    assert [row[name] for name in ("paper", "claim", "paper_value", "ours", "n")] == ["mine", "doubles", 2, 2, 3]
    # Three numbers are not enough for a stronger word.
    assert (row["direction"], row["magnitude"], row["defined_in"]) == ("consistent", "consistent", "not committed")
    assert row["statement"] == 'twice is twice as much ("twice")'
    assert ledger.check_study_files(made, tmp_path) == []
    (folder / "doubling.csv").write_text("number\n")
    assert ledger.check_study_files(made, tmp_path) == [
        f"{folder / 'doubling.csv'}: line 1 is 'number', the records give 'number,backend,twice'; "
        "run: shardbench report mine"
    ]


@pytest.mark.usefixtures("in_this_process")
def test_tables_that_no_record_gives_are_stale(made: Reproduction, tmp_path: Path) -> None:
    nothing = "mine: nothing to check: neither a suite nor a study of it has records"
    assert ledger.check_study_files(made, tmp_path) == [nothing]
    run(made, tmp_path)
    doubling, *_ = ledger.write_study_files(made, tmp_path)
    (doubling.parent / "balance.csv").write_text("the suite's\n")
    other = doubling.with_name("other.csv")
    other.write_text("x\n")
    assert ledger.check_study_files(made, tmp_path) == [f"{other}: there are no records for it"]
    other.unlink()
    cell_store(tmp_path, "mine", "doubling").remove(lambda record: True)
    assert ledger.check_study_files(made, tmp_path) == [nothing, f"{doubling}: there are no records for it"]


@pytest.mark.usefixtures("in_this_process")
def test_the_page_shows_claims_and_plots(made: Reproduction, tmp_path: Path) -> None:
    run(made, tmp_path)
    text = write_reproduction_page(made, tmp_path).read_text(encoding="utf-8")
    assert "Twice a number" in text
    assert "consistent" in text
    claims, study = extras(made, tmp_path)
    assert study.rows == (("1", "counted", "2"), ("2", "counted", "4"), ("4", "counted", "8"))
    assert [one.title for one in study.figures] == ["Twice a number"]
    shown = dict(zip(claims.headers, claims.rows[0]))
    names = ("direction", "magnitude", "relation", "paper value", "ours", "low", "high", "unit", "n", "n unit")
    assert " ".join(shown[name] for name in names) == "consistent consistent about 2 2 2 2 x 3 number"


@pytest.mark.usefixtures("in_this_process")
def test_a_region_has_a_picture_once_enough_points_ran(
    made: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = parse_claims(CLAIMS + 'region = { column = "gain_x" }\n', "x")
    made = replace(made, studies=(*made.studies, GROWING), claims=claims)
    monkeypatch.setattr(ledger, "find_reproduction", lambda owner: made)
    run(made, tmp_path, quick=True)
    ledger.write_study_files(made, tmp_path)
    assert "regions" not in {section.id for section in extras(made, tmp_path)}
    assert pd.read_csv(tmp_path / "tables" / "regions.csv")["points"].tolist() == [4]
    run(made, tmp_path)
    ledger.write_study_files(made, tmp_path)
    (section,) = [section for section in extras(made, tmp_path) if section.id == "regions"]
    assert [one.title for one in section.figures] == ["mine: doubles"]
    assert pd.read_csv(tmp_path / "tables" / "regions.csv")["deciding"].tolist() == ["size 1.00"]
    assert ledger.check_study_files(made, tmp_path) == []


@pytest.mark.usefixtures("in_this_process")
def test_truncated_and_edited_lines_are_refused(made: Reproduction, tmp_path: Path) -> None:
    run(made, tmp_path, quick=True)
    path = cell_store(tmp_path, "mine", "doubling").path
    whole = path.read_text()
    path.write_text(whole[:-1])
    with pytest.raises(BadInput, match=r"line 2 is truncated.*repeats its cell"):
        cell_store(tmp_path, "mine", "doubling").read()
    run(made, tmp_path, quick=True)
    # Cells run side by side: either may be the first to end.
    assert {record.cell["number"] for record in cell_store(tmp_path, "mine", "doubling").read()} == {1, 2}
    first = json.loads(whole.splitlines()[0])
    first["cell"]["number"] = 7
    path.write_text(json.dumps(first) + "\n")
    with pytest.raises(BadInput, match="edited"):
        run(made, tmp_path)


@pytest.mark.usefixtures("in_this_process")
def test_rows_must_state_their_backend_and_name_nothing_twice(made: Reproduction, tmp_path: Path, monkeypatch) -> None:
    for owner, says in (("no-backend", "backend"), ("twice", "'number' is in the cell")):
        for failure in run(find_made(owner), tmp_path).cells:
            assert says in failure


def test_a_cell_that_hangs_or_dies_is_a_record_and_the_next_one_runs(made: Reproduction, tmp_path: Path) -> None:
    faults = find_made("faults")
    records = run_studies(faults, SessionOptions(results=tmp_path, workers=1), Heard())
    ended = {record.cell["kind"]: (record.outcome, record.failure) for record in records}
    assert ended == {
        "killed": (
            Outcome.ERROR,
            "the process was killed by signal 9 (not by the kernel for want of memory) in phase run",
        ),
        "hangs": (Outcome.TIMEOUT, "no result from run after 3 s"),
        "exits": (Outcome.ERROR, "the process exited with 3 in phase run"),
        "leaves": (Outcome.ERROR, f"SystemExit: 0 (study_cells.py:{_line('raise SystemExit(0)')})"),
        "full": (Outcome.OOM, f"MemoryError (study_cells.py:{_line('raise MemoryError')})"),
        "well": (None, None),
    }
    # Cells that have ended by the time one looks are written in any order.
    stored = {record.key: record for record in cell_store(tmp_path, "faults", "doubling").read()}
    assert stored == {record.key: record for record in records}
    by_kind = {record.cell["kind"]: record for record in records}
    assert by_kind["hangs"].wall_s >= 3.0
    assert by_kind["hangs"].summary.startswith("doubling kind=hangs: failed: timeout: no result from run after 3 s (3.")
    for kind, record in by_kind.items():
        log = tmp_path / "logs" / f"{record.key}.log"
        assert log.is_file() is (kind != "well")
        assert kind == "well" or f"this is {kind}\n" in log.read_text()
    hurried = replace(faults, studies=tuple(replace(study, timeout_s=1.0) for study in faults.studies))
    again = SessionOptions(results=tmp_path, workers=1, retry=frozenset({Outcome.TIMEOUT}))
    heard = Heard()
    hung = {record.cell["kind"]: record for record in run_studies(hurried, again, heard)}["hangs"]
    assert (heard.studies, hung.failure) == ([("doubling", 6, 5)], "no result from run after 1 s")


def _line(text: str) -> int:
    """Number of the only line of study_cells.py that is ``text`` alone."""
    (line,) = [
        i for i, line in enumerate(Path(study_cells.__file__).read_text().splitlines(), 1) if line.strip() == text
    ]
    return line


@pytest.mark.usefixtures("in_this_process")
def test_the_command_runs_prints_verdicts_and_fails_with_a_failed_cell(
    made: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(found, "find_reproduction", lambda name: made)
    arguments = ("reproduce", "mine", "--results", tmp_path, "--parallel", 1)
    out = command(*arguments, "--quick", "--page")
    assert "study doubling: 2 cells, 0 settled, 2 to run" in out
    assert "`doubles`: direction consistent, magnitude consistent" in out
    assert (tmp_path / "pages" / "mine.html").is_file()
    assert "failed: doubling number=3: failed: ValueError: three is no good" in command(*arguments, code=1)
    for again, todo in (("oom", 0), ("failed", 1), ("error", 1)):
        assert f"4 cells, {4 - todo} settled, {todo} to run" in command(*arguments, "--retry", again, code=1)
    events = [json.loads(line) for line in command(*arguments, "--force", "--json", code=1).splitlines()]
    assert [event["event"] for event in events] == ["planned", *["finished"] * 4, "done"]
    assert [row["claim"] for row in events[-1]["claims"]] == ["doubles"]
    assert len(events[-1]["failed"]) == 1
    assert "unknown study of mine 'nope'; known: doubling" in command(*arguments, "--study", "nope", code=2)


@pytest.mark.usefixtures("in_this_process")
def test_status_and_report_are_of_studies_as_well(
    made: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(found, "find_reproduction", lambda name: made)
    monkeypatch.setattr(discovery, "reproduction_names", lambda: ["mine"])
    results = ("mine", "--results", tmp_path)
    run(made, tmp_path, quick=True)
    assert "claims.csv: missing; run: shardbench claims" in command("report", "--check", *results, code=1)
    assert command("status", *results) == "study doubling: 4 cells, 2 settled, 2 open\n"
    out = command("report", "--page", *results)
    assert "`doubles`: direction consistent, magnitude consistent" in out
    assert f"page: {tmp_path / 'pages' / 'mine.html'}" in out
    assert command("report", "--check", *results) == "mine: tables and records agree\n"

    monkeypatch.setattr(base_record, "JUDGE_VERSION", 99)
    state = json.loads(command("status", "--json", *results))
    assert state["studies"] == {"doubling": {"cells": 4, "settled": 0}}
    assert state["studies_other_versions"]["other"] == {"doubling": 2}
    reported = json.loads(command("report", "--json", *results))
    assert reported["studies_other_versions"]["other"] == {"doubling": 2}
    assert [row["twice"] for row in reported["tables"]["doubling"]] == [2.0, 4.0]
    said = "2 of 2 records are of other versions, a run makes them again: doubling (2)"
    assert said in command("report", "--page", *results)
    assert said in (tmp_path / "pages" / "mine.html").read_text(encoding="utf-8")


def test_cells_run_side_by_side_in_processes(tmp_path: Path) -> None:
    real = found.find_reproduction("fae")
    few = [{"column_dependence": 0.0, "seed": 0}, {"column_dependence": 0.0, "seed": 1}]
    less = replace(real, studies=(replace(real.study("tutorial"), cells=lambda quick: few),))
    records = run_studies(less, SessionOptions(results=tmp_path, workers=2), Heard())
    assert [(record.failure, record.cell) for record in records] == [(None, cell) for cell in few]


def test_cells_as_jobs_give_the_same_rows_and_one_that_fails_is_its_own_failure(
    made: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process in place of a job, which tests/test_parallel.py starts for trials."""
    dies = Failure(outcome=Outcome.OOM, cause="its job ended without a result", phase="harness")

    def in_this_process(call, arguments, cluster):
        for number, given in enumerate(arguments):
            yield CallOutcome(number=number, value=dies if number == 1 else call(*given))

    here = run_studies(made, SessionOptions(results=tmp_path / "here", workers=1), Heard())
    monkeypatch.setattr(session, "submit_all", in_this_process)
    local = Cluster(engine=Engine.LOCAL, folder=tmp_path / "jobs", at_once=2)
    there = run_studies(made, SessionOptions(results=tmp_path / "there", cluster=local), Heard())
    told = {record.key: record for record in there}
    for number, record in enumerate(here):
        same = told[record.key]
        if number == 1:
            assert (same.outcome, same.failure, same.rows) == (Outcome.OOM, dies.cause, ())
        else:
            assert (same.rows, same.outcome) == (record.rows, record.outcome)
            assert same.wall_s > 0.0
