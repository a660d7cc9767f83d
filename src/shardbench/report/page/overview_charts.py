"""Charts over all problems of a suite: performance profiles, and speed against planning time."""

from collections.abc import Mapping, Sequence

import numpy as np

from shardbench.report.page.chart import Chart
from shardbench.report.page.palette import strategy_look
from shardbench.report.page.profile_picture import HEIGHT, WIDTH, profile_drawing
from shardbench.report.page.profiles import PerformanceProfile
from shardbench.report.page.svg.plane import Frame, NamedPoint, points, staircase
from shardbench.report.page.svg.scale import CAP, span
from shardbench.report.standing import AS_RUN
from shardbench.report.tables.text import significant

_FURTHEST = 10.0
"""Factor of the best at which profiles end."""
_LEAST_S = 1e-3
"""Shorter planning times are drawn here: a clock does not tell them apart from starting."""
_ByBudget = Mapping[tuple[str, str], Sequence[PerformanceProfile]]


def profiles(by_budget: _ByBudget, numbers: Mapping[str, int]) -> Chart | None:
    """Return a chart of each backend's and budget's profiles; None where there is one problem."""
    drawings = {}
    for (backend, budget), of_budget in by_budget.items():
        if of_budget[0].problems > 1:
            # A few failures of a factor of ten would squash what the others differ by.
            most = float(np.quantile([ratio for one in of_budget for ratio in one.ratios] or [1.0], 0.9))
            largest = float(np.clip(most * 1.1, 1.1, _FURTHEST))
            name = f"Performance profiles, {backend}, {budget}"
            drawings[backend, budget] = profile_drawing(of_budget, largest, name, numbers=numbers)
    caption = (
        "Performance profiles: the share of problems whose step is within a factor (x) of the best found by any "
        "strategy with any budget. At 1 how often a strategy is the best; a problem that it failed is never within."
    )
    return _charts(caption, drawings, by_budget)


def pareto(by_budget: _ByBudget, numbers: Mapping[str, int]) -> Chart | None:
    """Return charts of the mean step over the best by planning seconds; None where nothing was planned."""
    drawings = {}
    for (backend, budget), of_budget in by_budget.items():
        timed = [one for one in of_budget if one.ratios and one.plan_s is not None]
        if timed:
            drawings[backend, budget] = _plane(timed, numbers, f"{backend}, {budget}")
    caption = (
        "Speed against planning time: geometric mean over problems of the step over the best found, over the median "
        "seconds of a plan (log). A thin line leads to the seconds with fitting before it. The dashed line is the "
        "frontier: nothing is both faster to plan and better. Hollow: some problems failed, so that the mean is of the "
        "others and no part of the frontier. Beyond three medians a point lies at the edge, with its factor."
    )
    return _charts(caption, drawings, by_budget)


def _plane(timed: Sequence[PerformanceProfile], numbers: Mapping[str, int], name: str) -> str:
    highest = CAP * float(np.median([one.mean_ratio for one in timed]))
    seconds = [_seconds(one.plan_s) for one in timed] + [_seconds(_whole_s(one)) for one in timed]
    frame = Frame(
        width=WIDTH,
        height=HEIGHT,
        x=span(seconds, 60, WIDTH - 130, log=True),
        y=span([1.0, *(min(one.mean_ratio, highest) for one in timed)], HEIGHT - 46, 28, log=True),
        x_title="seconds to plan (median, log)",
        y_title="step over the best (geometric mean, log)",
    )
    dots = [
        _point(one, numbers[one.strategy], highest)
        for one in sorted(timed, key=lambda one: (one.mean_ratio, one.strategy))
    ]
    return frame.draw(f"Speed against planning time, {name}", staircase(frame, frontier(timed)) + points(frame, dots))


def _point(one: PerformanceProfile, number: int, highest: float) -> NamedPoint:
    fit = f", {significant(one.fit_s)} s to fit" if one.fit_s else ""
    return NamedPoint(
        look=strategy_look(one.strategy),
        x=_seconds(one.plan_s),
        y=one.mean_ratio,
        name=one.strategy if one.mean_ratio <= highest else f"{one.strategy} ({significant(one.mean_ratio)}x)",
        words=(
            f"{one.strategy}: {significant(one.mean_ratio)} times the best on {len(one.ratios)} of {one.problems} "
            f"problems, {significant(one.plan_s or 0.0)} s to plan{fit}"
        ),
        strategy=number,
        hollow=not one.complete,
        reach=_seconds(_whole_s(one)) if one.fit_s else None,
    )


def frontier(timed: Sequence[PerformanceProfile]) -> list[tuple[float, float]]:
    """Return (seconds, mean ratio) of those that none is both as quick to plan and better than; quickest first."""
    corners: list[tuple[float, float]] = []
    ordered = sorted((_seconds(one.plan_s), one.mean_ratio) for one in timed if one.complete)
    for seconds, ratio in ordered:
        if not corners or ratio < corners[-1][1]:
            corners.append((seconds, ratio))
    return corners


def _whole_s(one: PerformanceProfile) -> float:
    return (one.plan_s or 0.0) + (one.fit_s or 0.0)


def _seconds(value: float | None) -> float:
    return max(value or 0.0, _LEAST_S)


def _charts(caption: str, drawings: Mapping[tuple[str, str], str], by_budget: _ByBudget) -> Chart | None:
    titles = []
    for backend, budget in drawings:
        budgeted = "" if budget == AS_RUN else f", budget {budget}"
        problems = by_budget[backend, budget][0].problems
        titles.append(f"{backend}{budgeted}: {problems} problem{'s' if problems > 1 else ''}")
    return Chart(caption=caption, drawings=tuple(drawings.values()), titles=tuple(titles)) if drawings else None
