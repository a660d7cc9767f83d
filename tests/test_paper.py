"""What `report --latex` writes: complete, honest about backend and n, fonts within, and the same bytes again."""

import re
from pathlib import Path

import pytest
import records as make
from drawn import marks, points
from test_latex import braces, environments
from test_ranking import one

from shardbench.records.trial import Backend
from shardbench.report.groups import groups
from shardbench.report.paper.figures import group_figures, scores_paper
from shardbench.report.paper.files import commits, suite_paper
from shardbench.studies.paper import reproduction_paper
from shardbench.studies.reproduction import find_reproduction

RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    make.kept(folder, *make.sample())
    return folder


@pytest.fixture(scope="module")
def files(results):
    return suite_paper(results, "quick")


def test_every_group_has_tables_and_figures_in_both_formats(files):
    stems = ("quick-dlrm20-a100-40gb-2x8-simulated", "quick-dlrm20-cpu-1x2-measured")
    tables = {f"{stem}-{table}.tex" for stem in stems for table in ("throughput", "balance", "traffic")}
    figures = {
        f"{stem}-{name}-figure.{form}"
        for stem in stems for name in ("steps", "balance", "traffic") for form in ("tex", "pdf", "svg")
    }  # fmt: skip
    assert set(files) == tables | figures


def test_all_latex_is_balanced_and_names_files_that_are_there(files):
    for name, content in files.items():
        if name.endswith(".tex"):
            text = content.decode("ascii")
            assert environments(text)
            assert braces(text) == 0
            for image in re.findall(r"\\includegraphics\[[^]]*\]\{([^}]*)\}", text):
                assert {f"{image}.pdf", f"{image}.svg"} <= files.keys()


def test_a_table_says_backend_n_unit_interval_and_commit(files):
    simulated = files["quick-dlrm20-a100-40gb-2x8-simulated-throughput.tex"].decode()
    measured = files["quick-dlrm20-cpu-1x2-measured-throughput.tex"].decode()
    assert "Simulated by the cost model, not measured" in simulated
    assert "Measured on real ranks" in measured
    for text in (simulated, measured):
        assert "batch 1000, fp32, sgd" in text.lower()
        assert "of commit dddddddddd" in text
        assert "strategy & n & step (ms) & " in text
    # By hand: trials whose three fastest iterations take 20 and 21 ms.
    assert re.search(r"greedy-size & 2 & 20\.5 & 18\.7 to 22\.4 & best & 1 to 1", measured), measured


def test_a_failed_row_has_its_outcome_and_its_cause(files):
    text = files["quick-dlrm20-a100-40gb-2x8-simulated-throughput.tex"].decode()
    assert re.search(r"random & 0 & infeasible ", text)
    assert "random: infeasible: build: rank 1 was killed by signal 9." in text


def test_figures_are_of_the_groups_rows_failed_ones_too():
    (group,) = [one for one in groups(make.sample()) if one.condition.backend is Backend.SIMULATED]
    charts = group_figures(group)
    caption, chart = charts["steps"]
    assert "95 % band" in caption
    drawn = marks(chart)
    assert [mark["strategy"] for mark in drawn if mark.get("outcome") == "infeasible"] == ["random"]
    assert points(chart, "strategy", "step, ms") == [
        ("local-search (reference)", "7.50"), ("greedy-size", "8.00"), ("torchrec", "9.00")
    ]  # fmt: skip
    assert {name: len(points(chart, "strategy")) for name, (_, chart) in charts.items()} == {
        "steps": 4, "balance": 3, "traffic": 3
    }  # fmt: skip


def test_a_group_without_a_row_that_is_ok_has_no_figure():
    (group,) = groups([make.failed()])
    assert group_figures(group) == {}


def test_commits_are_named_by_when_they_began():
    def of(letter, day, **changes):
        stated = make.provenance(commit=letter * 40, started=f"2026-01-{day:02}T00:00:00Z", **changes)
        return make.ok(changes={"provenance": stated})

    assert commits([]) == "of no known commit"
    assert commits([of("a", 1)]) == "of commit aaaaaaaaaa"
    assert commits([of("b", 2), of("a", 1), of("c", 3, dirty=True)]) == (
        "of 3 commits from aaaaaaaaaa to cccccccccc, some changed since"
    )


def test_a_paper_has_its_claims_and_its_studies_plots():
    found = find_reproduction("flexshard")
    files = reproduction_paper(found, RESULTS)
    claims = files["flexshard-claims.tex"].decode("ascii")
    assert environments(claims) == ["table*", "tabular"]
    assert braces(claims) == 0
    assert claims.count(r" \\") == 1 + len(found.claims)
    assert "simulated" in claims
    plots = [name for name in files if name.endswith("-figure.pdf")]
    assert plots == ["flexshard-gains-1-figure.pdf"]
    for name in plots:
        text = files[name.replace(".pdf", ".tex")].decode("ascii")
        assert re.search(r"(Simulated|Measured|Counted)\.", text), name


def test_the_command_writes_them_a_second_time_with_the_same_bytes_and_a_document_of_all(results, files, command):
    out = results / "paper"
    out.mkdir()
    for name in files:
        (out / name).write_text("what was there before")
    said = command("report", "quick", "--results", results, "--latex", out)
    assert f"files in {out}; all-quick.tex shows all" in said
    written = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {name: content for name, content in written.items() if name != "all-quick.tex"} == files
    document = (out / "all-quick.tex").read_text()
    assert environments(document) == ["document"]
    parts = re.findall(r"\\input\{([^}]*)\}", document)
    assert sorted(f"{part}.tex" for part in parts) == sorted(
        path.name for path in out.glob("*.tex") if path.name != "all-quick.tex"
    )


@pytest.fixture
def no_group_figures(monkeypatch):
    """Leaves those of groups out: drawing them takes seconds."""
    monkeypatch.setattr("shardbench.report.paper.files.group_figures", lambda group: {})


@pytest.mark.usefixtures("no_group_figures")
def test_groups_of_unlike_batches_have_names_of_their_own(tmp_path):
    for size, workload in ((1000, "dlrm20"), (2000, "dlrm20"), (3000, "other")):
        make.kept(tmp_path, make.ok(batch_size=size, workload=workload))
    named = {
        name.removesuffix("-traffic.tex") for name in suite_paper(tmp_path, "quick") if name.endswith("-traffic.tex")
    }
    assert named == {
        "quick-dlrm20-cpu-1x2-measured-1000", "quick-dlrm20-cpu-1x2-measured-2000", "quick-other-cpu-1x2-measured",
    }  # fmt: skip


def test_where_there_is_nothing_for_a_paper_it_says_so(tmp_path, command):
    said = command("report", "joint", "--results", tmp_path, "--latex", tmp_path / "paper", code=2)
    assert "joint: nothing for a paper" in said


def test_scores_can_be_counted_again():
    over = {"second": (50.0, 0.0, 100.0, 900.0), "first": (0.0, 10.0, 0.0, 0.0), "last": (300.0, None, None, 20.0)}
    standings = [
        one(name, value, f"w{i}", budget="60 s", over_bound_pct=bound, fit_s=0.0)
        for (name, values), bound in zip(over.items(), (50.0, 21.0, 1.0)) for i, value in enumerate(values)
    ]  # fmt: skip
    files = scores_paper([*standings, one("search", 0.0, role="search")], "board", {"simulated": "Records of abc."})
    name = "board-scores-simulated-60-s"
    assert set(files) == {f"{name}.tex", *(f"{name}-figure.{form}" for form in ("tex", "pdf", "svg"))}
    scores = files[f"{name}.tex"].decode("ascii")
    # 1.1 ** (1 / 4) is 1.0241, (1.5 * 2 * 10) ** (1 / 4) is 2.3403; the last failed two problems, so it has no mean.
    assert r"first & 4 & 0 & 75 \% & +0.0 \% & +10.0 \% & +2.4 \% & +21.0 \% & 2.00 \\" in scores
    assert r"second & 4 & 0 & 25 \% & +75.0 \% & +900.0 \% & +134.0 \% & +50.0 \% & 2.00 \\" in scores
    assert r"last & 2 & 0 & 0 \% & - & +300.0 \% & - & - & 2.00 \\" in scores
    for text in (scores, files[f"{name}-figure.tex"].decode("ascii")):
        assert "Simulated by the cost model, not measured; n = 4 problems" in text
        assert "Records of abc." in text
        assert braces(text) == 0


def test_one_problem_has_no_scores():
    assert scores_paper([one("a", 0.0), one("b", 5.0)], "board", {"simulated": ""}) == {}


@pytest.mark.usefixtures("no_group_figures")
def test_a_suite_of_several_problems_has_scores(tmp_path):
    for workload, slower in (("one", 20.0), ("two", 30.0)):
        for name, ms in (("a", 10.0), ("b", slower)):
            make.kept(tmp_path, make.ok(name, (ms,) * 4, workload=workload, backend=Backend.SIMULATED))
    text = suite_paper(tmp_path, "quick")["quick-scores-simulated-as-run.tex"].decode("ascii")
    # Twice and three times the best: the root of six.
    assert r"b & 2 & 0 & 0 \% & +150.0 \% & +200.0 \% & +144.9 \% & - & " in text
    assert "of commit dddddddddd" in text


def test_latex_is_of_a_suite_or_a_paper_only(results, command):
    said = command("report", "quick", "--results", results, "--latex", "x", "--check", code=2)
    assert "--latex is of the tables" in said
