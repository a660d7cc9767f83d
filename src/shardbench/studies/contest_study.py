"""A study that is a contest: rows of tasks x strategies x seeds."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from shardbench.model.strategy import Budget
from shardbench.records.cell import Cell, SeriesRow, cell_key
from shardbench.records.store import cell_store
from shardbench.studies.contest import contest
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.session import cell_code
from shardbench.studies.study import Study
from shardbench.tasks.pools import TaskRow

SEEDS = (0, 1, 2)
"""Of strategies with randomness; the others have the first."""
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
    """Strategies with randomness."""
    seeds: Mapping[str, Sequence[int]] = MappingProxyType({})
    """Of those that have others than SEEDS."""
    only: Mapping[str, Collection[str]] = MappingProxyType({})
    """Rows of those that are not on all of them."""
    same_as: tuple[str, str] | None = None
    """Owner and name of another contest of the very same cells: what it has on record by this code is not run again."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One a strategy, row and seed: a strategy after the other."""
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

    def _recorded(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Rows of the cell in the results of the study that has the same; none where it was not run there."""
        if self.same_as is None:
            return ()
        owner, name = self.same_as
        other = find_reproduction(owner).study(name)
        record = cell_store(folder.parents[1], owner, name).latest().get(cell_key(name, other.version, cell))
        return record.rows if record and record.made_by(cell_code(other, cell)) else ()
