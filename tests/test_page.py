import base64
import hashlib
import re
from html.parser import HTMLParser

import hostile
import pytest
import records as make

from shardbench.base.host import Environment
from shardbench.records.record import RankTiming
from shardbench.records.trial import Backend, Outcome
from shardbench.report.groups import groups
from shardbench.report.page.figures import bounds_of, bytes_by_link, figures, predicted_and_measured, step_bars
from shardbench.report.page.write import page, short, write_page
from shardbench.report.tables.files import write_tables

MOST_BYTES = 6e6


class Seen(HTMLParser):
    """Collects what a page would fetch, its ids, links and text, and the words of its drawings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.given: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.given.append((tag, given))
        self._script = tag in ("script", "style")
        if given.get("src"):
            self.fetched.append(given["src"])
        if tag == "link" and not given["href"].startswith("data:"):
            self.fetched.append(given["href"])
        if tag == "a":
            self.links.append(given["href"])
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


def test_a_browser_may_run_what_the_page_brings_and_no_more():
    text = page("quick", make.sample(), {"e" * 16: None})
    (policy,) = (given["content"] for tag, given in Seen(text).given if given.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    for kind in ("script", "style"):
        (own,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'; " in policy
    assert not re.search(r'<[^>]* (style|on\w+)="', text)


def numbers(group):
    return {row.strategy: number for number, row in enumerate(group.rows)}


def test_nothing_is_fetched(seen):
    assert seen.fetched == []
    assert seen.tags.count("html") == 1


def test_every_group_has_its_charts_and_tables(seen):
    charts = [given["aria-label"] for tag, given in seen.given if tag == "svg"]
    parts = ("Step by phase", "Embedding time per rank", "Traffic by link", "Memory by device")
    # Two of the answer: of each backend, where speed is drawn over planning seconds.
    assert [chart for chart in charts if chart.startswith("Speed")] == [
        "Speed against planning time, simulated, as run", "Speed against planning time, measured, as run"
    ]  # fmt: skip
    for group in ("dlrm20 on a100-40gb-2x8", "dlrm20 on cpu-1x2"):
        assert [chart for chart in charts if chart.endswith(f" of {group}")][:4] == [f"{p} of {group}" for p in parts]
    assert charts[-1] == "Predicted against measured of dlrm20 on cpu-1x2"
    assert len(seen.ids) == len(set(seen.ids))
    # The ranking, the answer, three of each group and its records, and what was predicted of the measured one.
    assert seen.tags.count("table") == 11
    assert seen.tags.count("caption") == 11
    assert "Predicted against measured" in seen.text


def test_links_lead_to_what_is_there(seen):
    assert seen.links
    assert {link for link in seen.links if not link.startswith("#")} == set(), "without a results folder"
    assert {link.removeprefix("#") for link in seen.links} <= set(seen.ids)


def test_every_row_leads_to_its_records(seen):
    keys = {record.key for record in make.sample()}
    assert {i.removeprefix("r-") for i in seen.ids if i.startswith("r-")} == keys
    assert len([link for link in seen.links if link.startswith("#r-")]) == 3 * 7


def test_says_what_is_simulated_and_what_failed(seen):
    assert "Simulated by the cost model, not a measurement" in seen.text
    assert "Measured on real ranks; batch 1000, fp32, sgd; steps are compared as they are" in seen.text
    assert (
        "noise floor 13.4 % (2 degrees of freedom); 8.9 % to the best of all at once; 1 of 1 pairs differ by more"
        in seen.text
    )
    assert "random: oom: build of rank 1: rank 1 was killed by signal 9 (1 of 2 trials ok)" in seen.text
    assert "local-search (reference)" in seen.text


def test_says_commit_and_date(seen):
    assert "Recorded 2026-01-02, by commit dddddddddddd (10)." in " ".join(seen.text.split())


def test_the_answer_names_the_best_and_how_sure(seen):
    text = " ".join(seen.text.split())
    assert "greedy-size 8.00 ms order unknown: the model's error is not known; 1 failed" in text
    assert "greedy-size 20.5 ms" in text
    assert "next is torchrec +151.3 %, beyond the noise; 1 failed" in text


def test_text_of_others_is_text():
    text = hostile.page_text()
    shown = Seen(text)
    assert "img" not in shown.tags
    assert shown.tags.count("script") == 2, "its own, and the data of the ranking, which a browser does not run"
    assert text.count("</script>") == 2
    for words in (hostile.MARKUP, hostile.CLOSING):
        assert words in shown.text
        assert words not in text
    assert not [name for _, given in shown.given for name in given if name.startswith("on")]


def test_tiny_numbers_are_short():
    assert short("0.0000220 to 0.00012") == "< 0.0001 to 0.00012"
    assert short("10.00001, 0.001 and 0.0000001000") == "10.00001, 0.001 and < 0.0001"


def test_all_failed_is_said_not_plotted():
    shown = Seen(page("quick", [make.failed(Outcome.INFEASIBLE)], {}))
    assert "there is nothing to plot" in shown.text
    assert "nothing ended well; 1 failed" in shown.text
    assert "svg" not in shown.tags


def test_charts_hold_the_numbers_of_the_records():
    simulated, measured = groups(make.sample())
    assert simulated.condition.backend is Backend.SIMULATED
    bars, phases, _ = step_bars(measured, list(measured.ok_rows), numbers(measured))
    greedy, torchrec = (20 * 21) ** 0.5, (152 * 157) ** 0.5 / 3
    assert {bar.name: bar.whole for bar in bars} == pytest.approx({"greedy-size": greedy, "torchrec": torchrec})
    assert (phases, bars[0].parts, bars[0].value) == (["input", "lookup"], (1.0, 2.0), "20.5 ms")
    (alone,) = groups([make.ok()])
    (bar,), _, _ = step_bars(alone, list(alone.rows), numbers(alone))
    assert (bar.whole, bar.low, bar.high) == (20.0, None, None)
    assert [(name, ms) for name, ms, _ in bounds_of(simulated, list(simulated.ok_rows))] == [
        ("lower bound, any device move", 2.5),
        ("lower bound, whole tables", 3.2),
    ]
    assert bounds_of(measured, list(measured.ok_rows)) == []
    assert sorted(predicted_and_measured(measured.ok_rows[0])) == [(2.0, 2.0), (2.2, 2.2), (4.0, 4.0), (4.4, 4.4)]


def test_links_are_told_apart():
    (group,) = groups([make.ok(changes={"traffic": make.totals(host_vectors_bytes=5.0, copied_to_host_bytes=1.0)})])
    exchanges, reductions = (1111.0, 2222.0), (33.0, 44.0)
    assert bytes_by_link(group.rows[0]) == (*exchanges, *reductions, 11.0)


def test_measured_phases_are_the_ranks_own_and_add_up_to_the_step():
    # Each rank waits in the exchange for the other's kernels: 10 ms a step, of which slowest phases count 16.
    ranks = [RankTiming(phases_ms={"input": 2.0, "lookup": 8.0}), RankTiming(phases_ms={"input": 8.0, "lookup": 2.0})]
    slowest = make.timing((10.0, 10.0), (8.0, 2.0), input=8.0, lookup=8.0)
    (group,) = groups([make.ok(changes={"timing": slowest.model_copy(update={"ranks": tuple(ranks)})})])
    (bar,), _, by_rank = step_bars(group, list(group.rows), numbers(group))
    assert (sum(bar.parts), by_rank) == (pytest.approx(10.0), True)
    assert "mean over ranks" in figures(group, numbers(group))[0].caption
    (group,) = groups([make.ok(changes={"timing": slowest})])
    (bar,), _, by_rank = step_bars(group, list(group.rows), numbers(group))
    assert (sum(bar.parts), by_rank) == (pytest.approx(16.0), False)
    assert "so that bars may pass the step" in figures(group, numbers(group))[0].caption


def test_best_is_on_top():
    simulated, _ = groups(make.sample())
    drawing = figures(simulated, numbers(simulated))[0].drawings[0]
    names = ("local-search (reference)</text>", "greedy-size</text>", "torchrec</text>")
    assert sorted(names, key=drawing.index) == list(names)


def test_written_beside_the_tables(tmp_path):
    here = Environment.here()
    here.save(tmp_path)
    store = make.kept(tmp_path, make.ok(changes={"environment": here.hash}))
    write_tables(tmp_path, "quick")
    path = write_page(tmp_path, "quick", store.read())
    assert path == tmp_path / "pages" / "quick.html"
    text = path.read_text(encoding="utf-8")
    assert here.platform in text
    assert str(tmp_path) not in text
    links = {link for link in Seen(text).links if not link.startswith("#")}
    assert links == {f"../tables/quick/{t}.csv" for t in ("throughput", "balance", "traffic")} | {
        "../records/quick.jsonl"
    }
    assert all((path.parent / link).is_file() for link in links)


def test_a_page_of_many_large_groups_is_small():
    steps = tuple(10.0 + i for i in range(4))
    planned = make.planned(hbm_memory_bytes=tuple(range(1, 1025)), uvm_memory_bytes=(0,) * 1024)
    traffic = make.totals(distinct_rows=(50.0,) * 1024)
    made = [
        make.ok(
            f"strategy-{s}", steps, tuple(2.0 + rank / 1000 for rank in range(1024)),
            backend=Backend.SIMULATED, workload=f"workload-{w}", changes={"planned": planned, "traffic": traffic},
        )
        for w in range(12) for s in range(20)
    ]  # fmt: skip
    # Forty-eight such groups fit.
    assert len(page("quick", made, {}).encode()) < MOST_BYTES / 4
