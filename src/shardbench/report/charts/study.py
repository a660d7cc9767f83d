"""A study's plot of its table: lines or grouped bars with their intervals, one panel a facet."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.report.charts.look import SERIES, SHAPES, Chart
from shardbench.report.plot import Plot
from shardbench.report.tables.text import column_words

_DASHES = ([1, 0], [7, 4], [2, 3], [9, 3, 2, 3])


def plot_chart(plot: Plot, frame: pd.DataFrame) -> Chart:
    """Return marks of ``y`` over ``x``, a colour a series, a panel a facet, all with one y axis.

    Intervals are drawn where ``low`` and ``high`` are named. Raises BadInput where the table lacks a column.
    """
    columns = [name for name in (plot.x, plot.y, plot.series, plot.low, plot.high, plot.facet) if name is not None]
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        raise BadInput(f"plot '{plot.title}': table {plot.table} has no column '{absent[0]}'")
    rows = frame[list(dict.fromkeys(columns))].dropna(subset=[plot.x, plot.y])
    numeric = pd.api.types.is_numeric_dtype(rows[plot.x]) and not plot.bars
    texts = [name for name in (None if numeric else plot.x, plot.series, plot.facet) if name is not None]
    rows = rows.assign(**{name: rows[name].map(_text) for name in texts})
    if plot.shown:
        rows = rows[rows[str(plot.series)].isin(plot.shown)]
    base = alt.Chart(rows).encode(**_axes(plot, rows, numeric=numeric))
    marks = [base.mark_bar() if plot.bars else base.mark_line(point=True)]
    if plot.low is not None and plot.high is not None:
        ends = {"y": alt.Y(_field(plot.low, "Q")), "y2": _field(plot.high, "")}
        # Without this a rule gets points, too.
        marks.append(base.mark_rule(point=False).encode(**ends))
    layers = alt.layer(*marks, height=300)
    if plot.facet is None:
        return layers
    panels = list(dict.fromkeys(rows[plot.facet]))
    facet = alt.Facet(_field(plot.facet, "N"), title=column_words(plot.facet), sort=panels)
    # Each panel has both axes, so that a page may put them below each other.
    drawn = alt.layer(*marks).facet(facet=facet, columns=2).resolve_scale(x="independent")
    panels_with_axes: alt.FacetChart = drawn.resolve_axis(x="independent", y="independent")
    return panels_with_axes


def _axes(plot: Plot, rows: pd.DataFrame, *, numeric: bool) -> dict[str, Any]:
    x = {"scale": alt.Scale(zero=False)} if numeric else {"sort": None, "axis": alt.Axis(labelAngle=-30)}
    y_scale = alt.Scale(type="log") if plot.log_y else alt.Scale(zero=plot.bars)
    shown: dict[str, Any] = {
        "x": alt.X(_field(plot.x, "Q" if numeric else "N"), title=column_words(plot.x), **x),
        "y": alt.Y(_field(plot.y, "Q"), title=column_words(plot.y), scale=y_scale),
        "tooltip": [alt.Tooltip(_field(str(name), "N"), title=column_words(str(name))) for name in rows.columns],
    }
    if plot.series is None:
        return shown
    names = list(plot.shown or dict.fromkeys(rows[plot.series]))
    series = _field(plot.series, "N")
    looks: dict[str, Any] = {"title": column_words(plot.series), "sort": names}
    shown["color"] = alt.Color(series, scale=alt.Scale(domain=names, range=list(SERIES)), **looks)
    forms = [number // len(SERIES) % len(SHAPES) for number in range(len(names))]
    if plot.bars:
        shown["xOffset"] = alt.XOffset(series, sort=names)
    else:
        shown["shape"] = alt.Shape(series, scale=alt.Scale(domain=names, range=[SHAPES[i] for i in forms]), **looks)
        dashes = alt.Scale(domain=names, range=[_DASHES[i] for i in forms])
        shown["strokeDash"] = alt.StrokeDash(series, scale=dashes, **looks)
    return shown


def _field(column: str, kind: str) -> str:
    """Return a column as Altair takes it: dots and brackets are part of its name."""
    name = column.replace("\\", "\\\\").replace(".", "\\.").replace("[", "\\[").replace("]", "\\]")
    return f"{name}:{kind}" if kind else name


def _text(value: object) -> str:
    return f"{float(value):.10g}" if isinstance(value, float | np.floating) else str(value)
