"""A drawing as a file of its own, in a reader's colours, light or dark."""

import re
from importlib import resources

from shardbench.report.page.palette import DARK, LIGHT, colours_style

_GROUND = "--paper: #ffffff; --ink: #1f2328; --quiet: #525a63; --grid: #d8dee4; --edge: #b6bec7; --bad: #98300c;"
_DARK_GROUND = "--paper: #0d1117; --ink: #e6edf3; --quiet: #a9b2bc; --grid: #30363d; --edge: #57606a; --bad: #ffa382;"


def charts_style() -> str:
    """Return the style of drawings, which needs the variables of colours that pages and pictures set."""
    return (resources.files("shardbench.report.page") / "charts.css").read_text(encoding="utf-8")


def picture_file(drawing: str) -> str:
    """Return the text of an SVG file that shows the drawing; the same bytes for the same drawing."""
    head, _, body = drawing.partition(">")
    match = re.search(r'viewBox="0 0 (\S+) (\S+)"', head)
    size = 'width="{}" height="{}"'.format(*match.groups()) if match else ""
    style = (
        f"svg {{ {_GROUND} {colours_style(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ svg {{ {_DARK_GROUND} {colours_style(DARK)} }} }}\n{charts_style()}"
    )
    ground = '<rect class="paper" width="100%" height="100%"/>'
    return f'{head} xmlns="http://www.w3.org/2000/svg" {size}>\n<style>\n{style}</style>\n{ground}\n{body}\n'
