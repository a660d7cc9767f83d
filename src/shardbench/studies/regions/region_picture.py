"""A picture of a region: where a claim holds, over the two knobs that decide most; the same for the same table."""

from typing import Any

import altair as alt
import pandas as pd

from shardbench.report.charts.look import SERIES
from shardbench.studies.claim import Claim, Relation

_KINDS = {
    "holds": (SERIES[0], "circle", SERIES[0]),
    "direction only": (SERIES[1], "circle", "transparent"),
    "does not hold": (SERIES[3], "cross", SERIES[3]),
    "no number": (SERIES[7], "stroke", SERIES[7]),
}
"""The outline, the form and the filling of a point."""


def region_chart(claim: Claim, points: pd.DataFrame, knobs: pd.DataFrame) -> alt.Chart:
    """Return a mark a point: filled where the statement holds, a ring where only its direction does, a cross where not.

    ``knobs`` is the study's table of knobs, most deciding first; without one for this outcome (too few points with a
    number) the first two knobs of the table are the axes.
    """
    assert claim.region is not None  # noqa: S101 - the ledger asks for claims with a region only
    own = knobs[knobs["outcome"] == claim.region.column]
    x_name, y_name = list(dict.fromkeys([*own["knob"], *knobs["knob"]]))[:2]
    numbers = pd.to_numeric(points[claim.region.column]).map(lambda ratio: claim.scale.in_print(float(ratio)))
    rows = pd.DataFrame({"x": points[x_name], "y": points[y_name], "number": numbers})
    rows["kind"] = [_kind(claim, number) for number in numbers]
    full = int((rows["kind"] == "holds").sum())
    directed = sum(claim.directed(number) for number in numbers.dropna())
    head = f"{claim.name}: holds at {full} of {numbers.notna().sum()} points, its direction at {directed}"
    kinds = list(_KINDS)
    if claim.relation is Relation.DIRECTION or not claim.has_direction:
        kinds.remove("direction only")

    def looks(place: int) -> alt.Scale:
        return alt.Scale(domain=kinds, range=[_KINDS[kind][place] for kind in kinds])

    x, y = ((knobs[knobs["knob"] == name].iloc[0], name) for name in (x_name, y_name))
    chart: alt.Chart = (
        alt.Chart(rows, title=head)
        .mark_point(size=60, strokeWidth=2)
        .encode(
            x=alt.X(f"x:{_type(x[0])}", **_axis(*x)),
            y=alt.Y(f"y:{_type(y[0])}", **_axis(*y)),
            stroke=alt.Stroke("kind:N", title=None, scale=looks(0)),
            shape=alt.Shape("kind:N", title=None, scale=looks(1)),
            fill=alt.Fill("kind:N", title=None, scale=looks(2)),
            tooltip=[
                alt.Tooltip("number:Q", title=claim.unit, format=".3"), "kind:N",
                alt.Tooltip("x:N", title=_words(x[1])), alt.Tooltip("y:N", title=_words(y[1])),
            ],
        )
        .properties(height=300)
    )  # fmt: skip
    return chart


def _kind(claim: Claim, number: float) -> str:
    if pd.isna(number):
        return "no number"
    if claim.holds(number):
        return "holds"
    return "direction only" if claim.directed(number) and claim.relation is not Relation.DIRECTION else "does not hold"


def _type(knob: "pd.Series[object]") -> str:
    return "N" if knob["scale"] == "choice" else "Q"


def _axis(knob: "pd.Series[object]", name: str) -> dict[str, Any]:
    if knob["scale"] == "choice":
        return {"title": _words(name), "axis": alt.Axis(labelAngle=0)}
    low, high = float(str(knob["low"])), float(str(knob["high"]))
    scale = alt.Scale(type="log" if knob["scale"] == "log" else "linear", domain=[low, high], nice=False)
    return {"title": _words(name), "scale": scale, "axis": alt.Axis(format="~s" if high >= 1e5 else "~g")}


def _words(column: str) -> str:
    return column.replace("_", " ")
