"""SVG elements as text. Words are escaped here; colours are classes, so that one drawing serves light and dark."""

from collections.abc import Iterable
from html import escape

COLOURS = 9
"""Of the page's style, ``c0`` to ``c8``: Okabe and Ito's palette, told apart by the colour-blind, then two greys."""
DASHES = 4
"""``d0`` (a whole line) to ``d3``: series beyond the colours differ by dashes."""


def series_class(number: int) -> str:
    """Colour and dash of the n-th series."""
    return f"c{number % COLOURS} d{number // COLOURS % DASHES}"


def units(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """Words at a point of their baseline; ``anchor`` is start, middle or end."""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{units(x)}" y="{units(y)}"{at}{_class(kind)}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A line from one point to another."""
    return path(f"M{units(x1)} {units(y1)}L{units(x2)} {units(y2)}", kind)


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A filled box."""
    return path(f"M{units(x)} {units(y)}h{units(width)}v{units(height)}h{units(-width)}z", kind)


def polyline(points: Iterable[tuple[float, float]], kind: str) -> str:
    """A line through points."""
    return path("M" + "L".join(f"{units(x)} {units(y)}" for x, y in points), kind)


def path(d: str, kind: str) -> str:
    """A path; ``kind`` are its classes."""
    return f'<path d="{d}"{_class(kind)}/>'


def dot(x: float, y: float, radius: float, kind: str, words: str = "") -> str:
    """A circle; ``words`` are shown where the pointer rests on it."""
    said = f"<title>{escape(words)}</title>" if words else ""
    return f'<circle cx="{units(x)}" cy="{units(y)}" r="{units(radius)}"{_class(kind)}>{said}</circle>'


def group(body: str, *, strategy: int | None = None, at: tuple[float, float] | None = None, words: str = "") -> str:
    """Elements together: of one strategy (the page can hide it), moved to a point, with words for the pointer."""
    marks = "" if strategy is None else f' data-s="{strategy}"'
    moved = "" if at is None else f' transform="translate({units(at[0])} {units(at[1])})"'
    said = f"<title>{escape(words)}</title>" if words else ""
    return f"<g{marks}{moved}>{said}{body}</g>"


def drawing(width: float, height: float, name: str, body: str, *, rows: tuple[float, float] | None = None) -> str:
    """A whole drawing, called ``name``; ``rows``: (top, height of a row) of one whose rows can be hidden."""
    stacked = "" if rows is None else f' data-top="{units(rows[0])}" data-row="{units(rows[1])}"'
    box = f'viewBox="0 0 {units(width)} {units(height)}"'
    return f'<svg class="chart" {box} role="img" aria-label="{escape(name)}"{stacked}>{body}</svg>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
