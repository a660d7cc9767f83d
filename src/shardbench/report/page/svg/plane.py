"""Charts of y over x: lines, steps and points, with their names at the right or by the points."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardbench.report.page.palette import Look
from shardbench.report.page.svg.marks import bar, dot, drawing, group, line, mark, path, polyline, text, units
from shardbench.report.page.svg.scale import Scale

_LETTER = 12.0


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The box of a chart: its size, and its two axes in place."""

    width: float
    height: float
    x: Scale
    y: Scale
    x_title: str
    y_title: str

    def draw(self, name: str, body: str) -> str:
        """Return the chart with its axes behind ``body``."""
        return drawing(self.width, self.height, name, self.inside(body))

    def inside(self, body: str) -> str:
        """Return the axes and ``body`` before them, as a part of a drawing."""
        return self._axes() + body

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place at which a point is drawn."""
        return self.x.at(x), self.y.at(y)

    def _axes(self) -> str:
        parts = []
        for value, words in self.y.ticks():
            y = self.y.at(value)
            parts += [line(self.x.start, y, self.x.stop, y, "grid")]
            parts.append(text(self.x.start - 6, y + 4, words, anchor="end", kind="tick"))
        names = self.x.names
        tilted = bool(names) and max(map(len, names)) * 6.2 > (self.x.stop - self.x.start) / len(names)
        for value, words in self.x.ticks():
            x = self.x.at(value)
            if tilted:
                opening = f'<g transform="translate({units(x)} {units(self.y.start + 12)}) rotate(-30)">'
                parts.append(f"{opening}{text(0, 0, words, anchor='end', kind='tick')}</g>")
                continue
            if not names:
                parts.append(line(x, self.y.start, x, self.y.stop, "grid"))
            parts.append(text(x, self.y.start + 15, words, anchor="middle", kind="tick"))
        middle = (self.x.start + self.x.stop) / 2
        parts.append(text(middle, self.height - 6, self.x_title, anchor="middle", kind="tick"))
        parts.append(text(4, self.y.stop - 10, self.y_title, kind="tick"))
        return "".join(parts)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points of one series, joined."""

    look: Look | None
    """A line in the background has none."""
    points: tuple[tuple[float, float], ...]
    name: str = ""
    """The name stands at the line's right end, where there is one."""
    strategy: int | None = None
    intervals: tuple[tuple[float, float], ...] = ()
    """Least and most of y for each point; empty where they are not known."""
    steps: bool = False
    """True where y stays until the next x."""
    marked: bool = True
    """True where the points are drawn."""


def lines(frame: Frame, curves: Sequence[Line]) -> str:
    """Return lines with their names, which keep a line's distance from each other."""
    ends = _spread_heights([frame.y.at(one.points[-1][1]) + 4 for one in curves if one.points and one.name], frame)
    labels = iter(ends)
    body = []
    for one in curves:
        if not one.points:
            continue
        places = [frame.at(x, y) for x, y in one.points]
        kind = "other" if one.look is None else str(one.look)
        parts = [polyline(_stepped(places) if one.steps else places, f"line {kind}")]
        for (x, _), (low, high) in zip(places, one.intervals):
            parts.append(line(x, frame.y.at(low), x, frame.y.at(high), f"line {kind}"))
        if one.marked and one.look is not None:
            parts += [mark(x, y, 3.2, one.look, "point") for x, y in places]
        if one.name:
            y = next(labels)
            parts.append(line(frame.x.stop + 2, places[-1][1], frame.x.stop + 10, y - 4, f"leader {kind}"))
            parts.append(line(frame.x.stop + 10, y - 4, frame.x.stop + 27, y - 4, f"line {kind}"))
            parts.append(text(frame.x.stop + 30, y, one.name, kind="name"))
        body.append(group("".join(parts), strategy=one.strategy, words=one.name))
    return "".join(body)


@dataclass(frozen=True, kw_only=True)
class NamedPoint:
    """A named point; hollow ones stand for what does not compare in full."""

    look: Look
    x: float
    y: float
    name: str
    words: str
    strategy: int | None = None
    hollow: bool = False
    reach: float | None = None
    """A second x that a line leads to."""


def points(frame: Frame, named_points: Sequence[NamedPoint]) -> str:
    """Return points with their names beside them where there is room, else reached by the pointer."""
    places = [frame.at(one.x, one.y) for one in named_points]
    # No name lies on a point.
    boxes = [(x - 5, x + 5, y + 4) for x, y in places]
    body = []
    for one in named_points:
        x, y = frame.at(one.x, one.y)
        parts = []
        if one.reach is not None:
            end = frame.x.at(one.reach)
            parts += [line(x, y, end, y, f"leader {one.look}"), dot(end, y, 2.4, f"hollow {one.look}")]
        parts.append(mark(x, y, 5, one.look, "hollow" if one.hollow else "point"))
        parts += _name_beside(one.name, x, y, frame, boxes)
        body.append(group("".join(parts), strategy=one.strategy, words=one.words))
    return "".join(body)


def columns(frame: Frame, series: int, of: int, look: Look, heights: Sequence[tuple[int, float]]) -> str:
    """Return bars of one series (of so many) at their categories; heights may be negative."""
    slot = 0.8 * (frame.x.stop - frame.x.start) / max(len(frame.x.names), 1)
    width = slot / of
    zero = frame.y.at(0.0)
    parts = []
    for category, height in heights:
        x = frame.x.at(category) - slot / 2 + series * width
        top = frame.y.at(height)
        parts.append(bar(x, min(top, zero), max(width - 0.6, 0.6), max(abs(zero - top), 0.4), f"fill {look}"))
    return "".join(parts)


def staircase(frame: Frame, corners: Sequence[tuple[float, float]]) -> str:
    """Return the frontier through points that are sorted by x, best y last: a step at each."""
    places = [frame.at(x, y) for x, y in corners]
    return polyline([*_stepped(places), (frame.x.stop, places[-1][1])], "frontier") if places else ""


def diagonal(frame: Frame) -> str:
    """Return the line on which x equals y, as far as both axes have it."""
    low, high = max(frame.x.low, frame.y.low), min(frame.x.high, frame.y.high)
    return path("M{} {}L{} {}".format(*map(units, (*frame.at(low, low), *frame.at(high, high)))), "frontier")


def _stepped(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    corners = [places[0]]
    for x, y in places[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    return corners


def _spread_heights(heights: Sequence[float], frame: Frame) -> list[float]:
    """Return heights of labels near those wanted, a line apart, in the order given."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    spaced: list[float] = []
    for i in order:
        spaced.append(max(heights[i], spaced[-1] + _LETTER) if spaced else heights[i])
    over = (spaced[-1] - frame.y.start) if spaced else 0.0
    if over > 0:
        limit = frame.y.start
        for place in reversed(range(len(spaced))):
            spaced[place] = min(spaced[place], limit)
            limit = spaced[place] - _LETTER
    in_order = [0.0] * len(heights)
    for i, y in zip(order, spaced):
        in_order[i] = y
    return in_order


def _name_beside(name: str, x: float, y: float, frame: Frame, boxes: list[tuple[float, float, float]]) -> list[str]:
    width = 6.5 * len(name)
    for start, anchor in ((x + 8, "start"), (x - 8 - width, "end")):
        for lower in (4.0, -6.0, 14.0, -16.0, 24.0):
            base = y + lower
            free = all(
                start + width < left or right < start or abs(base - other) > 10.5 for left, right, other in boxes
            )
            if free and start > frame.x.start and start + width < frame.width and base > frame.y.stop - 4:
                boxes.append((start, start + width, base))
                return [text(x + 8 if anchor == "start" else x - 8, base, name, anchor=anchor, kind="name")]
    return []
