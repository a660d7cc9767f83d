"""Charts show their tables' numbers: what Vega draws of them is read back, and the pictures on record are theirs."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import altair as alt
import document_numbers as numbers
import pandas as pd
import pytest
import records as make
from drawn import marks, names, points
from test_ranking import one

from shardbench.base.errors import BadInput
from shardbench.records.trial import Backend
from shardbench.report.charts import look, problem, strategies
from shardbench.report.charts.study import plot_chart
from shardbench.report.groups import groups
from shardbench.report.plot import Plot
from shardbench.report.ranking import scores
from shardbench.report.standing import TieMark
from shardbench.report.tables.suite_tables import tables

ROOT = Path(__file__).parent.parent
PLOT = Plot(title="All.", table="t", x="x", y="y", series="who", facet="where", low="low", high="high")
FRAME = pd.DataFrame({
    "x": [1, 2] * 4, "y": [1.0, 2.0, 3.0, 4.0] * 2, "low": [0.5] * 8, "high": [5.0] * 8,
    "who": ["a", "a", "b", "b"] * 2, "where": ["here"] * 4 + ["there"] * 4,
})  # fmt: skip


def inline(rows):
    return alt.InlineData(rows)


def of_sample(backend, *, name, **_):
    (group,) = [one for one in groups(make.sample()) if one.condition.backend is backend]
    records = [record for row in group.rows for record in row.records]
    order = [each.strategy for each in strategies.by_step(group.standings.values())]
    table = tables(records)[name]
    return table, inline(problem.table_rows(0, table, order))


def test_steps_have_their_intervals_marks_bound_and_failures():
    standings = [
        one("a", 0.0, step_ms=2.0, low_ms=1.8, high_ms=2.2, mark=TieMark.BEST, bound_ms=1.5),
        one("b", 5.0, step_ms=2.1, mark=TieMark.OPEN, bound_ms=1.4), one("c", None, outcome="oom"),
        one("search", -1.0, role="search", step_ms=1.9),
    ]  # fmt: skip
    chart = strategies.steps(inline(strategies.rows_of(standings)))
    assert points(chart, "strategy", "step, ms", "from (95 %)", "to the best") == [
        ("search (reference)", "1.90", "null", "apart"), ("a", "2.00", "1.80", "best"),
        ("b", "2.10", "null", "~ within model error"),
    ]  # fmt: skip
    drawn = marks(chart)
    assert [mark["bound_ms"] for mark in drawn if "bound_ms" in mark] == ["1.4"]
    assert {(m["low"], m["high"]) for m in drawn if "low" in m} == {("1.8", "2.2")}
    assert [mark["strategy"] for mark in drawn if mark.get("outcome") == "oom"] == ["c"]


def test_a_problem_and_a_budget_are_chosen_and_measured_rows_have_none():
    rows = strategies.rows_of([
        one("a", 0.0, budget="1 s"), one("a", 0.0, budget="60 s"), one("b", 0.0, "x", budget="1 s"),
        one("a", 0.0, "x", backend="measured"),
    ])  # fmt: skip
    for number, budget, expected in ((0, "60 s", [("a", "60 s")]), (1, "60 s", []), (2, "60 s", [("a", "")])):
        chart = strategies.steps(inline(rows), problem=str(number), budget=budget)
        assert points(chart, "strategy", "budget", "step, ms") == [(*each, "1.00") for each in expected]


def test_the_ranking_is_that_of_the_scores():
    standings = [
        one("a", 0.0, family="many", mark=TieMark.BEST), one("a", 10.0, "x", family="many", mark=TieMark.SAME),
        one("a", 50.0, "y", family="one"), one("b", 4.0, family="many", p_near=0.3), one("b", None, "x", family="many"),
        one("c", 300.0, "y", family="one"), one("other", 0.0, backend="measured"),
    ]  # fmt: skip
    (of_budget, _) = scores(standings).values()
    chart = strategies.ranking(inline(strategies.rows_of(standings)), backend="simulated", budget="")
    said = {mark["strategy"]: mark for mark in marks(chart) if "worst, x" in mark}
    assert list(said) == [each.strategy for each in of_budget] == ["a", "b", "c"]
    for each in of_budget:
        mark = said[each.strategy]
        assert (int(mark["problems"]), int(mark["ended"]), int(mark["best or tied on"])) == (
            each.problems, len(each.ratios), each.tied
        )  # fmt: skip
        assert float(mark["worst, x"]) == pytest.approx(each.ratios[-1], rel=0.01)
        assert mark["within 5 % of the best"] == f"{100 * each.near:.0f}%"
        assert (mark["median over the best, x"] == "null") is (each.median is None)
    assert float(said["a"]["median over the best, x"]) == 1.1
    equal = [one("a", 50.0), one("b", 30.0), one("c", 40.0)]
    chart_of_equal = strategies.ranking(inline(strategies.rows_of(equal)), backend="simulated", budget="")
    assert names(chart_of_equal) == [each.strategy for each in scores(equal)["simulated", "as run"]] == ["b", "c", "a"]
    assert [mark["name"] for mark in marks(chart) if "best" in mark] == ["a", "b (1 of 3)", "c (1 of 3)"]


def test_filters_leave_problems_and_effort_names_who_nobody_quicker_beats():
    standings = [
        one("best", 0.0, plan_s=100.0), one("quick", 50.0, plan_s=0.1), one("slow", 60.0, plan_s=9.0),
        one("best", 0.0, "x", devices=16.0), one("quick", None, "x", devices=16.0),
    ]  # fmt: skip
    told = look.spec(
        strategies.effort(inline(strategies.rows_of(standings)), backend="simulated", budget=""), "Speed.", 600
    )
    parameters = {param["name"] for param in told["params"]}
    assert parameters == {"backend", "budget", "devices", "memory"}

    def named(devices):
        rows = [row for row in strategies.rows_of(standings) if row["devices"] == devices]
        chart = strategies.effort(inline(rows), backend="simulated", budget="")
        return [mark["strategy"] for mark in marks(chart) if set(mark) >= {"strategy"} and "problems" not in mark]

    assert named("8") == ["best", "quick"]
    assert named("16") == ["best"]


def test_phases_traffic_and_memory_are_the_tables_columns():
    table, rows = of_sample(Backend.MEASURED, name="throughput")
    columns = problem.phases_of(table)
    assert columns == ["input_ms", "lookup_ms"]
    chart = problem.phases(rows, columns)
    assert points(chart, "strategy", "part", "ms") == [
        ("greedy-size", "input", "1.00"), ("greedy-size", "lookup", "2.00"), ("torchrec", "input", "1.00"),
        ("torchrec", "lookup", "2.00"),
    ]  # fmt: skip
    table, rows = of_sample(Backend.MEASURED, name="traffic")
    columns = problem.collectives_of(table)
    greedy = table.set_index("strategy").loc["greedy-size"]
    sent = {part: float(value.replace("k", "e3")) for who, part, value in points(
        problem.traffic(rows, columns), "strategy", "part", "bytes") if who == "greedy-size"}  # fmt: skip
    expected = {name.removesuffix("_bytes").replace("_", " "): greedy[name] for name in columns}
    assert sent == pytest.approx(expected, rel=0.01)
    assert "output reduce scatter" not in sent, "it sends nothing"
    held = [value for who, part, value in points(problem.memory(rows), "strategy", "part", "bytes") if part == "HBM"]
    assert [float(value.replace("k", "e3")) for value in held] == [greedy["hbm_memory_bytes_max"]] * 2


def test_embedding_time_is_between_its_ranks_and_beside_its_bounds():
    _, rows = of_sample(Backend.SIMULATED, name="balance")
    chart = problem.embedding(rows)
    assert points(chart, "strategy", "fastest rank, ms", "mean of the rank, ms", "slowest rank, ms")[0] == (
        "local-search (reference)", "3.30", "3.35", "3.40"
    )  # fmt: skip
    assert points(chart, "of", "ms") == [("bound, any device move", "2.50"), ("bound, whole tables", "3.20")]
    _, rows = of_sample(Backend.MEASURED, name="balance")
    assert points(problem.embedding(rows), "of", "ms") == []


def test_a_plot_without_its_column_is_refused():
    with pytest.raises(BadInput, match="no column 'z'"):
        plot_chart(Plot(title="A plot.", table="t", x="x", y="z"), FRAME)


@pytest.mark.parametrize("bars", [False, True])
def test_a_plots_series_facets_and_intervals_are_drawn(bars):
    chart = plot_chart(replace(PLOT, log_y=not bars, bars=bars), FRAME)
    told = look.spec(chart, "All.")
    assert told["facet"]["field"] == "where"
    first = told["spec"]["layer"][0]["encoding"]
    assert first["color"]["scale"]["domain"] == ["a", "b"]
    assert (first["y"]["scale"].get("type"), first["x"]["type"]) == (
        (None, "nominal") if bars else ("log", "quantitative")
    )
    fields = ("where", "who", "x", "y", "low", "high")
    ends = [tuple(mark[name] for name in fields) for mark in marks(chart) if "low" in mark and "low " not in mark]
    drawn = [
        (where, who, x, str(y), "0.5", "5")
        for where in ("here", "there") for who, x, y in (("a", "1", 1), ("a", "2", 2), ("b", "1", 3), ("b", "2", 4))
    ]  # fmt: skip
    # Lines, their points and intervals; or bars and intervals.
    assert sorted(set(ends)) == drawn
    assert len(ends) == len(drawn) * 2 + (0 if bars else 4)


def test_series_that_are_shown_are_drawn_and_bars_stand_on_both_sides_of_zero():
    frame = pd.DataFrame({"task": ["one", "two"] * 2, "gain_pct": [20.0, -5.0, 1.0, 1.0], "strategy": list("ssuu")})
    plot = Plot(title="t", table="t", x="task", y="gain_pct", series="strategy", bars=True, shown=("s",))
    assert points(plot_chart(plot, frame), "task", "strategy", "gain (%)") == [("one", "s", "20"), ("two", "s", "−5")]  # noqa: RUF001


def test_a_file_has_its_letters_within_is_a_column_wide_and_the_same_again():
    chart = plot_chart(replace(PLOT, facet=None), FRAME)
    files = look.files(chart, "All.")
    assert files == look.files(chart, "All.")
    assert b"/FontFile2" in files["pdf"]
    assert b"/Type3" not in files["pdf"]
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", files["pdf"])
    assert box and float(box.group(1)) == pytest.approx(3.3 * 72, abs=0.5)
    assert b"var(" not in files["svg"]
    assert b"CreationDate" not in files["pdf"]


def test_a_picture_reads_in_the_dark_and_names_are_text():
    rows = strategies.rows_of([one("<img src=x onerror=y>", 0.0), one("b", 1.0)])
    svg = look.picture(strategies.steps(inline(rows)), "<b> & c")
    assert "@media (prefers-color-scheme: dark)" in svg
    assert "<title>&lt;b&gt; &amp; c</title>" in svg
    assert "<img" not in svg
    assert "&lt;img src=x onerror=y&gt;" in svg


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [look.LIGHT, look.DARK])
def test_every_colour_is_seen_on_light_and_on_dark(palette):
    for name in ("ink", "quiet", *(name for name in palette if re.fullmatch(r"c\d", name))):
        lighter, darker = sorted((luminance(palette[name]), luminance(palette["paper"])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3.0, name


def test_the_committed_pictures_are_what_the_committed_tables_give():
    folder = ROOT / numbers.PICTURES
    there = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.svg")}
    assert there == numbers.pictures(ROOT / numbers.TABLES), "make them again: python tools/document_numbers.py"


def test_without_the_extra_a_page_says_what_to_install_and_all_else_is_light(tmp_path):
    """In a Python of its own: modules that are loaded here stay as they are."""
    make.kept(tmp_path, *make.sample())
    code = (
        "import importlib.util, sys; from shardbench.cli.main import run_command; find = importlib.util.find_spec; "
        "lacking = ('altair', 'vl_convert'); "
        "importlib.util.find_spec = lambda name, *more: None if name in lacking else find(name, *more); "
        "report = ['report', 'quick', '--results', sys.argv[1]]; "
        "print(*[run_command([*report, *more]) for more in (['--page'], ['--latex', sys.argv[1] + '/paper'], [])]); "
        "print([name for name in sys.modules if name.startswith('shardbench.report.charts')])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count("pip install 'shardbench[charts]'") == 2
    *_, codes, loaded = done.stdout.splitlines()
    assert "records:" in done.stdout
    assert (codes, loaded) == ("2 2 0", "[]")
