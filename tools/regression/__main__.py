"""Whether this working tree made anything slower, larger or worse: `nox -s regression`.

On the kind of machine whose results are committed, all benchmarks are compared with these, and what looks worse is
measured once more beside the commit that they are of. On another kind all are measured beside a base commit, in turn.
"""

import argparse
import contextlib
import csv
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from history import Machine, Results, latest, measured
from judging import Comparison, Verdict
from measuring import Outcome, in_turn, levels
from running import Listed, Side, side
from trees import Stopped, checked_out, commit_of, git, working_tree

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks" / "cases"
HISTORY = ROOT / "results" / "regression"
NOISE = ROOT / "results" / "tables" / "regression" / "noise.csv"
COLUMNS = (
    "run", "compared_with", "benchmarks", "suspected", "raised", "max_ratio", "benchmark", "load_at_start", "seconds",
)  # fmt: skip
CODE = (
    "src",
    "baselines",
    "datasets",
    "benchmarks/machines",
    "benchmarks/suites",
    "benchmarks/leaderboard",
    "benchmarks/cases",
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says."""

    base: str | None
    only: str
    record: bool
    repeat: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """One comparison of the working tree."""

    outcome: Outcome
    compared_with: str


def asked(arguments: Sequence[str]) -> Asked:
    """Parsed; exits with 2 for what makes no sense."""
    parser = argparse.ArgumentParser(prog="nox -s regression --", description=__doc__)
    parser.add_argument("--base", metavar="COMMIT", help="measure this commit beside the working tree, in turn")
    parser.add_argument("--only", metavar="REGEX", default="", help="benchmarks whose name has it")
    parser.add_argument(
        "--record", action="store_true", help=f"keep the results of HEAD in {HISTORY.relative_to(ROOT)}"
    )
    parser.add_argument("--repeat", metavar="N", type=int, default=0, help="compare N times what did not change")
    given = parser.parse_args(arguments)
    if given.record and (given.base or given.only or given.repeat):
        parser.error("--record keeps all benchmarks of HEAD: it takes no other option")
    return Asked(base=given.base, only=given.only, record=given.record, repeat=given.repeat)


def main(arguments: Sequence[str]) -> int:
    """0: nothing became worse; 1: something did; 2: it cannot be said."""
    told = asked(arguments)
    try:
        with working_tree(ROOT) as tree, side(tree, BENCHMARKS) as now:
            listed = [one for one in now.benchmarks() if re.search(told.only, one.name)]
            if not listed:
                raise Stopped(f"no benchmark has '{told.only}' in its name")
            machine = Machine.of(now.process.ask("environment"))
            if told.record:
                return recorded(now, listed, machine)
            if told.repeat:
                return repeated(now, listed, machine, told)
            return said(compared(now, listed, machine, told))
    except Stopped as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def compared(now: Side, listed: list[Listed], machine: Machine, told: Asked) -> Run:
    """With the last results of this kind of machine, or beside a base commit."""
    known = latest(HISTORY, ROOT, machine) if told.base is None else None
    if known is None:
        base = told.base or _any_base()
        with beside(base) as before:
            outcome = in_turn(before, now, listed, Progress(len(listed)))
        return Run(outcome=outcome, compared_with=f"{commit_of(ROOT, base)[:10]} in turn")
    first = with_results(now, listed, known)
    edited = {one.name for one in listed if one.name in known.listed and one.version != known.listed[one.name].version}
    suspects = edited | {c.name for c in first.compared if c.verdict is not Verdict.FINE}
    label = f"results of {known.commit[:10]}"
    if not suspects:
        return Run(outcome=first, compared_with=label)
    print(f"{len(suspects)} beyond their limits, or edited: beside {known.commit[:10]}, in turn", flush=True)
    now.renew()
    chosen = [one for one in listed if one.name in suspects]
    with beside(known.commit) as before:
        second = in_turn(before, now, chosen, Progress(len(chosen)))
    fine = [c for c in first.compared if c.name not in suspects]
    outcome = Outcome(
        compared=[*fine, *second.compared],
        failed={**first.failed, **second.failed},
        new={**first.new, **second.new},
        suspected=len(suspects),
    )
    return Run(outcome=outcome, compared_with=label)


def with_results(now: Side, listed: list[Listed], known: Results) -> Outcome:
    """Every benchmark of the working tree beside what is committed of it."""
    here, failed = levels(now, listed, Progress(len(listed)))
    both = [one for one in listed if one.name in here and one.name in known.levels]
    return Outcome(
        compared=[
            Comparison(name=o.name, kind=o.kind, unit=o.unit, before=known.levels[o.name], now=here[o.name])
            for o in both
        ],
        failed=failed,
        new={one.name: "not in the results" for one in listed if one.name not in known.levels},
    )


@contextlib.contextmanager
def beside(commit: str) -> Iterator[Side]:
    """The code of a commit, ready to be measured."""
    with checked_out(ROOT, commit) as tree, side(tree, BENCHMARKS, skips_unknown=True) as before:
        yield before


def _any_base() -> str:
    known = latest(HISTORY, ROOT)
    if known is None:
        raise Stopped("there are no results to compare with: name a commit with --base, or keep some with --record")
    return known.commit


def said(run: Run) -> int:
    """Print what came of it; a line a regression."""
    outcome = run.outcome
    for name, why in sorted(outcome.new.items()):
        print(f"new: {name}: {why}")
    for comparison in outcome.unclear:
        print(f"unclear: {comparison.line()}, too noisy to tell")
    for name, why in sorted(outcome.failed.items()):
        print(f"fails: {name}: {why}")
    for comparison in sorted(outcome.worse, key=lambda c: -c.ratio):
        print(f"worse: {comparison.line()}")
    most = outcome.largest
    largest = f"; largest ratio {most.ratio:.2f} ({most.name})" if most else ""
    total = len(outcome.compared) + len(outcome.failed)
    print(f"{total} benchmarks compared with {run.compared_with}: {outcome.raised} worse{largest}")
    return 1 if outcome.raised else 0


def recorded(now: Side, listed: list[Listed], machine: Machine) -> int:
    """Keep what all benchmarks of HEAD come to."""
    if git(ROOT, "status", "--porcelain", "--", *CODE):
        raise Stopped("the code differs from HEAD: commit it, then record")
    commit = commit_of(ROOT, "HEAD")
    made = datetime.fromisoformat(git(ROOT, "show", "--no-patch", "--format=%cI", commit))
    when = made.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found, failed = levels(now, listed, Progress(len(listed)))
    for name, why in sorted(failed.items()):
        print(f"fails: {name}: {why}")
    if failed:
        return 1
    path = measured(machine, (commit, when), listed, found).write(HISTORY)
    print(f"{len(found)} benchmarks: {path.relative_to(ROOT)}")
    return 0


def repeated(now: Side, listed: list[Listed], machine: Machine, told: Asked) -> int:
    """Compare what did not change until there are so many rows, each time by new processes; goes on from those kept."""
    known = latest(HISTORY, ROOT, machine) if told.base is None else None
    base = commit_of(ROOT, told.base or (known.commit if known else _any_base()))
    if git(ROOT, "diff", "--name-only", base, "--", *CODE) or git(ROOT, "status", "--porcelain", "--", *CODE):
        raise Stopped(f"the code differs from {base[:10]}: noise shows where nothing changed")
    rows: list[dict[str, str]] = _kept(base[:10])
    while len(rows) < told.repeat:
        load, start = os.getloadavg()[0], time.monotonic()
        run = compared(now, listed, machine, told)
        said(run)
        most = run.outcome.largest
        ratio, name = (f"{most.ratio:.3f}", most.name) if most else ("", "")
        outcome = run.outcome
        facts = (len(rows) + 1, run.compared_with, len(outcome.compared), outcome.suspected, outcome.raised)
        cells = map(str, (*facts, ratio, name, round(load, 2), round(time.monotonic() - start)))
        rows.append(dict(zip(COLUMNS, cells)))
        _write(rows)
        now.renew()
    return 1 if any(row["raised"] != "0" for row in rows) else 0


def _kept(commit: str) -> list[dict[str, str]]:
    """Rows of earlier runs, if they are of that commit."""
    if not NOISE.is_file():
        return []
    with NOISE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return rows if all(commit in row["compared_with"] for row in rows) else []


def _write(rows: Sequence[dict[str, str]]) -> None:
    NOISE.parent.mkdir(parents=True, exist_ok=True)
    with NOISE.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


class Progress:
    """A line that is written over; nothing where the output is kept."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, name: str) -> None:
        self._done += 1
        if sys.stderr.isatty():
            text = f"{self._done}/{self._total} {name}"[:100]
            end = "" if self._done < self._total else "\n"
            print(f"\r{text.ljust(100)}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
