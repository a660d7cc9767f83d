"""The documents as a site, made of the repository's Markdown from where it lies; ``nox -s docs`` builds it."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from shardbench import __version__
from shardbench.report.page.write import first_screen
from shardbench.report.tables.text import significant
from shardbench.studies.page import study_standings

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
PAPERS = [folder.parent.parent.name for folder in sorted(ROOT.glob("baselines/*/reproduction/claims.toml"))]
OTHERS = sorted({folder.parent.name for folder in ROOT.glob("baselines/*/README.md")} - set(PAPERS))
NAVIGATION = {
    "Begin": ["/docs/quick_start", "/docs/container"],
    "Your tables": [
        "/docs/bring_your_tables",
        "/docs/choose_a_strategy",
        "/docs/use_a_plan",
        "From logs to training </docs/from_logs_to_training>",
        "/docs/machines",
        "/docs/several_machines",
        "/docs/when_to_reshard",
    ],
    "Your strategy": ["Add a strategy </docs/add_a_strategy>", "/docs/api", "/CONTRIBUTING"],
    "Results": [
        "/docs/how_to_read",
        "/docs/papers_and_notebooks",
        "/docs/rules",
        "/docs/costmodel",
        "/docs/costmodel_evidence",
        "/docs/memory",
        "/docs/dlrm_v4",
        "/docs/bounds",
        "Files </results/README>",
    ],
    "Papers": ["All statements </docs/papers>", *(f"{name} </baselines/{name}/README>" for name in PAPERS)],
    "Other strategies": [f"/baselines/{name}/README" for name in OTHERS],
    "Inside": [
        "/docs/architecture",
        "/datasets/README",
        "/benchmarks/README",
        "/benchmarks/leaderboard/README",
        "/benchmarks/drift/README",
        "/tools/README",
        "/tests/README",
        "/CHANGELOG",
    ],
}
"""Pages by caption, in the order of the sidebar; Sphinx refuses (as a warning) a page that is in none."""

project = "ShardBench"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]

# Sphinx is given the repository's root, so that links between documents are those that a reader of the files follows.
root_doc = "README"
include_patterns = ["*.md", "*/README.md", "baselines/*/README.md", "benchmarks/*/README.md", "docs/*.md"]
exclude_patterns = [".*", "build", "data", "runs"]
myst_heading_anchors = 3
highlight_language = "text"
smartquotes = False  # options begin with two hyphens

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"ShardBench {release}"
html_theme_options = {"top_of_page_buttons": []}
html_copy_source = False
html_show_copyright = False
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_additional_pages = {"index": "start.html"}
html_context = {
    "first_screen": first_screen(study_standings("leaderboard", ROOT / "results"), "results/pages/leaderboard.html")
}

BOARD = "benchmarks/leaderboard/README"
BOARD_PAGE = '\n<p><a href="../../results/pages/leaderboard.html">Open the page of these results.</a></p>\n'
"""The session ``docs`` writes the page when Sphinx is done, which cannot know it."""


BASELINE = "baselines/"
STEPS = "results/tables/leaderboard/steps.csv"
SHOWN = {
    "workload": "problem", "machine": "machine", "devices": "devices", "outcome": "outcome", "step_ms": "step, ms",
    "over_best_pct": "over the best, %", "tie": "~ not told apart", "bound_by": "bound by",
}  # fmt: skip
CITE = """
## To cite

*ShardBench developers, ShardBench {release}, leaderboard version {version}, strategy `{name}`*, and the work that this
page's first lines name, whose method it is.
"""


def rows_of(folder: str) -> str:
    """Return what the leaderboard has of a folder's strategies, with the longest time, and how to cite it."""
    names = [one.name for one in import_module(f"shardbench.baselines.{folder}").strategies()]
    steps = pd.read_csv(ROOT / STEPS, keep_default_na=False)
    rows = steps[steps.strategy.isin(names) & (steps.budget == "60 s")]
    lines = []
    for name, own in rows.groupby("strategy", sort=False):
        texts = own.assign(**{c: [v and significant(float(v)) for v in own[c]] for c in ("step_ms", "over_best_pct")})
        cells = texts[[*SHOWN]].astype(str).values
        table = [[*SHOWN.values()], ["---"] * len(SHOWN), *cells]
        lines += ["", f"## `{name}` on the leaderboard", "", *(f"| {' | '.join(row)} |" for row in table), ""]
        lines.append(f"Simulated, with a minute to learn and plan; `{STEPS}`.")
    cite = CITE.format(release=release, version=max(steps.version), name=names[0])
    return "\n".join(lines) + "\n" + cite * bool(lines)


def navigation() -> str:
    """Return the sidebar as MyST's directives."""
    parts = [
        f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in NAVIGATION.items()
    ]
    return "\n".join(["", *parts])


def add_links(_: "Sphinx", page: str, source: list[str]) -> None:
    """Add what only the site has: the sidebar, the leaderboard's page, and its rows to the page of a strategy."""
    if page == root_doc:
        source[0] += navigation()
    elif page == BOARD:
        title, _, rest = source[0].partition("\n")
        source[0] = f"{title}\n{BOARD_PAGE}{rest}"
    elif page.startswith(BASELINE):
        source[0] += rows_of(page.split("/")[1])


def setup(app: "Sphinx") -> None:
    """Register the hook: Sphinx calls this function by its name."""
    app.connect("source-read", add_links)
