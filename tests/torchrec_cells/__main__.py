"""Run the cells with the TorchRec that is installed: ``python -m torchrec_cells TABLE [--only TEXT] [--missing]``.

``--only`` runs the cells whose name has the text, ``--missing`` those that TABLE does not have of this release. TABLE
keeps the rows of other releases and of cells that were not run, and has none of a cell that is wrong.
"""

import argparse
import csv
import io
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from shardbench.base.atomic import write_atomically
from torchrec_cells.cases import CASES
from torchrec_cells.ranks import Seen, run_cases

COLUMNS = ("part", "row", "way", "torchrec", "fbgemm", "torch", "outcome", "why")
OUTCOMES = ("works", "clear error", "not on CPU", "not in this release")
LONGEST = 200
"""Characters of what an error says that are kept."""


def release() -> str:
    """Return the installed release of TorchRec."""
    return version("torchrec")


def read(path: Path) -> list[dict[str, str]]:
    """Read the table's rows; none where there is no file yet."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rows(seen: Mapping[str, Seen]) -> list[dict[str, str]]:
    """Return the table's rows of what was seen with the installed release."""
    versions = {"torchrec": release(), "fbgemm": version("fbgemm-gpu-cpu"), "torch": version("torch").split("+")[0]}
    return [
        {"part": case.part, "row": case.row, "way": case.way, **versions, "outcome": one.outcome, "why": gist(one.why)}
        for name, one in seen.items()
        for case in (CASES[name],)
    ]


def gist(why: str) -> str:
    """Return the beginning of what an error says: whole clauses, without addresses and what differs between runs."""
    text = re.sub(r" \((expected|Could this error) .*", "", re.sub(r"\s+", " ", why).strip())
    if "has no attribute" in text:
        text = text.replace("'", "")  # the document leaves out what is quoted
    if len(text) <= LONGEST:
        return text
    return text[:LONGEST].rsplit(" ", 1)[0] + " ..."


def merged(old: list[dict[str, str]], new: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the new rows and those of other releases and cells, in the order of the cells and of the releases."""
    run = {(cell(row), row["torchrec"]) for row in new}
    kept = [row for row in old if (cell(row), row["torchrec"]) not in run and cell(row) in CASES]
    key = {name: number for number, name in enumerate(CASES)}
    right = [row for row in new if row["outcome"] in OUTCOMES]
    return sorted([*kept, *right], key=lambda row: (key[cell(row)], [int(part) for part in row["torchrec"].split(".")]))


def cell(row: Mapping[str, str]) -> str:
    """Return the name of a row's cell."""
    return f"{row['part']}: {row['row']}: {row['way']}"


def main() -> int:
    """Exit code 0 where no cell is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--missing", action="store_true")
    given = parser.parse_args()
    there = {cell(row) for row in read(given.table) if given.missing and row["torchrec"] == release()}
    names = [name for name in CASES if given.only in name and name not in there]
    seen = run_cases(names, lambda name, one: print(_line(name, one), flush=True))
    wrong = [one for one in seen.values() if one.outcome not in OUTCOMES]
    print(f"{len(seen)} cells with TorchRec {release()}, {len(wrong)} of them wrong")
    write_atomically(given.table, _text(merged(read(given.table), rows(seen))), encoding="utf-8")
    return 1 if wrong else 0


def _line(name: str, one: Seen) -> str:
    line = f"{one.outcome:<11}  {name}" + (f": {one.why}" if one.why else "")
    return f"{line}\n{one.trace}" if one.outcome not in OUTCOMES else line


def _text(lines: list[dict[str, str]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
