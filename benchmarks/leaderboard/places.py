"""Which place a strategy has on the leaderboard's problems, and the row that it has in the tables of scores."""

from collections.abc import Iterator, Set
from typing import Any

import pandas as pd

from shardbench.model.strategy import Role
from shardbench.records.trial import Outcome
from shardbench.report.tables.leaderboard import scores, steps, tie
from shardbench.report.tables.text import significant
from shardbench.studies.places import Place, together

Problem = tuple[str, str]
HEADS = (
    "strategy", "problems", "ended", "expected near", "best or tied", "within 1 %", "5 %", "20 %", "2x",
    "step over bound",
)  # fmt: skip
_LOSSES = ("problem", "step ms", "bound by", "best of the others", "its step ms", "bound by", "times it")
_COUNTS = ("problems", "ok")
_SHARES = ("within_1.01", "within_1.05", "within_1.2", "within_2")


def board_places(own: pd.DataFrame, others: pd.DataFrame, strategy: str, version: int) -> Iterator[Place]:
    """Say which place a strategy has by each budget, its row of the scores, and where it loses.

    ``own`` are the rows of a run, bounds among them, and ``others`` those of the same version that are on record
    elsewhere.
    """
    mine = own[own["strategy"] == strategy]
    if not len(mine):
        yield Place(f"{strategy} has no rows: all its cells failed")
        return
    problems = _problems(mine)
    rows = together(_on(own, problems), _on(others, problems))
    board = scores(steps(rows, version))
    for budget in dict.fromkeys(mine["budget"]):
        part = board[board["budget"] == budget]
        # Where plans matter on none of the problems, it stands on those that the host binds.
        part = part[part["group"] == part["group"].max()].reset_index(drop=True)
        competing = list(part[part["role"] == Role.COMPETITOR.value]["strategy"])
        compared = strategy in competing and len(competing) > 1
        row = part[part["strategy"] == strategy].iloc[0]
        if compared:
            like = int((part["rank"] == row["rank"]).sum()) - 1
            shared = f", shared with {like} other{'s' * (like > 1)}," if like else ""
            place = f"rank {row['rank']:.0f} of {len(competing)}{shared} on {_amount(row)}"
        else:
            place = f"no rank on {_amount(row)}" + ("" if strategy in competing else ", since it does not compete")
        yield Place(f"{budget}: {strategy} has {place}", HEADS, (_row(row, compared=compared),))
        if compared:
            yield _losses(rows[rows["budget"] == budget], strategy)


def _losses(rows: pd.DataFrame, strategy: str) -> Place:
    """List the problems on which the best of the others is surely ahead, the widest distance first."""
    behind: list[tuple[float, tuple[str, ...]]] = []
    problems = 0
    for (workload, machine), part in rows.groupby(["workload", "machine"], sort=False):
        mine, ok = part[part["strategy"] == strategy], part[part["outcome"] == Outcome.OK.value]
        others = ok[(ok["strategy"] != strategy) & (ok["role"] == Role.COMPETITOR.value)]
        if not (len(mine) and len(others)):
            continue
        problems += 1
        own, best = mine.iloc[0], others.loc[others["step_ms"].idxmin()]
        ended = own["outcome"] == Outcome.OK.value
        if ended and (own["step_ms"] <= best["step_ms"] or tie(own, best)):
            continue
        times = own["step_ms"] / best["step_ms"] if ended else float("inf")
        cells = (
            f"{workload} on {machine}",
            significant(own["step_ms"]) if ended else str(own["outcome"]),
            _bound_by(own),
            str(best["strategy"]),
            significant(best["step_ms"]),
            _bound_by(best),
            f"{times:.2f} x" if ended else "-",
        )
        behind.append((times, cells))
    if not behind:
        return Place(f"surely behind on none of {problems}")
    words = f"surely behind on {len(behind)} of {problems}, the widest distance first:"
    return Place(words, _LOSSES, tuple(cells for _, cells in sorted(behind, key=lambda each: -each[0])))


def _bound_by(row: "pd.Series[Any]") -> str:
    bound_by = row.get("bound_by")
    return bound_by if isinstance(bound_by, str) and bound_by else "-"


def _row(score: "pd.Series[Any]", *, compared: bool) -> tuple[str, ...]:
    """Give the row of scores in the words of the README's tables, with what depends on others where it is known."""
    near = score["expected_within_1.05"]
    best = [
        "-" if pd.isna(near) else f"{near:.2f}",
        f"{score['best_or_tied']:.0f}",
        *(f"{score[name]:.2f}" for name in _SHARES),
    ]
    best = best if compared else ["-"] * len(best)
    bounded = score["over_bound_geomean"]
    counts = (f"{score[name]:.0f}" for name in _COUNTS)
    return (score["strategy"], *counts, *best, "-" if pd.isna(bounded) else f"{bounded:.2f}")


def _problems(rows: pd.DataFrame) -> Set[Problem]:
    return set(zip(map(str, rows["workload"]), map(str, rows["machine"]), strict=True))


def _on(rows: pd.DataFrame, problems: Set[Problem]) -> pd.DataFrame:
    if not len(rows):
        return rows
    return rows[[each in problems for each in zip(rows["workload"], rows["machine"], strict=True)]]


def _amount(row: "pd.Series[Any]") -> str:
    return f"{row['problems']:.0f} problem{'s' * bool(row['problems'] != 1)}"
