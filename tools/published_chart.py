"""Draws published steps against predicted ones, for the front of the site: docs/static/steps.svg.

``python tools/published_chart.py`` draws what results/tables/published/steps.csv has.
"""

import csv
import math
from pathlib import Path

from published_agreement import STEPS_CSV

from shardbench.base.atomic import write_atomically
from shardbench.report.page.palette import series_look
from shardbench.report.page.svg.marks import dot, group, polyline, text
from shardbench.report.page.svg.picture import picture_file
from shardbench.report.page.svg.plane import Frame
from shardbench.report.page.svg.scale import Scale

SVG = Path("docs/static/steps.svg")
LOW, HIGH = 0.4, 2500.0
"""Milliseconds at the ends of both axes."""
GPUS = ("V100", "A100", "H100", "B200", "others")
LOOK = {name: series_look(7 if name == "others" else number) for number, name in enumerate(GPUS)}
"""Colours of GPUs; others are grey."""


def kind(machine: str) -> str:
    """Return the colour's name of a machine: its GPU, or others."""
    name = machine.split("-", maxsplit=1)[0].upper().removeprefix("G")
    return name if name in GPUS else "others"


def draw(rows: list[dict[str, str]]) -> str:
    """Return the picture: one mark a step, its colour the GPU, its size their number, hollow where held out."""
    frame = Frame(
        width=654, height=504, x_title="published step, ms", y_title="predicted step, ms",
        x=Scale(low=LOW, high=HIGH, start=64, stop=504, log=True),
        y=Scale(low=LOW, high=HIGH, start=464, stop=24, log=True),
    )  # fmt: skip
    parts = []
    for factor in (1.6, 1.0, 1 / 1.6):
        low, high = max(LOW, LOW / factor), min(HIGH, HIGH / factor)
        ends = frame.at(low, low * factor), frame.at(high, high * factor)
        parts.append(polyline(ends, "line other" if factor == 1.0 else "frontier"))
    for row in sorted(rows, key=lambda row: -int(row["gpus"])):
        x, y = frame.at(float(row["published_ms"]), float(row["predicted_ms"]))
        look = "point" if row["split"] == "fit" else "hollow"
        words = f"{row['step']}: published {row['published_ms']}, predicted {row['predicted_ms']} ms, {row['split']}"
        mark = dot(x, y, 3 + 0.6 * math.log2(int(row["gpus"])), f"{look} {LOOK[kind(row['gpu'])]}")
        parts.append(group(mark, words=words))
    for index, name in enumerate(GPUS):
        y = 28 + 20 * index
        parts += [dot(520, y, 5, f"point {LOOK[name]}"), text(532, y + 4, name, kind="name")]
    for index, words in enumerate(("filled: fitted", "hollow: held out", "larger: more GPUs", "dashed: factor 1.6")):
        parts.append(text(514, 160 + 20 * index, words, kind="tick"))
    return picture_file(frame.draw("Published training steps on GPUs against their prediction", "".join(parts)))


def main() -> None:
    """Run the command line, from the repository's root."""
    with STEPS_CSV.open() as file:
        write_atomically(SVG, draw(list(csv.DictReader(file))))


if __name__ == "__main__":
    main()
