"""Studies that are contests: rows of tasks x strategies x seeds, and tasks that a strategy was not trained for."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from shardbench.learned.tasks.pools import TaskRow
from shardbench.model.strategy import Budget
from shardbench.records.cell import Cell, Row, SeriesRow, cell_key
from shardbench.records.store import cell_store
from shardbench.report.plot import Plot
from shardbench.studies.contests.contest import cheapest, contest, fit_strategy, judge, place_all, tasks_of
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.session import cell_version
from shardbench.studies.study import Study, Tables, grid

SEEDS = (0, 1, 2)
"""Seeds of strategies with randomness; the others have the first."""
FIT_S = 3600.0
PLAN_S = 60.0
"""Planning budget of a task."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of each task's tables that are from the test pool."""


def contest_study(
    *,
    name: str,
    title: str,
    task_rows: Mapping[str, TaskRow],
    quick_rows: Collection[str],
    strategies: Sequence[str],
    seeded: Collection[str],
    summary: Callable[[pd.DataFrame], Tables],
    plots: Sequence[Plot],
    measure: str = "cost_ms",
    only: Mapping[str, Collection[str]] = MappingProxyType({}),
    same_as: tuple[str, str] | None = None,
    version: int = 2,
) -> Study:
    """Make a study of every strategy on every row of tasks, trained on the row's training tasks.

    ``seeded`` strategies have all SEEDS. ``measure`` is the number that is compared, a key of ``judge``: ``cost_ms`` or
    ``kernel_ms``. ``only`` names the rows of strategies that are not on all of them. ``same_as`` is owner and name of
    another contest of the very same cells: what it has on record of this version is not run again.
    """

    def cells(quick: bool) -> list[Cell]:
        return [
            {"task": row, "strategy": strategy, "seed": seed}
            for strategy in strategies
            for row in task_rows
            if (row in quick_rows or not quick) and row in only.get(strategy, task_rows)
            for seed in (SEEDS if strategy in seeded and not quick else SEEDS[:1])
        ]

    def judge_cell(folder: Path, task: str, strategy: str, seed: int) -> Sequence[SeriesRow]:
        rows = same_as and _rows_on_record(*same_as, {"task": task, "strategy": strategy, "seed": seed}, folder)
        return rows or contest(task_rows[task], strategy, seed, folder, Budget(fit_s=FIT_S, plan_s=PLAN_S))

    return Study(
        name=name, title=title, version=version, cells=cells, judge=judge_cell, summary=summary, plots=plots,
        strategies=strategies, compared_by=measure,
    )  # fmt: skip


def _rows_on_record(owner: str, name: str, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
    """Read the cell's rows in the results of the study that has the same; none where it was not run there."""
    other = find_reproduction(owner).study(name)
    record = cell_store(folder.parents[1], owner, name).latest().get(cell_key(name, other.version, cell))
    return record.rows if record and record.is_of(cell_version(other, cell)) else ()


def contest_means(
    rows: pd.DataFrame,
    task_rows: Mapping[str, TaskRow],
    random: str,
    own_columns: Callable[[str, str, str, pd.DataFrame], Mapping[str, object]],
    *,
    asking: Collection[str] = (),
    measure: str = "cost_ms",
) -> pd.DataFrame:
    """Average over seeds, with the relation to placement by ``random``; one row a task set, split and strategy.

    ``own_columns`` gives further ones by task set, split, strategy and their rows. Strategies that are ``asking`` learn
    nothing, but ask the cost model about every task: their calls are left empty.
    """
    mean_rows = []
    of_random = rows[rows["strategy"] == random].groupby(["task", "split"])[measure].mean().to_dict()
    for (task, split, strategy), part in rows.groupby(["task", "split", "strategy"], sort=False):
        mean, base = float(part[measure].mean()), of_random.get((task, split))
        mean_rows.append(
            {
                "task": task,
                "devices": task_rows[task].devices,
                "split": split,
                "strategy": strategy,
                "backend": "simulated",
                f"{measure}_mean": mean,
                f"{measure}_std": float(part[measure].std(ddof=1)),
                "n": len(part),
                "vs_random_pct": 100.0 * (base / mean - 1.0) if base else None,
                **own_columns(task, split, strategy, part),
                "tasks": int(part["tasks"].min()),
                "infeasible": int(part["infeasible"].max()),
                "oracle_calls": None if strategy in asking else int(part["oracle_calls"].max()),
                "fit_cpu_s": float(part["fit_cpu_s"].mean()),
                "plan_cpu_s": float(part["plan_cpu_s"].mean()),
            }
        )
    order = {name: number for number, name in enumerate(task_rows)}
    return pd.DataFrame(mean_rows).sort_values(
        ["task", "split", f"{measure}_mean"],
        key=lambda column: column.map(order) if column.name == "task" else column,
        kind="stable",
    )


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
