"""``python tests/conformance/table.py``: try every impostor, and write which check caught it."""

import csv
import io
import os
import socket
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from impostors_at_kernel import UNIX_NAME
from register import IMPOSTORS, NOT_CAUGHT, NOTHING_THERE, Impostor

from shardbench.base.atomic import write_atomically
from shardbench.base.plugins import collected
from shardbench.base.wall import kind
from shardbench.runs import described
from shardbench.runs.conformance import ConformanceError, check
from shardbench.runs.conformance_problems import cases
from shardbench.runs.described import described_apart, strategies_of

TABLE = Path(__file__).parents[2] / "results" / "tables" / "faults" / "impostors.csv"
described.LOADS_S = 5.0  # type: ignore[attr-defined]
"""No impostor is waited for longer while it is described."""
HEADER = ("strategy", "rule", "caught_by", "reason")
PROBLEMS = ("few-tables", "forces-host-memory", "fits-nowhere")
"""The one that is asked in other words, and those that do not fit one device, or any."""
ONE_PROBLEM = ("one-row-tables",)
"""For those that look for something, and plan well: they do so in its process, and in that of the drawn problem."""


def caught(impostor: Impostor) -> tuple[str, str]:
    """The check that rejects an impostor and what it says, on some problems and the one whose lookups are drawn."""
    names = ONE_PROBLEM if impostor.reason else PROBLEMS
    problems = [case for case in cases() if case.problem.name in names]
    module, name = impostor.kind.__module__, impostor.kind.__name__
    provider = "impostors", module, partial(described_apart, "impostors", module, f"{module}:{name}")
    found, broken = collected("strategy name", [provider], strategies_of)
    if broken:
        # As a package of which nothing is listed.
        return "declares", f"check 'declares' failed: {broken[0]}"
    (strategy,) = found.values()
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"\0{UNIX_NAME}-{os.getpid()}")
            listening.listen()
            check(strategy.value, plan_s=impostor.plan_s, fit_s=0.3, problems=problems)
    except ConformanceError as error:
        return error.check, str(error)
    return NOT_CAUGHT, ""


def lines(rows: Iterable[tuple[str, str, str, str]]) -> list[str]:
    """The table's."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADER, *rows])
    return text.getvalue().splitlines()


def main() -> None:
    """Write the table; ends with 1 where an impostor is caught by another check than the register says."""
    rows, wrong = [], []
    for one in IMPOSTORS:
        found, message = caught(one)
        name = NOTHING_THERE if found == NOT_CAUGHT and one.check == NOTHING_THERE else found
        rows.append((one.kind.__name__, one.rule, name, one.reason))
        if name != one.check:
            wrong.append(f"{one.kind.__name__}: {name}, not {one.check} {message}")
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(TABLE, "\n".join(lines(rows)) + "\n")
    not_caught = sum(name == NOT_CAUGHT for _, _, name, _ in rows)
    print(f"{len(rows)} impostors, {not_caught} not caught; the wall is of {kind()}: {TABLE}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
