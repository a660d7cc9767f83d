"""Run all faults and write what became of them: ``python -m faults TABLE [--seed N] [--only KIND] [--every N]``.

``--seen FILE`` keeps what was seen of each, a line a fault, and a run that was ended goes on from there.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

# Before anything is started, and for the workers that import plug-ins.
sys.path.insert(0, str(Path(__file__).parent.parent))

from faults import cells, parents, planners, programs, ranks, results, stores
from faults.case import MARKER, Fault, Seen, run
from shardbench.engine.processes.server import FORK_SERVER

COLUMNS = ("kind", "phase", "cases", "outcome_right", "cause_right", "rank_right", "hangs", "lost_records", "orphans")
LEAST_RIGHT = 0.98
"""Share of faults whose outcome, cause and rank must be right."""


def all_faults() -> list[Fault]:
    """All, by kind."""
    return [fault for part in (ranks, results, planners, cells, parents, stores, programs) for fault in part.faults()]


def rows(seen: Iterable[tuple[Fault, Seen]]) -> list[dict[str, object]]:
    """One a kind and phase, and one of all; an empty ``cause_right`` or ``rank_right`` has none to be named."""
    groups: dict[tuple[str, str], list[Seen]] = {}
    for fault, one in seen:
        for group in ((fault.kind, fault.phase), ("all", "all")):
            groups.setdefault(group, []).append(one)
    ordered = sorted(groups.items(), key=lambda item: (item[0] == ("all", "all"), item[0]))
    return [_row(*group, found) for group, found in ordered]


def _row(kind: str, phase: str, found: list[Seen]) -> dict[str, object]:
    return {
        "kind": kind,
        "phase": phase,
        "cases": len(found),
        "outcome_right": sum(one.outcome_right for one in found),
        "cause_right": _share([one.cause_right for one in found]),
        "rank_right": _share([one.rank_right for one in found]),
        "hangs": sum(one.hang for one in found),
        "lost_records": sum(one.lost for one in found),
        "orphans": sum(one.orphans for one in found),
    }


def _share(right: list[bool | None]) -> str:
    known = [one for one in right if one is not None]
    return f"{sum(known)} of {len(known)}" if known else ""


def _right(seen: Seen) -> bool:
    return seen.outcome_right and seen.cause_right in (None, True) and seen.rank_right in (None, True)


def main() -> int:
    """Exit code 0 where 98 % of outcomes, causes and ranks are right and nothing hangs, is lost or is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seen", type=Path)
    given = parser.parse_args()
    known = _known(given.seen)
    chosen = [fault for fault in all_faults() if given.only in f"{fault.kind} {fault.phase} {fault.name}"]
    found: list[tuple[Fault, Seen]] = []
    os.environ[MARKER] = str(os.getpid())
    # The module multiprocessing keeps its sockets where temporary folders are when it begins.
    FORK_SERVER.context()
    with tempfile.TemporaryDirectory(prefix="faults-") as shared:
        os.environ["FAULTS_FOLDER"] = shared
        for fault in chosen[:: given.every]:
            began = time.monotonic()
            name = f"{fault.kind} {fault.phase} {fault.name}"
            seen = known[name] if name in known else run(fault, given.seed)
            found.append((fault, seen))
            if given.seen is not None and name not in known:
                with given.seen.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"fault": name, **asdict(seen)}) + "\n")
            good = _right(seen) and not (seen.hang or seen.lost or seen.orphans)
            took = time.monotonic() - began
            print(f"{'ok ' if good else 'BAD'} {took:6.1f} s  {name}", flush=True)
            if not good:
                print(f"    {seen}", flush=True)
    table = rows(found)
    given.table.parent.mkdir(parents=True, exist_ok=True)
    with given.table.open("w", encoding="ascii", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return 0 if _holds([seen for _, seen in found]) else 1


def _known(path: Path | None) -> dict[str, Seen]:
    """What an earlier run saw, by fault."""
    if path is None or not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line.pop("fault"): Seen(**line) for line in lines}


def _holds(found: list[Seen]) -> bool:
    clean = not any(one.hang or one.lost or one.orphans for one in found)
    return clean and sum(map(_right, found)) >= LEAST_RIGHT * len(found)


if __name__ == "__main__":
    sys.exit(main())
