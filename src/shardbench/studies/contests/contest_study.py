"""A study that is a contest: rows of tasks x strategies x seeds."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from shardbench.model.strategy import Budget
from shardbench.records.cell import Cell, SeriesRow, cell_key
from shardbench.records.store import cell_store
from shardbench.studies.contests.contest import contest
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.session import cell_version
from shardbench.studies.study import Study
from shardbench.tasks.pools import TaskRow

SEEDS = (0, 1, 2)
"""Seeds of strategies with randomness; the others have the first."""
FIT_S = 3600.0
PLAN_S = 60.0
"""Planning budget of a task."""


class ContestStudy(Study):
    """Every strategy on every row of tasks, trained on the row's training tasks."""

    version = 2
    task_rows: Mapping[str, TaskRow]
    quick_rows: tuple[str, ...]
    strategies: tuple[str, ...]
    seeded: frozenset[str]
    """The strategies that draw at random."""
    seeds: Mapping[str, Sequence[int]] = MappingProxyType({})
    """Strategies that have other seeds than SEEDS."""
    only: Mapping[str, Collection[str]] = MappingProxyType({})
    """Rows of the strategies that are not on all of them."""
    random: str
    """Random placement, over which gains are."""
    asking: Collection[str] = ()
    """Strategies that learn nothing, but ask the cost model about every task: their calls are left empty."""
    measure: str = "cost_ms"
    """The number that is compared, a key of ``judge``: ``cost_ms`` or ``kernel_ms``."""
    same_as: tuple[str, str] | None = None
    """Owner and name of another contest of the very same cells: what it has on record by this code is not run again."""

    @property
    def compared_by(self) -> str:
        """Return the study's measure."""
        return self.measure

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one cell a strategy, row and seed: a strategy after the other."""
        return [
            {"task": name, "strategy": strategy, "seed": seed}
            for strategy in self.strategies
            for name in self.task_rows
            if (name in self.quick_rows or not quick) and name in self.only.get(strategy, self.task_rows)
            for seed in (SEEDS[:1] if quick or strategy not in self.seeded else self.seeds.get(strategy, SEEDS))
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Fit on the row's training tasks, place and judge training and test tasks."""
        known = self._recorded(cell, folder)
        if known:
            return known
        budget = Budget(fit_s=FIT_S, plan_s=PLAN_S)
        row, strategy = self.task_rows[str(cell["task"])], str(cell["strategy"])
        return contest(row, strategy, int(cell["seed"] or 0), folder, budget)

    def own_columns(self, task: str, split: str, strategy: str, part: pd.DataFrame) -> Mapping[str, object]:
        """Give a study's own columns of the table of means, by the rows of one task set, split and strategy."""
        return {}

    def means(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Average over seeds, with the relation to random placement; one row a task set, split and strategy."""
        made = []
        random = rows[rows["strategy"] == self.random].groupby(["task", "split"])[self.measure].mean().to_dict()
        for (task, split, strategy), part in rows.groupby(["task", "split", "strategy"], sort=False):
            mean, base = float(part[self.measure].mean()), random.get((task, split))
            made.append(
                {
                    "task": task,
                    "devices": self.task_rows[task].devices,
                    "split": split,
                    "strategy": strategy,
                    "backend": "simulated",
                    f"{self.measure}_mean": mean,
                    f"{self.measure}_std": float(part[self.measure].std(ddof=1)),
                    "n": len(part),
                    "vs_random_pct": 100.0 * (base / mean - 1.0) if base else None,
                    **self.own_columns(task, split, strategy, part),
                    "tasks": int(part["tasks"].min()),
                    "infeasible": int(part["infeasible"].max()),
                    "oracle_calls": None if strategy in self.asking else int(part["oracle_calls"].max()),
                    "fit_cpu_s": float(part["fit_cpu_s"].mean()),
                    "plan_cpu_s": float(part["plan_cpu_s"].mean()),
                }
            )
        order = {name: number for number, name in enumerate(self.task_rows)}
        return pd.DataFrame(made).sort_values(
            ["task", "split", f"{self.measure}_mean"],
            key=lambda column: column.map(order) if column.name == "task" else column,
            kind="stable",
        )

    def _recorded(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Read the cell's rows in the results of the study that has the same; none where it was not run there."""
        if self.same_as is None:
            return ()
        owner, name = self.same_as
        other = find_reproduction(owner).study(name)
        record = cell_store(folder.parents[1], owner, name).latest().get(cell_key(name, other.version, cell))
        return record.rows if record and record.is_of(cell_version(other, cell)) else ()
