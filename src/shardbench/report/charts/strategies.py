"""How strategies stand: their steps on one problem, and over all problems how far from the best they are and how soon.

All three charts are of the same rows, a standing each, so that a page has them once; a page's choices are parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from shardbench.report.charts.look import INK, QUIET, SERIES
from shardbench.report.ranking import TIED, near
from shardbench.report.standing import AS_RUN, Standing, TieMark, display_name

MARKS = {
    TieMark.BEST: "best", TieMark.SAME: "= equal within noise", TieMark.OPEN: "~ within model error",
    TieMark.UNKNOWN: "? not known", TieMark.APART: "apart",
}  # fmt: skip
"""What a colour says of a step's difference to the best."""
_MARK_COLOURS = (SERIES[2], SERIES[0], SERIES[5], SERIES[7], SERIES[1])
_BACKENDS = ("simulated", "measured")
_BACKEND = alt.Shape("backend:N", title=None, scale=alt.Scale(domain=list(_BACKENDS), range=["diamond", "circle"]))
_STRATEGY = alt.Y("strategy:N", sort=None, title=None)
ANY = ""
"""The choice that leaves all rows."""
CHOICES = ("problem", "backend", "budget", "devices", "memory")
"""Parameters that a page may set."""
Data = alt.NamedData | alt.InlineData


def rows_of(problem: int, standings: Iterable[Standing], *, ranked: bool = True) -> list[dict[str, Any]]:
    """Return a problem's standings as rows of the charts, the shortest step first and what failed last."""
    return [
        {
            "problem": str(problem), "ranked": ranked, "title": f"{one.workload} on {one.machine}",
            "backend": one.backend, "strategy": display_name(one.strategy, one.role), "competes": one.competes,
            "budget": "" if one.budget == AS_RUN else one.budget, "devices": f"{one.devices or 0:g}",
            "memory": one.memory, "family": one.family, "step_ms": one.step_ms if one.ok else None,
            "low": one.low_ms, "high": one.high_ms, "bound_ms": one.bound_ms,
            "over": one.over_best_pct if one.ok else None, "near": near(one) or 0.0,
            "mark": MARKS.get(one.mark) if one.mark is not None else None,
            "seconds": (one.plan_s or 0.0) + (one.fit_s or 0.0), "outcome": "" if one.ok else one.outcome,
        }
        for one in by_step(standings)
    ]  # fmt: skip


def by_step(standings: Iterable[Standing]) -> list[Standing]:
    """Return standings with the shortest step first, and what failed last."""
    return sorted(standings, key=lambda one: (not one.ok, one.step_ms or 0.0, one.strategy))


def steps(data: Data, *, problem: str = "0", budget: str = ANY) -> alt.LayerChart:
    """Return the steps of a problem with their 95 % intervals, the proven bound and what failed, a row a strategy."""
    base = alt.Chart(data).transform_filter("datum.problem === problem && (!budget || !datum.budget || "
                                            "datum.budget === budget)")  # fmt: skip
    x = alt.X("step_ms:Q", title="ms per step (log)", scale=alt.Scale(type="log", zero=False, nice=False, padding=8))
    colour = alt.Color("mark:N", title=None, scale=alt.Scale(domain=list(MARKS.values()), range=list(_MARK_COLOURS)))
    # The first layer has every row, and by it they keep their order.
    failed = base.mark_text(align="left").encode(y=_STRATEGY, x=alt.value(4), text="outcome:N")
    ended = base.transform_filter("isValid(datum.step_ms)")
    intervals = ended.transform_filter("isValid(datum.low) && isValid(datum.high)").mark_rule(strokeWidth=2)
    tooltip = _tooltip(strategy="", budget="", backend="", step_ms=".3s", low=".3s", high=".3s", mark="", bound_ms=".3s")
    bound = (
        ended.transform_aggregate(bound="min(bound_ms)")
        .transform_filter("datum.bound > 0")
        .mark_rule(strokeDash=[4, 4])
        .encode(x="bound:Q", tooltip=alt.Tooltip("bound:Q", title="proven lower bound, ms", format=".3s"))
    )
    points = ended.mark_point(filled=True, size=70, opacity=1.0)
    return alt.layer(
        failed,
        bound,
        intervals.encode(y=_STRATEGY, x=alt.X("low:Q"), x2="high:Q", color=colour),
        points.encode(y=_STRATEGY, x=x, color=colour, shape=_BACKEND, tooltip=tooltip),
        height=alt.Step(17),
    ).add_params(*_params(problem=problem, budget=budget))


def ranking(data: Data, *, backend: str, budget: str) -> alt.LayerChart:
    """Return every strategy's median and worst step over the best of its problem, in the order of its share near it.

    A problem that a strategy did not end counts as worse than any other in the median, which then may have no mark.
    """
    base = _over_problems(data)
    order = alt.EncodingSortField("share", op="max", order="descending")
    y = alt.Y("strategy:N", sort=order, title=None)
    scale = alt.Scale(type="log", domainMin=1.0, nice=False, padding=6, clamp=True)
    colour = alt.condition("datum.competes", alt.value(SERIES[0]), alt.value(SERIES[7]))
    tooltip = [
        *_tooltip(strategy="", ended="", problems="", tied="", share=".0%", median=".3", worst=".3", mean=".3"),
        *_tooltip(seconds=".3s"),
    ]
    lines = base.mark_rule(strokeWidth=2).encode(y=y, x=alt.X("best:Q"), x2="worst:Q", color=colour)
    ended = base.mark_tick(thickness=3, size=10).encode(y=y, x="worst:Q", color=colour, tooltip=tooltip)
    median = (
        base.transform_filter("isValid(datum.median)")
        .mark_point(filled=True, size=80, opacity=1.0)
        .encode(
            y=y, x=alt.X("median:Q", title="step over the best (factor, log)", scale=scale),
            color=colour, shape=_BACKEND, tooltip=tooltip,
        )
    )  # fmt: skip
    text = (
        base.transform_calculate(label="datum.ended < datum.problems ? datum.ended + ' of ' + datum.problems + ' ended' : ''")
        .mark_text(align="left", dx=8, fontSize=10, color=QUIET)
        .encode(y=y, x="worst:Q", text="label:N")
    )
    layers = alt.layer(lines, ended, median, text, height=alt.Step(17))
    return layers.add_params(*_params(backend=backend, budget=budget, devices=ANY, memory=ANY))


def effort(data: Data, *, backend: str, budget: str) -> alt.LayerChart:
    """Return the mean step over the best by the seconds that learning and planning take; hollow where some failed.

    Named are those that ended all problems and that nobody quicker is as good as.
    """
    base = _over_problems(data).transform_filter("datum.ended > 0")
    x = alt.X("shown_s:Q", title="seconds to learn and plan (median, log)", scale=alt.Scale(type="log", nice=False, padding=24))
    y = alt.Y("mean:Q", title="step over the best (geometric mean, log)", scale=alt.Scale(type="log", nice=False, padding=10))
    tooltip = _tooltip(strategy="", mean=".3", seconds=".3s", ended="", problems="")
    points = base.mark_point(size=80, opacity=1.0).encode(
        x=x, y=y, shape=_BACKEND, tooltip=tooltip, stroke=alt.value(SERIES[0]),
        fill=alt.condition("datum.ended === datum.problems", alt.value(SERIES[0]), alt.value("transparent")),
    )  # fmt: skip
    # Who is not quicker to plan than somebody better has no name on the chart, but one under the pointer.
    order = [alt.SortField("seconds"), alt.SortField("mean")]
    complete = base.transform_filter("datum.ended === datum.problems")
    first = complete.transform_window(least="min(mean)", sort=order).transform_filter("datum.mean <= datum.least")
    names = first.mark_text(align="left", dx=7, dy=-7, color=INK).encode(x=x, y=y, text="strategy:N")
    return alt.layer(points, names, height=320).add_params(
        *_params(backend=backend, budget=budget, devices=ANY, memory=ANY)
    )


def _over_problems(data: Data) -> alt.Chart:
    """Return what is known of each strategy over the problems that are left, families alike in the share near the best."""
    chosen = (
        "datum.ranked && datum.backend === backend && (!budget || !datum.budget || datum.budget === budget) && "
        "(!devices || datum.devices === devices) && (!memory || datum.memory === memory)"
    )
    return (
        alt.Chart(data)
        .transform_filter(chosen)
        .transform_calculate(
            # No step is so far from the best: a problem that was not ended is behind all others.
            reached="isValid(datum.over) ? 1 + datum.over / 100 : 1e12",
            factor="isValid(datum.over) ? 1 + datum.over / 100 : null",
            log="isValid(datum.over) ? log(1 + datum.over / 100) : null",
            is_tied=f"indexof({[MARKS[mark] for mark in TIED]}, datum.mark) >= 0",
        )
        .transform_joinaggregate(of_family="count()", groupby=["strategy", "family"])
        .transform_joinaggregate(families="distinct(family)", groupby=["strategy"])
        .transform_calculate(weighted="datum.near / datum.of_family / datum.families")
        .transform_aggregate(
            problems="count()", ended="valid(factor)", tied="sum(is_tied)", share="sum(weighted)",
            reached="median(reached)", best="min(factor)", worst="max(factor)", mean_log="mean(log)",
            seconds="median(seconds)", groupby=["strategy", "competes", "backend"],
        )
        .transform_calculate(
            median="datum.reached < 1e6 ? datum.reached : null", mean="exp(datum.mean_log)",
            # A clock does not tell shorter times apart from starting.
            shown_s="max(datum.seconds, 0.001)",
        )
    )  # fmt: skip


def _params(**values: str) -> Sequence[alt.Parameter]:
    return [alt.param(name=name, value=value) for name, value in values.items()]


def _tooltip(**formats: str) -> list[alt.Tooltip]:
    titles: Mapping[str, str] = {
        "step_ms": "step, ms", "low": "from (95 %)", "high": "to", "mark": "to the best", "bound_ms": "proven lower bound, ms",
        "tied": "best or tied on", "share": "within 5 % of the best", "median": "median over the best, x",
        "worst": "worst, x", "mean": "geometric mean, x", "seconds": "seconds to learn and plan",
    }  # fmt: skip
    return [
        alt.Tooltip(f"{name}:{'Q' if format_ else 'N'}", title=titles.get(name, name), **({"format": format_} if format_ else {}))
        for name, format_ in formats.items()
    ]
