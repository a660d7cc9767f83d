"""Costs of a contest task by task: strategies are compared on the same tasks, one pair a task.

The unit is the task. Tasks are independent draws of tables from one pool, 50 to a row; seeds of one strategy place the
same tasks, so that they are averaged over first. Rows are chosen (numbers of tables and devices): over several rows the
unit is the i-th task of each of them, its number the geometric mean over the rows, which are so all weighted alike.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats
from shardbench.base.statistics import log_mean

KEYS = ("task", "split", "number")
"""Columns of a task table before those of the strategies: row of tasks, split, and which of the row's tasks."""


def task_table(rows: pd.DataFrame, measure: str = "cost_ms") -> pd.DataFrame:
    """Make one row a task, a column a strategy: milliseconds, means over seeds; empty where a seed did not place it.

    ``rows`` are a contest's (by ``task``, ``split``, ``strategy``), ``measure`` is one of ``Judged.of_tasks``.
    """
    by_row: dict[tuple[str, str], dict[str, Floats]] = {}
    for (task, split, strategy), part in rows.groupby(["task", "split", "strategy"], sort=False):
        of_seeds = np.array(part[f"task_{measure}"].tolist(), dtype=np.float64)
        by_row.setdefault((task, split), {})[strategy] = of_seeds.mean(axis=0)
    frames = [
        pd.DataFrame({"task": task, "split": split, **costs}).rename_axis("number").reset_index()
        for (task, split), costs in by_row.items()
    ]
    table = pd.concat(frames, ignore_index=True)
    return table[[*KEYS, *table.columns.drop(list(KEYS))]]


def best_of(tasks: pd.DataFrame, names: Sequence[str]) -> str | None:
    """Name the strategy with the smallest mean on these tasks, as the papers' tables compare; None of none."""
    complete = [name for name in names if name in tasks and tasks[name].notna().all()]
    return min(complete, key=lambda name: float(tasks[name].mean())) if complete else None


def ratios(tasks: pd.DataFrame, theirs: str, ours: str) -> Floats:
    """Divide theirs by ours task by task, for the tasks that both placed."""
    if theirs not in tasks or ours not in tasks:
        return np.zeros(0)
    return np.asarray((tasks[theirs] / tasks[ours]).dropna(), dtype=np.float64)


def gain_pct(quotients: Sequence[float] | Floats) -> tuple[float | None, float | None, float | None, int]:
    """Give how far ratios are above one in percent: geometric mean, the ends of its 95 % interval, and their number.

    Without any ratio there is no mean, and with one there is no interval: None.
    """
    if not len(quotients):
        return None, None, None, 0
    average = log_mean(list(quotients))
    value, low, high = (None if x is None else 100.0 * (x - 1.0) for x in (average.value, average.low, average.high))
    return value, low, high, average.n


def over_rows(tasks: pd.DataFrame, theirs: Mapping[str, str], ours: str) -> list[float]:
    """Divide theirs by ours, one number for the i-th task of all rows: the geometric mean over the rows.

    ``theirs`` names the strategy of each row that ours is held against; other rows do not count. A number i that some
    row lacks, because either did not place the task, is left out.
    """
    logs = {}
    for row, name in theirs.items():
        own = tasks[tasks["task"] == row].set_index("number")
        if name in own and ours in own:
            logs[row] = np.log(own[name] / own[ours])
    if len(logs) < len(theirs) or not logs:
        return []
    return [float(x) for x in np.exp(pd.DataFrame(logs).dropna().mean(axis=1))]
