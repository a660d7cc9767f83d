"""What a plot of a table shows, apart from how it is drawn."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from pydantic.dataclasses import dataclass

from shardbench.base.errors import BadInput
from shardbench.base.serialise import STRICT
from shardbench.report.page.palette import Look, looks


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
        columns = [self.x, self.y, self.series, self.low, self.high, self.facet]
        absent = [name for name in columns if name is not None and name not in frame.columns]
        if absent:
            raise BadInput(f"plot '{self.title}': table {self.table} has no column '{absent[0]}'")
        return [*(self.shown or dict.fromkeys(frame[self.series]))] if self.series else [None]

    def facets_of(self, frame: pd.DataFrame) -> list[Any]:
        """Return the values that have a panel each, one of None where there is one panel."""
        return list(dict.fromkeys(frame[self.facet])) if self.facet else [None]

    def part_of(self, frame: pd.DataFrame, facet: object) -> pd.DataFrame:
        """Return the rows of a panel, all where there is one panel."""
        return frame if facet is None else frame[frame[self.facet] == facet]

    def series_points(self, part: pd.DataFrame, series: Sequence[Any]) -> Iterator[tuple[int, Any, Look, pd.DataFrame]]:
        """Yield number, name, look and known points of each series that has some in the part."""
        for number, (name, look) in enumerate(zip(series, looks(self.series, series))):
            rows = part if name is None else part[part[self.series] == name]
            points = rows.dropna(subset=[self.x, self.y])
            if len(points):
                yield number, name, look, points
