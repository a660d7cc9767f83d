"""A study, what a comparison needs besides trials: a grid of cells, a function that judges one, a summary of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.records.cell import Cell, CellRecord, Row, Scalar, SeriesRow
from shardbench.report.plot import Plot
from shardbench.studies.places import Place, contest_places
from shardbench.trials.evaluate import Answer, Planner

__all__ = ["Cell", "Plot", "Row", "Scalar", "Study", "Tables", "grid"]

Tables = Mapping[str, pd.DataFrame]
"""Tables by the names of their files."""
_WHO = ("strategy", "seed")
"""Names in cells that say who is asked, and not what."""


def grid(**parameters: Iterable[Scalar]) -> list[Cell]:
    """List one cell for each choice of a value of every parameter; the last parameter varies fastest."""
    return [dict(zip(parameters, values)) for values in product(*parameters.values())]


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """Cells that run by themselves, in any order and process, and the tables that their rows make.

    Every cell becomes one record line; a cell that has a record is not run again.
    """

    name: str
    title: str
    """What it shows, in a sentence or two for the readers of its page."""
    cells: Callable[[bool], Sequence[Cell]]
    """Lists what to run; given True, what takes minutes. Cells of a quick run are some of the full run's."""
    judge: Callable[..., SeriesRow | Sequence[SeriesRow]]
    """Returns a cell's rows, or its only one, by ``judge(folder, **cell)``; the same for the same cell, times apart.

    ``folder`` is there for what may be kept between runs (checkpoints, by content key).
    """
    summary: Callable[[pd.DataFrame], pd.DataFrame | Tables] = lambda rows: rows
    """Makes tables by file name, or the only one, which has the study's name; by default it is of all rows.

    Rows have the cells' columns, then their own.
    """
    plots: Sequence[Plot] = ()
    backend: str = "simulated"
    """Where its numbers come from: ``simulated``, ``measured`` or ``counted``, a column of every row."""
    version: int = 1
    """Raise it when the meaning of a cell's rows changes: cells on record are then run again."""
    columns: Sequence[str] = ()
    """Order of the rows' columns in tables, after the cells'; those not named follow by name."""
    owner: str = ""
    """The baseline or common study that it belongs to, as its reproduction says."""
    uses: Sequence[str] = ()
    """Strategies that its cells ask beside the one that a cell names: where one has a new version, they run again."""
    timeout_s: float = 7200.0
    """Wall seconds of one cell, after which its process is ended; the longest on record took 25 minutes."""
    strategies: Sequence[str] = ()
    """Strategies that it poses the same tasks to, as a cell's ``strategy``: others may enter. None where none may."""
    exclusive: bool = False
    """True where wall time is measured: cells then run one after the other."""
    compared_by: str = "cost_ms"
    """The column by which strategies that it poses the same tasks to are compared; less is better."""
    optional: Callable[[Cell], bool] = lambda cell: False
    """Tells whether ``cells`` lists a cell only where its device or data are at hand: results may lack it."""
    holds: Callable[[CellRecord], bool] = lambda record: True
    """Tells whether a record is of what the cell asks here, where versions do not say so: machines may change."""
    beside: Callable[[pd.DataFrame, Path], Tables] | None = None
    """Makes the tables in place of ``summary`` where they show other records of the results folder as well."""
    ranked: Callable[[pd.DataFrame, pd.DataFrame, str], Iterable[Place]] | None = None
    """Says in place of ``contest_places`` which place a strategy has, as ``places`` does."""
    brought: bool = False
    """True where ``judge`` also takes ``tell``, who hears of every answer, and ``planners``, who bring the plans."""

    def strategies_of(self, cell: Cell) -> set[str]:
        """Name all strategies that a cell asks: its own, or else the paper's, and what the study uses."""
        own = cell.get("strategy", self.owner)
        return {*self.uses, *([own] if isinstance(own, str) and own else [])}

    def entering(self, strategy: str, quick: bool) -> Sequence[Cell]:
        """List the cells by which a strategy that it does not name enters: every task once, by its first seed."""
        tasks: dict[tuple[object, ...], Cell] = {}
        for cell in self.cells(quick) if self.strategies else ():
            task = tuple(value for name, value in cell.items() if name not in _WHO)
            tasks.setdefault(task, {**cell, "strategy": strategy})
        return tuple(tasks.values())

    def run(self, cell: Cell, folder: Path) -> list[SeriesRow]:
        """Return the rows of one cell, each with its backend."""
        rows = self.judge(folder, **cell)
        return [{"backend": self.backend, **row} for row in ([rows] if isinstance(rows, Mapping) else rows)]

    def telling(self, listener: Callable[[Answer[Any]], None]) -> "Study":
        """Return the study as one that tells ``listener`` of the answers that its rows are made from, if it has any."""
        return replace(self, judge=partial(self.judge, tell=listener)) if self.brought else self

    def judging(self, planners: Callable[[str], Planner]) -> "Study":
        """Return the study as one that asks no strategy: ``planners`` gives by a row's budget who brings its plan.

        Raises BadInput where the study has no plans to be brought.
        """
        if not self.brought:
            raise BadInput(f"the study {self.name} judges no plans that are brought to it")
        return replace(self, judge=partial(self.judge, planners=planners))

    def tables(self, rows: pd.DataFrame, results: Path | None = None) -> Tables:
        """Make tables by file name of the rows, and of other records of the results folder where it shows some."""
        if self.beside is not None and results is not None:
            return self.beside(rows, results)
        summary = self.summary(rows)
        return summary if isinstance(summary, Mapping) else {self.name: summary}

    def places(self, own: pd.DataFrame, others: pd.DataFrame, strategy: str) -> Sequence[Place]:
        """Say which place a strategy has: ``own`` are the rows of a run, ``others`` stand elsewhere."""
        if self.ranked is not None:
            return tuple(self.ranked(own, others, strategy))
        if not self.strategies:
            return ()
        tasks = [name for name in self.cells(False)[0] if name not in _WHO]
        if "split" in own:  # those that nothing was learned from
            own = own[own["split"] == "test"]
            others = others[others["split"] == "test"] if len(others) else others
        return contest_places(own, others, strategy, self.compared_by, tasks)
