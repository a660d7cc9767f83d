"""How charts look, the same on pages, in pictures and in papers; and what makes a page's chart or a file of one."""

import re
from collections.abc import Mapping
from functools import cache
from html import escape
from typing import Any

import altair as alt
import vl_convert

COLUMN_IN = 3.3
"""Width of a paper's column, in inches."""
LIGHT: Mapping[str, str] = {
    "paper": "#ffffff", "ink": "#1f2328", "quiet": "#525a63", "grid": "#d8dee4", "edge": "#b6bec7",
    "c0": "#0072b2", "c1": "#c27700", "c2": "#00855f", "c3": "#c24a00", "c4": "#2d8ec6", "c5": "#b0558a",
    "c6": "#8f8200", "c7": "#7f7f7f", "c8": "#333333",
}  # fmt: skip
"""Okabe and Ito's palette, told apart by the colour-blind, darkened to be seen on white; then two greys."""
DARK: Mapping[str, str] = {
    "paper": "#14181d", "ink": "#e6e9ed", "quiet": "#a9b2bc", "grid": "#353c45", "edge": "#4a535e",
    "c0": "#4aa3e0", "c1": "#e69f00", "c2": "#2bc79a", "c3": "#f07a3a", "c4": "#9cd3f5", "c5": "#e09ac3",
    "c6": "#f0e442", "c7": "#a8a8a8", "c8": "#e0e0e0",
}  # fmt: skip
"""The same hues on a dark ground."""
SERIES = tuple(f"var(--c{number})" for number in range(9))
"""Colours of series by their order. Charts name variables, so that one drawing serves light and dark."""
INK, QUIET, GRID, EDGE = (f"var(--{name})" for name in ("ink", "quiet", "grid", "edge"))
SHAPES = ("circle", "square", "diamond", "triangle-up")
"""Points differ in form as well; the next four series begin again."""
_WORDS = {"labelColor": QUIET, "titleColor": QUIET, "titleFontWeight": "normal"}
CONFIG: dict[str, Any] = {
    # It comes with vl-convert, so that every machine draws the same. A PDF has fonts and opacities in an order of
    # chance: there is one of each.
    "mark": {"opacity": 1.0},
    "font": "Liberation Sans, Arial, sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "range": {"category": list(SERIES)},
    "axis": {**_WORDS, "gridColor": GRID, "domainColor": EDGE, "tickColor": EDGE, "labelLimit": 170},
    "legend": {**_WORDS, "orient": "bottom", "columns": 2, "labelLimit": 170, "symbolLimit": 0},
    "header": {"labelColor": INK, "titleColor": QUIET, "labelFontWeight": "normal", "titleFontWeight": "normal"},
    "title": {"color": INK, "subtitleColor": QUIET, "fontWeight": "normal", "anchor": "start"},
    "text": {"color": INK},
    "rule": {"color": QUIET},
}
_VERSION = alt.SCHEMA_VERSION.rsplit(".", 1)[0].removeprefix("v")
"""Vega-Lite has this version, the same for pages and for files."""
_FILE_WIDTH, _PANEL = 340, 300
"""Pixels; a paper's column is as wide as a file, which makes its letters 7.7 points high."""

Chart = alt.Chart | alt.LayerChart | alt.FacetChart


def variables(palette: Mapping[str, str]) -> str:
    """Return a palette's colours as declarations of a style."""
    return " ".join(f"--{name}: {colour};" for name, colour in palette.items())


def spec(chart: Chart, description: str, width: int | str = "container") -> dict[str, Any]:
    """Return what Vega-Lite is told of a chart, in all pixels wide or as wide as its place on a page.

    Panels of a facet have a width of their own on pages, where as many stand side by side as there is room for.
    """
    told: dict[str, Any] = {**chart.to_dict(), "description": description, "config": CONFIG}
    if "facet" in told:
        told["spec"] |= {"width": _PANEL if width == "container" else int(width) // 2 - 60, "height": 200}
    else:
        told |= {"width": width, "autosize": {"type": "fit-x", "contains": "padding", "resize": True}}
    return told


def picture(chart: Chart, description: str, width: int = 720) -> str:
    """Return the text of an SVG file in a reader's colours, light or dark; the same bytes for the same chart."""
    # A reader's letters may be a sixth wider than those that are measured here, and the longest names are on the left.
    padding = {"left": 36, "right": 14, "top": 14, "bottom": 14}
    drawn = _svg({**spec(chart, description, width), "padding": padding})
    style = f"svg {{ {variables(LIGHT)} }} @media (prefers-color-scheme: dark) {{ svg {{ {variables(DARK)} }} }}"
    head, _, body = drawn.partition(">")
    ground = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    return f"{head}><title>{escape(description, quote=False)}</title>\n<style>{style}</style>{ground}\n{body}\n"


def files(chart: Chart, description: str) -> dict[str, bytes]:
    """Return SVG and PDF of a chart for a paper by their endings, on a ground without colour; the same bytes again."""
    drawn = re.sub(r"var\(--(\w+)\)", lambda match: LIGHT[match[1]], _svg(spec(chart, description, _FILE_WIDTH)))
    width, height = map(float, re.findall(r'<svg [^>]*width="([\d.]+)" height="([\d.]+)"', drawn)[0])
    column = COLUMN_IN * 72.0
    size = f'width="{column:g}" height="{column * height / width:g}"'
    drawn = drawn.replace(f'width="{width:g}" height="{height:g}"', size, 1)
    return {"svg": drawn.encode(), "pdf": vl_convert.svg_to_pdf(drawn)}


def compiled(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Vega is told of a chart, so that a page need not compile it."""
    vega: dict[str, Any] = vl_convert.vegalite_to_vega(dict(told), vl_version=_VERSION)
    return vega


@cache
def scripts() -> str:
    """Return the scripts that draw charts on a page, with Vega and all that it needs, as ``vegaEmbed``."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VERSION)


def _svg(told: Mapping[str, Any]) -> str:
    """Return a drawing for files: without a description of every mark, which would be half of it, and short numbers."""
    drawn = vl_convert.vegalite_to_svg({**told, "config": {**CONFIG, "aria": False}}, vl_version=_VERSION)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", drawn)
