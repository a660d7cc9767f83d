"""Say whether this working tree made anything slower, larger or worse than a commit: `nox -s regression`.

Both trees take their samples in turn, so that a machine that is slow today is slow for both.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from measuring import Outcome, in_turn
from running import side
from trees import Stopped, checked_out, commit_of, working_tree

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks" / "cases"


def main(arguments: Sequence[str]) -> int:
    """Return 0 where nothing became worse, 1 where something did, 2 where it cannot be said."""
    parser = argparse.ArgumentParser(prog="nox -s regression --", description=__doc__)
    parser.add_argument("--base", metavar="COMMIT", default="HEAD", help="compare with this commit (HEAD)")
    parser.add_argument("--only", metavar="REGEX", default="", help="take the benchmarks whose name has it")
    options = parser.parse_args(arguments)
    try:
        with working_tree(ROOT) as tree, side(tree, BENCHMARKS) as now:
            listed = [one for one in now.benchmarks() if re.search(options.only, one.name)]
            if not listed:
                raise Stopped(f"no benchmark has '{options.only}' in its name")
            base = commit_of(ROOT, options.base)
            with checked_out(ROOT, base) as other, side(other, BENCHMARKS, skips_unknown=True) as before:
                return say(in_turn(before, now, listed, progress(len(listed))), base)
    except Stopped as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def say(outcome: Outcome, base: str) -> int:
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
    print(f"{total} benchmarks compared with {base[:10]} in turn: {outcome.raised} worse{largest}")
    return 1 if outcome.raised else 0


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
