"""Performance profiles as a drawing: all of them on a page, the best of them in the documents' picture."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.report.page.palette import strategy_look
from shardbench.report.page.profiles import LARGEST, NAMED, PerformanceProfile, ranked_profiles
from shardbench.report.page.svg.marks import drawing, text
from shardbench.report.page.svg.picture import picture_file
from shardbench.report.page.svg.plane import Frame, Line, lines
from shardbench.report.page.svg.scale import Scale
from shardbench.report.standing import table_standings

WIDTH, HEIGHT = 860, 440
_HEAD = 24


def profile_drawing(
    profiles: Sequence[PerformanceProfile],
    largest: float,
    name: str,
    *,
    numbers: Mapping[str, int] | None = None,
    in_colour: int | None = None,
    head: Sequence[str] = (),
) -> str:
    """Return profiles up to a factor as SVG, below the lines of ``head``.

    Profiles after the first ``in_colour`` are grey and without a name. ``numbers`` are the strategies' on a page, which
    can hide them.
    """
    top = _HEAD * len(head)
    frame = Frame(
        width=WIDTH,
        height=HEIGHT + top,
        x=Scale(low=1.0, high=largest, start=52, stop=WIDTH - 200, log=True),
        y=Scale(low=0.0, high=1.0, start=HEIGHT - 46 + top, stop=28 + top),
        x_title="step over the best (factor, log)",
        y_title="share of problems",
    )
    coloured = {one.strategy for one in profiles[:in_colour]}
    # Grey lines lie below the others; the names at the right stand in the order of the lines' ends.
    order = sorted(profiles, key=lambda one: (one.strategy in coloured, -one.within(largest), one.strategy))
    curves = [
        Line(
            look=strategy_look(one.strategy) if one.strategy in coloured else None,
            points=one.corners(largest),
            name=one.strategy if one.strategy in coloured else "",
            strategy=None if numbers is None else numbers[one.strategy],
            steps=True,
            marked=False,
        )
        for one in order
    ]
    heading = [text(8, 18 + _HEAD * i, words, kind="" if i else "head") for i, words in enumerate(head)]
    return drawing(frame.width, frame.height, name, "".join(heading) + frame.inside(lines(frame, curves)))


def profile_picture(steps: pd.DataFrame, backend: str, budget: str) -> str:
    """Return a picture of all competitors' profiles in the leaderboard's table ``steps``, the best in colour.

    Raises BadInput where there is none of the backend and budget.
    """
    profiles = ranked_profiles(table_standings(steps)).get((backend, budget))
    if profiles is None:
        raise BadInput(f"the leaderboard has no {backend} row of a competitor with the budget {budget}")
    versions = ", ".join(f"{version}" for version in sorted(set(steps["version"])))
    head = "Share of problems on which a strategy's step is within a factor of the best"
    note = (
        f"{backend}; leaderboard version {versions}; {profiles[0].problems} problems (workload x machine); "
        f"{budget} for learning and planning"
        + (f"; grey: {len(profiles) - NAMED} others" if len(profiles) > NAMED else "")
    )
    return picture_file(profile_drawing(profiles, LARGEST, head, in_colour=NAMED, head=(head, note)))
