"""One HTML page about a suite, with nothing to fetch: the answer first, then claims, then every group."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from shardbench.base.generated import visible
from shardbench.base.host import load
from shardbench.cost.costmodel import HOST
from shardbench.records.base_record import BaseRecord
from shardbench.records.record import Record
from shardbench.report.charts.look import DARK, LIGHT, compiled, scripts, variables
from shardbench.report.charts.strategies import problem_rows
from shardbench.report.compare.versions import other_versions
from shardbench.report.groups import Group, groups, suite_standings
from shardbench.report.page.answers import LOOKUPS, MEMORY, answer
from shardbench.report.page.explorer import explored_plans
from shardbench.report.page.figures import (
    Figure,
    Problem,
    in_script,
    prediction_figure,
    problem_figures,
    ranking_figures,
)
from shardbench.report.prediction.against_measured import points
from shardbench.report.prediction.summary import shown_tables
from shardbench.report.ranking import Score, scores
from shardbench.report.rows import current
from shardbench.report.standing import AS_RUN, UNSHARDED, Standing, by_problem, is_measured, trains_text
from shardbench.report.tables.layout import csv_columns
from shardbench.report.tables.suite_tables import tables
from shardbench.report.tables.text import NOTES, TITLES, Columns, Section, column_words, readable_cell, sections

_COMMIT, _COMMITS = 12, 4
"""The digits of a commit in print, and how many commits are named."""
_TINY = re.compile(r"(?<![\d.,])0\.0000\d+")
PLANS = 60
"""Plans that a page shows part by part, of all groups together; one of each group at least."""


@dataclass(frozen=True, kw_only=True)
class Extra(Columns):
    """A table with charts that is shown before the groups."""

    id: str
    title: str
    note: str
    figures: tuple[Figure, ...] = ()
    csv: str = ""
    """The table's file in the results folder; empty where there is none."""
    command: str = ""
    """The command that makes it again."""


def frame_extra(id_: str, title: str, note: str, frame: pd.DataFrame) -> Extra:
    """Return a table as a section: words for names of columns, numbers with three digits."""
    return Extra(
        id=id_,
        title=title,
        note=note,
        headers=tuple(column_words(str(column)) for column in frame.columns),
        rows=tuple(
            tuple(readable_cell(str(column), value) for column, value in zip(frame.columns, row))
            for row in frame.itertuples(index=False)
        ),
        numeric=tuple(pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns),
    )


@dataclass(frozen=True, kw_only=True)
class StudyStandings:
    """Standings that a study's table states, and its rows problem by problem."""

    standings: tuple[Standing, ...]
    problems: tuple[Extra, ...]
    """One for each problem of the standings, in their order."""
    scores: tuple[Extra, ...]
    """Strategies over all problems, a table a backend; empty where the study states none."""
    judge: Mapping[str, str]
    """Strategies that know the formula by which they are judged, and in which way."""


def page(
    name: str,
    records: list[Record],
    results: Path,
    *,
    extras: Sequence[Extra] = (),
    code: Sequence[str] = (),
    cells: Sequence[BaseRecord] = (),
    study: StudyStandings | None = None,
) -> str:
    """Return a page as HTML; plans, environments and files to link to are those that the results folder has.

    ``code`` (lines on versions) and ``cells`` (of studies) are what ``extras`` and the standings of a ``study``, if
    there are any, rest on.
    """
    grouped = groups(records)
    frames = tables(records)
    section_lists = {table: sections(table, frame) for table, frame in frames.items()}
    plans = max(1, PLANS // max(1, len(grouped)))
    group_views = []
    for number, group in enumerate(grouped):
        kept, lost = explored_plans(results, group, plans)
        shown_plans = [
            frame_extra(f"plan-{number}-{i}", f"What lies where by {', '.join(one.strategies)}", one.text, one.devices)
            for i, one in enumerate(kept)
        ]
        parts = {table: of_groups[number] for table, of_groups in section_lists.items()}
        view = {"id": f"group-{number}", "plans": shown_plans, "plans_lost": lost, **_group(group, parts)}
        group_views.append(view)

    style, script = _style(), scripts() + _file("first.js") + _file("page.js")
    problems = _problems(grouped) if study is None else _study_problems(study)
    scored = suite_standings(grouped)
    if study is not None:
        scored = [one for each in problems if each.ranked for one in each.standings]
    overview, choices = ranking_figures(scored)
    shown, rows = problem_figures(frames if study is None else {}, problems)
    prediction, rows["prediction"] = _prediction(records)
    rows["standings"] = problem_rows([(one.standings, one.ranked) for one in problems])
    made = [*current(records), *cells]
    # There is a link only to what the folder has.
    engine = _engine(lambda file: (results / file).is_file())
    return visible(engine.get_template("page.html.j2").render(
        suite=name,
        style=style,
        script=script,
        policy=_policy(style, script),
        rows=rows,
        rankings=(study and study.scores) or _rankings(scored, f"tables/{name}/throughput.csv"),
        overview=overview,
        choices=choices,
        shown=shown,
        **_choice(problems, study.judge if study else {}),
        tables="#group-" if study is None else "#problem-",
        study=study,
        groups=group_views,
        extras=list(extras),
        prediction=prediction,
        titles=TITLES,
        notes=NOTES,
        environments=[(key, _facts(results, key)) for key in sorted({record.environment for record in made})],
        trials=len(current(records)),
        cells=len(cells),
        made_by=made_by(made),
        other_versions=[*other_versions(current(records)).lines(), *code],
    ))  # fmt: skip


def _problems(grouped: Sequence[Group]) -> list[Problem]:
    return [
        Problem(
            title=_title(group),
            backend=group.condition.backend.value,
            standings=list(group.standings.values()),
            ranked=group.compared and group.condition.trains == UNSHARDED,
        )
        for group in grouped
    ]


def _study_problems(study: StudyStandings) -> list[Problem]:
    """Return the problems of a study; those where no plan matters do not count where all are compared."""
    return [
        Problem(
            title=f"{problem[0]} on {problem[1]}",
            backend=problem[2],
            standings=of_problem,
            ranked=not any(one.over_best_pct == 0.0 and one.bound_by == HOST for one in of_problem),
        )
        for problem, of_problem in by_problem(study.standings).items()
    ]


SHORTEST = "The shortest steps. ~: not told apart from the best. Seconds: of learning and planning."


def _choice(problems: Sequence[Problem], judge: Mapping[str, str]) -> dict[str, Any]:
    """Return what a reader chooses a problem by, and the answer of each."""
    answers = [answer(one.standings, judge) for one in problems]
    devices = sorted({one.devices for one in answers if one.lookups}, key=float)
    words = {"devices": dict(zip(devices, devices)), "memory": MEMORY, "lookups": LOOKUPS}
    best = [frame_extra(f"best-{i}", SHORTEST, "", one.rows) for i, one in enumerate(answers)]
    return {"problems": problems, "answers": list(zip(answers, best)), "words": words if devices else {}}


def first_screen(study: StudyStandings, page_at: str) -> str:
    """Return the beginning of a study's page as HTML, for another page; ``page_at`` is the address of the whole one."""
    engine = _engine(lambda _: False)
    macros = '{% from "first.html.j2" import one_problem, ranking with context %}{{ one_problem() }}{{ ranking() }}'
    told = {"study": study, "rankings": study.scores[:1], "tables": f"{page_at}#problem-"}
    text = engine.from_string(macros).render(**told, **_choice(_study_problems(study), study.judge))
    return visible(f"{text}<script>{_file('first.js')}</script>")


def _rankings(standings: Sequence[Standing], csv: str) -> list[Extra]:
    """Return the scores of each backend's longest budget as a table; none where nothing ended well."""
    longest: dict[str, Extra] = {}
    for (backend, budget), of_budget in scores(standings).items():
        if backend not in longest and any(one.ok for one in standings):
            longest[backend] = score_table(backend, budget, pd.DataFrame(map(_score_cells, of_budget)), csv)
    return list(longest.values())


def _score_cells(one: Score) -> dict[str, Any]:
    over = [None if ratio is None else 100 * (ratio - 1) for ratio in (one.median, max(one.ratios, default=None))]
    return {
        "strategy": one.name, "median_over_best_pct": over[0], "worst_over_best_pct": over[1],
        "best_or_tied": f"{one.tied} of {one.problems}", "within 5 %": f"{100 * one.near:.0f} %",
        "ended": f"{len(one.ratios)} of {one.problems}", "seconds": one.seconds,
    }  # fmt: skip


def score_table(backend: str, budget: str, frame: pd.DataFrame, csv: str) -> Extra:
    """Return a table of scores with a title that says how they came about."""
    made = "on real ranks" if is_measured(backend) else "a prediction of the cost model: no GPU ran these plans"
    title = f"{backend}, {made}" + f"; {budget}" * (budget != AS_RUN)
    return replace(frame_extra(f"scores-{backend}", title, "", frame), csv=csv)


def _engine(exists: Callable[[str], bool]) -> jinja2.Environment:
    loader = jinja2.FunctionLoader(_file)
    engine = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    engine.filters |= {"short": short, "in_script": in_script, "compiled": compiled}
    engine.globals["exists"] = exists
    return engine


def short(cell: str) -> str:
    """Return a cell without the zeros of tiny numbers, which the CSV has in full."""
    return _TINY.sub("< 0.0001", cell)


def _file(name: str) -> str:
    return (resources.files(__package__ or "") / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return what a browser may run and fetch for the page: its own script and style, by their hashes, and no more."""

    def own(text: str) -> str:
        # As the template writes it, on lines of its own.
        digest = hashlib.sha256(f"\n{text}\n".encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    return (
        f"default-src 'none'; script-src {own(script)}; style-src {own(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _style() -> str:
    both = {name: f"light-dark({colour}, {DARK[name]})" for name, colour in LIGHT.items()}
    return _file("page.css").replace("/* colours */", variables(both))


def _prediction(records: Sequence[Record]) -> tuple[list[Extra], list[dict[str, Any]]]:
    """Return what was predicted of measured trials, and the rows of its chart; none where nothing was measured."""
    times = points(records)
    chart, rows = prediction_figure(times)
    extras = []
    for name, shown in shown_tables(times).items():
        table = csv_columns(shown.csv)
        figures = (chart,) if name == "summary" and rows else ()
        one = Extra(id=f"prediction-{name}", title=shown.title, note=shown.note, **vars(table))
        extras.append(replace(one, figures=figures, command="shardbench report prediction"))
    return [extra for extra in extras if extra.rows], rows


def _group(group: Group, tables: dict[str, Section]) -> dict[str, Any]:
    condition = group.condition
    spec = group.rows[0].records[0].spec
    return {
        "title": _title(group),
        "backend": condition.backend.value,
        "note": tables["throughput"].note,
        "suite": spec.suite,
        "sections": tables,
        "again": f"shardbench run {spec.suite} --backend {condition.backend.value} --strategy NAME --force",
    }


def made_by(records: Sequence[BaseRecord]) -> list[str]:
    """Return the commits and the days of the records, one line each."""
    provenances = [record.provenance for record in records if record.provenance is not None]
    lines = []
    if provenances:
        days = sorted(f"{one.started:%Y-%m-%d}" for one in provenances)
        lines.append(f"Recorded {days[0]}" + (f" to {days[-1]}" if days[-1] != days[0] else ""))
        commits = Counter(_commit(one.commit, dirty=one.dirty) for one in provenances).most_common()
        names = ", ".join(f"{commit} ({count})" for commit, count in commits[:_COMMITS])
        more = f" and {len(commits) - _COMMITS} more" if len(commits) > _COMMITS else ""
        lines.append(f"by commit {names}{more}")
    if len(provenances) < len(records):
        lines.append(f"{len(records) - len(provenances)} state no commit")
    return lines


def _commit(commit: str | None, *, dirty: bool | None) -> str:
    return "none" if commit is None else commit[:_COMMIT] + (" and changes" if dirty else "")


def _title(group: Group) -> str:
    """Return the problem's name, with what is apart of a group that trains another model than all others."""
    return f"{group.condition.title} on {group.condition.machine}{trains_text(group.condition.trains)}"


def _facts(results: Path, key: str) -> list[tuple[str, str]]:
    if key not in {path.stem for path in (results / "environments").glob("*.json")}:
        return [("", "its file is not in the results folder")]
    environment = load(results, key)
    gpus = ", ".join(environment.gpus.names) or "none"
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items() if version)
    threads = ", ".join(f"{name}={value}" for name, value in environment.threads.items() if value is not None)
    return [
        ("CPU", f"{environment.cpu}, {environment.cores} cores, {environment.memory_gib} GiB"),
        ("GPU", gpus),
        ("system", f"{environment.platform}, Python {environment.python}"),
        ("versions", versions),
        ("threads", threads or "nothing set"),
    ]
