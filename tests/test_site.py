"""The built documentation: every link leads somewhere, and no page loads anything from elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(__file__).parent.parent / ".nox" / "site"
LOADS = {
    **dict.fromkeys(("script", "img", "iframe", "source", "embed", "video", "audio", "input"), "src"),
    **dict.fromkeys(("link", "use", "image"), "href"),
    "object": "data",
}
IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]*)""")


class Page(HTMLParser):
    """What a page names: anchors of its own, links, and what a browser loads with it."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads = set(), [], IN_STYLE.findall(text)
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = {name: value or "" for name, value in attrs}
        self.anchors.update(named[key] for key in ("id", "name") if key in named)
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        if tag in LOADS and LOADS[tag] in named:
            self.loads.append(named[LOADS[tag]])
        self.loads += [part.split()[0] for part in named.get("srcset", "").split(",") if part.strip()]


def outside(address):
    return bool(urlsplit(address).netloc)


def pages(site):
    found = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    assert found, f"{site} has no page; build it with: nox -s docs"
    return found


def foreign(site):
    """What pages and style sheets load from elsewhere: (file, address)."""
    loads = [(path, address) for path, page in pages(site).items() for address in page.loads]
    loads += [(path, address) for path in site.rglob("*.css") for address in IN_STYLE.findall(path.read_text())]
    return [(path.relative_to(site).as_posix(), address) for path, address in loads if outside(address)]


def broken(site):
    """Links and loads inside the site that lead nowhere: (page, address)."""
    found = pages(site)
    wrong = []
    for path, page in found.items():
        for address in (*page.links, *page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            there = target.is_file() and (not anchor or target not in found or anchor in found[target].anchors)
            if not there:
                wrong.append((path.relative_to(site).as_posix(), address))
    return wrong


@pytest.mark.parametrize(
    "markup",
    [
        '<script src="https://x.org/a.js"></script>',
        '<link rel="stylesheet" href="//x.org/a.css">',
        '<img src="http://x.org/a.png">',
        '<img srcset="a.png 1x, https://x.org/b.png 2x">',
        "<style>@import 'https://x.org/a.css';</style>",
        "<style>p { background: url(//x.org/a.png) }</style>",
    ],
)
def test_a_page_that_loads_from_elsewhere_is_found(tmp_path, markup):
    (tmp_path / "a.html").write_text(f'<p id="here"><a href="https://x.org">a link</a></p>{markup}')
    assert [page for page, _ in foreign(tmp_path)] == ["a.html"]


def test_a_style_sheet_that_loads_from_elsewhere_is_found(tmp_path):
    (tmp_path / "a.html").write_text("<p>")
    (tmp_path / "a.css").write_text("p { src: url('https://x.org/font.woff2') } q { src: url(font.woff2) }")
    assert foreign(tmp_path) == [("a.css", "https://x.org/font.woff2")]


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here"><a href="b.html#there"><a href="https://x.org"><a href="b.html#gone">'
        '<a href="#gone"><a href="c.html"><img src="a.png">'
    )
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html">')
    assert [address for _, address in broken(tmp_path)] == ["b.html#gone", "#gone", "c.html", "a.png"]


def test_a_folder_without_pages_is_no_site(tmp_path):
    with pytest.raises(AssertionError, match="nox -s docs"):
        pages(tmp_path)


@pytest.mark.site
def test_nothing_is_loaded_from_elsewhere():
    assert foreign(SITE) == []


@pytest.mark.site
def test_every_link_leads_somewhere():
    assert broken(SITE) == []


@pytest.mark.site
def test_the_pages_that_a_reader_looks_for_are_there():
    guides = ("quick_start", "choose_a_strategy", "bring_your_tables", "add_a_strategy", "machines", "how_to_read")
    wanted = ["index", "search", "README", *(f"docs/{name}" for name in (*guides, "rules", "papers", "api"))]
    assert [name for name in wanted if not (SITE / f"{name}.html").is_file()] == []
    front, board = (SITE / "index.html").read_text(), SITE / "benchmarks" / "leaderboard" / "README.html"
    assert 'href="results/pages/leaderboard.html"' in front
    order = ("Which strategy for tables like yours?", "plan TABLES.csv", "<h2>All problems")
    assert [front.index(words) for words in order] == sorted(front.index(words) for words in order)
    assert "fae</td>" in front.partition("<h2>All problems")[2]
    assert 'href="../../results/pages/leaderboard.html"' in board.read_text()
    assert "Every problem" in (SITE / "results" / "pages" / "leaderboard.html").read_text()
    api = (SITE / "docs" / "api.html").read_text()
    assert [name for name in ("Strategy.plan", "Problem", "RowWise", "ShardBenchPlanner") if name not in api] == []
