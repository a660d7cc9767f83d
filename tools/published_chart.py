"""Draws published steps against predicted ones, for the front of the site: docs/static/steps.svg.

``python tools/published_chart.py`` draws what results/tables/published/steps.csv has. Colours are readable on light and
on dark ground, so that the picture needs no theme of its own.
"""

import csv
import math
from html import escape
from pathlib import Path

from published_agreement import STEPS_CSV

from shardbench.base.atomic import write_atomically

SVG = Path("docs/static/steps.svg")
LEFT, TOP, SIDE = 64, 16, 440
LOW, HIGH = 0.4, 2500.0
"""Milliseconds at the ends of both axes."""
GREY = "#808080"
COLOURS = {"V100": "#9467bd", "A100": "#2a8fd0", "H100": "#2ca05a", "B200": "#d9480f", "others": "#a17c1a"}


def kind(machine: str) -> str:
    """Return the colour's name of a machine: its GPU, or others."""
    name = machine.split("-", maxsplit=1)[0].upper().removeprefix("G")
    return name if name in COLOURS else "others"


def at(ms: float) -> float:
    """Return the position of a time on an axis, 0 at its low end."""
    return SIDE * math.log(ms / LOW) / math.log(HIGH / LOW)


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Return one line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def line(first: tuple[float, float], second: tuple[float, float], more: str) -> str:
    """Return a line between two points in milliseconds (published, predicted)."""
    (a, b), (c, d) = ((LEFT + at(x), TOP + SIDE - at(y)) for x, y in (first, second))
    return f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="{GREY}" {more}/>'


def draw(rows: list[dict[str, str]]) -> str:
    """Return the picture: one mark a step, its colour the GPU, its size their number, hollow where held out."""
    bottom, right = TOP + SIDE, LEFT + SIDE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 150} {bottom + 48}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="{GREY}">',
        "<title>Published training steps on GPUs against their prediction, milliseconds</title>",
    ]
    for ms in (1.0, 10.0, 100.0, 1000.0):
        parts += [line((LOW, ms), (HIGH, ms), 'opacity="0.25"'), line((ms, LOW), (ms, HIGH), 'opacity="0.25"')]
        parts.append(text(LEFT - 6, bottom - at(ms) + 4, f"{ms:g}", 'text-anchor="end"'))
        parts.append(text(LEFT + at(ms), bottom + 16, f"{ms:g}", 'text-anchor="middle"'))
    parts.append(line((LOW, LOW), (HIGH, HIGH), ""))
    for factor in (1.6, 1 / 1.6):
        low, high = max(LOW, LOW / factor), min(HIGH, HIGH / factor)
        parts.append(line((low, low * factor), (high, high * factor), 'stroke-dasharray="4 4"'))
    for row in sorted(rows, key=lambda row: -int(row["gpus"])):
        x, y = LEFT + at(float(row["published_ms"])), bottom - at(float(row["predicted_ms"]))
        colour = COLOURS[kind(row["gpu"])]
        fill = colour if row["split"] == "fit" else "none"
        words = f"{row['step']}: published {row['published_ms']}, predicted {row['predicted_ms']} ms, {row['split']}"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 + 0.6 * math.log2(int(row["gpus"])):.1f}" fill="{fill}" '
            f'fill-opacity="0.6" stroke="{colour}" stroke-width="1.5"><title>{escape(words)}</title></circle>'
        )
    parts.append(text(LEFT + SIDE / 2, bottom + 36, "published step, ms", 'text-anchor="middle"'))
    parts.append(text(0, 0, "predicted step, ms", f'transform="translate(16 {TOP + SIDE / 2}) rotate(-90)"'))
    for index, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<circle cx="{right + 16}" cy="{TOP + 12 + 20 * index}" r="5" fill="{colour}"/>')
        parts.append(text(right + 28, TOP + 16 + 20 * index, name))
    for index, words in enumerate(("filled: fitted", "hollow: held out", "larger: more GPUs", "dashed: factor 1.6")):
        parts.append(text(right + 10, TOP + 140 + 20 * index, words))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Run the command line, from the repository's root."""
    with STEPS_CSV.open() as file:
        write_atomically(SVG, draw(list(csv.DictReader(file))))


if __name__ == "__main__":
    main()
