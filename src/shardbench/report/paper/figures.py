"""Figures of a group, or of any table, for papers: matplotlib, one column wide, fonts within, the same bytes again.

By matplotlib: the page's own SVG is made for a screen, and no PDF.
"""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.records.trial import Backend
from shardbench.report.groups import Group, Row
from shardbench.report.page.palette import LIGHT, Look, strategy_look
from shardbench.report.page.plot import Plot
from shardbench.report.page.profiles import LARGEST, NAMED, PerformanceProfile
from shardbench.report.paper.latex import COLUMN_IN, figure_tex
from shardbench.report.tables.suite_tables import collective_bytes, collectives_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": 7.0,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.4,
    "grid.color": "#d8dee4",
    "lines.linewidth": 1.0,
    "lines.markersize": 3.0,
    "legend.fontsize": 6.0,
    "legend.title_fontsize": 6.0,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: publishers refuse the Type 3 fonts that are matplotlib's default
    "svg.fonttype": "path",
    "svg.hashsalt": "shardbench",
    "figure.constrained_layout.use": True,
}
_NO_DATES: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
_MARKS, _DASHES, _HATCHES = "osD^", ("-", "--", ":", "-."), ("", "////", "....", "xxxx")
"""A mark, dashes and a hatch for each form of a look."""
_INK, _GREY, _LIGHT = "#1f2328", "#8c959f", "#c4cad0"
_TICKS = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0)
"""Factors at which the axis of profiles is marked."""
_ROW_IN, _FRAME_IN, _PANEL_IN = 0.15, 0.62, 1.9
_LOG_FROM = 8.0
"""An axis is logarithmic from this ratio of the largest to the smallest value on."""
_PANELS_A_ROW = 2
_TITLE = 24
"""A line above one of two panels has so many letters."""


@contextmanager
def _styled() -> Iterator[None]:
    try:
        from matplotlib import rc_context  # noqa: PLC0415 - an extra of the package
    except ModuleNotFoundError as error:
        raise BadInput("figures for papers need matplotlib: install shardbench[papers]") from error
    with rc_context(STYLE):
        yield


@_styled()
def figure_files(figure: "Figure", name: str, caption: str) -> dict[str, bytes]:
    """Return PDF and SVG of a figure, and the LaTeX that shows it, by file name, the same bytes each time."""
    files = {}
    for form, metadata in _NO_DATES.items():
        with BytesIO() as content:
            figure.savefig(content, format=form, metadata=metadata)
            files[f"{name}.{form}"] = content.getvalue()
    return {**files, f"{name}.tex": figure_tex(name, caption).encode()}


@_styled()
def group_figures(group: Group) -> dict[str, tuple[str, "Figure"]]:
    """Return captions and figures by name, of a group's rows that are ok; none where no row is."""
    rows = sorted(group.ok_rows, key=lambda row: (-group.estimate(row).value, row.strategy))
    if not rows:
        return {}
    simulated = group.condition.backend is Backend.SIMULATED
    interval = (
        "bars are the 95 % band under draws of the model's constants and form; dotted: proven lower bound on the mean "
        "step of any plan on devices"
        if simulated
        else "bars are 95 % intervals by the noise of all trials (Student's t)"
    )
    clock = "of the cost model" if simulated else "CPU time where ranks have one"
    kernels = f"Embedding kernels (forward and backward), ms per iteration ({clock}): a dot a rank and trial."
    bytes_caption = "Bytes that all ranks send per iteration, by collective; counted."
    return {
        "steps": (f"Step of the slowest rank, ms; {interval}.", _steps(group, rows)),
        "balance": (kernels, _ranks(group, rows)),
        "traffic": (bytes_caption, _traffic(rows)),
    }


def _figure(height_in: float, rows: int = 1, columns: int = 1) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(COLUMN_IN, height_in))
    axes = figure.subplots(rows, columns, squeeze=False, sharey=columns > 1)
    return figure, [one for line in axes for one in line]


def _name_rows(axes: "Axes", rows: list[Row], group: Group | None = None) -> None:
    """Write names of rows on the left; rows that failed stand below them, with their outcome."""
    failed = [row for row in group.rows if not row.ok] if group is not None else []
    names = [f"{row.strategy}: {row.worst.outcome.value}" for row in failed] + [row.title for row in rows]
    axes.set_yticks([number - len(failed) for number in range(len(names))], names)
    axes.set_ylim(-len(failed) - 0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0)


def _spread_axis(axes: "Axes", values: Iterable[float]) -> None:
    """Make the axis logarithmic where the values are far apart; zeros stand at its left."""
    values = list(values)
    positive = [value for value in values if value > 0]
    if positive and max(positive) > _LOG_FROM * min(positive):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator  # noqa: PLC0415

        if len(positive) < len(values):
            axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
            low, high = math.ceil(math.log10(2.0 * min(positive))), math.floor(math.log10(max(positive)))
            axes.set_xticks([0.0, *(10.0**power for power in range(low, high + 1))], minor=False)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_locator(NullLocator())
            return
        axes.set_xscale("log")
        decades = math.log10(max(positive) / min(positive))
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())


def _steps(group: Group, rows: list[Row]) -> "Figure":
    figure, (axes,) = _figure(_FRAME_IN + _ROW_IN * len(group.rows))
    for number, row in enumerate(rows):
        step = group.estimate(row)
        ends = [[0.0], [0.0]]
        if step.low is not None and step.high is not None:
            ends = [[step.value - step.low], [step.high - step.value]]
        colour = LIGHT[0] if row.competes else _GREY
        axes.errorbar([step.value], [number], xerr=ends, fmt="o", color=colour, elinewidth=0.8, capsize=0.0)
    bounds = [r.step_bound_ms for row in rows for r in row.records if r.bounded and r.step_bound_ms is not None]
    values = [group.estimate(row).value for row in rows]
    if bounds:
        axes.axvline(min(bounds), color=_INK, linestyle=":", linewidth=0.8)
        values.append(min(bounds))
    _spread_axis(axes, values)
    _name_rows(axes, rows, group)
    axes.set_xlabel("ms per step")
    return figure


def _ranks(group: Group, rows: list[Row]) -> "Figure":
    figure, (axes,) = _figure(_FRAME_IN + _ROW_IN * len(group.rows))
    every: list[float] = []
    for number, row in enumerate(rows):
        times = row.kernels_ms
        if not times:
            continue
        every += times
        axes.plot([min(times), max(times)], [number] * 2, color=_GREY, linewidth=0.8, zorder=1)
        colour = LIGHT[0] if row.competes else _GREY
        axes.plot(times, [number] * len(times), "o", color=colour, alpha=0.5, markeredgewidth=0.0)
    _spread_axis(axes, every)
    _name_rows(axes, rows, group)
    axes.set_xlabel("ms of embedding kernels per iteration")
    return figure


def _traffic(rows: list[Row]) -> "Figure":
    figure, (axes,) = _figure(_FRAME_IN + _ROW_IN * len(rows) + 0.45)
    names = collectives_of(record for row in rows for record in row.records)
    bytes_by_collective = {name: [row.typical(collective_bytes(name)) or 0.0 for row in rows] for name in names}
    total = max((sum(values) for values in zip(*bytes_by_collective.values())), default=0.0)
    unit, size = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if total >= s), ("B", 1.0))
    left = [0.0] * len(rows)
    nonzero = {name: values for name, values in bytes_by_collective.items() if any(values)}
    for number, (name, values) in enumerate(nonzero.items()):
        widths = [value / size for value in values]
        axes.barh(range(len(rows)), widths, 0.7, left, color=LIGHT[number % len(LIGHT)], label=name)
        left = [a + b for a, b in zip(left, widths)]
    if nonzero:
        figure.legend(loc="outside upper left", ncols=2)
    _name_rows(axes, rows)
    axes.set_xlabel(f"{unit} sent per iteration")
    return figure


@_styled()
def profile_figure(profiles: Sequence[PerformanceProfile]) -> "Figure":
    """Return performance profiles, the first in colour, the others grey; raises BadInput without matplotlib."""
    coloured, others = profiles[:NAMED], profiles[NAMED:]
    figure, (axes,) = _figure(_PANEL_IN + 0.3 + 0.12 * -(-len(coloured) // 3))
    for one in others:
        axes.step(*_staircase(one), where="post", color=_LIGHT, linewidth=0.6)
    for one in reversed(coloured):
        look = strategy_look(one.strategy)
        dash = _DASHES[look.form]
        axes.step(*_staircase(one), where="post", color=LIGHT[look.colour], linestyle=dash, label=one.strategy)
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    axes.set_xscale("log")
    axes.set_xlim(1.0, LARGEST)
    axes.set_ylim(0.0, 102.0)
    axes.xaxis.set_major_locator(FixedLocator(list(_TICKS)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("step over the shortest found" + (f" (grey: {len(others)} others)" if others else ""))
    axes.set_ylabel("% of problems")
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside upper left", ncols=3)
    return figure


def _staircase(one: PerformanceProfile) -> tuple[list[float], list[float]]:
    corners = one.corners(LARGEST)
    return [factor for factor, _ in corners], [100.0 * share for _, share in corners]


@_styled()
def table_figure(plot: Plot, frame: pd.DataFrame) -> "Figure":
    """Return a study's plot; raises BadInput where the table lacks a column, or matplotlib is missing."""
    series, facets = plot.series_of(frame), plot.facets_of(frame)
    columns = min(_PANELS_A_ROW, len(facets))
    lines = -(-len(facets) // columns)
    legend = (1 - (-len(series) // 3)) * 0.12 if plot.series else 0.0
    figure, axes = _figure(_PANEL_IN * lines + legend, lines, columns)
    for place, (panel, facet) in enumerate(zip(axes, facets)):
        part = plot.part_of(frame, facet)
        for number, name, look, points in plot.series_points(part, series):
            style: dict[str, Any] = {"color": LIGHT[look.colour], "label": "" if name is None else str(name)}
            if plot.bars:
                places, shift = list(dict.fromkeys(part[plot.x])), number - (len(series) - 1) / 2
                style |= {"hatch": _HATCHES[look.form], "edgecolor": "white", "linewidth": 0.0}
                _bars(panel, plot, points, places, width=0.8 / len(series), shift=shift, style=style)
            else:
                _points(panel, plot, points, look, style)
        if facet is not None:
            panel.set_title(textwrap.fill(f"{plot.facet} = {facet}", _TITLE), fontsize=6.5)
        # Setting a linear scale, too, would undo the ticks that bars have.
        if plot.log_x:
            panel.set_xscale("log")
        if plot.log_y:
            panel.set_yscale("log")
        panel.set_xlabel(plot.x)
        if place % columns == 0:
            panel.set_ylabel(plot.y)
    for panel in axes[len(facets) :]:
        panel.set_axis_off()
    if plot.series:
        handles: dict[str, Any] = {}
        for panel in axes:
            handles |= {name: handle for handle, name in zip(*panel.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=3, title=plot.series)
    return figure


def _errors(plot: Plot, points: pd.DataFrame) -> list[list[float]] | None:
    if plot.low is None or plot.high is None:
        return None
    below, above = points[plot.y] - points[plot.low], points[plot.high] - points[plot.y]
    # A mean of chosen conditions may lie a rounding outside its ends.
    return [below.clip(lower=0.0).tolist(), above.clip(lower=0.0).tolist()]


def _bars(
    panel: "Axes",
    plot: Plot,
    points: pd.DataFrame,
    places: list[Any],
    *,
    width: float,
    shift: float,
    style: dict[str, Any],
) -> None:
    """Draw bars that are shifted from the middle of their places, by so many bars."""
    at = [places.index(value) + shift * width for value in points[plot.x]]
    errors = _errors(plot, points)
    panel.bar(at, points[plot.y].tolist(), width, yerr=errors, error_kw={"elinewidth": 0.6}, **style)
    panel.set_xticks(range(len(places)), [str(place) for place in places])


def _points(panel: "Axes", plot: Plot, points: pd.DataFrame, look: Look, style: dict[str, Any]) -> None:
    panel.errorbar(
        points[plot.x].tolist(), points[plot.y].tolist(), yerr=_errors(plot, points), elinewidth=0.6,
        marker=_MARKS[look.form], linestyle=_DASHES[look.form], **style,
    )  # fmt: skip
