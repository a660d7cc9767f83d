import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import hostile
import pytest
import records as make

from shardbench.base.host import Environment
from shardbench.records.trial import Backend, Outcome
from shardbench.report.page.write import page, short
from shardbench.report.tables.files import write_tables
from shardbench.studies.page import write_suite_page

MOST_BYTES = 2.5e6
NOWHERE = Path("nowhere")


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
    return Seen(page("quick", make.sample(), NOWHERE))


def test_a_browser_may_run_what_the_page_brings_and_no_more():
    text = page("quick", make.sample(), NOWHERE)
    (policy,) = (given["content"] for tag, given in Seen(text).given if given.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    for kind in ("script", "style"):
        (own,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'; " in policy
    assert not re.search(r'<[^>]* (style|on\w+)="', text)


def test_nothing_is_fetched(seen):
    assert seen.fetched == []
    assert seen.tags.count("html") == 1


def told(text):
    """Charts of a page by what they say of themselves, and the rows that they share by name."""
    scripts = [json.loads(part) for part in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text)]
    *specs, rows = scripts
    return {spec["description"].partition(".")[0]: spec for spec in specs}, rows


def test_every_problem_is_a_choice_and_has_its_tables(seen):
    text = page("quick", make.sample(), NOWHERE)
    charts, rows = told(text)
    assert list(charts) == [
        "Step", "Phases of the step", "Embedding time of the ranks", "Traffic", "Memory of the fullest device",
        "Who is near the best", "Speed against planning time", "Predicted against measured",
    ]  # fmt: skip
    assert all(spec["$schema"].startswith("https://vega.github.io/schema/vega/") for spec in charts.values())
    options = [given["value"] for tag, given in seen.given if tag == "option"]
    assert options == ["0", "1", "simulated", "measured"]
    assert {row["problem"] for name in ("standings", "throughput", "balance", "traffic") for row in rows[name]} == {
        "0", "1"
    }  # fmt: skip
    assert len(seen.ids) == len(set(seen.ids))
    # The best of either problem, rankings by either backend, three of each group, and predictions of the measured one.
    assert seen.tags.count("table") == seen.tags.count("caption") == 11
    for given in [given for tag, given in seen.given if tag == "select"]:
        assert any(given["data-param"] in {one["name"] for one in spec["signals"]} for spec in charts.values())


def test_charts_rows_are_the_tables():
    _, rows = told(page("quick", make.sample(), NOWHERE))
    steps = {(row["problem"], row["strategy"]): row["step_ms"] for row in rows["standings"]}
    greedy, torchrec = (20 * 21) ** 0.5, (152 * 157) ** 0.5 / 3
    assert {who: ms for (problem, who), ms in steps.items() if problem == "1" and ms} == pytest.approx(
        {"greedy-size": greedy, "torchrec": torchrec}, rel=1e-5
    )
    assert [who for problem, who in steps if problem == "0"] == [
        "local-search (reference)", "greedy-size", "torchrec", "random"
    ], "the best is first"  # fmt: skip
    (row, *_) = [row for row in rows["throughput"] if row["problem"] == "1"]
    assert (row["strategy"], row["input_ms"], row["lookup_ms"]) == ("greedy-size", 1.0, 2.0)
    kernels = [row for row in rows["prediction"] if (row["strategy"], row["quantity"]) == ("greedy-size", "embedding")]
    assert [row["measured_ms"] for row in kernels] == pytest.approx([2.1, 4.2])


def test_links_lead_to_what_is_there(seen):
    assert seen.links
    assert {link for link in seen.links if not link.startswith("#")} == set(), "without a results folder"
    assert {link.removeprefix("#") for link in seen.links} <= set(seen.ids)


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


def test_the_ranking_says_how_far_how_often_tied_and_how_many_ended():
    text = page("quick", [make.ok("a", (10.0,) * 4), make.ok("b", (20.0,) * 4), make.failed(strategy="c")], NOWHERE)
    table = text.partition('id="ranking"')[2].partition("</table>")[0]
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.partition("<tbody>")[2].split("<tr>")[1:]]
    assert [row[:-1] for row in cells] == [
        ["a", "0", "0", "0 of 1", "100 %", "1 of 1"],
        ["b", "100", "100", "0 of 1", "0 %", "1 of 1"],
        ["c", "", "", "0 of 1", "0 %", "0 of 1"],
    ]  # fmt: skip


def test_text_of_others_is_text():
    text = hostile.page_text()
    shown = Seen(text)
    assert "img" not in shown.tags
    kinds = [given.get("type") for tag, given in shown.given if tag == "script"]
    assert kinds.count(None) == 1, "its own, beside data, which a browser does not run"
    assert text.count("</script>") == len(kinds)
    for words in (hostile.MARKUP, hostile.CLOSING):
        assert words in shown.text
        assert words not in text
    assert not [name for _, given in shown.given for name in given if name.startswith("on")]


def test_tiny_numbers_are_short():
    assert short("0.0000220 to 0.00012") == "< 0.0001 to 0.00012"
    assert short("10.00001, 0.001 and 0.0000001000") == "10.00001, 0.001 and < 0.0001"


def test_where_all_failed_nothing_is_plotted():
    text = page("quick", [make.failed(Outcome.INFEASIBLE)], NOWHERE)
    assert "build of rank 1: rank 1 was killed by signal 9" in Seen(text).text
    assert 'class="chart"' not in text


def test_written_beside_the_tables(tmp_path):
    here = Environment.here()
    here.save(tmp_path)
    make.kept(tmp_path, make.ok(changes={"environment": here.hash}))
    write_tables(tmp_path, "quick")
    path = write_suite_page(tmp_path, "quick")
    assert path == tmp_path / "pages" / "quick.html"
    text = path.read_text(encoding="utf-8")
    assert here.platform in text
    assert str(tmp_path) not in text
    links = {link for link in Seen(text).links if not link.startswith("#")}
    assert links == {f"../tables/quick/{t}.csv" for t in ("throughput", "balance", "traffic")}
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
    assert len(page("quick", made, NOWHERE).encode()) < MOST_BYTES
