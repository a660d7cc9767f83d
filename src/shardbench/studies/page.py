"""Pages of suites and of reproductions, and their sections on claims and studies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from shardbench.base.atomic import write_atomically
from shardbench.records.store import trial_store
from shardbench.report.charts.study import plot_chart
from shardbench.report.page.figures import figure
from shardbench.report.page.write import Extra, StudyStandings, frame_extra, page, score_table
from shardbench.report.plot import Plot
from shardbench.report.ranking import longest_first
from shardbench.report.results import read_table
from shardbench.report.standing import PROBLEM, disagreement, is_measured, number, states_standings, table_standings
from shardbench.report.tables.files import suite_records
from shardbench.report.tables.leaderboard import PLANS_MATTER
from shardbench.studies.beside import CellComparison
from shardbench.studies.claim_text import below_statements
from shardbench.studies.ledger import Ledger, ledger
from shardbench.studies.regions.region_picture import region_chart
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.study_tables import recorded_cells, study_versions, tables_by_study

_SHOWN = (
    "strategy", "role", "budget", "outcome", "step_ms", "step_ms_low", "step_ms_high", "over_bound_pct",
    "over_best_pct", "tie", "plan_s", "fit_s", "peak_gib", "bound_by", "cause",
)  # fmt: skip
"""Columns of a problem's rows on the page; the file has all."""
_CLAIMS = (
    "paper", "claim", "kind", "of", "statement", "direction", "magnitude", "relation", "paper_value", "ours", "low",
    "high", "unit", "n", "n_unit", "region_share", "strength", "conditions", "defined_in", "judged_in",
)  # fmt: skip
"""Columns of the ledger on the page."""
_SCORES = ("median_over_best_pct", "worst_over_best_pct", "best_or_tied", "surely_best")
"""Numbers of strategies over all problems that lead, before the share that is near; the file has all."""
SHOWN_ROWS = 100
"""Rows of a study's table on the page; the file has all."""


def write_reproduction_page(reproduction: Reproduction, results: Path, places: Sequence[CellComparison] = ()) -> Path:
    """Write ``<results>/pages/<owner>.html``, claims and studies before the suite's groups, and give its path.

    ``places`` are said first: they are what a run of some strategies came to beside others that are not in its folder.
    """
    standings = study_standings(reproduction.owner, results)
    cells = [record for _, record in recorded_cells(reproduction, results)]
    sections = [*_beside(places), *extras(reproduction, results)]
    if standings is not None and not reproduction.claims:
        # It stands for all systems, so that what their papers claim is told beside it.
        sections = [*sections, *claims_sections(ledger(results))]
    records = [] if standings is not None else trial_store(results, reproduction.owner).read()
    code = study_versions(reproduction, results).lines()
    text = page(reproduction.owner, records, results, extras=sections, code=code, cells=cells, study=standings)
    return _write(results, reproduction.owner, text)


def _write(results: Path, name: str, text: str) -> Path:
    path = results / "pages" / f"{name}.html"
    write_atomically(path, text, encoding="utf-8")
    return path


def _beside(places: Iterable[CellComparison]) -> Iterator[Extra]:
    """Yield a section for each place beside others' cells that has rows, with its words as the title."""
    for one in places:
        with_rows = (place for place in one.places if place.rows)
        for count, place in enumerate(with_rows, 1):
            title = f"Beside {one.others} others on record: {place.words.rstrip(':')}"
            yield Extra(id=f"beside-{one.study}-{count}", title=title, note="", **vars(place.table))


def study_standings(owner: str, results: Path) -> StudyStandings | None:
    """Return the standings of an owner's first table that states some, as its CSV has them; None where none does."""
    folder = results / "tables" / owner
    for path in sorted(folder.glob("*.csv")):
        table = read_table(path)
        if not states_standings(table):
            continue
        scores = read_table(folder / "scores.csv") if (folder / "scores.csv").is_file() else None
        csv, command = f"tables/{owner}/{path.name}", f"shardbench reproduce {owner}"
        problems = [_problem(place, *each) for place, each in enumerate(table.groupby(list(PROBLEM), sort=False))]
        return StudyStandings(
            standings=tuple(table_standings(table)),
            problems=tuple(replace(one, csv=csv, command=command) for one in problems),
            scores=() if scores is None else _scores(scores, f"tables/{owner}/scores.csv"),
            judge={} if scores is None else dict(scores[["strategy", "judge"]].dropna().to_numpy()),
        )
    return None


def _problem(place: int, problem: tuple[str, ...], rows: pd.DataFrame) -> Extra:
    """Return a problem's rows; what other judges have first is said before them."""
    workload, machine, backend = problem
    title, note = f"{workload} on {machine}, {backend}", disagreement(table_standings(rows))
    shown = rows[[name for name in _SHOWN if name in rows and rows[name].notna().any()]]
    return frame_extra(f"problem-{place}", title, note, shown)


def _scores(table: pd.DataFrame, csv: str) -> tuple[Extra, ...]:
    """Return a table of scores for each backend and group of problems, by the longest budget, without empty columns."""
    by_group = []
    table = table.assign(group=table.get("group", PLANS_MATTER))
    keys = sorted(
        set(zip(table["backend"], table["group"])), key=lambda key: (is_measured(key[0]), key[1] != PLANS_MATTER)
    )
    for backend, group in keys:
        own = table[(table["backend"] == backend) & (table["group"] == group)]
        budget = min(own["budget"], key=longest_first)
        own = own[own["budget"] == budget]
        places = "places" if own["places"].notna().any() else "rank"
        columns = {
            "strategy": own["strategy"] + own["judge"].notna().map({True: " *", False: ""}),
            **{name: own[name] for name in (places, *_SCORES) if name in own},
            "within 5 %": [_near(row) for row in own.to_dict("records")],
            "ended": [f"{ok:.0f} of {asked:.0f}" for ok, asked in zip(own["ok"], own["problems"], strict=True)],
            "seconds": own["plan_s"],
            **({} if is_measured(backend) else {"measured places": own["measured_places"]}),
        }
        shown = pd.DataFrame(columns).dropna(axis="columns", how="all")
        one = score_table(backend, budget, shown, csv)
        by_group.append(one if group == PLANS_MATTER else replace(one, title=f"{one.title}; problems {group}"))
    return tuple(by_group)


def _near(row: Mapping[str, Any]) -> str:
    """Write the share of problems near the best, with the ends that the error of two plans leaves open."""
    share, low, high = (number(row, f"expected_{name}") for name in ("within_1.05", "low", "high"))
    ends = f" ({100 * low:.0f} to {100 * high:.0f})" if low is not None and high is not None else ""
    return f"{100 * (row['within_1.05'] if share is None else share):.0f} %{ends}"


def write_suite_page(results: Path, suite: str) -> Path:
    """Write ``<results>/pages/<suite>.html``, the ledger of all papers on record before the suite's groups.

    Raises BadInput where the suite has no records.
    """
    text = page(suite, suite_records(results, suite), results, extras=claims_sections(ledger(results)))
    return _write(results, suite, text)


def extras(reproduction: Reproduction, results: Path) -> list[Extra]:
    """Sections of the page: claims first, then every study that has rows."""
    sections = claims_sections(ledger(results, reproduction))
    for study, tables in tables_by_study(reproduction, results):
        for name, frame in tables.items():
            # The page shows standings by problem, and scores as its ranking.
            if states_standings(frame) or any(map(states_standings, tables.values())):
                continue
            note = study.title
            if len(frame) > SHOWN_ROWS:
                note += f" The first {SHOWN_ROWS} of {len(frame)} rows; all are in the CSV."
            sections.append(
                replace(
                    frame_extra(f"extra-{name}", f"Study {name}", note, frame.head(SHOWN_ROWS)),
                    figures=tuple(
                        figure(plot.title, _ends(plot), plot_chart(plot, frame))
                        for plot in study.plots
                        if plot.table == name
                    ),
                    csv=f"tables/{reproduction.owner}/{name}.csv",
                    command=f"shardbench reproduce {reproduction.owner}",
                )
            )
    return sections


def claims_sections(paper_ledger: Ledger) -> list[Extra]:
    """The ledger as the page's first section: answers, numbers, evidence, and a picture of every region."""
    if not len(paper_ledger.claims):
        return []
    note = (
        "What papers state, and what was found. Direction and magnitude are judged each by itself: 'reproduced' needs "
        "five independent units and a whole 95 % interval, 'consistent' is the interval of fewer units, or all of "
        "five or more chosen conditions (whose range is the least and the most). Readings, stand-ins, what is "
        "second-hand and controls are no statements of a paper. Region: the share of a design over all knobs that no "
        "source fixes in which the statement holds. Without a paper's value it gives no number, or none was seen."
    )
    rows = [{str(name): value for name, value in row.items()} for row in paper_ledger.rows.to_dict("records")]
    table = pd.DataFrame([row for row, _ in below_statements(rows)], columns=list(_CLAIMS))
    shown = frame_extra("extra-claims", "Claims", note, table)
    sections = [replace(shown, csv="tables/claims.csv", command="shardbench claims")]
    if paper_ledger.pictured:
        caption = "A mark is a point of the design, drawn over the two knobs that decide most."
        pictures = tuple(
            figure(f"{owner}: {claim.name}", caption, region_chart(claim, points, knobs))
            for owner, claim, points, knobs in paper_ledger.pictured
        )
        sections.append(
            Extra(
                id="regions", title="Where claims hold", note="Shares of each region are in the CSV.", headers=(),
                rows=(), numeric=(), figures=pictures, csv="tables/regions.csv", command="shardbench claims",
            )
        )  # fmt: skip
    return sections


def _ends(plot: Plot) -> str:
    return "Lines through points are their intervals." if plot.low is not None else ""
