"""A study of transfer: a learned strategy used on tasks that it was not trained for."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from shardbench.learned.tasks.pools import TaskRow
from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import cheapest, fit_strategy, judge, place_all, tasks_of
from shardbench.studies.contests.contest_study import FIT_S, SEEDS
from shardbench.studies.study import Cell, Row, Study, Tables, grid

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of each task's tables that are from the test pool."""


def transfer_study(
    *,
    title: str,
    version: int,
    strategy: str,
    greedies: tuple[str, ...],
    measure: str,
    beside: str,
    task_rows: Mapping[str, TaskRow],
    training_rows: Sequence[str],
    unseen_row: str | None = None,
    columns: Sequence[str],
    summary: Callable[[pd.DataFrame], pd.DataFrame | Tables] = lambda rows: rows,
) -> Study:
    """Make a study of a learner trained on each of some rows, and used, untuned, on all rows and on unseen tables.

    The best of ``greedies`` by ``measure`` stands beside it; that and ``beside`` are keys of ``judge``. Tables of
    ``unseen_row`` (None: of the row that was trained on) are replaced by unseen ones, a share of each task's; tasks of
    two shares differ only in these tables.
    """

    def run(folder: Path, trained_on: str, seed: int) -> list[Row]:
        budget, unseen = Budget(fit_s=FIT_S), unseen_row or trained_on
        trained, _ = fit_strategy(strategy, tasks_of(task_rows[trained_on], "train", folder), budget, seed, folder)
        sets = [(name, "test", 1.0, tasks_of(row, "test", folder)) for name, row in task_rows.items()]
        of_shares = [(share, tasks_of(task_rows[unseen], "train", folder, unseen=share)) for share in SHARES]
        sets += [(unseen, "shares", share, tasks) for share, tasks in of_shares]
        rows: list[Row] = []
        for name, task_set, share, tasks in sets:
            ours = judge(place_all(trained, tasks, budget, seed).judged, tasks)
            best, best_ms = cheapest(greedies, tasks, measure)
            rows.append(
                {
                    "used_on": name,
                    "task_set": task_set,
                    "unseen_tables_pct": 100.0 * share,
                    measure: ours[measure],
                    beside: ours[beside],
                    "best_greedy": best,
                    "best_greedy_ms": best_ms,
                    "infeasible": ours["infeasible"],
                }
            )
        return rows

    def cells(quick: bool) -> list[Cell]:
        few = 1 if quick else None
        return grid(trained_on=training_rows[:few], seed=SEEDS[:few])

    return Study(
        name="transfer", title=title, version=version, uses=greedies, columns=columns, cells=cells, judge=run,
        summary=summary,
    )  # fmt: skip
