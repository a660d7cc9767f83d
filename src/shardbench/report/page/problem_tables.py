"""Every problem of a table of standings as a table for people, where there are no groups of trials to show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from shardbench.model.strategy import Role
from shardbench.report.page.chart import Chart
from shardbench.report.page.svg.marks import series_class
from shardbench.report.page.svg.rows import Bars, Reference, stacked
from shardbench.report.standing import number
from shardbench.report.standings import AS_RUN, AT, PROBLEM, RECORD
from shardbench.report.tables.text import percent, seconds, significant

PROBLEM_HEADERS = (
    "strategy", "budget", "outcome", "step (ms)", "95 % interval (ms)", "over bound", "over best", "tie", "plan (s)",
    "fit (s)", "free HBM of the fullest device", "cause",
)  # fmt: skip
PROBLEM_NUMERIC = (False, False, False, True, False, True, True, False, True, True, True, False)
_BOUND_COLOUR = 2


@dataclass(frozen=True, kw_only=True)
class ProblemTable:
    """One problem: who ended how, the best first."""

    id: str
    title: str
    backend: str
    note: str
    chart: Chart | None
    """Steps with their intervals, of each strategy that with the best of its budgets; None where nothing ended well."""
    rows: tuple[tuple[int, str, str, tuple[str, ...]], ...]
    """(number of the strategy on the page, its outcome, key of the record, cells) of every row."""


def problem_tables(table: pd.DataFrame, numbers: Mapping[str, int]) -> list[ProblemTable]:
    """Of standings whose problems are numbered; columns that they lack are empty."""
    found = []
    for (workload, machine, backend), part in table.groupby(list(PROBLEM), sort=False):
        rows = [{str(name): value for name, value in row.items()} for row in part.to_dict("records")]
        found.append(
            ProblemTable(
                id=str(part[AT].iloc[0]),
                title=f"{workload} on {machine}",
                backend=str(backend),
                note=_note(rows[0]),
                chart=_chart(f"{workload} on {machine}", rows, numbers),
                rows=tuple(
                    (numbers[row["strategy"]], str(row["outcome"]), row.get(RECORD, ""), _cells(row)) for row in rows
                ),
            )
        )
    return found


def _note(row: Mapping[str, Any]) -> str:
    words = {"devices": "{:,.0f} devices", "batch_size": "batch {:,.0f}"}
    return ", ".join(shape.format(float(row[name])) for name, shape in words.items() if _is_known(row, name))


def _chart(title: str, rows: Sequence[dict[str, Any]], numbers: Mapping[str, int]) -> Chart | None:
    firsts: dict[str, dict[str, Any]] = {}
    for row in rows:
        if number(row, "step_ms") is not None and number(row, "over_best_pct") is not None:
            firsts.setdefault(row["strategy"], row)
    if not firsts:
        return None
    bounds = [bound for row in rows if (bound := number(row, "bound_ms")) is not None]
    references = [Reference(value=min(bounds), series=_BOUND_COLOUR)] if bounds else []
    keys = tuple(
        (f"{series_class(line.series)} dashed", f"lower bound {significant(line.value)} ms") for line in references
    )
    bars = [_bar(row, numbers[name]) for name, row in firsts.items()]
    drawing = stacked(f"Steps of {title}", bars, "ms per step", references)
    return Chart(caption="Step and its 95 % interval; an arrow marks what is beyond.", drawings=(drawing,), legend=keys)


def _bar(row: dict[str, Any], strategy: int) -> Bars:
    budget = "" if row["budget"] == AS_RUN else f" ({row['budget']})"
    step = float(row["step_ms"])
    low, high = number(row, "step_ms_low"), number(row, "step_ms_high")
    interval = "" if low is None or high is None else f", {significant(low)} to {significant(high)}"
    return Bars(
        strategy=strategy,
        name=f"{row['strategy']}{budget}",
        parts=(step,),
        value=f"{significant(step)} ms",
        says=f"{row['strategy']}{budget}: {significant(step)} ms{interval}",
        whole=step,
        low=low,
        high=high,
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    reference = " (reference)" if row["role"] == Role.SEARCH else ""
    low, high = number(row, "step_ms_low"), number(row, "step_ms_high")
    return (
        f"{row['strategy']}{reference}",
        "" if row["budget"] == AS_RUN else str(row["budget"]),
        str(row["outcome"]),
        _shown(row, "step_ms", significant),
        "" if low is None or high is None else f"{significant(low)} to {significant(high)}",
        _shown(row, "over_bound_pct", percent),
        _shown(row, "over_best_pct", percent),
        str(row["tie"]) if _is_known(row, "tie") else "",
        _shown(row, "plan_s", seconds),
        _shown(row, "fit_s", seconds),
        _shown(row, "headroom_pct", lambda value: f"{value:.1f} %"),
        str(row["cause"]) if _is_known(row, "cause") else "",
    )


def _shown(row: dict[str, Any], key: str, write: Any) -> str:
    value = number(row, key)
    return "" if value is None else str(write(value))


def _is_known(row: Mapping[str, Any], key: str) -> bool:
    return key in row and not pd.isna(row[key])
