"""Performance profiles as a picture: on what share of problems a strategy is within a factor of the best. SVG.

The same bytes for the same table; in a reader's colours, light or dark (``prefers-color-scheme``).
"""

import math
from collections.abc import Sequence
from html import escape

import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.report.page.profiles import LARGEST, PerformanceProfile, ranked
from shardbench.report.standing import table_standings

WIDTH, HEIGHT = 760, 430
NAMED = 8
"""Strategies that have a colour and a name; the others are grey lines behind them."""
TICKS = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0)
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 58, 200, 48
# Each has a contrast of at least 3 on white and on the dark ground; lines differ in their dashes, too, and are named.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B8639A", "#8C6D31", "#7A6FCB", "#3392C8", "#7F7F7F")
_DASHES = ("", "7 3", "2 3", "9 3 2 3") * 2
_STYLE = """<style>
svg { --ink: #1f2328; --grid: #d8dee4; --other: #b6bec7; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6edf3; --grid: #30363d; --other: #57606a; --paper: #0d1117; }
}
text { fill: var(--ink); font-family: system-ui, sans-serif; }
.grid { stroke: var(--grid); } .other { stroke: var(--other); stroke-width: 1.2; } .paper { fill: var(--paper); }
path { fill: none; stroke-width: 2.2; }
</style>"""
_APART = 22.0
"""Between two names, in pixels."""


def profile_svg(steps: pd.DataFrame, backend: str, budget: str) -> str:
    """The profiles of all competitors of the leaderboard's table ``steps``, the best of them in colour.

    Raises BadInput where there is none of the backend and budget.
    """
    listed = ranked(table_standings(steps)).get((backend, budget))
    if listed is None:
        raise BadInput(f"the leaderboard has no {backend} row of a competitor with the budget {budget}")
    versions = ", ".join(f"{version}" for version in sorted(set(steps["version"])))
    head = "Share of problems on which a strategy's step is within a factor of the best"
    note = (
        f"{backend}; leaderboard version {versions}; {listed[0].problems} problems (workload x machine); "
        f"{budget} for learning and planning"
    )
    lines = [_curve(one, 'class="other"') for one in listed[NAMED:]]
    lines += [_curve(one, _look(number), one.strategy) for number, one in reversed([*enumerate(listed[:NAMED])])]
    body = "\n".join([*_axes(), *lines, *_labels(listed)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img">\n<title>{escape(head)}</title>\n{_STYLE}\n'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f"{_text(_LEFT, 22, head, size=15)}\n{_text(_LEFT, 41, note)}\n{body}\n</svg>\n"
    )


def _x(factor: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * math.log(factor) / math.log(LARGEST)


def _y(share: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1.0 - share)


def _curve(one: PerformanceProfile, style: str, name: str = "") -> str:
    """Steps to the right and up: the share grows where another problem comes within the factor."""
    path = f"M{_x(1.0):.1f} {_y(0.0):.1f}"
    for factor, share in one.corners(LARGEST):
        path += f"H{_x(factor):.1f}V{_y(share):.1f}"
    title = f"<title>{escape(name)}</title>" if name else ""
    return f'<path {style} d="{path}H{_x(LARGEST):.1f}">{title}</path>'


def _labels(listed: Sequence[PerformanceProfile]) -> list[str]:
    """Names at the right behind a piece of their line, the best profile first."""
    x, parts = WIDTH - _RIGHT + 16, []
    for number, one in enumerate(listed[:NAMED]):
        y = _TOP + 10 + number * _APART
        parts.append(f'<path {_look(number)} d="M{x} {y:.1f}h30"/>')
        parts.append(_text(x + 36, y + 4, one.strategy, size=13))
    rest = len(listed) - NAMED
    if rest > 0:
        y = _TOP + 10 + NAMED * _APART
        parts.append(f'<path class="other" d="M{x} {y:.1f}h30"/>')
        parts.append(_text(x + 36, y + 4, f"{rest} others", size=13))
    return parts


def _look(number: int) -> str:
    """Colour and dashes of a named profile."""
    dash = f' stroke-dasharray="{_DASHES[number]}"' if _DASHES[number] else ""
    return f'stroke="{COLOURS[number]}"{dash}'


def _axes() -> list[str]:
    parts = []
    for factor in TICKS:
        parts.append(_line(_x(factor), _y(0.0), _x(factor), _y(1.0)))
        parts.append(_text(_x(factor), _y(0.0) + 17, f"{factor:g}", anchor="middle"))
    for percent in range(0, 101, 20):
        parts.append(_line(_x(1.0), _y(percent / 100), _x(LARGEST), _y(percent / 100)))
        parts.append(_text(_LEFT - 7, _y(percent / 100) + 4, f"{percent} %", anchor="end"))
    middle = _LEFT + (WIDTH - _LEFT - _RIGHT) / 2
    return [*parts, _text(middle, HEIGHT - 10, "step over the best found of the problem (log)", anchor="middle")]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
