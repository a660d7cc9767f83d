"""A study's table of standings on its page: the answer, and every problem of it."""


import pandas as pd
import pytest
from hostile import CLOSING, MARKUP
from kept_folders import Silent
from test_page import Seen, told

from shardbench.report.standing import AS_RUN, COLUMNS
from shardbench.studies import session
from shardbench.studies.files import write_study_files
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
