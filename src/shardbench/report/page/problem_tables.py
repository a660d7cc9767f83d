"""Every problem of a study's standings as a table for people, where there are no groups of trials to show."""

from collections.abc import Iterable
from dataclasses import dataclass

from shardbench.report.standing import AS_RUN, Standing, by_problem, disagreement, display_name
from shardbench.report.tables.text import interval, number_text, percent, seconds

PROBLEM_HEADERS = (
    "strategy", "budget", "outcome", "step (ms)", "95 % interval (ms)", "over bound", "over best", "tie", "plan (s)",
    "fit (s)", "free HBM of the fullest device", "cause",
)  # fmt: skip
PROBLEM_NUMERIC = (False, False, False, True, False, True, True, False, True, True, True, False)


@dataclass(frozen=True, kw_only=True)
class ProblemTable:
    """One problem: who ended how, the best first."""

    title: str
    backend: str
    note: str
    judges: str
    """The sentence on what another judge has first; empty where it agrees."""
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]
    """(outcome, key of the record, cells) of every row."""


def problem_tables(standings: Iterable[Standing]) -> list[ProblemTable]:
    """Return a table for each problem, in the order in which they come."""
    return [
        ProblemTable(
            title=f"{workload} on {machine}",
            backend=backend,
            note=", ".join(
                f"{words} {value:,.0f}" if words == "batch" else f"{value:,.0f} {words}"
                for words, value in (("devices", of_problem[0].devices), ("batch", of_problem[0].batch_size))
                if value is not None
            ),
            judges=disagreement(of_problem),
            rows=tuple((one.outcome, one.record, _cells(one)) for one in of_problem),
        )
        for (workload, machine, backend), of_problem in by_problem(standings).items()
    ]


def _cells(one: Standing) -> tuple[str, ...]:
    return (
        display_name(one.strategy, one.role),
        "" if one.budget == AS_RUN else one.budget,
        one.outcome,
        number_text(one.step_ms),
        interval(one.low_ms, one.high_ms),
        number_text(one.over_bound_pct, percent),
        number_text(one.over_best_pct, percent),
        one.tie,
        number_text(one.plan_s, seconds),
        number_text(one.fit_s, seconds),
        number_text(one.headroom_pct, "{:.1f} %".format),
        one.cause,
    )
