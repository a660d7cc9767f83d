"""Write results/tables/making.csv: which commits made the committed records, when, and how long it took.

``python tools/making.py`` in the repository's root; results/README.md shows the table.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from shardbench.base.atomic import write_atomically
from shardbench.base.code import checkout
from shardbench.base.generated import csv_text
from shardbench.records.base_record import BaseRecord
from shardbench.records.store import cell_store, trial_store
from shardbench.report.groups import current

RESULTS = Path("results")
COLUMNS = ("part", "records", "hours", "first_begun", "last_begun", "commits", "of_this_harness")
PAUSE = timedelta(minutes=30)
"""Records that begin further apart are of two runs: what lies between took no time."""
_SHORT = 7
"""Digits of a commit in print."""


def parts(results: Path) -> Iterator[tuple[str, list[BaseRecord]]]:
    """Yield the name and the records that count of every suite, of its second run, and of all studies of a paper."""
    for path in sorted(results.glob("records/*.jsonl")):
        yield f"suite {path.stem}", [*current(trial_store(results, path.stem).read())]
    for path in sorted(results.glob("again/records/*.jsonl")):
        yield f"suite {path.stem}, again", [*current(trial_store(results / "again", path.stem).read())]
    for folder in sorted((results / "studies").iterdir()):
        records: list[BaseRecord] = []
        for path in sorted(folder.glob("*.jsonl")):
            records += cell_store(results, folder.name, path.stem).latest().values()
        yield f"studies of {folder.name}", records


class Part(NamedTuple):
    """What the table says of a part, or of the whole."""

    name: str
    records: int
    spent: timedelta
    """Time between the begins of the first record and of the last one, without pauses."""
    span: tuple[datetime, datetime] | None
    """When the first record and the last one were begun; None where no record says."""
    commits: Iterable[str]
    of_this_harness: int

    def cells(self) -> tuple[object, ...]:
        """Return the line of the table."""
        span = ("", "") if self.span is None else tuple(f"{begun:%Y-%m-%d %H:%M}" for begun in self.span)
        hours = f"{self.spent / timedelta(hours=1):.2f}"
        return self.name, self.records, hours, *span, " ".join(self.commits), self.of_this_harness


def part(name: str, records: Iterable[BaseRecord]) -> Part:
    """Return a part by its records."""
    listed = list(records)
    known = [record.provenance for record in listed if record.provenance is not None]
    begun = sorted(each.started for each in known)
    spent = sum(((b - a) for a, b in zip(begun, begun[1:]) if b - a <= PAUSE), timedelta())
    commits = dict.fromkeys(each.commit[:_SHORT] for each in sorted(known, key=lambda of: of.started) if each.commit)
    here = sum(each.package_code == checkout().package for each in known)
    span = (begun[0], begun[-1]) if begun else None
    return Part(name, len(listed), spent, span, commits, here)


def whole(listed: Sequence[Part]) -> Part:
    """Return what all parts come to, one after another."""
    spans = [each.span for each in listed if each.span is not None]
    return Part(
        "all",
        sum(each.records for each in listed),
        sum((each.spent for each in listed), timedelta()),
        (min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else None,
        dict.fromkeys(commit for each in listed for commit in each.commits),
        sum(each.of_this_harness for each in listed),
    )


def main() -> None:
    """Write the table of all parts, and of the whole."""
    listed = [part(name, records) for name, records in parts(RESULTS) if records]
    lines = [each.cells() for each in (*listed, whole(listed))]
    write_atomically(RESULTS / "tables" / "making.csv", csv_text(COLUMNS, lines))


if __name__ == "__main__":
    main()
