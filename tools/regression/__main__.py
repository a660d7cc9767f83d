"""Say whether this working tree made anything slower, larger or worse: `nox -s regression`.

On the kind of machine whose results are committed, all benchmarks are compared with these, and what looks worse is
measured once more beside the commit that they are of. On another kind all are measured beside a base commit, in turn.
"""

import argparse
import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from history import CommitResults, Machine, latest
from judging import LevelChange, Verdict
from measuring import Outcome, in_turn, levels
from running import Listed, Side, side
from trees import Stopped, checked_out, commit_of, git, working_tree

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks" / "cases"
HISTORY = ROOT / "results" / "regression"
CODE = (
    "src",
    "baselines",
    "datasets",
    *(f"benchmarks/{name}" for name in ("machines", "suites", "leaderboard", "drift", "cases")),
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line; exits with 2 for options that make no sense together."""
    parser = argparse.ArgumentParser(prog="nox -s regression --", description=__doc__)
    parser.add_argument("--base", metavar="COMMIT", help="measure this commit beside the working tree, in turn")
    parser.add_argument("--only", metavar="REGEX", default="", help="take the benchmarks whose name has it")
    parser.add_argument("--record", action="store_true", help="keep the results of HEAD in results/regression")
    options = parser.parse_args(arguments)
    if options.record and (options.base or options.only):
        parser.error("--record keeps all benchmarks of HEAD: it takes no other option")
    return options


def main(arguments: Sequence[str]) -> int:
    """Return 0 where nothing became worse, 1 where something did, 2 where it cannot be said."""
    options = parse(arguments)
    try:
        with working_tree(ROOT) as tree, side(tree, BENCHMARKS) as now:
            listed = [one for one in now.benchmarks() if re.search(options.only, one.name)]
            if not listed:
                raise Stopped(f"no benchmark has '{options.only}' in its name")
            machine = Machine.of(now.process.ask("environment"))
            if options.record:
                return record(now, listed, machine)
            return say(compare(now, listed, machine, options.base))
    except Stopped as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def compare(now: Side, listed: list[Listed], machine: Machine, base: str | None) -> Outcome:
    """Compare with the last results of this kind of machine, or, in turn, with a base commit."""
    last = latest(HISTORY, ROOT, machine) if base is None else None
    if last is None:
        base = base or _any_base()
        with beside(base) as before:
            outcome = in_turn(before, now, listed, progress(len(listed)))
        return replace(outcome, compared_with=f"{commit_of(ROOT, base)[:10]} in turn")
    first = compare_with_results(now, listed, last)
    edited = {one.name for one in listed if one.name in last.listed and one.version != last.listed[one.name].version}
    suspects = edited | {c.name for c in first.compared if c.verdict is not Verdict.FINE}
    if not suspects:
        return first
    print(f"{len(suspects)} beyond their limits, or edited: beside {last.commit[:10]}, in turn", flush=True)
    now.renew()
    suspected = [one for one in listed if one.name in suspects]
    with beside(last.commit) as before:
        second = in_turn(before, now, suspected, progress(len(suspected)))
    return replace(
        first,
        compared=[*(c for c in first.compared if c.name not in suspects), *second.compared],
        failed={**first.failed, **second.failed},
        new={**first.new, **second.new},
        suspected=len(suspects),
    )


def compare_with_results(now: Side, listed: list[Listed], results: CommitResults) -> Outcome:
    """Measure every benchmark of the working tree, and hold it against what is committed of it."""
    here, failed = levels(now, listed, progress(len(listed)))
    compared = [
        LevelChange(name=one.name, kind=one.kind, unit=one.unit, before=results.levels[one.name], now=here[one.name])
        for one in listed
        if one.name in here and one.name in results.levels
    ]
    new = {one.name: "not in the results" for one in listed if one.name not in results.levels}
    return Outcome(compared=compared, failed=failed, new=new, compared_with=f"results of {results.commit[:10]}")


@contextlib.contextmanager
def beside(commit: str) -> Iterator[Side]:
    """Give the code of a commit, ready to be measured."""
    with checked_out(ROOT, commit) as tree, side(tree, BENCHMARKS, skips_unknown=True) as before:
        yield before


def _any_base() -> str:
    results = latest(HISTORY, ROOT)
    if results is None:
        raise Stopped("there are no results to compare with: name a commit with --base, or keep some with --record")
    return results.commit


def say(outcome: Outcome) -> int:
    """Print what came of it, with a line for each regression; returns 1 where there is one."""
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
    print(f"{total} benchmarks compared with {outcome.compared_with}: {outcome.raised} worse{largest}")
    return 1 if outcome.raised else 0


def record(now: Side, listed: list[Listed], machine: Machine) -> int:
    """Keep the results of all benchmarks of HEAD in a file."""
    if git(ROOT, "status", "--porcelain", "--", *CODE):
        raise Stopped("the code differs from HEAD: commit it, then record")
    commit = commit_of(ROOT, "HEAD")
    committed_at = datetime.fromisoformat(git(ROOT, "show", "--no-patch", "--format=%cI", commit)).astimezone(UTC)
    measured_levels, failed = levels(now, listed, progress(len(listed)))
    for name, why in sorted(failed.items()):
        print(f"fails: {name}: {why}")
    if failed:
        return 1
    results = CommitResults(
        machine=machine,
        commit=commit,
        committed=committed_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        levels=measured_levels,
        listed={one.name: one for one in listed},
    )
    print(f"{len(measured_levels)} benchmarks: {results.write(HISTORY).relative_to(ROOT)}")
    return 0


def progress(total: int) -> Callable[[str], None]:
    """Return what names each benchmark on one line of a terminal, and is silent where the output is kept."""
    numbers = itertools.count(1)

    def tell(name: str) -> None:
        if sys.stderr.isatty():
            number = next(numbers)
            text = f"{number}/{total} {name}"[:100]
            print(f"\r{text.ljust(100)}", end="" if number < total else "\n", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
