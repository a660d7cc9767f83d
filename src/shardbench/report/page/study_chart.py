"""A study's plot of its table: lines or grouped bars, one panel a facet."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from shardbench.report.page.chart import Chart
from shardbench.report.page.palette import STRATEGY, looks
from shardbench.report.page.plot import Plot
from shardbench.report.page.svg.plane import Frame, Line, columns, lines
from shardbench.report.page.svg.scale import Scale, categories, span

_HEIGHT = 300
_ONE, _SEVERAL = 760, 400
"""Width of a chart of one panel, and of one of several."""


def plot_chart(plot: Plot, frame: pd.DataFrame) -> Chart:
    """Lines with markers (or bars) of ``y`` over ``x``, one colour a series, one panel a facet, all with one y axis.

    Intervals are drawn where ``low`` and ``high`` are named. Raises BadInput where the table lacks a column.
    """
    series, facets = plot.series_of(frame), plot.facets_of(frame)
    points = frame if plot.series is None else frame[frame[plot.series].isin(series)]
    points = points.dropna(subset=[plot.x, plot.y])
    drawings, titles, width = [], [], _ONE if len(facets) == 1 else _SEVERAL
    for facet in facets:
        part = plot.part_of(points, facet)
        if len(part):
            titles.append("" if facet is None else f"{_words(str(plot.facet))} = {_text(facet)}")
            drawings.append(_panel(plot, part, points, series, titles[-1], width=width))
    kind = "mark " if plot.series == STRATEGY and not plot.bars else ""
    keys = [(f"{kind}{look}", _text(name)) for look, name in zip(looks(plot.series, series), series) if plot.series]
    return Chart(
        caption=plot.title, drawings=tuple(drawings), legend=tuple(keys), titles=tuple(titles), panels=len(facets) > 1
    )


def _panel(
    plot: Plot, part: pd.DataFrame, all_points: pd.DataFrame, series: Sequence[object], title: str, *, width: float
) -> str:
    numeric = pd.api.types.is_numeric_dtype(part[plot.x]) and not plot.bars
    names = () if numeric else tuple(dict.fromkeys(map(_text, part[plot.x])))
    ends = 64.0, width - 16.0
    frame = Frame(
        width=width,
        height=_HEIGHT + (50 if names else 0),
        x=categories(names, *ends) if names else span(part[plot.x].astype(float), *ends, log=plot.log_x),
        y=_upwards(plot, all_points),
        x_title=_words(plot.x),
        y_title=_words(plot.y),
    )
    body: list[str] = []
    curves = []
    for number, _, look, rows in plot.series_points(part, series):
        x = rows[plot.x].astype(float) if numeric else rows[plot.x].map(lambda value: names.index(_text(value)))
        y = rows[plot.y].astype(float)
        if plot.bars:
            body.append(columns(frame, number, len(series), look, list(zip(x, y))))
            continue
        order = np.argsort(x.to_numpy(), kind="stable")
        pairs = list(zip(x.iloc[order].astype(float), y.iloc[order]))
        curves.append(Line(look=look, points=tuple(pairs), intervals=_intervals(plot, rows.iloc[order])))
    return frame.draw(f"{plot.title} {title}".strip(), "".join(body) + lines(frame, curves))


def _intervals(plot: Plot, rows: pd.DataFrame) -> tuple[tuple[float, float], ...]:
    if plot.low is None or plot.high is None:
        return ()
    ends = rows[[plot.low, plot.high]].astype(float)
    # A point without an interval has one of no length.
    filled = ends.where(ends.notna(), np.stack([rows[plot.y], rows[plot.y]], axis=1).astype(float))
    return tuple((float(low), float(high)) for low, high in filled.itertuples(index=False))


def _upwards(plot: Plot, points: pd.DataFrame) -> Scale:
    values = points[[plot.y, *filter(None, (plot.low, plot.high))]].astype(float).to_numpy().ravel()
    values = [float(value) for value in values if np.isfinite(value)]
    if plot.bars:
        values.append(0.0)
    return span(values, _HEIGHT - 46.0, 28.0, log=plot.log_y, zero=plot.bars)


def _words(column: str) -> str:
    return column.replace("_", " ")


def _text(value: object) -> str:
    if isinstance(value, float | np.floating):
        return f"{float(value):.10g}"
    return str(value)
