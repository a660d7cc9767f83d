"""Every problem of a table of standings as a table for people, where there are no groups of trials to show."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from shardbench.model.strategy import Role
from shardbench.report.standing import number
from shardbench.report.standings import AS_RUN, AT, PROBLEM
from shardbench.report.view import percent, seconds, significant

PROBLEM_HEADERS = (
    "strategy", "budget", "outcome", "step (ms)", "95 % interval (ms)", "over bound", "over best", "tie", "plan (s)",
    "fit (s)", "free HBM of the fullest device", "cause",
)  # fmt: skip
PROBLEM_NUMERIC = (False, False, False, True, False, True, True, False, True, True, True, False)


@dataclass(frozen=True, kw_only=True)
class ProblemTable:
    """One problem: who ended how, the best first."""

    id: str
    title: str
    backend: str
    note: str
    rows: tuple[tuple[int, str, tuple[str, ...]], ...]
    """(number of the strategy on the page, its outcome, cells) of every row."""


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
                rows=tuple((numbers[row["strategy"]], str(row["outcome"]), _cells(row)) for row in rows),
            )
        )
    return found


def _note(row: Mapping[str, Any]) -> str:
    words = {"devices": "{:,.0f} devices", "batch_size": "batch {:,.0f}"}
    return ", ".join(shape.format(float(row[name])) for name, shape in words.items() if _is_known(row, name))


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
