"""A study of transfer: a learned strategy used on tasks that it was not trained for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import cheapest, fitted, judge, place_all, tasks_of
from shardbench.studies.contests.contest_study import FIT_S, SEEDS
from shardbench.studies.study import Cell, Row, Study
from shardbench.tasks.pools import TaskRow

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of each task's tables that are from the test pool."""


class TransferStudy(Study):
    """A learner trained on one row and used, untuned, on other rows and on tasks with a share of unseen tables.

    ``uses`` names the heuristics of which the best stands beside it.
    """

    name = "transfer"
    strategy: str
    measure: str
    """The number that is compared, a key of ``judge``: ``cost_ms`` or ``kernel_ms``."""
    beside: str
    """Another key of ``judge`` that rows have."""
    task_rows: Mapping[str, TaskRow]
    trained_on: Sequence[str]
    """Names of the rows that are trained on; each is used on all rows."""
    unseen_on: str | None = None
    """The row whose tables are replaced by unseen ones; None takes the row that was trained on."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one cell a training row and seed."""
        if quick:
            return [{"trained_on": self.trained_on[0], "seed": 0}]
        return [{"trained_on": name, "seed": seed} for name in self.trained_on for seed in SEEDS]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train once; judge on the test tasks of every row, and by share of unseen tables on one of them.

        Tasks of two shares differ only in the tables that were replaced.
        """
        seed, budget, own = int(cell["seed"] or 0), Budget(fit_s=FIT_S), str(cell["trained_on"])
        strategy, _ = fitted(self.strategy, tasks_of(self.task_rows[own], "train", folder), budget, seed, folder)
        unseen = self.unseen_on or own
        sets = [(name, "test", 1.0, tasks_of(row, "test", folder)) for name, row in self.task_rows.items()]
        of_shares = [(share, tasks_of(self.task_rows[unseen], "train", folder, unseen=share)) for share in SHARES]
        sets += [(unseen, "shares", share, tasks) for share, tasks in of_shares]
        rows: list[Row] = []
        for name, task_set, share, tasks in sets:
            ours = judge(place_all(strategy, tasks, budget, seed).judged, tasks)
            best, best_ms = cheapest(tuple(self.uses), tasks, self.measure)
            rows.append(
                {
                    "backend": "simulated",
                    "used_on": name,
                    "task_set": task_set,
                    "unseen_tables_pct": 100.0 * share,
                    self.measure: ours[self.measure],
                    self.beside: ours[self.beside],
                    "best_greedy": best,
                    "best_greedy_ms": best_ms,
                    "infeasible": ours["infeasible"],
                }
            )
        return rows
