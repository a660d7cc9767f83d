"""``nox -s tables -- fuzz``: all parsers, so many wrong files in all, and the table of what became of them."""

import sys
from pathlib import Path

from fuzzing import Tally, run_all

from shardbench.base.atomic import write_atomically
from shardbench.base.generated import csv_text

COLUMNS = ("parser", "cases", "clean_errors", "crashes", "max_rss_mb")
SHOWN = 5


def main(out: Path, total: int) -> int:
    """Exit code: 0 where nothing crashed."""
    tallies: list[Tally] = []
    for tally, seconds in run_all(total):
        tallies.append(tally)
        counts = f"{tally.cases} cases, {tally.clean_errors} clean errors, {len(tally.crashes)} crashes"
        print(f"{tally.parser}: {counts}, {tally.max_rss_mb:.0f} MB, {seconds:.0f} s", flush=True)
        for crash in tally.crashes[:SHOWN]:
            print(f"  {crash}", flush=True)
    rows = [(t.parser, t.cases, t.clean_errors, len(t.crashes), round(t.max_rss_mb)) for t in tallies]
    write_atomically(out, csv_text(COLUMNS, rows))
    crashes = sum(len(t.crashes) for t in tallies)
    print(f"{sum(t.cases for t in tallies)} cases, {crashes} crashes: {out}")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int("".join(sys.argv[2:]) or 100_000)))
