"""Write results/tables/making.csv: which commits made the committed records, when, and how long it took.

``python tools/making.py`` in the repository's root; results/README.md shows the table.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path

from shardbench.base.atomic import write_atomically
from shardbench.base.code import JUDGE_VERSION
from shardbench.base.generated import csv_text
from shardbench.records.base_record import BaseRecord
from shardbench.records.store import cell_store, trial_store
from shardbench.report.rows import current

RESULTS = Path("results")
COLUMNS = ("part", "records", "hours", "first_begun", "last_begun", "commits", "of_this_version")
PAUSE = timedelta(minutes=30)
"""Records that begin further apart are of two runs: what lies between took no time."""
_COMMITS = COLUMNS.index("commits")
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


def line(name: str, records: Iterable[BaseRecord]) -> tuple[object, ...]:
    """Return a part's line; hours are from the first record's begin to the last one's, without pauses."""
    listed = list(records)
    behind = [record.provenance for record in listed if record.provenance is not None]
    starts = sorted(each.started for each in behind)
    hours = sum(((b - a) for a, b in zip(starts, starts[1:]) if b - a <= PAUSE), timedelta()) / timedelta(hours=1)
    commits = dict.fromkeys(each.commit[:_SHORT] for each in sorted(behind, key=lambda of: of.started) if each.commit)
    here = sum(each.judge_version == JUDGE_VERSION for each in behind)
    span = (f"{starts[0]:%Y-%m-%d %H:%M}", f"{starts[-1]:%Y-%m-%d %H:%M}") if starts else ("", "")
    return name, len(listed), f"{hours:.2f}", *span, " ".join(commits), here


def main() -> None:
    """Write the table of all parts, and of the whole."""
    listed = [(name, records) for name, records in parts(RESULTS) if records]
    lines = [line(name, records) for name, records in listed]
    whole = line("all", chain.from_iterable(records for _, records in listed))
    commits = str(whole[_COMMITS]).split()
    lines.append((*whole[:_COMMITS], f"{len(commits)} commits", *whole[_COMMITS + 1 :]))
    write_atomically(RESULTS / "tables" / "making.csv", csv_text(COLUMNS, lines))


if __name__ == "__main__":
    main()
