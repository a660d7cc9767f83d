"""Draws published steps against predicted ones, for the front of the site: docs/static/steps.svg.

``python tools/published_chart.py`` draws what results/tables/published/steps.csv has.
"""

from pathlib import Path

import altair as alt
import pandas as pd
from published_agreement import STEPS_CSV

from shardbench.base.atomic import write_atomically
from shardbench.report.charts.look import EDGE, QUIET, SERIES, Chart, picture

SVG = Path("docs/static/steps.svg")
LOW, HIGH = 0.4, 2500.0
"""Milliseconds at the ends of both axes."""
GPUS = ("V100", "A100", "H100", "B200", "others")
TITLE = "Published training steps on GPUs against their prediction"


def kind(machine: str) -> str:
    """Return the colour's name of a machine: its GPU, or others."""
    name = machine.split("-", maxsplit=1)[0].upper().removeprefix("G")
    return name if name in GPUS else "others"


def chart(steps: pd.DataFrame) -> Chart:
    """Return one mark a step, its colour the GPU, its size their number, hollow where held out."""
    scale = alt.Scale(type="log", domain=[LOW, HIGH], nice=False)
    rows = steps.assign(kind=steps["gpu"].map(kind)).sort_values("gpus", ascending=False)
    colours = alt.Scale(domain=list(GPUS), range=[*SERIES[: len(GPUS) - 1], SERIES[7]])
    colour = alt.condition("datum.split === 'fit'", alt.Color("kind:N", scale=colours), alt.value("transparent"))
    points = (
        alt.Chart(rows)
        .mark_point(strokeWidth=2)
        .encode(
            x=alt.X("published_ms:Q", title="published step, ms", scale=scale),
            y=alt.Y("predicted_ms:Q", title="predicted step, ms", scale=scale),
            fill=colour, stroke=alt.Stroke("kind:N", title="filled: fitted, hollow: held out", scale=colours),
            size=alt.Size("gpus:Q", title="GPUs", scale=alt.Scale(type="log", range=[30, 260])),
        )
    )  # fmt: skip
    lines = [
        alt.Chart(pd.DataFrame({"x": [max(LOW, LOW / factor), min(HIGH, HIGH / factor)], "factor": factor}))
        .transform_calculate(y="datum.x * datum.factor")
        .mark_line(color=EDGE if factor == 1.0 else QUIET, strokeDash=[1, 0] if factor == 1.0 else [4, 4])
        .encode(x=alt.X("x:Q", scale=scale), y=alt.Y("y:Q", scale=scale))
        for factor in (1.6, 1.0, 1 / 1.6)
    ]
    return alt.layer(*lines, points, height=440).properties(title=f"{TITLE}; dashed: a factor of 1.6")


def draw(steps: pd.DataFrame) -> str:
    """Return the picture as SVG."""
    return picture(chart(steps), TITLE, width=560)


def main() -> None:
    """Run the command line, from the repository's root."""
    write_atomically(SVG, draw(pd.read_csv(STEPS_CSV)), encoding="utf-8")


if __name__ == "__main__":
    main()
