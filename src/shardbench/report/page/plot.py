"""What a plot of a table shows, apart from how it is drawn."""

from typing import Any

import pandas as pd
from pydantic.dataclasses import dataclass

from shardbench.base.errors import BadInput
from shardbench.base.serialise import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Plot:
    """A plot of a table; every field but ``title`` and ``table`` names a column."""

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

    def series_of(self, frame: pd.DataFrame) -> list[Any]:
        """Return the series to draw, one of None where there are none; raises BadInput where a column is missing."""
        named = [self.x, self.y, self.series, self.low, self.high, self.facet]
        absent = [name for name in named if name is not None and name not in frame.columns]
        if absent:
            raise BadInput(f"plot '{self.title}': table {self.table} has no column '{absent[0]}'")
        return [*(self.shown or dict.fromkeys(frame[self.series]))] if self.series else [None]

    def facets_of(self, frame: pd.DataFrame) -> list[Any]:
        """Return the values that have a panel each, one of None where there is one panel."""
        return list(dict.fromkeys(frame[self.facet])) if self.facet else [None]
