"""The answer at a glance: of every workload and machine the best strategy, what ties with it, how sure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from shardbench.model.strategy import Role
from shardbench.report.standing import Standing
from shardbench.report.standings import AS_RUN, AT, PROBLEM, TO_ANY, is_measured, ok_rows
from shardbench.report.tables.text import percent, significant

_NAMED = 4
"""Ties of a cell that are named; more are counted."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One problem, in its cell."""

    at: str
    """Id of its section on the page."""
    best: str
    """Empty where nothing ended well."""
    step: str
    ties: str
    """Which strategies tie with the best, with their marks; empty where none does."""
    sure: str
    """How sure it is that the best is that, in words."""
    certain: bool
    """Whether nothing ties and the order is known."""
    failed: int


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Workloads by machines; a machine that is simulated and measured has two columns."""

    machines: tuple[tuple[str, str], ...]
    """(machine, backend), a column each."""
    rows: tuple[tuple[str, tuple[Entry | None, ...]], ...]
    """(workload, an entry or None for every column), one a workload."""


def matrix(table: pd.DataFrame) -> Matrix:
    """Of a table of standings; strategies that do not compete are in a cell only where they are its best."""
    if table.empty:
        return Matrix(machines=(), rows=())
    columns = list(dict.fromkeys(zip(table["machine"], table["backend"])))
    columns.sort(key=lambda column: is_measured(column[1]))
    found = {key: _entry(part) for key, part in table.groupby(list(PROBLEM), sort=False)}
    rows = tuple(
        (workload, tuple(found.get((workload, *column)) for column in columns))
        for workload in dict.fromkeys(table["workload"])
    )
    return Matrix(machines=tuple(columns), rows=rows)


def _entry(part: pd.DataFrame) -> Entry:
    at, backend = str(part[AT].iloc[0]), str(part["backend"].iloc[0])
    ok = ok_rows(part).sort_values(["over_best_pct", "strategy"], kind="stable").to_dict("records")
    failed = part["strategy"].nunique() - len({row["strategy"] for row in ok})
    # Of a strategy's budgets the best one stands for it.
    firsts: dict[str, Mapping[Any, Any]] = {}
    for row in ok:
        if row["role"] == Role.COMPETITOR:
            firsts.setdefault(row["strategy"], row)
    competing = list(firsts.values())
    if not competing:
        return Entry(at=at, best="", step="", ties="", sure="nothing ended well", certain=False, failed=failed)
    best, others = competing[0], competing[1:]
    ties = [row for row in others if row["tie"] in (Standing.SAME, Standing.OPEN)]
    unknown = [row for row in competing if row["tie"] == Standing.UNKNOWN]
    rest = [row for row in others if row not in ties]
    # Where a reference is ahead and ties are with it, they say nothing of the competitors among each other.
    led = bool(part[TO_ANY].iloc[0]) and ok[0]["role"] != Role.COMPETITOR
    limit = "the noise" if is_measured(backend) else "the model's error"
    return Entry(
        at=at,
        best=_named(best),
        step=f"{significant(best['step_ms'])} ms{_interval(best)}",
        ties="" if led else _listed(ties),
        sure=_led(ok[0], best) if led else _sure(best, ties, unknown, rest, limit),
        certain=not ties and not unknown and not led,
        failed=failed,
    )


def _led(reference: Mapping[Any, Any], best: Mapping[Any, Any]) -> str:
    known = f", tie {best['tie']}" if best["tie"] else ""
    return (
        f"{percent(best['over_best_pct'])} over {_named(reference)} (reference){known}; order of the others not judged"
    )


def _sure(
    best: Mapping[Any, Any],
    ties: Sequence[Mapping[Any, Any]],
    unknown: Sequence[Mapping[Any, Any]],
    rest: Sequence[Mapping[Any, Any]],
    limit: str,
) -> str:
    if unknown:
        return f"order unknown: {limit} is not known"
    if ties:
        return f"{len(ties)} {'ties' if len(ties) == 1 else 'tie'} within {limit}"
    if not rest:
        return "alone"
    over = 100.0 * ((100.0 + rest[0]["over_best_pct"]) / (100.0 + best["over_best_pct"]) - 1.0)
    return f"next is {_named(rest[0])} {percent(over)}, beyond {limit}"


def _named(row: Mapping[Any, Any]) -> str:
    budget = "" if row["budget"] == AS_RUN else f" ({row['budget']})"
    return f"{row['strategy']}{budget}"


def _interval(row: Mapping[Any, Any]) -> str:
    if pd.isna(row["step_ms_low"]) or pd.isna(row["step_ms_high"]):
        return ""
    return f" ({significant(row['step_ms_low'])} to {significant(row['step_ms_high'])})"


def _listed(ties: Sequence[Mapping[Any, Any]]) -> str:
    named = ", ".join(f"{row['strategy']} {row['tie']}" for row in ties[:_NAMED])
    return f"{named} and {len(ties) - _NAMED} more" if len(ties) > _NAMED else named
