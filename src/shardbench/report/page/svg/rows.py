"""Charts with a row a strategy: bars stacked of parts, and devices side by side; rows can be hidden one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from shardbench.report.page.palette import series_look
from shardbench.report.page.svg.marks import bar, dot, drawing, group, line, path, text, units
from shardbench.report.page.svg.scale import Scale, cap

WIDTH = 800
ROW = 24
_TOP, _AXIS = 4, 40
_GAP = 12
_CHARACTER = 6.7
"""A letter of 12.5 units is so wide on the average."""
_LEAST_LABELS, _MOST_LABELS = 80, 240
_VALUES = 96
_DOTS = 16
"""So many devices are drawn one by one; more are a box of their quartiles, with their least and most."""
_BAR = 15


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A row of parts one behind the other."""

    strategy: int
    """Its number on the page."""
    name: str
    parts: tuple[float, ...]
    """A length each, by series; all in the chart's unit."""
    value: str
    """What stands at the row's end."""
    words: str
    """All parts in words, for the pointer."""
    whole: float | None = None
    """Marked by a diamond, with its interval where that is known."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Devices:
    """A row of numbers, one a device (and trial), by series."""

    strategy: int
    name: str
    values: tuple[tuple[float, ...], ...]
    value: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A line through all rows."""

    value: float
    series: int


def stacked(name: str, rows: Sequence[Bars], axis: str, references: Sequence[Reference] = ()) -> str:
    """Return bars of all rows over one axis from 0; what passes its cap is cut and marked by an arrow."""
    ends = [max(sum(row.parts), row.whole or 0.0) for row in rows]
    return _chart(name, rows, axis, limit=cap(ends), draw=_bars, references=references)


def side_by_side(name: str, rows: Sequence[Devices], axis: str, references: Sequence[Reference] = ()) -> str:
    """Return devices of all rows over one axis from 0, each row's least and most joined; capped as ``stacked`` is."""
    ends = [max(map(max, filter(None, row.values)), default=0.0) for row in rows]
    limit = max(cap(ends), *(reference.value for reference in references), 0.0)
    return _chart(name, rows, axis, limit=limit, draw=_devices, references=references)


_Row = TypeVar("_Row", Bars, Devices)


def _chart(
    name: str,
    rows: Sequence[_Row],
    axis: str,
    *,
    limit: float,
    draw: Callable[[_Row, Scale], str],
    references: Sequence[Reference] = (),
) -> str:
    labels = max(_LEAST_LABELS, min(_MOST_LABELS, _CHARACTER * max(len(row.name) for row in rows) + _GAP))
    scale = Scale(low=0.0, high=limit, start=labels, stop=WIDTH - _VALUES)
    body = [_axis(scale, axis, ROW * len(rows), references)]
    for number, row in enumerate(rows):
        inside = [
            text(labels - 8, 16, row.name, anchor="end", kind="name"),
            draw(row, scale),
            text(WIDTH - _VALUES + 14, 16, row.value, kind="value"),
        ]
        body.append(group("".join(inside), strategy=row.strategy, at=(0, _TOP + ROW * number), words=row.words))
    height = _TOP + ROW * len(rows) + _AXIS
    return drawing(WIDTH, height, name, "".join(body), rows=(_TOP, ROW))


def _axis(scale: Scale, title: str, height: float, references: Sequence[Reference]) -> str:
    """Return the axis below the rows, with lines up through them; it moves up when rows are hidden."""
    parts = []
    for value, words in scale.ticks():
        x = scale.at(value)
        parts += [line(x, 0, x, -height, "grid"), text(x, 14, words, anchor="middle", kind="tick")]
    for reference in references:
        x = scale.at(reference.value)
        parts.append(line(x, 0, x, -height, f"reference {series_look(reference.series)}"))
    parts.append(text((scale.start + scale.stop) / 2, 32, title, anchor="middle", kind="tick"))
    return f'<g class="axis" transform="translate(0 {units(_TOP + height)})">{"".join(parts)}</g>'


def _bars(row: Bars, scale: Scale) -> str:
    shapes, before = [], 0.0
    for number, part in enumerate(row.parts):
        if part > 0 and not scale.beyond(before):
            start, stop = scale.at(before), scale.at(before + part)
            shapes.append(bar(start, 4, max(stop - start, 0.3), _BAR, f"fill {series_look(number)}"))
        before += part
    if row.whole is not None:
        if row.low is not None and row.high is not None:
            shapes.append(line(scale.at(row.low), 11.5, scale.at(row.high), 11.5, "interval"))
        x = scale.at(row.whole)
        shapes.append(path(f"M{units(x)} 7l4.5 4.5l-4.5 4.5l-4.5 -4.5z", "diamond"))
    beyond = scale.beyond(before) or (row.whole is not None and scale.beyond(row.whole))
    return "".join(shapes) + (_arrow(scale) if beyond else "")


def _devices(row: Devices, scale: Scale) -> str:
    shapes, beyond = [], False
    for number, values in enumerate(row.values):
        if not values:
            continue
        kind = series_look(number)
        y = 11.5 if len(row.values) == 1 else 7.5 + 8 * number
        beyond = beyond or scale.beyond(max(values))
        shapes.append(line(scale.at(min(values)), y, scale.at(max(values)), y, "range"))
        if len(values) <= _DOTS:
            shapes += [dot(scale.at(value), y, 3.4, f"point {kind}") for value in sorted(set(values))]
            continue
        quarter, half, most = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        start, stop = scale.at(quarter), scale.at(most)
        shapes.append(bar(start, y - 4, max(stop - start, 1.0), 8, f"fill {kind}"))
        shapes.append(line(scale.at(half), y - 5, scale.at(half), y + 5, "interval"))
        shapes.append(dot(scale.at(max(values)), y, 3.4, f"point {kind}"))
    return "".join(shapes) + (_arrow(scale) if beyond else "")


def _arrow(scale: Scale) -> str:
    return path(f"M{units(scale.stop + 3)} 6l6 5.5l-6 5.5z", "beyond")
