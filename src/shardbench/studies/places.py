"""Which place a strategy has among others on the tasks of a study that poses all of them the same ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from shardbench.model.strategy import Role
from shardbench.report.standing import SAME
from shardbench.report.tables.layout import lay_out
from shardbench.report.tables.text import Columns, significant
from shardbench.trials.discovery import strategies


@dataclass(frozen=True)
class Place:
    """A place in words, and the rows behind it where there are some."""

    words: str
    heads: tuple[str, ...] = ()
    """The first column is of words, the others are of numbers or short."""
    rows: tuple[tuple[str, ...], ...] = ()

    @property
    def table(self) -> Columns:
        """The rows as a table."""
        return Columns(headers=self.heads, rows=self.rows, numeric=(False, *(True for _ in self.heads[1:])))

    def lines(self) -> list[str]:
        """Return the words, and the rows as aligned lines."""
        table = lay_out(self.table) if self.rows else None
        return [self.words, *(f"  {line}" for line in ((*table.heads, *table.rows) if table else ()))]


def together(own: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of both as one table."""
    # Not pd.concat: it warns of columns that one of them lacks.
    return pd.DataFrame([*own.to_dict("records"), *others.to_dict("records")])


def contest_places(
    own: pd.DataFrame, others: pd.DataFrame, strategy: str, measure: str, tasks: Sequence[str]
) -> list[Place]:
    """Say which place a strategy's mean has among competitors, for each task that columns ``tasks`` tell.

    Strategies that did not place all tasks are not compared.
    """
    if not len(own) or not {measure, "infeasible"} <= set(own):
        return []
    rows = together(own, others)
    parts = rows.groupby(list(tasks), sort=False) if tasks else [(("all tasks",), rows)]
    return [
        Place(f"{', '.join(map(str, key))}: {_place(part, strategy, measure)}")
        for key, part in parts
        if strategy in set(part["strategy"])
    ]


def _place(part: pd.DataFrame, strategy: str, measure: str) -> str:
    mine = part[part["strategy"] == strategy]
    own = float(mine[measure].mean())
    own_time = f"{strategy} {significant(own)} ms"
    if mine["infeasible"].max():
        return f"{own_time}, no rank: it placed {mine['tasks'].min():.0f} tasks and not all"
    competing = {name for name, each in strategies().items() if each.role is Role.COMPETITOR} - {strategy}
    whole = part[part["strategy"].isin(competing) & (part["infeasible"] == 0)]
    rivals = [(float(rows[measure].mean()), str(name)) for name, rows in whole.groupby("strategy")]
    if not rivals:
        return f"{own_time}, no rank: no other strategy has rows of this version"
    place = 1 + sum(ms < own * (1.0 - SAME) for ms, _ in rivals)
    best_ms, best = min(rivals)
    return f"{own_time}, rank {place} of {len(rivals) + 1} (best of the others: {best}, {significant(best_ms)} ms)"
