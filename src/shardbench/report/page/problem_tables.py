"""Every problem of a study's standings as a table for people, where there are no groups of trials to show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardbench.report.page.chart import Chart
from shardbench.report.page.palette import series_look
from shardbench.report.page.svg.rows import Bars, Reference, stacked
from shardbench.report.standing import AS_RUN, Standing, by_problem, by_strategy, display_name
from shardbench.report.tables.text import interval, number_text, percent, seconds, significant

PROBLEM_HEADERS = (
    "strategy", "budget", "outcome", "step (ms)", "95 % interval (ms)", "over bound", "over best", "tie", "plan (s)",
    "fit (s)", "free HBM of the fullest device", "cause",
)  # fmt: skip
PROBLEM_NUMERIC = (False, False, False, True, False, True, True, False, True, True, True, False)
_BOUND_COLOUR = 2


@dataclass(frozen=True, kw_only=True)
class ProblemTable:
    """One problem: who ended how, the best first."""

    title: str
    backend: str
    note: str
    chart: Chart | None
    """Steps with their intervals, each strategy's with the best of its budgets; None where nothing ended well."""
    rows: tuple[tuple[int, str, str, tuple[str, ...]], ...]
    """(number of the strategy on the page, its outcome, key of the record, cells) of every row."""


def problem_tables(standings: Iterable[Standing], numbers: Mapping[str, int]) -> list[ProblemTable]:
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
            chart=_chart(f"{workload} on {machine}", of_problem, numbers),
            rows=tuple((numbers[one.strategy], one.outcome, one.record, _cells(one)) for one in of_problem),
        )
        for (workload, machine, backend), of_problem in by_problem(standings).items()
    ]


def _chart(title: str, standings: Sequence[Standing], numbers: Mapping[str, int]) -> Chart | None:
    finished = by_strategy([one for one in standings if one.ok])
    if not finished:
        return None
    bounds = [one.bound_ms for one in standings if one.bound_ms is not None]
    references = [Reference(value=min(bounds), series=_BOUND_COLOUR)] if bounds else []
    keys = tuple(
        (f"{series_look(line.series)} dashed", f"lower bound {significant(line.value)} ms") for line in references
    )
    bars = [_bar(own[0], numbers[name]) for name, own in finished.items()]
    drawing = stacked(f"Steps of {title}", bars, "ms per step", references)
    return Chart(caption="Step and its 95 % interval; an arrow marks what is beyond.", drawings=(drawing,), legend=keys)


def _bar(one: Standing, number: int) -> Bars:
    step_ms, ends = one.step_ms or 0.0, interval(one.low_ms, one.high_ms)
    return Bars(
        strategy=number,
        name=one.name,
        parts=(step_ms,),
        value=f"{significant(step_ms)} ms",
        words=f"{one.name}: {significant(step_ms)} ms" + (f", {ends}" if ends else ""),
        whole=one.step_ms,
        low=one.low_ms,
        high=one.high_ms,
    )


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
