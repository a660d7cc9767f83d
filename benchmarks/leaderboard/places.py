"""Which place a strategy has on the leaderboard's problems, and the row that it has in the tables of scores."""

from collections.abc import Iterator, Set
from typing import Any

import pandas as pd

from shardbench.model.strategy import Role
from shardbench.report.tables.leaderboard import scores, steps
from shardbench.studies.places import together

Problem = tuple[str, str]
HEADS = ("strategy", "problems", "ended", "expected near", "best", "within 1 %", "5 %", "20 %", "2x", "step over bound")
_COUNTS = ("problems", "ok")
_SHARES = ("within_1.01", "within_1.05", "within_1.2", "within_2")


def board_places(own: pd.DataFrame, others: pd.DataFrame, strategy: str, version: int) -> Iterator[str]:
    """Say in lines which place a strategy has among competitors by each budget, and its row of the scores.

    ``own`` are the rows of a run, bounds among them, and ``others`` those of the same version that are on record
    elsewhere.
    """
    mine = own[own["strategy"] == strategy]
    if not len(mine):
        yield f"{strategy} has no rows: all its cells failed"
        return
    problems = _problems(mine)
    rows = together(_on(own, problems), _on(others, problems))
    board = scores(steps(rows, version))
    for budget in dict.fromkeys(mine["budget"]):
        part = board[board["budget"] == budget].reset_index(drop=True)
        competing = list(part[part["role"] == Role.COMPETITOR.value]["strategy"])
        compared = strategy in competing and len(competing) > 1
        row = part[part["strategy"] == strategy].iloc[0]
        if compared:
            like = int((part["rank"] == row["rank"]).sum()) - 1
            shared = f", shared with {like} other{'s' * (like > 1)}," if like else ""
            place = f"rank {row['rank']:.0f} of {len(competing)}{shared} on {_amount(problems)}"
        else:
            place = f"no rank on {_amount(problems)}" + ("" if strategy in competing else ", since it does not compete")
        yield f"{budget}: {strategy} has {place}"
        yield from (f"  {line}" for line in _row(row, compared=compared))


def _row(score: "pd.Series[Any]", *, compared: bool) -> list[str]:
    """Give the row of scores in the words of the README's tables, with what depends on others where it is known."""
    near = score["expected_within_1.05"]
    best = [
        "-" if pd.isna(near) else f"{near:.2f}",
        f"{score['best']:.0f}",
        *(f"{score[name]:.2f}" for name in _SHARES),
    ]
    best = best if compared else ["-"] * len(best)
    bounded = score["over_bound_geomean"]
    cells = [score["strategy"], *(f"{score[name]:.0f}" for name in _COUNTS), *best]
    cells.append("-" if pd.isna(bounded) else f"{bounded:.2f}")
    rule = ["---", *["---:"] * (len(HEADS) - 1)]
    return [f"| {' | '.join(line)} |" for line in (HEADS, rule, cells)]


def _problems(rows: pd.DataFrame) -> Set[Problem]:
    return set(zip(map(str, rows["workload"]), map(str, rows["machine"]), strict=True))


def _on(rows: pd.DataFrame, problems: Set[Problem]) -> pd.DataFrame:
    if not len(rows):
        return rows
    return rows[[each in problems for each in zip(rows["workload"], rows["machine"], strict=True)]]


def _amount(problems: Set[Problem]) -> str:
    return f"{len(problems)} problem{'s' * (len(problems) != 1)}"
