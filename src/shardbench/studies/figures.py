"""Plots of studies (plotly), out of a Plot and its table."""

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from shardbench.base.errors import BadInput
from shardbench.report.figures import COLOURS
from shardbench.studies.study import Plot

_HEIGHT_PX = 380
_PANELS_A_ROW = 4


def study_figure(plot: Plot, frame: pd.DataFrame) -> go.Figure:
    """Lines with markers (or bars) of ``y`` over ``x``, one colour a series, one panel a facet.

    Intervals are drawn where ``low`` and ``high`` are named. Raises BadInput where the table
    lacks a column.
    """
    named = [plot.x, plot.y, plot.series, plot.low, plot.high, plot.facet]
    absent = [name for name in named if name is not None and name not in frame.columns]
    if absent:
        raise BadInput(f"plot '{plot.title}': table {plot.table} has no column '{absent[0]}'")
    facets = list(dict.fromkeys(frame[plot.facet])) if plot.facet else [None]
    columns = min(_PANELS_A_ROW, len(facets))
    lines = -(-len(facets) // columns)
    titles = [f"{plot.facet} = {facet}" if plot.facet else "" for facet in facets]
    figure = make_subplots(lines, columns, subplot_titles=titles, shared_yaxes=True, vertical_spacing=0.35 / lines)
    series = [*(plot.shown or dict.fromkeys(frame[plot.series]))] if plot.series else [None]
    for panel, facet in enumerate(facets):
        part = frame if facet is None else frame[frame[plot.facet] == facet]
        for number, name in enumerate(series):
            points = part if name is None else part[part[plot.series] == name]
            points = points.dropna(subset=[plot.x, plot.y])
            if not len(points):
                continue
            trace = _trace(plot, points, name, COLOURS[number % len(COLOURS)])
            trace.showlegend = name is not None and panel == 0
            figure.add_trace(trace, panel // columns + 1, panel % columns + 1)
    figure.update_layout(
        template="none", height=_HEIGHT_PX * lines, margin={"l": 10, "r": 20, "t": 40, "b": 50}, barmode="group",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#1f2328"},
        legend={"orientation": "v", "x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top"},
    )  # fmt: skip
    figure.update_xaxes(title=plot.x, gridcolor="#d8dee4", automargin=True, type="log" if plot.log_x else None)
    figure.update_yaxes(gridcolor="#d8dee4", automargin=True, type="log" if plot.log_y else None)
    for line in range(lines):
        figure.update_yaxes(title=plot.y, row=line + 1, col=1)
    return figure


def _trace(plot: Plot, points: pd.DataFrame, name: object, colour: str) -> go.Scatter | go.Bar:
    error = None
    if plot.low is not None and plot.high is not None:
        error = {
            "type": "data", "symmetric": False, "thickness": 1.2,
            "array": (points[plot.high] - points[plot.y]).tolist(),
            "arrayminus": (points[plot.y] - points[plot.low]).tolist(),
        }  # fmt: skip
    shared = {
        "x": points[plot.x].tolist(), "y": points[plot.y].tolist(), "error_y": error,
        "name": "" if name is None else str(name), "legendgroup": str(name),
    }  # fmt: skip
    if plot.bars:
        return go.Bar(**shared, marker_color=colour)
    return go.Scatter(**shared, mode="lines+markers", line={"color": colour}, marker={"size": 7})
