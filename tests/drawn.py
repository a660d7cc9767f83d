"""What a chart shows after all its transforms: Vega is asked to draw it, and every mark says what it is."""

import re
from html import unescape

import vl_convert

from shardbench.report.charts.look import Chart, spec


def marks(chart: Chart) -> list[dict[str, str]]:
    """Fields of every mark, by their titles."""
    svg = vl_convert.vegalite_to_svg(spec(chart, "A chart.", 600), vl_version="6.4")
    labels = re.findall(r'aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="(?!axis|legend|title)', svg)
    return [dict(part.split(": ", 1) for part in unescape(label).split("; ") if ": " in part) for label in labels]


def names(chart: Chart) -> list[str]:
    """Names on a chart's vertical axis, from the top."""
    svg = vl_convert.vegalite_to_svg(spec(chart, "A chart.", 600), vl_version="6.4")
    (found,) = re.findall(r'aria-label="Y-axis for a discrete scale with \d+ values: ([^"]*)"', svg)
    return found.split(", ")


def points(chart: Chart, *fields: str) -> list[tuple[str, ...]]:
    """These fields of every mark that has all of them, in their order, once."""
    return list(dict.fromkeys(tuple(mark[f] for f in fields) for mark in marks(chart) if set(fields) <= mark.keys()))
