"""A picture of a region: where a claim holds, over the two knobs that decide most; the same for the same table."""

import pandas as pd

from shardbench.report.page.palette import Look
from shardbench.report.page.svg.marks import drawing, group, mark, path, text, units
from shardbench.report.page.svg.plane import Frame
from shardbench.report.page.svg.scale import Scale, categories
from shardbench.report.tables.text import significant
from shardbench.studies.claim import Claim, Relation

WIDTH, HEIGHT = 520, 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 80, 20, 46
_POINTS = {"holds": (Look(0, 0), True), "direction": (Look(1, 0), False)}
"""Points that are circles: their look, and whether they are filled."""
_NOT = Look(3, 0)


def region_drawing(claim: Claim, points: pd.DataFrame, knobs: pd.DataFrame) -> str:
    """Draw a mark a point: filled where the statement holds, a ring where only its direction does, a cross where not.

    ``knobs`` is the study's table of knobs, most deciding first; without one for this outcome (too few points with a
    number) the first two knobs of the table are the axes.
    """
    assert claim.region is not None  # noqa: S101 - the ledger asks for claims with a region only
    own = knobs[knobs["outcome"] == claim.region.column]
    x_name, y_name = list(dict.fromkeys([*own["knob"], *knobs["knob"]]))[:2]
    frame = Frame(
        width=WIDTH,
        height=HEIGHT,
        x=_scale(knobs, x_name, points, _LEFT, WIDTH - _RIGHT),
        y=_scale(knobs, y_name, points, HEIGHT - _BOTTOM, _TOP),
        x_title=x_name.replace("_", " "),
        y_title=y_name.replace("_", " "),
    )
    ratios = pd.to_numeric(points[claim.region.column])
    marks: list[str] = []
    full = directed = 0
    for ratio, x, y in zip(ratios, points[x_name], points[y_name]):
        at = frame.at(_place(frame.x, x), _place(frame.y, y))
        if pd.isna(ratio):
            marks.append(_mark("none", at, "no number"))
            continue
        number = claim.scale.in_print(float(ratio))
        holds, right = claim.holds(number), claim.directed(number)
        full, directed = full + holds, directed + right
        kind = "holds" if holds else "direction" if right and claim.relation is not Relation.DIRECTION else "not"
        marks.append(_mark(kind, at, f"{significant(number)} {claim.unit}"))
    head = f"{claim.name}: holds at {full} of {int(ratios.notna().sum())} points, its direction at {directed}"
    body = [text(8, 20, head, kind="head"), _legend(claim), frame.inside("".join(marks))]
    return drawing(WIDTH, HEIGHT, head, "".join(body))


def _scale(knobs: pd.DataFrame, name: str, points: pd.DataFrame, start: float, stop: float) -> Scale:
    knob = knobs[knobs["knob"] == name].iloc[0]
    if knob["scale"] == "choice":
        return categories(sorted(set(map(str, points[name]))), start, stop)
    return Scale(low=float(knob["low"]), high=float(knob["high"]), start=start, stop=stop, log=knob["scale"] == "log")


def _place(scale: Scale, value: object) -> float:
    """Return a knob's value on its axis: a choice's number, or the value itself."""
    return float(scale.names.index(str(value))) if scale.names else float(str(value))


def _legend(claim: Claim) -> str:
    entries = [("holds", "holds"), ("direction", "direction only"), ("not", "does not hold"), ("none", "no number")]
    if claim.relation is Relation.DIRECTION or not claim.has_direction:
        del entries[1]
    places = [(_LEFT + 8 + number * 105, *entry) for number, entry in enumerate(entries)]
    return "".join(_mark(kind, (x, 42), label) + text(x + 10, 46, label) for x, kind, label in places)


def _mark(kind: str, at: tuple[float, float], label: str) -> str:
    x, y = at
    if kind in _POINTS:
        look, filled = _POINTS[kind]
        return group(mark(x, y, 5, look, "point" if filled else "hollow"), words=label)
    if kind == "not":
        return group(path(f"M{units(x - 4)} {units(y - 4)}l8 8m0 -8l-8 8", f"line {_NOT}"), words=label)
    return group(path(f"M{units(x - 4)} {units(y)}h8", "line other"), words=label)
