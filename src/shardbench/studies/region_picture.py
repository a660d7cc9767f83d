"""A picture of a region: where a claim holds, over the two knobs that decide most. SVG, the same for the same table."""

from collections.abc import Sequence
from html import escape

import numpy as np
import pandas as pd

from shardbench.report.tables.text import significant
from shardbench.studies.claim import Claim, Relation

WIDTH, HEIGHT = 520, 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 64, 20, 52
_HOLDS, _DIRECTION, _NOT = "#0072B2", "#E69F00", "#D55E00"
_INK, _GRID = "#1f2328", "#d8dee4"
TICKS = 4


def region_svg(claim: Claim, points: pd.DataFrame, knobs: pd.DataFrame) -> str:
    """A mark a point: filled where the statement holds, a ring where only its direction does, a cross where not.

    ``knobs`` is the study's table of knobs, most deciding first; without one for this outcome (too few points with a
    number) the first two knobs of the table are the axes.
    """
    assert claim.region is not None  # noqa: S101 - the ledger asks for claims with a region only
    own = knobs[knobs["outcome"] == claim.region.column]
    ordered = list(dict.fromkeys([*own["knob"], *knobs["knob"]]))
    axes = [knobs[knobs["knob"] == name].iloc[0] for name in ordered[:2]]
    ratios = pd.to_numeric(points[claim.region.column])
    marks: list[str] = []
    held = directed = 0
    for index, ratio in ratios.items():
        x, y = (_share(axis, points[axis["knob"]], points.at[index, axis["knob"]]) for axis in axes)
        at = (_LEFT + x * _inner_width(), _TOP + (1.0 - y) * _inner_height())
        if pd.isna(ratio):
            marks.append(_mark("none", at, "no number"))
            continue
        shown = claim.scale.shown(float(ratio))
        holds, right = claim.holds(shown), claim.directed(shown)
        held, directed = held + holds, directed + right
        kind = "holds" if holds else "direction" if right and claim.relation is not Relation.DIRECTION else "not"
        marks.append(_mark(kind, at, f"{significant(shown)} {claim.unit}"))
    known = int(ratios.notna().sum())
    head = f"{claim.name}: holds at {held} of {known} points, its direction at {directed}"
    title = [_text(_LEFT, 20, head, size=14), _legend(claim)]
    frame = [
        _axis(axes[0], points[axes[0]["knob"]], across=True),
        _axis(axes[1], points[axes[1]["knob"]], across=False),
    ]
    body = "\n".join([*title, *frame, *marks])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="system-ui, sans-serif" fill="{_INK}">\n<title>{escape(head)}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _inner_width() -> int:
    return WIDTH - _LEFT - _RIGHT


def _inner_height() -> int:
    return HEIGHT - _TOP - _BOTTOM


def _choices(values: "pd.Series[object]") -> list[object]:
    return sorted(set(values), key=str)


def _share(axis: "pd.Series[object]", values: "pd.Series[object]", value: object) -> float:
    """Where a value lies on the axis, in [0, 1]."""
    if axis["scale"] == "choice":
        choices = _choices(values)
        return (choices.index(value) + 0.5) / len(choices)
    low, high, number = (float(str(v)) for v in (axis["low"], axis["high"], value))
    if axis["scale"] == "log":
        low, high, number = np.log([low, high, number]).tolist()
    return (number - low) / (high - low)


def _ticks(axis: "pd.Series[object]", values: "pd.Series[object]") -> Sequence[tuple[float, str]]:
    if axis["scale"] == "choice":
        choices = _choices(values)
        return [((i + 0.5) / len(choices), str(choice)) for i, choice in enumerate(choices)]
    low, high = float(str(axis["low"])), float(str(axis["high"]))
    shares = [i / TICKS for i in range(TICKS + 1)]
    if axis["scale"] == "log":
        return [(share, significant(low * (high / low) ** share)) for share in shares]
    return [(share, significant(low + share * (high - low))) for share in shares]


def _axis(axis: "pd.Series[object]", values: "pd.Series[object]", *, across: bool) -> str:
    parts = []
    for share, label in _ticks(axis, values):
        if across:
            x = _LEFT + share * _inner_width()
            parts.append(_line(x, _TOP, x, HEIGHT - _BOTTOM))
            parts.append(_text(x, HEIGHT - _BOTTOM + 16, label, anchor="middle"))
        else:
            y = _TOP + (1.0 - share) * _inner_height()
            parts.append(_line(_LEFT, y, WIDTH - _RIGHT, y))
            parts.append(_text(_LEFT - 6, y + 4, label, anchor="end"))
    name = str(axis["knob"]).replace("_", " ")
    if across:
        parts.append(_text(_LEFT + _inner_width() / 2, HEIGHT - 12, name, anchor="middle"))
    else:
        parts.append(_text(_LEFT, _TOP - 8, name, anchor="middle"))
    return "\n".join(parts)


def _legend(claim: Claim) -> str:
    entries = [("holds", "holds"), ("direction", "direction only"), ("not", "does not hold"), ("none", "no number")]
    if claim.relation is Relation.DIRECTION or not claim.has_direction:
        del entries[1]
    parts = []
    for number, (kind, label) in enumerate(entries):
        x = _LEFT + 8 + number * 105
        parts += [_mark(kind, (x, 36), label), _text(x + 10, 40, label)]
    return "\n".join(parts)


def _mark(kind: str, at: tuple[float, float], label: str) -> str:
    x, y = at
    inside = f"<title>{escape(label)}</title>"
    if kind == "holds":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_HOLDS}">{inside}</circle>'
    if kind == "direction":
        style = f'fill="none" stroke="{_DIRECTION}" stroke-width="2.5"'
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {style}>{inside}</circle>'
    if kind == "not":
        path = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        return f'<path d="{path}" stroke="{_NOT}" stroke-width="2.5" fill="none">{inside}</path>'
    return f'<path d="M{x - 4:.1f} {y:.1f}h8" stroke="#7f7f7f" stroke-width="2" fill="none">{inside}</path>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_GRID}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
