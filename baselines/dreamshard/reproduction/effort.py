"""Study of equal effort: what network, policy and search contribute at the same number of oracle calls."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from shardbench.base.statistics import log_mean
from shardbench.records.cell import SeriesRow
from shardbench.studies.contest import JUDGED_SPLIT, Placed, judge_tasks, tasks_of
from shardbench.studies.contest_study import SEEDS
from shardbench.studies.contest_tasks import over_rows, task_table
from shardbench.studies.study import Cell, Study

from .contenders import BUDGETED, CONTENDERS, FIXED, JOINT_WHOLE
from .contenders import Effort as Given
from .contests import ROWS
from .names import AUTOSHARD, COST_GREEDY, LOOKUP, OURS, SEARCH

EFFORT_ROWS = ("DLRM-40 (4)", "DLRM-80 (8)", "Mixed-40 (4)")
"""Both numbers of devices of the paper's rows, in the middle of their numbers of tables, and mixed widths; few, so that
all seeds of all contenders take minutes."""
CALLS = (100, 1000)
"""As many as DreamShard's published training asks, and ten times as many: AutoShard's asks more than that."""
EFFORT_TASKS = 20
"""Test tasks of a row, the first of its 50; training tasks are all 50."""
ALL_ROWS = "all rows"


class Effort(Study):
    """DreamShard, its search, AutoShard, joint and plain searches at equal oracle calls, on unseen tasks."""

    name = "effort"
    uses = (LOOKUP, COST_GREEDY, JOINT_WHOLE, OURS, SEARCH, AUTOSHARD)
    columns = ("backend", "cost_ms", "bound_ms", "learning_calls", "task_calls", "network_rated")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Rows, contenders, budgets and seeds; those without a budget once a row."""
        rows = EFFORT_ROWS[:1] if quick else EFFORT_ROWS
        fixed: list[Cell] = [{"task": row, "contender": name, "calls": 0, "seed": 0} for row in rows for name in FIXED]
        return fixed + [
            {"task": row, "contender": name, "calls": calls, "seed": seed}
            for row in rows
            for name in BUDGETED
            for calls in (CALLS[:1] if quick else CALLS)
            for seed in (SEEDS[:1] if quick else SEEDS)
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Place the row's test tasks and judge them on a counted batch."""
        row, calls = ROWS[str(cell["task"])], int(cell["calls"] or 0)
        test = tasks_of(row, JUDGED_SPLIT, folder)[:EFFORT_TASKS]
        given = Given(
            train=tasks_of(row, "train", folder),
            test=test,
            calls=calls,
            seed=int(cell["seed"] or 0),
            folder=folder / "training",
        )
        spent = CONTENDERS[str(cell["contender"])](given)
        judged = judge_tasks(Placed(placements=tuple(spent.placements), plan_cpu_s=0.0), test)
        return [
            {
                "backend": "simulated",
                **judged.means(),
                **judged.of_tasks(),
                "learning_calls": spent.learning_calls,
                "task_calls": spent.task_calls,
                "network_rated": spent.network_rated,
            }
        ]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a budget, row of tasks and contender: milliseconds, and over DreamShard's policy of that budget."""
        made = []
        for calls in CALLS:
            part = rows[rows["calls"].isin((0, calls))]
            if OURS in set(part["contender"]):
                made += _compared(part, calls)
        return {self.name: pd.DataFrame(made)}


def _compared(rows: pd.DataFrame, calls: int) -> list[dict[str, object]]:
    """Paired over tasks, seeds averaged first; of all rows the i-th task's geometric mean over them is the unit."""
    tasks = task_table(rows.assign(split=JUDGED_SPLIT, strategy=rows["contender"]))
    groups = {str(name): rows[rows["task"] == name] for name in dict.fromkeys(rows["task"])}
    made: list[dict[str, object]] = []
    for task, group in {**groups, ALL_ROWS: rows}.items():
        held_against = list(groups) if task == ALL_ROWS else [task]
        for contender, part in group.groupby("contender", sort=False):
            over = log_mean(over_rows(tasks, dict.fromkeys(held_against, str(contender)), OURS))
            cost_ms, bound_ms = (None if task == ALL_ROWS else float(part[x].mean()) for x in ("cost_ms", "bound_ms"))
            made.append(
                {
                    "calls": calls,
                    "task": task,
                    "contender": contender,
                    "backend": "simulated",
                    "cost_ms": cost_ms,
                    "over_bound_pct": 100.0 * (cost_ms / bound_ms - 1.0) if cost_ms and bound_ms else None,
                    "over_policy_pct": 100.0 * (over.value - 1.0),
                    "over_policy_low_pct": None if over.low is None else 100.0 * (over.low - 1.0),
                    "over_policy_high_pct": None if over.high is None else 100.0 * (over.high - 1.0),
                    "n": over.n,
                    "seeds": part["seed"].nunique(),
                    "learning_calls": float(part["learning_calls"].mean()),
                    "task_calls": float(part["task_calls"].mean()),
                    "network_rated": float(part["network_rated"].mean()),
                }
            )
    return made
