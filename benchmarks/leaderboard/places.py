"""Which place a strategy has on the leaderboard's problems, and the row that it has in the tables of scores."""

from collections.abc import Iterator, Mapping, Set
from typing import Any

import pandas as pd

from shardbench.model.strategy import Role
from shardbench.report.compare.same_numbers import SAME, same
from shardbench.report.page.profiles import geometric_mean
from shardbench.report.tables.leaderboard import BOUND, scores, steps
from shardbench.studies.places import OTHER_CODE, together

Problem = tuple[str, str]
HEADS = ("strategy", "problems", "ended", "expected near", "best", "within 1 %", "5 %", "20 %", "2x", "step over bound")
_COUNTS = ("problems", "ok")
_SHARES = ("within_1.01", "within_1.05", "within_1.2", "within_2")
_KEY = ["workload", "machine", "budget"]


def board_places(own: pd.DataFrame, others: pd.DataFrame, strategy: str, version: int) -> Iterator[str]:
    """Say in lines which place a strategy has among competitors by each budget, and its row of the scores.

    ``own`` are the rows of a run, bounds among them, and ``others`` those on record elsewhere. Rows that other code
    judged are compared on problems about which that code proved the same bounds as the code that is here.
    """
    mine = own[own["strategy"] == strategy]
    if not len(mine):
        yield f"{strategy} has no rows: all its cells failed"
        return
    asked = _problems(mine)
    others = _on(others, asked)
    moved = _moved(own, others)
    if moved:
        yield (
            f"on {len(moved)} of {len(asked)} problems the rows on record are of another cost model, which proves "
            "other bounds: their steps are not compared"
        )
    held = asked - moved
    rows = together(_on(own, held or asked), _on(others, held))
    board = scores(steps(rows, version))
    for budget in dict.fromkeys(mine["budget"]):
        part = board[board["budget"] == budget].reset_index(drop=True)
        competing = list(part[part["role"] == Role.COMPETITOR.value]["strategy"])
        compared = strategy in competing and len(competing) > 1
        row = part[part["strategy"] == strategy].iloc[0]
        if compared:
            like = int((part["rank"] == row["rank"]).sum()) - 1
            shared = f", shared with {like} other{'s' * (like > 1)}," if like else ""
            place = f"rank {row['rank']:.0f} of {len(competing)}{shared} on {_counted(held)}"
        else:
            place = f"no rank on {_counted(asked)}" + ("" if strategy in competing else ", since it does not compete")
        yield f"{budget}: {strategy} has {place}"
        yield from (f"  {line}" for line in _row(row, compared=compared))
        if moved and not held:
            yield from _over_bounds(steps(_on(own, asked), version), steps(others, version), strategy, budget)


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


def _over_bounds(own: pd.DataFrame, others: pd.DataFrame, strategy: str, budget: str) -> Iterator[str]:
    """Say which place steps over the bounds of their own code give, in pairs on the problems that both have."""
    mine = own[(own["strategy"] == strategy) & (own["budget"] == budget)][[*_KEY, "over_bound_pct"]].dropna()
    theirs = others[others["role"] == Role.COMPETITOR.value][[*_KEY, "strategy", "over_bound_pct"]].dropna()
    both = mine.merge(theirs, on=_KEY, suffixes=("", "_other"))
    if not len(both):
        return
    ratios = (1.0 + both["over_bound_pct"] / 100.0) / (1.0 + both["over_bound_pct_other"] / 100.0)
    means = [geometric_mean(part.tolist()) for _, part in ratios.groupby(both["strategy"])]
    place = 1 + sum(mean > 1.0 + SAME for mean in means)
    yield (
        f"  by steps over the bounds that their own code proved, on what both solved, it would have rank {place} of "
        f"{len(means) + 1}"
    )


def _moved(own: pd.DataFrame, others: pd.DataFrame) -> Set[Problem]:
    """Give the problems about which the code that judged the others' rows proved other bounds, or none."""
    if not len(others):
        return set()
    mine, theirs = _bounds(own), _bounds(others)
    judged = _problems(others[others[OTHER_CODE].astype(bool) & (others["budget"] != BOUND)])
    return {each for each in judged if not (each in mine and each in theirs and same(mine[each], theirs[each]))}


def _bounds(rows: pd.DataFrame) -> Mapping[Problem, tuple[float, float]]:
    return {
        (str(row["workload"]), str(row["machine"])): (float(row["step_ms"]), float(row["ordered_ms"]))
        for row in rows[rows["budget"] == BOUND].to_dict("records")
    }


def _problems(rows: pd.DataFrame) -> Set[Problem]:
    return set(zip(map(str, rows["workload"]), map(str, rows["machine"]), strict=True))


def _on(rows: pd.DataFrame, problems: Set[Problem]) -> pd.DataFrame:
    if not len(rows):
        return rows
    return rows[[each in problems for each in zip(rows["workload"], rows["machine"], strict=True)]]


def _counted(problems: Set[Problem]) -> str:
    return f"{len(problems)} problem{'s' * (len(problems) != 1)}"
