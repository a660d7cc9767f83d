"""A study's table of standings on its page: the answer, and every problem of it."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hostile import CLOSING, MARKUP
from kept_folders import Silent
from test_page import Seen, told
from test_ranking import one

from shardbench.report.page.answers import answer
from shardbench.report.page.write import StudyStandings, first_screen, page
from shardbench.report.standing import AS_RUN, COLUMNS, TieMark, by_problem
from shardbench.studies import session
from shardbench.studies.ledger import write_study_files
from shardbench.studies.page import extras, study_standings, write_reproduction_page
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.session import SessionOptions, run_studies
from shardbench.studies.study import Row, Study, Tables, grid

MEASURED = {"workload": "mixed", "machine": "cpu-1x2", "backend": "measured", "budget": AS_RUN}


def place(folder: Path, workload: str, machine: str, strategy: str) -> list[Row]:
    step_ms = 1.0 if strategy == "fast" else 2.0
    rest = {"role": "competitor", "tie": "", "fit_s": 0.0}
    spent = {"1 s": 0.5, "60 s": 7.0}
    if (workload, strategy) == ("v", MARKUP):
        late = {**rest, "outcome": "timeout", "cause": CLOSING}
        return [{**late, "budget": budget} for budget in spent]
    ok = {**rest, "outcome": "ok", "step_ms": step_ms, "over_best_pct": 100 * step_ms - 100, "peak_gib": 12.5}
    return [{**ok, "budget": budget, "plan_s": plan_s} for budget, plan_s in spent.items()]


def with_measured(rows: pd.DataFrame, results: Path) -> Tables:
    timed = {**MEASURED, "role": "competitor", "outcome": "ok", "step_ms": 30.0, "over_best_pct": 0.0, "tie": ""}
    table = pd.concat([rows, pd.DataFrame([{**timed, "strategy": "fast"}])], ignore_index=True)
    return {"places": table.reindex(columns=[*COLUMNS, "peak_gib", "cause"])}


PLACES = Study(
    name="places",
    title="Two strategies on two problems with two budgets, and measured rows of a suite.",
    cells=lambda quick: grid(workload=("u", "v"), machine=["m"], strategy=("fast", MARKUP)),
    judge=place,
    beside=with_measured,
)


def find_made(owner: str) -> Reproduction:
    """What a worker, which knows nothing of a test's patches, finds too."""
    return Reproduction(owner=owner, studies=(PLACES,), claims=(), observe=lambda _: {}, defined={})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "find_reproduction", find_made)
        run_studies(find_made("contest"), SessionOptions(results=folder, workers=1), Silent())
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    monkeypatch.setattr(session, "find_reproduction", find_made)
    return find_made("contest")


def test_without_such_a_table_there_are_no_standings(tmp_path: Path) -> None:
    folder = tmp_path / "tables" / "contest"
    folder.mkdir(parents=True)
    pd.DataFrame(columns=[name for name in COLUMNS if name != "tie"]).to_csv(folder / "places.csv", index=False)
    assert study_standings("contest", tmp_path) is None


def test_its_page_has_the_answer_and_every_problem(made: Reproduction, results: Path) -> None:
    write_study_files(made, results)
    assert extras(made, results) == [], "the page shows all of the table, not its first rows"
    path = write_reproduction_page(made, results)
    text = path.read_text(encoding="utf-8")
    seen = Seen(text)
    words = " ".join(seen.text.split())
    assert CLOSING in seen.text
    assert MARKUP not in text
    assert {"problem-0", "problem-1", "problem-2"} <= set(seen.ids)
    links = {link for link in seen.links if not link.startswith("#")}
    assert links == {"../tables/contest/places.csv"}
    assert all((path.parent / link).is_file() for link in links)
    assert {link.removeprefix("#") for link in seen.links if link.startswith("#")} <= set(seen.ids)
    charts, rows = told(text)
    assert list(charts)[:3] == ["Step", "Who is near the best", "Speed against planning time"]
    assert rows["standings"][0]["strategy"] == "fast"
    options = [given["value"] for tag, given in seen.given if tag == "option"]
    assert options == ["0", "1", "2", "simulated", "measured", "60 s", "1 s"]
    assert "Recorded " in words


STEPS = """\
workload,machine,backend,strategy,role,budget,outcome,step_ms,step_ms_low,step_ms_high,over_best_pct,tie,plan_s,fit_s,\
p_within_1.05,devices,fills,family,bound_by,batch_size
w,m,simulated,own,competitor,60 s,ok,10,8,12,0,,50,0,0.5,16,0.2,criteo,exchange,4096
w,m,simulated,plain,competitor,60 s,ok,10.5,9,13,5,~,0.1,0,0.4,16,0.2,criteo,kernels,4096
w,m,simulated,far,competitor,60 s,ok,20,16,24,100,,0.1,0,0,16,0.2,criteo,kernels,4096
w,m,simulated,far,competitor,1 s,ok,21,16,24,110,,0.1,0,0,16,0.2,criteo,kernels,4096
v,m,simulated,own,competitor,60 s,timeout,,,,,,,,,16,2.0,sequences and traces,,4096
v,m,simulated,plain,competitor,60 s,ok,5,4,6,0,,0.1,0,1,16,2.0,sequences and traces,host,4096
"""
VERSION_2 = """\
backend,budget,rank,places,strategy,problems,ok,expected_within_1.05,expected_low,expected_high,surely_best,within_1.05,\
plan_s,judge,measured_places
simulated,60 s,1,,own,2,1,0.25,0.2,0.3,1,0.5,50,makes it short,1 to 2
simulated,60 s,2,,plain,2,2,0.7,,,1,0.5,0.1,,1 to 2
simulated,1 s,1,,far,2,2,0.7,,,1,0.5,0.1,,
measured,as run,,1 to 2,plain,4,4,,,,,0.5,0.1,,1 to 2
"""
VERSION_3 = """\
backend,budget,group,rank,places,strategy,problems,ok,median_over_best_pct,expected_within_1.05,expected_low,\
expected_high,surely_best,within_1.05,plan_s,judge,measured_places
simulated,60 s,bound by the host,1,1 to 1,plain,1,1,0,1,,,1,1,0.1,,1 to 2
simulated,60 s,plans matter,1,1 to 2,own,2,1,2.5,0.25,0.2,0.3,1,0.5,50,makes it short,1 to 2
simulated,60 s,plans matter,2,1 to 2,plain,2,2,2.5,0.7,,,1,0.5,0.1,,1 to 2
measured,as run,plans matter,,1 to 2,plain,4,4,2.5,,,,,0.5,0.1,,1 to 2
"""


def written(folder: Path, scores: str) -> StudyStandings:
    tables = folder / "tables" / "board"
    tables.mkdir(parents=True)
    (tables / "scores.csv").write_text(scores)
    (tables / "steps.csv").write_text(STEPS)
    study = study_standings("board", folder)
    assert study is not None
    return study


def test_the_answer_says_what_is_best_what_ties_how_sure_and_what_takes_the_time(tmp_path: Path) -> None:
    study = written(tmp_path, VERSION_3)
    first, second = (answer(of_problem, study.judge) for of_problem in by_problem(study.standings).values())
    assert first.says == (
        "Nothing is surely best. own has the shortest step, but the model's error leaves open whether these are as "
        "fast: plain.",
        "Predicted by the cost model: no GPU ran these plans.",
        "It is within 5 % of the best in 50 % of the model's draws.",
        "* own optimises the very formula by which this is judged. The first that does not is plain, +5.0 % ~.",
        "Exchanges between devices take most of its step.",
        "16 devices; HBM has room for the tables; 60 s to learn and plan",
    )
    assert first.rows["strategy"].tolist() == ["own *", "plain", "far"], "the longest budget alone"
    assert first.rows["to the best"].tolist() == ["best", "+5.0 % ~", "+100.0 %"]
    assert first.rows["95 %"].tolist()[0] == "8.00 to 12.0"
    assert first.command == "shardbench plan TABLES.csv m --batch-size 4096"
    assert (first.devices, first.memory, first.lookups) == ("16", "ample", "pooled")
    assert (second.memory, second.lookups) == ("short", "sequences")
    assert second.says[0] == "plain is best by more than the model's error."
    assert second.says[3].startswith("The host takes longer")


def test_a_measured_answer_and_one_without_a_best_say_so() -> None:
    measured = one("a", 0.0, backend="measured", mark=TieMark.UNKNOWN)
    assert answer([measured, replace(measured, strategy="b")], {}).says[:2] == (
        "Nothing is surely best. a has the shortest step, but the noise leaves open whether these are as fast: b.",
        "Measured on real ranks of m.",
    )
    assert answer([one("a", None)], {}).says[0].startswith("Nothing is best: no competitor ended")


@pytest.mark.parametrize(
    ("scores", "leading"), [(VERSION_2, ["rank"]), (VERSION_3, ["places", "median over best (%)"])]
)
def test_scores_of_either_version_are_shown_with_what_they_state(
    tmp_path: Path, scores: str, leading: list[str]
) -> None:
    simulated, *bound_by_host, measured = written(tmp_path, scores).scores
    assert simulated.headers == (
        "strategy", *leading, "surely best", "within 5 %", "ended", "seconds", "measured places"
    )  # fmt: skip
    rows = [dict(zip(simulated.headers, row)) for row in simulated.rows]
    assert [(row["strategy"], row["within 5 %"], row["ended"]) for row in rows] == [
        ("own *", "25 % (20 to 30)", "1 of 2"), ("plain", "70 %", "2 of 2")
    ]  # fmt: skip
    assert ["problems bound by the host" in one.title for one in bound_by_host] == [True] * (scores is VERSION_3)
    assert "no GPU ran these plans; 60 s" in simulated.title
    assert measured.rows[0][:2] == ("plain", "1 to 2")


def test_problems_that_the_host_binds_do_not_count_and_the_first_screen_is_that_of_the_page(tmp_path: Path) -> None:
    study = written(tmp_path, VERSION_3)
    text = page("board", [], tmp_path, study=study)
    _, rows = told(text)
    assert {row["problem"]: row["ranked"] for row in rows["standings"]} == {"0": True, "1": False}
    screen = first_screen(study, "board.html")
    for words in (
        "<code>shardbench plan TABLES.csv m",
        "own has the shortest step",
        'data-lookups="sequences"',
        "own *</td>",
    ):
        assert words in text
        assert words in screen
    assert 'href="board.html#problem-0"' in screen
