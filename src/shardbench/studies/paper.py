"""A reproduction's claims and plots as files for a paper: LaTeX, PDF and SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardbench.records.store import trial_store
from shardbench.report.charts.study import plot_chart
from shardbench.report.paper.figures import figure_files, scores_paper
from shardbench.report.paper.files import commits
from shardbench.report.paper.latex import slug, table_tex
from shardbench.report.rows import current
from shardbench.report.standing import states_standings, table_standings
from shardbench.studies.claim_text import below_statements, ledger_cells
from shardbench.studies.ledger import ledger
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.study_tables import recorded_cells, tables_by_study

HEADERS = ("statement", "the paper", "ours (95 % interval, n)", "direction", "magnitude", "evidence")
_SHARES = (0.29, 0.0, 0.19, 0.0, 0.0, 0.0)


def reproduction_paper(reproduction: Reproduction, results: Path) -> dict[str, bytes]:
    """Files by name: the ledger's part as a table, every plot of every study on record, and scores of standings."""
    owner = reproduction.owner
    cells = recorded_cells(reproduction, results)
    trials = current(trial_store(results, owner).read())
    files: dict[str, bytes] = {}
    rows = ledger(results, reproduction).rows.to_dict("records")
    if rows:
        behind_all = commits([*trials, *(record for _, record in cells)])
        files[f"{slug(owner)}-claims.tex"] = _claims(owner, rows, behind_all).encode()
    for study, tables in tables_by_study(reproduction, results):
        behind = [record for of, record in cells if of is study]
        credit = f"ShardBench, {owner}/{study.name}, records {commits(behind)}."
        backends = sorted({str(row["backend"]) for record in behind for row in record.rows})
        for table, frame in tables.items():
            if states_standings(frame):
                # Rows of other backends are other records', which the study's tables take in.
                sources = {str(name): f"ShardBench, tables/{owner}/{table}.csv." for name in set(frame["backend"])}
                sources |= dict.fromkeys(backends, credit)
                files |= scores_paper(table_standings(frame), slug(f"{owner} {table}"), sources)
        for number, plot in enumerate(study.plots, 1):
            image = slug(f"{owner} {plot.table} {number} figure")
            caption = f"{plot.title} {' and '.join(backends).capitalize()}. {credit}"
            files |= figure_files(plot_chart(plot, tables[plot.table]), image, caption)
    return files


def _claims(owner: str, rows: Sequence[dict[Any, Any]], behind: str) -> str:
    cells = []
    for row, below in below_statements(rows):
        name, direction, magnitude, paper, ours, _ = ledger_cells(row)
        evidence = str(row["strength"] or "").partition(";")[0].partition(" (")[0]
        statement = f"{row['kind']} of {row['of']}: {name}" if below else str(row["statement"])
        cells.append((statement, paper, ours, direction, magnitude, evidence or "-"))
    return table_tex(
        caption=(
            f"What the paper behind {owner} states, and what was found: simulated by the cost model, measured, or "
            "counted, as each line's evidence says."
        ),
        label=f"{slug(owner)}-claims",
        headers=HEADERS,
        rows=cells,
        numeric=(False,) * len(HEADERS),
        notes=(
            "'Reproduced' needs five independent units and a whole interval, 'consistent' is all of fewer units "
            f"or of chosen conditions, whose range is the least and the most. ShardBench, records {behind}.",
        ),
        wide=_SHARES,
    )
