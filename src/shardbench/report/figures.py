"""Plots (plotly): of a group (step time by phase, embedding time per rank, traffic, model error), and of any table."""

from collections.abc import Callable
from operator import attrgetter

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from shardbench.base.errors import BadInput
from shardbench.model.strategy import Role
from shardbench.records.record import Record
from shardbench.records.trial import Backend
from shardbench.report.groups import Group, Row
from shardbench.report.plot import Plot
from shardbench.report.tables import collective_bytes, collectives_of, phase_ms, phases_of, rank_phase_ms

# Okabe and Ito's palette, told apart by the colour-blind, then two greys.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#7F7F7F", "#333333")
_INK, _GRID, _PAPER = "#1f2328", "#d8dee4", "#ffffff"
_ROW_PX = 34
_FRAME_PX = 150
_PANEL_PX = 380
_PANELS_A_ROW = 4
_MEAN_OF_RANKS = (
    "the mean over ranks of each rank's own time in the phase, its waits for other ranks in the exchanges. What lacks "
    "of the step is how far its slowest rank is behind the mean; medians of phases need not add up to a median."
)
_SLOWEST_RANK = (
    "the slowest rank's time in the phase, in each phase another one's; where measured, that counts waits for it "
    "in several phases, so that bars may pass the step."
)


def figures(group: Group) -> list[tuple[str, go.Figure]]:
    """(caption, figure) of every plot of a group; none where no row is ok."""
    rows = sorted((row for row in group.rows if row.ok), key=lambda row: (-row.step.value, row.strategy))
    if not rows:
        return []
    by_rank = group.condition.backend is Backend.MEASURED and all(
        record.timing is not None and record.timing.ranks for row in rows for record in row.records
    )
    made = [
        (
            f"Step time by phase. Bars: {_MEAN_OF_RANKS if by_rank else _SLOWEST_RANK} Diamond: typical step, its 95 % "
            "interval where it is known (cut off at the edge where it is wider than the plot).",
            _steps(rows, rank_phase_ms if by_rank else phase_ms),
        ),
        (
            "Embedding time of every rank (forward and backward kernels; CPU time where ranks have one), a dot each; "
            "the line joins fastest and slowest. Bounds hold for the slowest rank.",
            _ranks(group, rows),
        ),
        ("Bytes sent per iteration, all ranks together, by collective.", _traffic(rows)),
    ]
    if group.condition.backend is Backend.MEASURED:
        made.append(
            (
                "Predicted against measured embedding time (CPU time where ranks have one), a dot a rank and trial; "
                "on the line the model is right.",
                _model_error(rows),
            )
        )
    return made


def label(row: Row) -> str:
    """Name of a row on an axis."""
    return f"{row.strategy} (reference)" if row.worst.role is Role.SEARCH else row.strategy


def _steps(rows: list[Row], read: Callable[[str], Callable[[Record], float | None]]) -> go.Figure:
    figure = go.Figure()
    names = [label(row) for row in rows]
    phases = phases_of(record for row in rows for record in row.records)
    for number, phase in enumerate(phases):
        times = [row.typical(read(phase)) or 0.0 for row in rows]
        figure.add_bar(
            y=names, x=times, name=phase, orientation="h", marker_color=COLOURS[number % len(COLOURS)],
            hovertemplate=f"{phase}: %{{x:.4g}} ms<extra>%{{y}}</extra>",
        )  # fmt: skip
    steps = [row.step for row in rows]
    figure.add_scatter(
        y=names, x=[step.value for step in steps], name="step", mode="markers",
        marker={"color": _INK, "size": 8, "symbol": "diamond"},
        error_x={
            "type": "data", "symmetric": False, "color": _INK, "thickness": 1.5,
            # One trial has no interval; its marker has no bar.
            "array": [0.0 if step.high is None else step.high - step.value for step in steps],
            "arrayminus": [0.0 if step.low is None else step.value - step.low for step in steps],
        },
        hovertemplate="step: %{x:.4g} ms<extra>%{y}</extra>",
    )  # fmt: skip
    figure.update_layout(barmode="stack")
    # The interval of two trials can be ten times as long as any bar.
    bars = [sum(times) for times in zip(*(bar.x for bar in figure.data if bar.type == "bar"))]
    longest = max(*bars, *(step.value for step in steps), 0.0)
    return _styled(figure, len(rows), "ms per step").update_xaxes(range=[0.0, 1.4 * longest])


def _ranks(group: Group, rows: list[Row]) -> go.Figure:
    figure = go.Figure()
    for row in rows:
        points = [
            (time, f"rank {rank}, seed {record.spec.seed}, r{record.spec.repeat}")
            for record in row.records
            if record.timing
            for rank, time in enumerate(record.timing.kernels_ms)
        ]
        if not points:
            continue
        times = [time for time, _ in points]
        figure.add_scatter(
            y=[label(row)] * 2, x=[min(times), max(times)], mode="lines", showlegend=False, hoverinfo="skip",
            line={"color": "#8c959f", "width": 2},
        )  # fmt: skip
        figure.add_scatter(
            y=[label(row)] * len(points), x=times, mode="markers", showlegend=False, text=[text for _, text in points],
            marker={"color": COLOURS[0], "size": 9, "opacity": 0.65},
            hovertemplate="%{text}: %{x:.4g} ms<extra>%{y}</extra>",
        )  # fmt: skip
    for name, value, dash, colour in _references(group, rows):
        # A line as a trace, not as a shape with a text: it is named in the legend, where no label overlaps another.
        figure.add_scatter(
            y=[label(row) for row in rows], x=[value] * len(rows), mode="lines+markers", name=f"{name} {value:.4g} ms",
            line={"color": colour, "dash": dash, "width": 2}, hoverinfo="skip",
            # One row makes no line: the mark still shows the bound.
            marker={"symbol": "line-ns-open", "size": 14, "color": colour},
        )  # fmt: skip
    return _styled(figure, len(rows), "ms of embedding kernels per iteration", zero=True)


def _references(group: Group, rows: list[Row]) -> list[tuple[str, float, str, str]]:
    if group.condition.backend is not Backend.SIMULATED:
        return []
    found = []
    for name, number, dash, colour in (
        ("lower bound, any device move", attrgetter("bound_ms"), "dot", COLOURS[2]),
        ("lower bound, whole tables", attrgetter("whole_table_bound_ms"), "dash", COLOURS[3]),
    ):
        bounds = [number(record) for row in rows for record in row.records if record.bounded]
        known = [bound for bound in bounds if bound is not None]
        if known:
            found.append((name, min(known), dash, colour))
    return found


def _traffic(rows: list[Row]) -> go.Figure:
    figure = go.Figure()
    names = collectives_of(record for row in rows for record in row.records)
    sent = {name: [row.typical(collective_bytes(name)) or 0.0 for row in rows] for name in names}
    total = max((sum(values) for values in zip(*sent.values())), default=0.0)
    unit, size = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if total >= s), ("B", 1.0))
    for number, (name, values) in enumerate(sent.items()):
        if any(values):
            figure.add_bar(
                y=[label(row) for row in rows], x=[value / size for value in values], name=name, orientation="h",
                marker_color=COLOURS[number % len(COLOURS)],
                hovertemplate=f"{name}: %{{x:.4g}} {unit}<extra>%{{y}}</extra>",
            )  # fmt: skip
    figure.update_layout(barmode="stack")
    return _styled(figure, len(rows), f"{unit} sent per iteration")


def _model_error(rows: list[Row]) -> go.Figure:
    figure = go.Figure()
    largest = 0.0
    for number, row in enumerate(reversed(rows)):
        pairs = [
            pair
            for record in row.records
            if record.timing and record.predicted
            for pair in zip(record.predicted.embedding_ms, record.timing.kernels_ms)
        ]
        if not pairs:
            continue
        largest = max(largest, *(max(pair) for pair in pairs))
        figure.add_scatter(
            x=[predicted for predicted, _ in pairs], y=[measured for _, measured in pairs], name=label(row),
            mode="markers", marker={"size": 9, "opacity": 0.75, "color": COLOURS[number % len(COLOURS)]},
            hovertemplate="predicted %{x:.4g} ms, measured %{y:.4g} ms",
        )  # fmt: skip
    figure.add_scatter(
        x=[0, largest], y=[0, largest], mode="lines", name="predicted = measured", hoverinfo="skip",
        line={"color": "#8c959f", "dash": "dash"},
    )  # fmt: skip
    _styled(figure, 8, "predicted (ms)", zero=True)
    return figure.update_yaxes(title="measured (ms)", rangemode="tozero", type="linear")


def _styled(figure: go.Figure, rows: int, axis: str, *, zero: bool = False) -> go.Figure:
    figure.update_layout(
        template="none", height=_FRAME_PX + _ROW_PX * rows, margin={"l": 10, "r": 20, "t": 10, "b": 50},
        font={"family": "system-ui, sans-serif", "size": 13, "color": _INK}, paper_bgcolor=_PAPER, plot_bgcolor=_PAPER,
        legend={"orientation": "v", "x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top", "traceorder": "normal"},
        showlegend=True,
    )  # fmt: skip
    figure.update_xaxes(title=axis, gridcolor=_GRID, zerolinecolor=_GRID, automargin=True)
    if zero:
        figure.update_xaxes(rangemode="tozero")
    return figure.update_yaxes(gridcolor=_GRID, automargin=True, ticksuffix="  ")


def plot_figure(plot: Plot, frame: pd.DataFrame) -> go.Figure:
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
        template="none", height=_PANEL_PX * lines, margin={"l": 10, "r": 20, "t": 40, "b": 50}, barmode="group",
        font={"family": "system-ui, sans-serif", "size": 13, "color": _INK},
        legend={"orientation": "v", "x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top"},
    )  # fmt: skip
    figure.update_xaxes(title=plot.x, gridcolor=_GRID, automargin=True, type="log" if plot.log_x else None)
    figure.update_yaxes(gridcolor=_GRID, automargin=True, type="log" if plot.log_y else None)
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
