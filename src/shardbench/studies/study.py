"""A study: what a comparison needs besides trials (task sets, sensitivities, training curves)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from pydantic.dataclasses import dataclass

from shardbench.base.serialise import STRICT

Scalar = str | int | float | bool | None
Cell = dict[str, Scalar]
"""Parameters of one unit of work: small, plain, and complete (a seed among them where one is used)."""
Row = dict[str, Scalar]
"""One row of numbers and words that a cell gives."""

BACKENDS = ("simulated", "measured", "counted")
"""``backend`` of a row: the cost model's, timed here, or exact counting and arithmetic."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Plot:
    """A plot of one of the study's tables; every field but ``title`` and ``table`` names a column."""

    title: str
    """A sentence that says what is shown, units included."""
    table: str
    x: str
    y: str
    series: str | None = None
    low: str | None = None
    high: str | None = None
    facet: str | None = None
    """One panel a value, side by side."""
    log_x: bool = False
    log_y: bool = False
    shown: tuple[str, ...] = ()
    """Values of ``series`` to draw, in this order; all by default."""
    bars: bool = False
    """Grouped bars over the values of ``x`` instead of lines."""


class Study(ABC):
    """Cells that run by themselves, in any order and process, and the tables that their rows make.

    Every cell becomes one record line; a cell that has a record is not run again.
    """

    name: str
    version: int = 1
    """Raise it when the meaning of a cell's rows changes: cells on record are then run again."""
    columns: Sequence[str] = ()
    """Order of the rows' columns in tables, after the cells'; those not named follow by name."""
    exclusive: bool = False
    """Whether wall time is measured: cells then run one after the other."""

    @abstractmethod
    def cells(self, quick: bool) -> Sequence[Cell]:
        """What to run; ``quick`` asks for minutes. Cells of a quick run are some of the full run's."""

    @abstractmethod
    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Rows of one cell, each with its ``backend``; the same for the same cell, times apart.

        ``folder`` is there for what may be kept between runs (checkpoints, by content key).
        """

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Tables by file name; ``rows`` has the cells' columns, then the rows' own.

        By default all of them as one table with the study's name.
        """
        return {self.name: rows}

    def optional(self, cell: Cell) -> bool:
        """Whether ``cells`` lists the cell only where its device or data are at hand: results may lack it."""
        return False

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plots of ``tables``; none by default."""
        return ()
