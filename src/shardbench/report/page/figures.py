"""The charts of a page: what each says and is, and the rows of tables that they share."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from shardbench.report.charts import problem, strategies
from shardbench.report.charts.look import Chart, spec
from shardbench.report.prediction.against_measured import EMBEDDING, STEP, PredictedTime
from shardbench.report.ranking import scores
from shardbench.report.standing import Standing
from shardbench.report.tables.text import split_by_group


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart as the page shows it."""

    title: str
    caption: str
    spec: Mapping[str, Any]
    """What Vega-Lite is told."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A choice of the page: a problem, and who stands how on it."""

    title: str
    backend: str
    standings: Sequence[Standing]
    ranked: bool = True
    """Whether it counts where strategies are compared over all problems."""


def figure(title: str, caption: str, chart: Chart) -> Figure:
    """Return a chart for the page; a reader who cannot see it is told its title and its caption."""
    title = title.rstrip(".")
    return Figure(title=title, caption=caption, spec=spec(chart, f"{title}. {caption}".strip()))


def ranking_figures(standings: Sequence[Standing]) -> tuple[list[Figure], dict[str, list[str]]]:
    """Return the charts over all problems, and the choices of each parameter, the first as charts begin.

    There is none where nothing is compared.
    """
    keys = list(scores(standings))
    if not any(one.ok for one in standings):
        return [], {}
    data = alt.NamedData("standings")
    (backend, budget), budgets = keys[0], [budget for backend, budget in keys if backend == keys[0][0]]
    budget = budget if len(budgets) > 1 else strategies.ANY
    charts = [
        figure(
            "Who is near the best",
            "Of every strategy the median step over the best of its problem, and a line from its least to its worst, "
            "in the order of its share of problems within 5 % of the best. Problems that it did not end, or was not "
            "asked, count as its worst in the median (in brackets: those that it did). Grey: no competitor.",
            strategies.ranking(data, backend=backend, budget=budget),
        ),
        figure(
            "Speed against planning time",
            "Mean step over the best, over the median seconds to learn and plan. Hollow: some problems failed, so that "
            "the mean is of the others. Named: nobody who is quicker is as good.",
            strategies.effort(data, backend=backend, budget=budget),
        ),
    ]
    choices: Mapping[str, Iterable[str]] = {
        "backend": dict.fromkeys(backend for backend, _ in keys),
        "budget": budgets,
        "devices": [strategies.ANY, *map("{:g}".format, sorted({one.devices for one in standings if one.devices}))],
        "memory": [strategies.ANY, *sorted({one.memory for one in standings if one.memory})],
    }
    few = {name: [*values] for name, values in choices.items()}
    return charts, {name: values for name, values in few.items() if len([value for value in values if value]) > 1}


def problem_figures(tables: Mapping[str, Any], problems: Sequence[Problem]) -> tuple[list[Figure], dict[str, Any]]:
    """Return the charts of the chosen problem, and their rows by name; ``tables`` are a suite's, empty of a study."""
    if not any(one.ok for each in problems for one in each.standings):
        return [], {}
    budgets = list(dict.fromkeys(budget for _, budget in scores([o for p in problems for o in p.standings])))
    budget = budgets[0] if len(budgets) > 1 else strategies.ANY
    figures = [
        figure(
            "Step",
            "Milliseconds of the slowest rank, with the 95 % interval: by the noise where measured, over draws of the "
            "model's constants where simulated. Colours say whether the difference to the best is more than that. A "
            "dashed line is the lower bound, proven for the constants as they are, so that draws may lie below it. A "
            "strategy without a plan has its outcome.",
            strategies.steps(alt.NamedData("standings"), budget=budget),
        )
    ]
    rows: dict[str, Any] = {
        name: [
            row
            for number, ((_, part), one) in enumerate(zip(split_by_group(table), problems, strict=True))
            for row in problem.table_rows(number, part, (each.strategy for each in strategies.by_step(one.standings)))
        ]
        for name, table in tables.items()
    }
    if not rows:
        return figures, {}
    phases = problem.phases_of(tables["throughput"])
    collectives = problem.collectives_of(tables["traffic"])
    charts: list[tuple[str, str, Chart]] = [
        (
            "Embedding time of the ranks",
            "Forward and backward kernels, from the fastest rank over the mean (tick) to the slowest (point); CPU time "
            "where ranks have one. Bounds hold for the slowest rank of simulated plans on devices.",
            problem.embedding(alt.NamedData("balance")),
        )
    ]
    if phases:
        caption = (
            "The slowest rank's time in each phase, in each another one's, as a share of all phases. Measured phases "
            "count waits for other ranks."
        )
        charts.insert(0, ("Phases of the step", caption, problem.phases(alt.NamedData("throughput"), phases)))
    if collectives:
        caption = "Bytes an iteration, counted, by collective and over the links to the hosts."
        charts.append(("Traffic", caption, problem.traffic(alt.NamedData("traffic"), collectives)))
    caption = "Weights and optimiser state of the plan on the device that holds most of each kind."
    charts.append(("Memory of the fullest device", caption, problem.memory(alt.NamedData("traffic"))))
    return [*figures, *(figure(*each) for each in charts)], rows


def prediction_figure(times: Sequence[PredictedTime]) -> tuple[Figure, list[dict[str, Any]]]:
    """Return the chart of the model's error, and its rows: a step, or the embedding kernels of a rank."""
    rows = [
        {
            "workload": one.condition.title, "strategy": one.strategy, "quantity": one.key.quantity,
            "rank": "" if one.key.rank is None else str(one.key.rank), "predicted_ms": one.predicted_ms,
            "measured_ms": one.measured_ms,
        }
        for one in times
        if one.key.quantity in (STEP.quantity, EMBEDDING) and one.counts
    ]  # fmt: skip
    caption = (
        "A point is a step, or the embedding kernels of a rank, of a measured trial; on the line the model is right."
    )
    return figure("Predicted against measured", caption, problem.model_error(alt.NamedData("prediction"))), rows


def in_script(told: Mapping[str, Any]) -> str:
    """Return JSON that may stand in a script element: no text in it ends that. Numbers have six digits."""
    return json.dumps(_rounded(told), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
