"""How strategies stand: their steps on one problem, and over all problems how far from the best they are and how soon.

All three charts are of the same rows, a standing each, so that a page has them once; a page's choices are parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from shardbench.report.charts.look import INK, SERIES, Chart
from shardbench.report.ranking import TIED, near
from shardbench.report.standing import AS_RUN, Standing, TieMark, by_problem, display_name

MARKS = {
    TieMark.BEST: "best", TieMark.SAME: "= equal within noise", TieMark.OPEN: "~ within model error",
    TieMark.UNKNOWN: "? not known", TieMark.APART: "apart",
}  # fmt: skip
"""What a colour says of a step's difference to the best."""
_MARK_COLOURS = [SERIES[place] for place in (2, 0, 5, 7, 1)]
_BACKENDS = alt.Scale(domain=["simulated", "measured"], range=["diamond", "circle"])
_BACKEND = alt.Shape("backend:N", title=None, scale=_BACKENDS)
_STRATEGY = alt.Y("strategy:N", sort=None, title=None)
_TITLES: Mapping[str, str] = {
    "step_ms": "step, ms", "low": "from (95 %)", "high": "to (95 %)", "mark": "to the best", "bound_ms": "bound, ms",
    "tied": "best or tied on", "share": "within 5 % of the best", "median": "median over the best, x",
    "worst": "worst, x", "mean": "geometric mean, x", "seconds": "seconds to learn and plan",
}  # fmt: skip
NOT_ASKED = "not asked"
ANY = ""
"""The choice that leaves all rows."""
Data = alt.NamedData | alt.InlineData


def problem_rows(problems: Sequence[tuple[Sequence[Standing], bool]]) -> list[dict[str, Any]]:
    """Return the rows of problems by their numbers: of each its standings, and whether it counts over all problems.

    The shortest step comes first, and what failed last. Where a problem counts, who was not asked it has a row as well,
    so that all strategies of a backend and budget have as many.
    """
    counted = [one for standings, ranked in problems if ranked for one in standings]
    everybody = {(one.backend, one.budget, one.strategy): one for one in counted}
    rows: list[dict[str, Any]] = []
    for number, (standings, ranked) in enumerate(problems):
        rows += [{**_row(number, one), "ranked": ranked} for one in by_step(standings)]
        budgets = {(one.backend, one.budget): one for one in standings if ranked}
        asked = {(one.backend, one.budget, one.strategy) for one in standings}
        for (backend, budget, strategy), one in everybody.items():
            there = budgets.get((backend, budget))
            if there is not None and (backend, budget, strategy) not in asked:
                absent = replace(
                    there, strategy=strategy, role=one.role, outcome=NOT_ASKED, over_best_pct=None, mark=None
                )
                rows.append({**_row(number, absent), "ranked": True})
    return rows


def rows_of(standings: Iterable[Standing]) -> list[dict[str, Any]]:
    """Return the rows of all problems of standings, each of which counts."""
    return problem_rows([(of_problem, True) for of_problem in by_problem(standings).values()])


def by_step(standings: Iterable[Standing]) -> list[Standing]:
    """Return standings with the shortest step first, and what failed last."""
    return sorted(standings, key=lambda one: (not one.ok, one.step_ms or 0.0, one.strategy))


def _row(number: int, one: Standing) -> dict[str, Any]:
    return {
        "problem": str(number),
        "backend": one.backend,
        "strategy": display_name(one.strategy, one.role),
        "competes": one.competes,
        "budget": "" if one.budget == AS_RUN else one.budget,
        "devices": f"{one.devices or 0:g}",
        "memory": one.memory,
        "family": one.family,
        "outcome": "" if one.ok else one.outcome,
        "step_ms": one.step_ms if one.ok else None,
        "low": one.low_ms,
        "high": one.high_ms,
        "bound_ms": one.bound_ms,
        "over": one.over_best_pct if one.ok else None,
        "near": near(one) or 0.0,
        "mark": None if one.mark is None else MARKS[one.mark],
        "seconds": (one.plan_s or 0.0) + (one.fit_s or 0.0),
    }


def steps(data: Data, *, problem: str = "0", budget: str = ANY) -> Chart:
    """Return the steps of a problem with their 95 % intervals, the proven bound and what failed, a row a strategy."""
    of_budget = f"(!budget || !datum.budget || datum.budget === budget) && datum.outcome !== '{NOT_ASKED}'"
    base = alt.Chart(data).transform_filter(f"datum.problem === problem && {of_budget}")
    x = alt.X("step_ms:Q", title="ms per step (log)", scale=alt.Scale(type="log", nice=False, padding=8))
    colour = alt.Color("mark:N", title=None, scale=alt.Scale(domain=list(MARKS.values()), range=_MARK_COLOURS))
    # The first layer has every row, and by it they keep their order.
    failed = base.mark_text(align="left").encode(y=_STRATEGY, x=alt.value(4), text="outcome:N")
    ended = base.transform_filter("isValid(datum.step_ms)")
    intervals = ended.transform_filter("isValid(datum.low) && isValid(datum.high)").mark_rule(strokeWidth=2)
    bound = (
        ended.transform_aggregate(bound_ms="min(bound_ms)")
        .transform_filter("datum.bound_ms > 0")
        .mark_rule(strokeDash=[4, 4])
        .encode(x="bound_ms:Q", tooltip=_numbers("bound_ms"))
    )
    tooltip = [*_names("strategy", "budget", "backend", "mark"), *_numbers("step_ms", "low", "high", "bound_ms")]
    points = ended.mark_point(filled=True, size=70)
    return alt.layer(
        failed,
        bound,
        intervals.encode(y=_STRATEGY, x=alt.X("low:Q"), x2="high:Q", color=colour),
        points.encode(y=_STRATEGY, x=x, color=colour, shape=_BACKEND, tooltip=tooltip),
        height=alt.Step(17),
    ).add_params(*_params(problem=problem, budget=budget))


def ranking(data: Data, *, backend: str, budget: str) -> Chart:
    """Return every strategy's median and worst step over the best of its problem, in the order of its share near it.

    A problem that a strategy did not end counts as worse than any other in the median, which then may have no mark. How
    many it ended stands behind its name where it is not all.
    """
    ended = "datum.ended < datum.problems ? ' (' + datum.ended + ' of ' + datum.problems + ')' : ''"
    base = _over_problems(data).transform_calculate(name=f"datum.strategy + ({ended})")
    order = alt.EncodingSortField("place", op="max", order="descending")
    y = alt.Y("name:N", sort=order, title=None)
    scale = alt.Scale(type="log", domainMin=1.0, nice=False, padding=6, clamp=True)
    x = alt.X("median:Q", title="step over the best (factor, log)", scale=scale)
    colour = alt.condition("datum.competes", alt.value(SERIES[0]), alt.value(SERIES[7]))
    tooltip = [
        *_names("strategy", "problems", "ended", "tied"),
        alt.Tooltip("share:Q", title=_TITLES["share"], format=".0%"),
        *_numbers("median", "worst", "mean", "seconds"),
    ]
    lines = base.mark_rule(strokeWidth=2).encode(y=y, x=alt.X("best:Q"), x2="worst:Q", color=colour)
    worst = base.mark_tick(thickness=3, size=10).encode(y=y, x="worst:Q", color=colour, tooltip=tooltip)
    known = base.transform_filter("isValid(datum.median)").mark_point(filled=True, size=80)
    median = known.encode(y=y, x=x, color=colour, shape=_BACKEND, tooltip=tooltip)
    return alt.layer(lines, worst, median, height=alt.Step(17)).add_params(*_chosen(backend, budget))


def effort(data: Data, *, backend: str, budget: str) -> Chart:
    """Return the mean step over the best by the seconds that learning and planning take; hollow where some failed.

    Named are those that ended all problems and that nobody quicker is as good as.
    """
    base = _over_problems(data).transform_filter("datum.ended > 0")
    seconds, factors = (alt.Scale(type="log", nice=False, padding=padding) for padding in (24, 10))
    x = alt.X("shown_s:Q", title="seconds to learn and plan (median, log)", scale=seconds)
    y = alt.Y("mean:Q", title="step over the best (geometric mean, log)", scale=factors)
    filled = alt.condition("datum.ended === datum.problems", alt.value(SERIES[0]), alt.value("transparent"))
    tooltip = [*_names("strategy", "problems", "ended"), *_numbers("mean", "seconds")]
    points = base.mark_point(size=80, stroke=SERIES[0]).encode(x=x, y=y, shape=_BACKEND, fill=filled, tooltip=tooltip)
    order: list[alt.SortField | dict[str, str]] = [alt.SortField("seconds"), alt.SortField("mean")]
    complete = base.transform_filter("datum.ended === datum.problems")
    first = complete.transform_window(least="min(mean)", sort=order).transform_filter("datum.mean <= datum.least")
    names = first.mark_text(align="left", dx=7, dy=-7, color=INK).encode(x=x, y=y, text="strategy:N")
    return alt.layer(points, names, height=320).add_params(*_chosen(backend, budget))


def _over_problems(data: Data) -> alt.Chart:
    """Return what is known of each strategy over the problems that are left; families weigh alike in its share."""
    chosen = (
        "datum.ranked && datum.backend === backend && (!budget || !datum.budget || datum.budget === budget) && "
        "(!devices || datum.devices === devices) && (!memory || datum.memory === memory)"
    )
    return (
        alt.Chart(data)
        .transform_filter(chosen)
        .transform_calculate(
            factor="isValid(datum.over) ? 1 + datum.over / 100 : null",
            log="isValid(datum.over) ? log(1 + datum.over / 100) : null",
            # No step is so far from the best: a problem that was not ended is behind all others.
            reached="isValid(datum.over) ? 1 + datum.over / 100 : 1e12",
            took="isValid(datum.over) ? datum.seconds : null",
            is_tied=f"indexof({[MARKS[mark] for mark in TIED]}, datum.mark) >= 0",
        )
        .transform_joinaggregate(of_family="count()", groupby=["strategy", "family"])
        .transform_joinaggregate(families="distinct(family)", groupby=["strategy"])
        .transform_calculate(weighted="datum.near / datum.of_family / datum.families")
        .transform_aggregate(
            groupby=["strategy", "competes", "backend"], problems="count()", ended="valid(factor)", tied="sum(is_tied)",
            share="sum(weighted)", reached="median(reached)", best="min(factor)", worst="max(factor)",
            mean_log="mean(log)", seconds="median(took)",
        )
        .transform_calculate(
            median="datum.reached < 1e6 ? datum.reached : null",
            mean="exp(datum.mean_log)",
            # Of equal shares the shorter median comes first.
            place="datum.share - log(datum.reached) / 1e6",
            # A clock does not tell shorter times apart from starting.
            shown_s="max(datum.seconds, 0.001)",
        )
    )  # fmt: skip


def _chosen(backend: str, budget: str) -> list[alt.Parameter]:
    return _params(backend=backend, budget=budget, devices=ANY, memory=ANY)


def _params(**values: str) -> list[alt.Parameter]:
    return [alt.param(name=name, value=value) for name, value in values.items()]


def _names(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:N", title=_TITLES.get(field, field)) for field in fields]


def _numbers(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:Q", title=_TITLES[field], format=".3s") for field in fields]
