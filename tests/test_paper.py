"""What `report --latex` writes: complete, honest about backend and n, fonts within, and the same bytes again."""

import re
from pathlib import Path

import pandas as pd
import pytest
import records as make
import test_profile_picture as profiles_by_hand
from test_latex import braces, environments

from shardbench.base.errors import BadInput
from shardbench.records.trial import Backend
from shardbench.report.groups import groups
from shardbench.report.paper.figures import figure_files, group_figures, profile_figure, table_figure
from shardbench.report.paper.files import commits, suite_paper
from shardbench.report.paper.profiles import profiles_paper
from shardbench.report.plot import Plot
from shardbench.report.standing import table_standings
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


def test_figures_embed_truetype_fonts_and_are_a_column_wide(files):
    for name, content in files.items():
        if name.endswith(".pdf"):
            assert b"/FontFile2" in content, name
            assert b"/Type3" not in content, name
            box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", content)
            assert float(box.group(1)) == pytest.approx(3.3 * 72)
        if name.endswith(".svg"):
            assert b"<text" not in content, "letters are outlines, so that no font is asked for"
            assert b'width="237.6pt"' in content


def test_no_file_has_a_date(files):
    for content in files.values():
        assert b"CreationDate" not in content
        assert b"dc:date" not in content


def texts_of(figure):
    (axes,) = figure.axes
    return [tick.get_text() for tick in axes.get_yticklabels()]


def test_the_steps_figure_shows_every_row_failed_ones_too():
    (group,) = [one for one in groups(make.sample()) if one.condition.backend is Backend.SIMULATED]
    caption, figure = group_figures(group)["steps"]
    assert texts_of(figure) == ["random: infeasible", "torchrec", "greedy-size", "local-search (reference)"]
    assert "95 % band" in caption
    points = [line.get_xdata()[0] for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert points == [9.0, 8.0, 7.5]


def test_a_group_without_a_row_that_is_ok_has_no_figure():
    (group,) = groups([make.failed()])
    assert group_figures(group) == {}


def test_far_values_are_on_a_log_axis():
    (group,) = groups([make.ok("a", (1.0,)), make.ok("b", (100.0,))])
    assert group_figures(group)["steps"][1].axes[0].get_xscale() == "log"
    (near,) = groups([make.ok("a", (1.0,)), make.ok("b", (2.0,))])
    assert group_figures(near)["steps"][1].axes[0].get_xscale() == "linear"


def test_zeros_stand_beside_far_values():
    (group,) = groups([make.ok("a", (1.0,), (0.0, 1.0)), make.ok("b", (1.0,), (50.0, 60.0))])
    axes = group_figures(group)["balance"][1].axes[0]
    assert axes.get_xscale() == "symlog"
    low, high = axes.get_xlim()
    assert low < 0.0 < 60.0 < high


def test_a_plot_without_its_column_is_refused():
    with pytest.raises(BadInput, match="no column 'z'"):
        table_figure(Plot(title="A plot.", table="t", x="x", y="z"), pd.DataFrame({"x": [1.0], "y": [1.0]}))


@pytest.mark.parametrize("bars", [False, True])
def test_a_plots_series_facets_and_intervals_are_drawn(bars):
    frame = pd.DataFrame({
        "x": [1, 2] * 4, "y": [1.0, 2.0, 3.0, 4.0] * 2, "low": [0.5] * 8, "high": [5.0] * 8,
        "who": ["a", "a", "b", "b"] * 2, "where": ["here"] * 4 + ["there"] * 4,
    })  # fmt: skip
    parts = {"x": "x", "y": "y", "series": "who", "facet": "where", "low": "low", "high": "high"}
    plot = Plot(title="All.", table="t", **parts, log_y=True, bars=bars)
    figure = table_figure(plot, frame)
    assert [axes.get_title() for axes in figure.axes] == ["where = here", "where = there"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert figure.axes[0].get_yscale() == "log"
    if bars:
        assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()] == ["1", "2"]
    drawn = figure.axes[0].patches if bars else figure.axes[0].containers
    assert len(drawn) == (4 if bars else 2)
    assert figure_files(figure, "one", "One.") == figure_files(table_figure(plot, frame), "one", "One.")


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
    assert len(plots) >= 2
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


def test_profiles_have_scores_that_can_be_counted_again():
    table = profiles_by_hand.table(profiles_by_hand.THREE)
    standings = table_standings(table.assign(over_bound_pct=[50.0] * 4 + [21.0] * 4 + [1.0] * 4))
    files = profiles_paper(standings, "board", {"simulated": "Records of commit abc."})
    name = "board-profiles-simulated-60-s"
    assert set(files) == {f"{name}.tex", *(f"{name}-figure.{form}" for form in ("tex", "pdf", "svg"))}
    scores = files[f"{name}.tex"].decode("ascii")
    # 1.1 ** (1 / 4) is 1.0241, (1.5 * 2 * 10) ** (1 / 4) is 2.3403; the last failed two problems, so it has no mean.
    assert r"first & 4 & 75 \% & 75 \% & 100 \% & +2.4 \% & +21.0 \% & 1.00 & 0 \\" in scores
    assert r"second & 4 & 25 \% & 25 \% & 50 \% & +134.0 \% & +50.0 \% & 1.00 & 0 \\" in scores
    assert r"last & 2 & 0 \% & 0 \% & 25 \% & - & - & 1.00 & 0 \\" in scores
    for text in (scores, files[f"{name}-figure.tex"].decode("ascii")):
        assert "Simulated by the cost model, not measured; n = 4 problems" in text
        assert "Records of commit abc." in text
        assert braces(text) == 0
    assert profiles_paper(standings, "board", {"simulated": "Records of commit abc."}) == files


def test_one_problem_has_no_profile():
    one = profiles_by_hand.table({"a": [0.0], "b": [5.0]})
    assert profiles_paper(table_standings(one), "board", {"simulated": ""}) == {}


def test_profiles_in_the_figure_are_those_of_the_table():
    listed = profiles_by_hand.ranked(profiles_by_hand.table(profiles_by_hand.THREE))["simulated", "60 s"]
    axes = profile_figure(listed).axes[0]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert drawn["second"] == [[1.0, 25.0], [1.5, 50.0], [2.0, 75.0], [4.0, 75.0]]


@pytest.mark.usefixtures("no_group_figures")
def test_a_suite_of_several_problems_has_profiles(tmp_path):
    for workload, slower in (("one", 20.0), ("two", 30.0)):
        for name, ms in (("a", 10.0), ("b", slower)):
            make.kept(tmp_path, make.ok(name, (ms,) * 4, workload=workload, backend=Backend.SIMULATED))
    text = suite_paper(tmp_path, "quick")["quick-profiles-simulated-as-run.tex"].decode("ascii")
    # Twice and three times the best: the root of six.
    assert r"b & 2 & 0 \% & 0 \% & 0 \% & +144.9 \% & - & " in text
    assert "of commit dddddddddd" in text


def test_latex_is_of_a_suite_or_a_paper_only(results, command):
    said = command("report", "quick", "--results", results, "--latex", "x", "--check", code=2)
    assert "--latex is of the tables" in said
