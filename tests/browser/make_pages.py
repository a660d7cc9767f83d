"""Writes the pages that the browser checks: of committed results, and one of records whose names are markup.

``python tests/browser/make_pages.py FOLDER LIST`` writes the path of each to the file LIST, a line each.
"""

import importlib
import sys
from pathlib import Path

from shardbench.studies.page import write_reproduction_page, write_suite_page
from shardbench.studies.reproduction import find_reproduction

ROOT = Path(__file__).parents[2]
SUITES = ("quick", "measured")
PAPERS = ("recshard", "leaderboard")


def main(folder: Path, listed: Path) -> None:
    """Pages of suites and papers go to ``results/pages``, where their links lead somewhere, the other to FOLDER."""
    sys.path.insert(0, str(ROOT / "tests"))
    hostile = importlib.import_module("hostile")
    results = ROOT / "results"
    made = [write_suite_page(results, suite) for suite in SUITES]
    made += [write_reproduction_page(find_reproduction(paper), results) for paper in PAPERS]
    path = folder / "hostile.html"
    path.write_text(hostile.page_text(), encoding="utf-8")
    listed.write_text("".join(f"{one}\n" for one in [*made, path]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
