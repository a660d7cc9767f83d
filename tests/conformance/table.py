"""``python tests/conformance/table.py``: try every impostor, and write which check caught it."""

import csv
import io
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from register import IMPOSTORS, NOT_CAUGHT, NOTHING_THERE, Impostor

from shardbench.base.atomic import write_atomically
from shardbench.base.plugins import collect
from shardbench.base.wall import kind
from shardbench.conformance.checks import ConformanceError, check
from shardbench.conformance.problems import cases
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Failure
from shardbench.trials import described, planning_process
from shardbench.trials.described import describe_apart, strategies_of
from shardbench.trials.evaluate import RulesOnly, evaluate

TABLE = Path(__file__).parents[2] / "results" / "tables" / "faults" / "impostors.csv"
described.LOADS_S = 3.0  # type: ignore[attr-defined]
planning_process.LATE_S = 0.5
"""No impostor is waited for longer: while it is described, and after its budget."""
HEADER = ("strategy", "rule", "caught_by", "reason")


def caught(impostor: Impostor, *, apart: bool = True) -> tuple[str, str]:
    """The check that rejects an impostor and what it says, on its problems and the one whose lookups are drawn.

    It is described ``apart`` as a package of which nothing is listed, or made here.
    """
    if not apart:
        return _caught(impostor, impostor.kind())
    module, name = impostor.kind.__module__, impostor.kind.__name__
    provider = "impostors", module, partial(describe_apart, "impostors", module, f"{module}:{name}")
    found, broken = collect("strategy name", [provider], strategies_of)
    if broken:
        return "declares", f"check 'declares' failed: {broken[0]}"
    (strategy,) = found.values()
    return _caught(impostor, strategy.value)


def _caught(impostor: Impostor, strategy: Strategy) -> tuple[str, str]:
    try:
        if impostor.looks:
            _ask_twice(strategy)
        else:
            problems = [case for case in cases() if case.problem.name in impostor.problems]
            check(strategy, plan_s=impostor.plan_s, fit_s=0.15, problems=problems)
    except ConformanceError as error:
        return error.check, str(error)
    return NOT_CAUGHT, ""


def _ask_twice(strategy: Strategy) -> None:
    """Ask in two processes, one after the other; raises ConformanceError."""
    for _ in range(2):
        answer = evaluate(RulesOnly(cases()[0].problem), strategy, Budget(plan_s=5.0, fit_s=5.0), 0)
        if isinstance(answer, Failure):
            rule = answer.rule or "raises-infeasible-only"
            raise ConformanceError(rule, f"check '{rule}' failed: {answer.cause}")


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
