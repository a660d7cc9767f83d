"""Tables and the page of a suite's committed records, and what became of the papers' statements."""

import csv
import shutil
import tempfile
from pathlib import Path

import shardbench.cost
from shardbench.cli.main import run_command

from .case import Case

SUITE = "quick"
RECORDS = Path(__file__).resolve().parents[2] / "results" / "records" / f"{SUITE}.jsonl"
"""Records of this checkout, whichever code reads them."""
LEDGER = Path(shardbench.cost.__file__).resolve().parents[3] / "results" / "tables" / "claims.csv"
"""The ledger of the checkout whose code is measured."""
PAPERS = ["autoshard", "dreamshard", "embark", "fae", "flexshard", "neuroshard", "recshard", "rnn_placer"]
HELD = {"reproduced", "consistent"}
OPEN = {"not testable here", "not stated", "not run"}


class Reporting(Case):
    """The suite that `nox -s reproduce` runs."""

    timeout = 120

    def setup(self) -> None:
        """Make a results folder that has the suite's records alone."""
        self.folder = Path(tempfile.mkdtemp(prefix="regression-report-"))
        (self.folder / "records").mkdir()
        shutil.copy(RECORDS, self.folder / "records")

    def teardown(self) -> None:
        """Remove the results folder again."""
        shutil.rmtree(self.folder)

    def _report(self, *options: str) -> None:
        code = run_command(["report", SUITE, "--results", str(self.folder), *options])
        if code:
            raise RuntimeError(f"the report ended with exit code {code}")

    def time_tables(self) -> None:
        """Write the tables of the suite."""
        self._report()

    def time_page(self) -> None:
        """Write the tables and the page."""
        self._report("--page")

    def peakmem_page(self) -> None:
        """Write the tables and the page."""
        self._report("--page")


class Claims:
    """The committed ledger, by paper."""

    params = (PAPERS,)
    param_names = ("paper",)

    def setup(self, paper: str) -> None:
        """Read the ledger's rows of the paper."""
        with LEDGER.open(newline="") as file:
            self.rows = [row for row in csv.DictReader(file) if row["paper"] == paper]
        if not self.rows:
            raise ValueError(f"{LEDGER.name} has no statement of {paper}")

    def track_directions_not_held(self, paper: str) -> int:
        """Count statements that were tested and whose direction does not hold, or not surely."""
        return sum(row["direction"] not in HELD | OPEN for row in self.rows)

    track_directions_not_held.unit = "claims"

    def track_magnitudes_not_held(self, paper: str) -> int:
        """Count statements that were tested and whose number does not hold, or not surely."""
        return sum(row["magnitude"] not in HELD | OPEN for row in self.rows)

    track_magnitudes_not_held.unit = "claims"

    def track_shortfall(self, paper: str) -> float:
        """Return the percent by which ours miss the paper's numbers, as a mean; one that ours go past counts as 0."""
        missed = [_missed(row) for row in self.rows if row["ours"] and float(row["paper_value"] or 0.0) > 0.0]
        return 100.0 * sum(missed) / len(missed) if missed else 0.0

    track_shortfall.unit = "%"


def _missed(row: dict[str, str]) -> float:
    gap = float(row["ours"]) / float(row["paper_value"]) - 1.0
    if row["relation"] == "at least":
        return max(0.0, -gap)
    return max(0.0, gap) if row["relation"] == "at most" else abs(gap)
