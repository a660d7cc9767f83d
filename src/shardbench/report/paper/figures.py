"""Figures of a group, of strategies, or of any table, for papers: the page's charts, one column wide; and scores."""

from collections.abc import Sequence

import altair as alt

from shardbench.records.trial import Backend
from shardbench.report.charts import problem, strategies
from shardbench.report.charts.look import Chart, files
from shardbench.report.groups import Group
from shardbench.report.paper.latex import figure_tex, slug, table_tex
from shardbench.report.ranking import Score, scores
from shardbench.report.standing import AS_RUN, Standing
from shardbench.report.tables.suite_tables import balance, traffic
from shardbench.report.tables.text import percent, significant

HOW = {"simulated": "Simulated by the cost model, not measured", "measured": "Measured on real ranks"}
"""How numbers of a backend were found, as papers say it."""
_HEADERS = (
    "strategy", "ended", "best or tied", "within 5 %", "median", "worst", "mean over best", "mean over bound",
    "seconds",
)  # fmt: skip


def figure_files(chart: Chart, name: str, caption: str) -> dict[str, bytes]:
    """Return PDF and SVG of a chart, and the LaTeX that shows it, by file name, the same bytes each time."""
    drawn = {f"{name}.{form}": content for form, content in files(chart, caption).items()}
    return {**drawn, f"{name}.tex": figure_tex(name, caption).encode()}


def group_figures(group: Group) -> dict[str, tuple[str, Chart]]:
    """Return captions and charts by name, of a group; none where no row is ok."""
    if not group.ok_rows:
        return {}
    simulated = group.condition.backend is Backend.SIMULATED
    interval = (
        "lines are the 95 % band under draws of the model's constants and form; dashed: proven lower bound on the mean "
        "step of any plan on devices"
        if simulated
        else "lines are 95 % intervals by the noise of all trials (Student's t)"
    )
    clock = "of the cost model" if simulated else "CPU time where ranks have one"
    standings = strategies.by_step(group.standings.values())
    order = [one.strategy for one in standings]
    records = [record for row in group.rows for record in row.records]
    sent = traffic(records)
    charts: dict[str, tuple[str, Chart]] = {
        "steps": (
            f"Step of the slowest rank, ms; {interval}.",
            strategies.steps(alt.InlineData(strategies.problem_rows([(standings, False)]))),
        ),
        "balance": (
            f"Embedding kernels (forward and backward), ms per iteration ({clock}), from the fastest rank over the "
            "mean (tick) to the slowest.",
            problem.embedding(alt.InlineData(problem.table_rows(0, balance(records), order))),
        ),
    }
    collectives = problem.collectives_of(sent)
    if collectives:
        charts["traffic"] = (
            "Bytes that all ranks send per iteration, by collective; counted.",
            problem.traffic(alt.InlineData(problem.table_rows(0, sent, order)), collectives),
        )
    return charts


def scores_paper(standings: Sequence[Standing], stem: str, source: dict[str, str]) -> dict[str, bytes]:
    """Return files by name: a figure and a table of scores of each backend and budget with several problems.

    ``source`` says by backend which records are behind its rows.
    """
    files: dict[str, bytes] = {}
    competing = [one for one in standings if one.competes]
    rows = strategies.rows_of(competing)
    for (backend, budget), of_budget in scores(competing).items():
        problems = of_budget[0].problems
        if problems < 2:
            continue
        name, made_by = slug(f"{stem} scores {backend} {budget}"), source[backend]
        about = f"{HOW[backend]}; n = {problems} problems (workload and machine); budget: {budget}."
        files[f"{name}.tex"] = _scores_table(of_budget, about, made_by, name).encode()
        caption = (
            "Median and worst step over the shortest that any strategy found, in the order of the share of problems "
            f"within 5 %; a failed problem counts as the worst in the median. {about} {made_by}"
        )
        chosen = strategies.ANY if budget == AS_RUN else budget
        chart = strategies.ranking(alt.InlineData(rows), backend=backend, budget=chosen)
        files |= figure_files(chart, f"{name}-figure", caption)
    return files


def _scores_table(of_budget: Sequence[Score], about: str, made_by: str, name: str) -> str:
    def over(factor: float | None) -> str:
        return "-" if factor is None else percent(100.0 * (factor - 1.0))

    rows = [
        (
            one.strategy,
            str(len(one.ratios)),
            str(one.tied),
            f"{100.0 * one.near:.0f} %",
            *map(over, (one.median, one.ratios[-1] if one.ratios else None, one.mean, one.mean_over_bound)),
            "-" if one.seconds is None else significant(one.seconds),
        )
        for one in of_budget
    ]
    return table_tex(
        caption=f"Scores over all problems. {about}",
        label=name,
        headers=_HEADERS,
        rows=rows,
        numeric=(False, *(True,) * (len(_HEADERS) - 1)),
        notes=(
            "Ended: problems with a plan that is valid and ran; best or tied: problems on which the step is the "
            "shortest that any strategy found with any budget, or its difference within the noise or the model's "
            "error; within 5 %: share of all problems, over draws of the model where there are some; median (of "
            "all problems) and worst: step over the shortest; means: geometric, of strategies that ended all "
            f"problems (bound: that have one on all); seconds: median of learning and planning. {made_by}",
        ),
    )
