from html.parser import HTMLParser

import pytest
import records as make

from shardbench.base.host import Environment
from shardbench.records.record import RankTiming
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.report.figures import figures
from shardbench.report.groups import groups
from shardbench.report.page import page, write_page


class Seen(HTMLParser):
    """Collects what a page would fetch, its ids and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self._script = tag in ("script", "style")
        if given.get("src"):
            self.fetched.append(given["src"])
        if tag == "link" and not given["href"].startswith("data:"):
            self.fetched.append(given["href"])
        if given.get("id"):
            self.ids.append(given["id"])

    def handle_endtag(self, tag):
        self._script = False

    def handle_data(self, data):
        if not self._script:
            self.text += data


@pytest.fixture(scope="module")
def seen():
    return Seen(page("quick", make.sample(), {"e" * 16: None}))


def test_nothing_is_fetched(seen):
    assert seen.fetched == []
    assert seen.tags.count("html") == 1


def test_every_group_has_its_plots_and_tables(seen):
    # Simulated: steps, ranks, traffic; measured: the model's error too.
    assert [i for i in seen.ids if i.startswith("plot-")] == [
        f"plot-{g}-{p}" for g, n in ((0, 3), (1, 4)) for p in range(n)
    ]
    assert len(seen.ids) == len(set(seen.ids))
    # Three of each group, and what was predicted of the measured one.
    assert seen.tags.count("table") == 7
    assert "Predicted against measured" in seen.text


def test_says_what_is_simulated_and_what_failed(seen):
    assert "Simulated by the cost model, not a measurement" in seen.text
    assert "Measured on real ranks; batch 1000, fp32, sgd; compared by step, no common control plan" in seen.text
    assert "noise floor 12.5 %; 1 of 1 pairs differ by more" in seen.text
    assert "random: oom: build of rank 1: rank 1 was killed by signal 9 (1 of 2 trials ok)" in seen.text
    assert "local-search (reference)" in seen.text


def test_text_of_records_cannot_become_markup():
    record = make.failed()
    failure = record.failure.model_copy(update={"cause": "<script>alert(1)</script>"})
    text = page("quick", [record.model_copy(update={"failure": failure})], {})
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_all_failed_is_said_not_plotted():
    shown = Seen(page("quick", [make.failed(Outcome.INFEASIBLE)], {}))
    assert "there is nothing to plot" in shown.text
    assert not [i for i in shown.ids if i.startswith("plot-")]


def test_plots_hold_the_numbers_of_the_records():
    simulated, measured = groups(make.sample())
    assert simulated.condition.backend is Backend.SIMULATED
    steps = figures(measured)[0][1]
    diamonds = next(trace for trace in steps.data if trace.name == "step")
    greedy, torchrec = (25 * 26) ** 0.5, (51 * 53) ** 0.5
    assert dict(zip(diamonds.y, diamonds.x)) == pytest.approx({"greedy-size": greedy, "torchrec": torchrec})
    alone = figures(*groups([make.ok()]))[0][1].data[-1]
    assert (list(alone.x), list(alone.error_x.array), list(alone.error_x.arrayminus)) == ([25.0], [0.0], [0.0])
    ranks = figures(simulated)[1][1]
    assert [trace.name for trace in ranks.data if trace.showlegend is None] == [
        "lower bound, any device move 2.5 ms",
        "lower bound, whole tables 3.2 ms",
    ]
    error = figures(measured)[3][1]
    assert sorted(error.data[0].x) == sorted(error.data[0].y) == [2.0, 2.2, 4.0, 4.4]


def test_measured_phases_are_the_ranks_own_and_add_up_to_the_step():
    # Each rank waits in the exchange for the other's kernels: 10 ms a step, of which slowest phases count 16.
    ranks = [RankTiming(phases_ms={"input": 2.0, "lookup": 8.0}), RankTiming(phases_ms={"input": 8.0, "lookup": 2.0})]
    slowest = make.timing((10.0, 10.0), (8.0, 2.0), input=8.0, lookup=8.0)
    (group,) = groups([make.ok(changes={"timing": slowest.model_copy(update={"ranks": tuple(ranks)})})])
    caption, steps = figures(group)[0]
    assert sum(trace.x[0] for trace in steps.data if trace.type == "bar") == pytest.approx(10.0)
    assert "mean over ranks" in caption
    (group,) = groups([make.ok(changes={"timing": slowest})])
    caption, steps = figures(group)[0]
    assert sum(trace.x[0] for trace in steps.data if trace.type == "bar") == pytest.approx(16.0)
    assert "so that bars may pass the step" in caption


def test_best_is_on_top():
    simulated, _ = groups(make.sample())
    bars = figures(simulated)[0][1].data[0]
    assert list(bars.y) == ["torchrec", "greedy-size", "local-search (reference)"], "plotly draws the last on top"


def test_written_beside_the_tables(tmp_path):
    here = Environment.here()
    here.save(tmp_path)
    trial_store(tmp_path, "quick").append(make.ok(changes={"environment": here.hash}))
    path = write_page(tmp_path, "quick", trial_store(tmp_path, "quick").read())
    assert path == tmp_path / "pages" / "quick.html"
    text = path.read_text(encoding="utf-8")
    assert here.platform in text
    assert str(tmp_path) not in text
