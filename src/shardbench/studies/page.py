"""The page of a reproduction: its claims and studies, then the groups of its suite."""

from pathlib import Path

import pandas as pd
import plotly.io

from shardbench.base.atomic import write_atomically
from shardbench.base.host import Environment, load
from shardbench.records.store import RecordStore
from shardbench.report.page import CONFIG, Extra, environments_of, page, stored
from shardbench.studies.figures import study_figure
from shardbench.studies.files import cell_text, claims_table, tables_by_study
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.study_store import StudyStore

SHOWN_ROWS = 60
"""Rows of a study's table on the page; the file has all."""
_CLAIM_COLUMNS = [
    "claim",
    "paper",
    "ours",
    "low",
    "high",
    "unit",
    "n",
    "verdict",
    "statement",
    "definition",
    "conditions",
]


def write_reproduction_page(reproduction: Reproduction, results: Path) -> Path:
    """Write ``<results>/pages/<owner>.html`` and give its path."""
    records = RecordStore(results, reproduction.owner).read()
    environments = environments_of(results, records) | _study_environments(reproduction, results)
    path = results / "pages" / f"{reproduction.owner}.html"
    text = page(reproduction.owner, records, environments, extras=extras(reproduction, results))
    write_atomically(path, text, encoding="utf-8")
    return path


def extras(reproduction: Reproduction, results: Path) -> list[Extra]:
    """Claims first, then every study that has rows."""
    claims = claims_table(reproduction, results)
    note = (
        "The paper's number, ours as the average over n conditions with its 95 % bootstrap interval, and where that "
        "interval lies. An empty cell under 'paper': the number was not seen in the paper itself."
    )
    made = [] if claims is None else [_extra("Claims", note, claims[_CLAIM_COLUMNS], "claims", reproduction.owner)]
    for study, tables in tables_by_study(reproduction, results):
        plots = study.plots(tables)
        for name, frame in tables.items():
            extra = _extra(f"Study {name}", (study.__doc__ or "").strip(), frame, name, reproduction.owner)
            drawn = [(plot.title, study_figure(plot, frame)) for plot in plots if plot.table == name]
            html = tuple(
                {
                    "caption": caption,
                    "html": plotly.io.to_html(
                        figure, include_plotlyjs=False, full_html=False, div_id=f"study-{name}-{i}", config=CONFIG
                    ),
                }
                for i, (caption, figure) in enumerate(drawn)
            )
            made.append(Extra(**{**extra.__dict__, "plots": html}))
    return made


def _extra(title: str, note: str, frame: pd.DataFrame, name: str, owner: str) -> Extra:
    more = len(frame) - SHOWN_ROWS
    if more > 0:
        note += f" The first {SHOWN_ROWS} of {len(frame)} rows; all are in tables/{owner}/{name}.csv."
    numeric = tuple(pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns)
    rows = tuple(tuple(cell_text(v) for v in row) for row in frame.head(SHOWN_ROWS).itertuples(index=False))
    return Extra(
        id=f"extra-{name}", title=title, note=note, headers=tuple(map(str, frame.columns)), rows=rows, numeric=numeric
    )


def _study_environments(reproduction: Reproduction, results: Path) -> dict[str, Environment | None]:
    hashes = {
        record.environment
        for study in reproduction.studies
        for record in StudyStore(results, reproduction.owner, study.name).read()
    }
    return {key: load(results, key) if stored(results, key) else None for key in sorted(hashes)}
