"""A study: what a comparison needs besides trials (task sets, sensitivities, training curves)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.records.cell import Cell, CellRecord, Row, Scalar, SeriesRow
from shardbench.report.page.plot import Plot
from shardbench.runs.evaluate import Answer, Planner
from shardbench.studies.places import contest_places

__all__ = ["Cell", "Plot", "Row", "Scalar", "Study"]

_WHO = ("strategy", "seed")
"""Names in cells that say who is asked, and not what."""


class Study(ABC):
    """Cells that run by themselves, in any order and process, and the tables that their rows make.

    Every cell becomes one record line; a cell that has a record is not run again.
    """

    name: str
    version: int = 1
    """Raise it when the meaning of a cell's rows changes: cells on record are then run again."""
    columns: Sequence[str] = ()
    """Order of the rows' columns in tables, after the cells'; those not named follow by name."""
    uses: Sequence[str] = ()
    """Strategies that its cells ask beside the one that a cell names: where one has a new version, they run again."""
    timeout_s: float = 7200.0
    """Wall seconds of one cell, after which its process is ended; the longest on record took 25 minutes."""
    strategies: Sequence[str] = ()
    """Strategies that it poses the same tasks to, as a cell's ``strategy``: others may enter. None where none may."""
    exclusive: bool = False
    """True where wall time is measured: cells then run one after the other."""

    @property
    def compared_by(self) -> str:
        """Return the column by which strategies that it poses the same tasks to are compared; less is better."""
        return "cost_ms"

    def strategies_of(self, cell: Cell) -> set[str]:
        """Name all strategies that a cell asks: its own, and what the study uses."""
        own = cell.get("strategy")
        return {*self.uses, *([own] if isinstance(own, str) else [])}

    @abstractmethod
    def cells(self, quick: bool) -> Sequence[Cell]:
        """List what to run; ``quick`` asks for minutes. Cells of a quick run are some of the full run's."""

    def entering(self, strategy: str, quick: bool) -> Sequence[Cell]:
        """List the cells by which a strategy that it does not name enters: every task once, by its first seed."""
        tasks: dict[tuple[object, ...], Cell] = {}
        for cell in self.cells(quick) if self.strategies else ():
            task = tuple(value for name, value in cell.items() if name not in _WHO)
            tasks.setdefault(task, {**cell, "strategy": strategy})
        return tuple(tasks.values())

    @abstractmethod
    def run(self, cell: Cell, folder: Path) -> Sequence[SeriesRow]:
        """Give the rows of one cell, each with its ``backend``; the same for the same cell, times apart.

        ``folder`` is there for what may be kept between runs (checkpoints, by content key).
        """

    def telling(self, listener: Callable[[Answer[Any]], None]) -> "Study":
        """Return the study as one that tells ``listener`` of the answers that its rows are made from, if it has any."""
        return self

    def judging(self, planners: Callable[[str], Planner]) -> "Study":
        """Return the study as one that asks no strategy: ``planners`` gives by a row's budget who brings its plan.

        Raises BadInput where the study has no plans to be brought.
        """
        raise BadInput(f"the study {self.name} judges no plans that are brought to it")

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make tables by file name; ``rows`` has the cells' columns, then the rows' own.

        By default all of them as one table with the study's name.
        """
        return {self.name: rows}

    def tables_beside(self, rows: pd.DataFrame, results: Path) -> Mapping[str, pd.DataFrame]:
        """Make ``tables``, for studies that show other records of the results folder beside their own rows."""
        return self.tables(rows)

    def holds(self, record: CellRecord) -> bool:
        """Tell whether a record is of what the cell asks here, where its code does not say so: machines may change."""
        return True

    def places(self, own: pd.DataFrame, others: pd.DataFrame, strategy: str) -> Sequence[str]:
        """Say in lines which place a strategy has: ``own`` are the rows of a run, ``others`` stand elsewhere."""
        if not self.strategies:
            return ()
        tasks = [name for name in self.cells(False)[0] if name not in _WHO]
        if "split" in own:  # those that nothing was learned from
            own = own[own["split"] == "test"]
            others = others[others["split"] == "test"] if len(others) else others
        return contest_places(own, others, strategy, self.compared_by, tasks)

    def optional(self, cell: Cell) -> bool:
        """Tell whether ``cells`` lists the cell only where its device or data are at hand: results may lack it."""
        return False

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot ``tables``; there is no plot by default."""
        return ()
