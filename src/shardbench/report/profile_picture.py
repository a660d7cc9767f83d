"""Performance profiles as a picture: on what share of problems a strategy is within a factor of the best. SVG.

The same bytes for the same table; in a reader's colours, light or dark (``prefers-color-scheme``).
"""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.model.strategy import Role
from shardbench.records.trial import Outcome

WIDTH, HEIGHT = 760, 430
LARGEST = 4.0
"""Factor at the right edge."""
NAMED = 8
"""Strategies that have a colour and a name; the others are grey lines behind them."""
TICKS = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0)
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 58, 178, 48
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
_APART = 15.0
"""Between two names, in pixels."""


def ratios(steps: pd.DataFrame, backend: str, budget: str) -> dict[str, Floats]:
    """Of every competitor its steps over the best of each problem, ascending; infinite where it failed.

    ``steps`` is the leaderboard's table; a problem is a workload on a machine. Best profile first: by the area under
    it up to ``LARGEST``, on a log axis. Raises BadInput where nothing is left, or a strategy lacks a problem.
    """
    chosen = steps[
        (steps["backend"] == backend) & (steps["budget"] == budget) & (steps["role"] == Role.COMPETITOR.value)
    ]
    if chosen.empty:
        raise BadInput(f"the leaderboard has no {backend} row of a competitor with the budget {budget}")
    problems = len(chosen[["workload", "machine"]].drop_duplicates())
    found: dict[str, Floats] = {}
    for name, rows in chosen.groupby("strategy", sort=True):
        if len(rows) != problems:
            raise BadInput(f"the leaderboard has {len(rows)} rows of {name} with the budget {budget}, not {problems}")
        over = 1.0 + rows["over_best_pct"].to_numpy(dtype=np.float64) / 100.0
        found[str(name)] = np.sort(np.where(rows["outcome"] == Outcome.OK.value, over, np.inf))
    return dict(sorted(found.items(), key=lambda item: (-_area(item[1]), item[0])))


def profile_svg(steps: pd.DataFrame, backend: str, budget: str) -> str:
    """The profiles of all competitors, the best of them in colour; raises BadInput as ``ratios`` does."""
    profiles = ratios(steps, backend, budget)
    versions = ", ".join(f"{version}" for version in sorted(set(steps["version"])))
    problems = len(next(iter(profiles.values())))
    head = "Share of problems on which a strategy's step is within a factor of the best"
    note = (
        f"{backend}; leaderboard version {versions}; {problems} problems (workload x machine); "
        f"{budget} for learning and planning"
    )
    names = list(profiles)
    lines = [_curve(profiles[name], 'class="other"') for name in names[NAMED:]]
    for number, name in reversed(list(enumerate(names[:NAMED]))):
        dash = f' stroke-dasharray="{_DASHES[number]}"' if _DASHES[number] else ""
        lines.append(_curve(profiles[name], f'stroke="{COLOURS[number]}"{dash}', name))
    body = "\n".join([*_axes(), *lines, *_labels(profiles)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img">\n<title>{escape(head)}</title>\n{_STYLE}\n'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f"{_text(_LEFT, 22, head, size=15)}\n{_text(_LEFT, 41, note)}\n{body}\n</svg>\n"
    )


def _area(values: Floats) -> float:
    """Under the profile, up to the right edge."""
    return float(np.log(LARGEST / np.minimum(values, LARGEST)).sum())


def _x(factor: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * float(np.log(factor) / np.log(LARGEST))


def _y(share: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1.0 - share)


def _curve(values: Floats, style: str, name: str = "") -> str:
    """Steps to the right and up: the share grows where another problem comes within the factor."""
    inside = values[values <= LARGEST]
    shares = np.arange(1, len(inside) + 1) / len(values)
    path = f"M{_x(1.0):.1f} {_y(0.0):.1f}"
    for factor, share in zip(np.maximum(inside, 1.0).tolist(), shares.tolist()):
        path += f"H{_x(factor):.1f}V{_y(share):.1f}"
    title = f"<title>{escape(name)}</title>" if name else ""
    return f'<path {style} d="{path}H{_x(LARGEST):.1f}">{title}</path>'


def _labels(profiles: Mapping[str, Floats]) -> list[str]:
    """Names at the right, each at its line's end or as near as the others leave room."""
    ends = [
        (_y(float((values <= LARGEST).mean())), number, name)
        for number, (name, values) in enumerate(list(profiles.items())[:NAMED])
    ]
    parts = []
    for y, (at, number, name) in zip(_spread([end for end, *_ in sorted(ends)]), sorted(ends)):
        x, edge = _x(LARGEST), WIDTH - _RIGHT + 18
        style = f'stroke="{COLOURS[number]}" stroke-width="1.5"'
        parts.append(f'<path {style} d="M{x + 2:.1f} {at:.1f}L{edge - 3:.1f} {y:.1f}"/>')
        parts.append(_text(edge, y + 4, name, size=13))
    rest = len(profiles) - NAMED
    if rest > 0:
        parts.append(_text(WIDTH - _RIGHT + 18, HEIGHT - _BOTTOM + 4, f"grey: {rest} others"))
    return parts


def _spread(wanted: Sequence[float]) -> list[float]:
    """Places at least ``_APART`` from each other, none below the axis, near the ascending ones that are wanted."""
    places: list[float] = []
    for y in wanted:
        places.append(max(y, places[-1] + _APART) if places else y)
    floor = _y(0.0) - _APART
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], floor)
        floor = places[index] - _APART
    return places


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
