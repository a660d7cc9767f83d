"""One HTML page about a suite, with nothing to fetch: the answer first, then claims, then every group."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from shardbench.base.atomic import write_atomically
from shardbench.base.generated import visible
from shardbench.base.host import Environment, load
from shardbench.model.strategy import Role
from shardbench.records.base_record import BaseRecord
from shardbench.records.record import Record
from shardbench.report.compare.versions import other_versions
from shardbench.report.groups import Group, current, groups, ordinary, suite_standings
from shardbench.report.page.chart import Chart
from shardbench.report.page.explorer import ExploredPlan, explored_plans
from shardbench.report.page.figures import figures
from shardbench.report.page.overview import matrix
from shardbench.report.page.overview_charts import pareto, profiles
from shardbench.report.page.palette import DARK, LIGHT, colours_style, strategy_look
from shardbench.report.page.problem_tables import PROBLEM_HEADERS, PROBLEM_NUMERIC, problem_tables
from shardbench.report.page.profiles import PerformanceProfile, performance_profiles
from shardbench.report.page.ranking import LARGEST_S, longest_first, ranking
from shardbench.report.page.record_list import made_by, record_rows
from shardbench.report.page.svg.picture import charts_style
from shardbench.report.prediction import judges, trust
from shardbench.report.prediction.against_measured import points
from shardbench.report.prediction.summary import HEADERS, NOTE, NUMERIC, TITLE, cells, summaries
from shardbench.report.standing import UNSHARDED, Standing, is_measured
from shardbench.report.tables.suite_tables import tables
from shardbench.report.tables.text import (
    NOTES,
    TITLES,
    Section,
    percent,
    readable_bytes,
    readable_count,
    sections,
    significant,
)

_TINY = re.compile(r"(?<![\d.,])0\.0000\d+")
PLANS = 60
"""Plans that a page shows part by part, of all groups together; one of each group at least."""


@dataclass(frozen=True, kw_only=True)
class Extra:
    """A table with charts that is shown before the groups."""

    id: str
    title: str
    note: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    """True of each column that is aligned to the right."""
    charts: tuple[Chart, ...] = ()
    csv: str = ""
    """The table's file in the results folder; empty where there is none."""
    command: str = ""
    """The command that makes it again."""


@dataclass(frozen=True, kw_only=True)
class StudyStandings:
    """Standings that a study's table states, and where they come from."""

    standings: tuple[Standing, ...]
    trials: list[Record]
    """The measured rows are of these."""
    csv: str
    records: str
    """The file of records, as ``csv`` relative to the results folder."""
    command: str
    """The command that makes a row again."""


def write_page(
    results: Path,
    name: str,
    records: list[Record],
    *,
    extras: Sequence[Extra] = (),
    environments: Iterable[str] = (),
    code: Sequence[str] = (),
    cells: Sequence[BaseRecord] = (),
    study: StudyStandings | None = None,
) -> Path:
    """Write ``<results>/pages/<name>.html`` and give its path; plans are those that the folder keeps.

    ``environments`` (hashes), ``code`` (lines on versions) and ``cells`` (of studies) are what ``extras`` and the
    standings of a ``study``, if there are any, rest on.
    """
    path = results / "pages" / f"{name}.html"
    hashes = {*environments, *(record.environment for record in current(records))}
    hashes_on_disk = {path.stem for path in (results / "environments").glob("*.json")}
    by_hash = {key: load(results, key) if key in hashes_on_disk else None for key in sorted(hashes)}
    text = page(name, records, by_hash, extras, code, cells=cells, results=results, study=study)
    write_atomically(path, text, encoding="utf-8")
    return path


def page(
    suite: str,
    records: list[Record],
    environments: dict[str, Environment | None],
    extras: Sequence[Extra] = (),
    code: Sequence[str] = (),
    *,
    cells: Sequence[BaseRecord] = (),
    results: Path | None = None,
    study: StudyStandings | None = None,
) -> str:
    """Return the page as HTML; ``environments`` are by hash, None where a file is missing; ``results`` has plans."""
    grouped = groups(records)
    frames = tables(records)
    standings = suite_standings(grouped) if study is None else list(study.standings)
    names = {row.strategy for group in grouped for row in group.rows} | {one.strategy for one in standings}
    numbers = {name: number for number, name in enumerate(sorted(names))}
    by_budget = _simulated_first(
        performance_profiles(suite_standings(ordinary(grouped)) if study is None else standings)
    )
    # The one plot that is not folded is of what is ranked first.
    first, rest = dict(list(by_budget.items())[:1]), dict(list(by_budget.items())[1:])
    profile, plane = profiles(first, numbers), pareto(first, numbers)
    folded_charts = (profiles(rest, numbers), pareto(by_budget if profile else rest, numbers))
    section_lists = {name: sections(name, frame) for name, frame in frames.items()}
    plans = max(1, PLANS // max(1, len(grouped)))
    group_views = []
    for number, group in enumerate(grouped):
        kept_plans = explored_plans(results, group, plans) if results is not None else ([], 0)
        parts = {name: of_groups[number] for name, of_groups in section_lists.items()}
        group_views.append({"id": f"group-{number}", **_group(group, parts, numbers, kept_plans)})

    def exists(name: str) -> bool:
        """Return True where the results folder has the file: only then is there a link to it."""
        return results is not None and (results / name).is_file()

    style, script = _style(), _file("page.js")
    engine = _engine()
    engine.globals["exists"] = exists
    return visible(engine.get_template("page.html.j2").render(
        suite=suite,
        style=style,
        script=script,
        policy=_policy(style, script),
        strategies=_strategies(standings, numbers),
        ranking=ranking(standings, numbers),
        largest_s=LARGEST_S,
        matrix=matrix(standings),
        section="group" if study is None else "problem",
        answer_csv=f"tables/{suite}/throughput.csv" if study is None else study.csv,
        study=study,
        first=profile or plane,
        overview=[chart for chart in folded_charts if chart is not None],
        problems=[] if study is None else problem_tables(standings, numbers),
        keys={record.key for record in current(records)},
        problem_headers=PROBLEM_HEADERS,
        problem_numeric=PROBLEM_NUMERIC,
        groups=group_views,
        extras=list(extras),
        prediction=_prediction(records),
        titles=TITLES,
        notes=NOTES,
        environments=[(key, _facts(environment)) for key, environment in environments.items()],
        trials=len(current(records)),
        cells=len(cells),
        made_by=made_by([*current(records), *cells]),
        other_versions=[*other_versions(current(records)).lines(), *code],
    ))  # fmt: skip


def _simulated_first(
    by_budget: dict[tuple[str, str], list[PerformanceProfile]],
) -> dict[tuple[str, str], list[PerformanceProfile]]:
    return dict(sorted(by_budget.items(), key=lambda item: (is_measured(item[0][0]), longest_first(item[0][1]))))


def _engine() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(_file)
    engine = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    engine.filters |= {
        "short": short,
        "bytes": readable_bytes,
        "count": readable_count,
        "significant": significant,
        "percent": percent,
        "thousands": "{:,}".format,
    }
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
    style = _file("page.css").replace("/* light */", colours_style(LIGHT)).replace("/* dark */", colours_style(DARK))
    return style + charts_style()


def _strategies(standings: Iterable[Standing], numbers: dict[str, int]) -> list[dict[str, Any]]:
    """Return what the page can hide, by number."""
    searches = {one.strategy for one in standings if one.role == Role.SEARCH}
    return [
        {"number": number, "name": name, "look": f"mark {strategy_look(name)}", "reference": name in searches}
        for name, number in numbers.items()
    ]


def _prediction(records: Sequence[Record]) -> list[Extra]:
    times, command = points(records), "shardbench report prediction"
    extras = [
        Extra(
            id="prediction", title=TITLE, note=NOTE, headers=HEADERS, rows=tuple(map(cells, summaries(times))),
            numeric=NUMERIC, command=command,
        ),
        Extra(
            id="judges", title=judges.TITLE, note=judges.NOTE, headers=judges.HEADERS, numeric=judges.NUMERIC,
            rows=tuple(one.cells() for one in judges.compare_judges(times)), command=command,
        ),
        Extra(
            id="trust", title=trust.TITLE, note=trust.NOTE, headers=trust.HEADERS, numeric=trust.NUMERIC,
            rows=tuple(one.cells() for one in trust.trust_by_machine(times)), command=command,
        ),
    ]  # fmt: skip
    return [extra for extra in extras if extra.rows]


def _group(
    group: Group, tables: dict[str, Section], numbers: dict[str, int], plans: tuple[list[ExploredPlan], int]
) -> dict[str, Any]:
    condition = group.condition
    spec = group.rows[0].records[0].spec
    return {
        "title": f"{condition.title} on {condition.machine}{_trains(group)}",
        "backend": condition.backend.value,
        "note": tables["throughput"].note,
        "suite": spec.suite,
        "charts": figures(group, numbers),
        "sections": tables,
        "strategies": {
            row.strategy: {"number": numbers[row.strategy], "key": row.records[0].key} for row in group.rows
        },
        "plans": plans[0],
        "plans_lost": plans[1],
        "records": record_rows(group, numbers),
        "again": f"shardbench run {spec.suite} --backend {condition.backend.value} --strategy NAME --force",
    }


def _trains(group: Group) -> str:
    """Say what is apart of a group that trains another model than all others; nothing of an ordinary one."""
    if group.condition.trains == UNSHARDED:
        return ""
    every = {r.planned.groups.sync_every for row in group.rows for r in row.records if r.planned and r.planned.groups}
    synced = ", ".join(f"sync every {steps} steps" for steps in sorted(every))
    return f", trains {group.condition.trains}" + (f" ({synced})" if synced else "")


def _facts(environment: Environment | None) -> list[tuple[str, str]]:
    if environment is None:
        return [("", "its file is not in the results folder")]
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
