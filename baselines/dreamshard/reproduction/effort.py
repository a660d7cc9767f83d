"""Study of equal effort: what network, policy and search contribute at the same number of oracle calls."""

from pathlib import Path

import pandas as pd

from shardbench.records.cell import SeriesRow
from shardbench.studies.contests.contest import JUDGED_SPLIT, SPLITS, judge_tasks, tasks_of
from shardbench.studies.contests.contest_study import SEEDS
from shardbench.studies.contests.contest_tasks import gain_pct, over_rows, task_table
from shardbench.studies.study import Cell, Study, grid

from .contenders import BUDGETED, CONTENDERS, FIXED, JOINT_WHOLE, Exercise
from .contests import ROWS
from .names import AUTOSHARD, COST_GREEDY, LOOKUP, OURS, SEARCH

EFFORT_ROWS = ("DLRM-40 (4)", "DLRM-80 (8)", "Mixed-40 (4)")
"""Rows of either number of devices, with few of the paper's numbers of tables, and of mixed widths; three, so that all
seeds of all contenders take minutes."""
CALLS = (100, 1000)
"""Calls: as many as DreamShard's published training asks, and ten times as many; AutoShard's asks even more."""
EFFORT_TASKS = 20
"""Test tasks of a row: the first of its 50; training tasks are all 50."""
ALL_ROWS = "all rows"


def _cells(quick: bool) -> list[Cell]:
    """List rows, contenders, budgets and seeds; contenders without a budget run once a row."""
    few = 1 if quick else None
    rows = EFFORT_ROWS[:few]
    fixed = grid(task=rows, contender=FIXED, calls=[0], seed=[0])
    return fixed + grid(task=rows, contender=BUDGETED, calls=CALLS[:few], seed=SEEDS[:few])


def _place(folder: Path, task: str, contender: str, calls: int, seed: int) -> SeriesRow:
    """Place the row's test tasks and judge them on a counted batch."""
    train, test = (tasks_of(ROWS[task], split, folder) for split in SPLITS)
    exercise = Exercise(train=train, test=test[:EFFORT_TASKS], calls=calls, seed=seed, folder=folder)
    contribution = CONTENDERS[contender](exercise)
    judgement = judge_tasks(contribution.placements, exercise.test)
    return {
        **judgement.means(),
        **judgement.of_tasks(),
        "learning_calls": contribution.learning_calls,
        "task_calls": contribution.task_calls,
        "network_rated": contribution.network_rated,
    }


def _tables(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a budget, row of tasks and contender: milliseconds, and over DreamShard's policy."""
    comparisons = []
    for calls in CALLS:
        part = rows[rows["calls"].isin((0, calls))]
        if OURS in set(part["contender"]):
            comparisons += _compare(part, calls)
    return pd.DataFrame(comparisons)


def _compare(rows: pd.DataFrame, calls: int) -> list[dict[str, object]]:
    """Compare paired over tasks, seeds averaged first; over all rows, the i-th task's geometric mean is the unit."""
    tasks = task_table(rows.assign(split=JUDGED_SPLIT, strategy=rows["contender"]))
    groups = {str(name): rows[rows["task"] == name] for name in dict.fromkeys(rows["task"])}
    comparisons: list[dict[str, object]] = []
    for task, group in {**groups, ALL_ROWS: rows}.items():
        held_against = list(groups) if task == ALL_ROWS else [task]
        for contender, part in group.groupby("contender", sort=False):
            over, low, high, n = gain_pct(over_rows(tasks, dict.fromkeys(held_against, str(contender)), OURS))
            cost_ms, bound_ms = (None if task == ALL_ROWS else float(part[x].mean()) for x in ("cost_ms", "bound_ms"))
            comparisons.append(
                {
                    "calls": calls,
                    "task": task,
                    "contender": contender,
                    "backend": "simulated",
                    "cost_ms": cost_ms,
                    "over_bound_pct": 100.0 * (cost_ms / bound_ms - 1.0) if cost_ms and bound_ms else None,
                    "over_policy_pct": over,
                    "over_policy_low_pct": low,
                    "over_policy_high_pct": high,
                    "n": n,
                    "seeds": part["seed"].nunique(),
                    "learning_calls": float(part["learning_calls"].mean()),
                    "task_calls": float(part["task_calls"].mean()),
                    "network_rated": float(part["network_rated"].mean()),
                }
            )
    return comparisons


EQUAL_EFFORT = Study(
    name="effort",
    title="DreamShard, its search, AutoShard, joint and plain searches at equal oracle calls, on unseen tasks.",
    cells=_cells,
    judge=_place,
    summary=_tables,
    uses=(LOOKUP, COST_GREEDY, JOINT_WHOLE, OURS, SEARCH, AUTOSHARD),
    columns=("backend", "cost_ms", "bound_ms", "learning_calls", "task_calls", "network_rated"),
)
