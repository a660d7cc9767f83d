"""SVG elements as text. Words are escaped here; looks are classes, so that one drawing serves light and dark."""

from collections.abc import Iterable
from html import escape

from shardbench.report.page.palette import Look


def units(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """Return words at a point of their baseline; ``anchor`` is start, middle or end."""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{units(x)}" y="{units(y)}"{at}{_class(kind)}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a line from one point to another."""
    return path(f"M{units(x1)} {units(y1)}L{units(x2)} {units(y2)}", kind)


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a box, given its upper left corner."""
    return path(f"M{units(x)} {units(y)}h{units(width)}v{units(height)}h{units(-width)}z", kind)


def polyline(points: Iterable[tuple[float, float]], kind: str) -> str:
    """Return a line through points."""
    return path("M" + "L".join(f"{units(x)} {units(y)}" for x, y in points), kind)


def path(d: str, kind: str) -> str:
    """Return a path; ``kind`` are its classes."""
    return f'<path d="{d}"{_class(kind)}/>'


def dot(x: float, y: float, radius: float, kind: str) -> str:
    """Return a circle around a point."""
    return f'<circle cx="{units(x)}" cy="{units(y)}" r="{units(radius)}"{_class(kind)}/>'


def mark(x: float, y: float, radius: float, look: Look, kind: str) -> str:
    """Return a point's mark in the form of its look: a circle, a square, a diamond or a triangle."""
    if not look.form:
        return dot(x, y, radius, f"{kind} {look}")
    side, wide = units(1.8 * radius), units(1.3 * radius)
    shapes = (
        f"M{units(x - 0.9 * radius)} {units(y - 0.9 * radius)}h{side}v{side}h-{side}z",
        f"M{units(x)} {units(y - 1.3 * radius)}l{wide} {wide}l-{wide} {wide}l-{wide} -{wide}z",
        f"M{units(x)} {units(y - 1.2 * radius)}l{wide} {units(2.2 * radius)}h-{units(2.6 * radius)}z",
    )
    return path(shapes[look.form - 1], f"{kind} {look}")


def group(body: str, *, strategy: int | None = None, at: tuple[float, float] | None = None, words: str = "") -> str:
    """Return elements together, those of one strategy (which a page can hide), moved, with words for the pointer."""
    marks = "" if strategy is None else f' data-s="{strategy}"'
    transform = "" if at is None else f' transform="translate({units(at[0])} {units(at[1])})"'
    title = f"<title>{escape(words)}</title>" if words else ""
    return f"<g{marks}{transform}>{title}{body}</g>"


def drawing(width: float, height: float, name: str, body: str, *, rows: tuple[float, float] | None = None) -> str:
    """Return a drawing called ``name``; ``rows`` is (top, height of a row) where its rows can be hidden."""
    stacked = "" if rows is None else f' data-top="{units(rows[0])}" data-row="{units(rows[1])}"'
    box = f'viewBox="0 0 {units(width)} {units(height)}"'
    return f'<svg class="chart" {box} role="img" aria-label="{escape(name)}"{stacked}>{body}</svg>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
