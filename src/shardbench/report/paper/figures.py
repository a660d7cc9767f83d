"""Figures of a group, of strategies, or of any table, for papers: the page's charts, one column wide."""

import altair as alt

from shardbench.records.trial import Backend
from shardbench.report.charts import problem, strategies
from shardbench.report.charts.look import Chart, files
from shardbench.report.groups import Group
from shardbench.report.paper.latex import figure_tex
from shardbench.report.tables.suite_tables import balance, traffic


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
