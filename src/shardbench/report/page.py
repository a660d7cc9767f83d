"""One HTML page about a suite, with nothing to fetch: plots, tables, environments, how to read it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
import plotly.io
import plotly.offline

from shardbench.base.atomic import write_atomically
from shardbench.base.host import Environment, load
from shardbench.records.record import Record
from shardbench.records.trial import Backend
from shardbench.report.code_differences import other_code
from shardbench.report.figures import figures
from shardbench.report.groups import Group, current, groups
from shardbench.report.prediction import points
from shardbench.report.prediction_summary import summaries
from shardbench.report.prediction_text import HEADERS, NOTE, NUMERIC, TITLE, cells
from shardbench.report.tables import tables
from shardbench.report.view import NOTES, TITLES, Section, sections

_CONFIG = {"displayModeBar": False, "responsive": True}


@dataclass(frozen=True, kw_only=True)
class Extra:
    """A table with plots that is shown before the groups."""

    id: str
    title: str
    note: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    """Per column: aligned to the right."""
    plots: tuple[dict[str, str], ...] = ()
    """``caption`` and ``html`` of each."""


def write_page(
    results: Path,
    name: str,
    records: list[Record],
    *,
    extras: Sequence[Extra] = (),
    environments: Iterable[str] = (),
    code: Sequence[str] = (),
    cells: int = 0,
) -> Path:
    """Write ``<results>/pages/<name>.html`` (about 5 MB, plotly included) and give its path.

    ``environments`` (hashes), ``code`` (lines about other code) and ``cells`` (of studies) are what ``extras`` rest on.
    """
    path = results / "pages" / f"{name}.html"
    hashes = {*environments, *(record.environment for record in current(records))}
    known = {key: load(results, key) if _stored(results, key) else None for key in sorted(hashes)}
    write_atomically(path, page(name, records, known, extras, code, cells=cells), encoding="utf-8")
    return path


def page(
    suite: str,
    records: list[Record],
    environments: dict[str, Environment | None],
    extras: Sequence[Extra] = (),
    code: Sequence[str] = (),
    *,
    cells: int = 0,
) -> str:
    """The page as HTML; ``environments`` by hash, None where the file is not there."""
    frames = tables(records)
    tabled = {name: sections(name, frame, causes=False) for name, frame in frames.items()}
    shown = [
        _group(number, group, {name: found[number] for name, found in tabled.items()})
        for number, group in enumerate(groups(records))
    ]
    folder = resources.files("shardbench.report")
    loader = jinja2.DictLoader({"page": (folder / "page.html.j2").read_text()})
    engine = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return engine.get_template("page").render(
        suite=suite,
        groups=shown,
        extras=[*extras, *_prediction(records)],
        titles=TITLES,
        notes=NOTES,
        environments=[(key, _facts(known)) for key, known in environments.items()],
        trials=len(current(records)),
        cells=cells,
        other_code=[*other_code(current(records)).lines(), *code],
        plotly=plotly.offline.get_plotlyjs(),
    )


def _prediction(records: Sequence[Record]) -> list[Extra]:
    found = summaries(points(records))
    rows = tuple(cells(summary) for summary in found)
    return [Extra(id="prediction", title=TITLE, note=NOTE, headers=HEADERS, rows=rows, numeric=NUMERIC)] if rows else []


def _group(number: int, group: Group, found: dict[str, Section]) -> dict[str, Any]:
    plots = drawn(f"plot-{number}", figures(group))
    condition = group.condition
    return {
        "id": f"group-{number}",
        "title": f"{condition.workload} on {condition.machine}",
        "backend": condition.backend.value,
        "simulated": condition.backend is Backend.SIMULATED,
        "note": found["throughput"].note,
        "plots": plots,
        "sections": found,
    }


def drawn(name: str, plots: Sequence[tuple[str, go.Figure]]) -> tuple[dict[str, str], ...]:
    """``caption`` and ``html`` of each plot; ``name`` is the page's own for them."""
    return tuple(
        {
            "caption": caption,
            "html": plotly.io.to_html(
                figure, include_plotlyjs=False, full_html=False, div_id=f"{name}-{i}", config=_CONFIG
            ),
        }
        for i, (caption, figure) in enumerate(plots)
    )


def _stored(results: Path, environment: str) -> bool:
    return (results / "environments" / f"{environment}.json").is_file()


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
