"""Published measurements beside the model's predictions: the table of errors, and constants fitted on its fit half.

``python tools/published_agreement.py`` rewrites results/tables/published/points.csv and the tables of
docs/costmodel.md; ``--fit`` prints the fitted constants, which then stand in the machine files.
"""

import argparse
import textwrap
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from shardbench.base.atomic import write_atomically
from shardbench.base.generated import csv_text
from shardbench.cost.published.agreement import Predicted, predict_all, predicted_ms
from shardbench.cost.published.points import FIT, HELD_OUT, Family, FitPlan, Point, published

COLUMNS = (
    "point",
    "source",
    "published_ms",
    "predicted_ms",
    "error_pct",
    "split",
    "family",
    "group",
    "device",
    "constants_of",
)
CSV = Path("results/tables/published/points.csv")
DOCUMENT = Path("docs/costmodel.md")
WIDTH = 120
"""Columns of text in the document."""
ERROR_SCALE = 0.1
"""A point counts as its log error over this: 10 % of error weighs as much as a constant one PRIOR_SCALE off."""
PRIOR_SCALE = np.log(2.0)


def cells(found: Predicted) -> tuple[str, ...]:
    """Return a point's cells, in the order of COLUMNS."""
    return (
        found.point, found.source, f"{found.published_ms:.5g}", f"{found.predicted_ms:.4g}", f"{found.error_pct:.1f}",
        found.split, found.family, found.group, found.device, found.constants_of,
    )  # fmt: skip


def fit(plan: FitPlan) -> dict[str, float]:
    """Return constants that meet the fit half of some families best in the log, drawn weakly to their prior."""
    families = [published().families[name] for name in plan.families]
    chosen: list[tuple[Point, Family, float]] = []
    for family in families:
        split = family.split()
        groups = [p.group for p in family.points]
        # Repeats of one measurement weigh together as one.
        chosen += [(p, family, groups.count(p.group) ** -0.5) for p in family.points if split[p.point] == FIT]
    names, prior = list(plan.prior), np.log(list(plan.prior.values()))
    upper = np.array([0.0 if name == "gather_efficiency_ratio" else np.inf for name in names])

    def residuals(logs: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
        values = dict(zip(names, np.exp(logs).tolist()))
        errors = [w * np.log(predicted_ms(p, f, values) / p.published_ms) / ERROR_SCALE for p, f, w in chosen]
        return [*errors, *((logs - prior) / PRIOR_SCALE)]

    found = least_squares(residuals, np.minimum(prior, upper - 1e-6), bounds=(-np.inf, upper))
    return dict(zip(names, np.exp(found.x).tolist()))


def table_csv(rows: Iterable[Predicted]) -> str:
    """Return the table of published points as CSV."""
    return csv_text(COLUMNS, map(cells, rows))


def markdown(rows: list[Predicted]) -> str:
    """Return error statistics by family, then every point, as the two tables of the document."""
    lines = [
        "| family | fitted | median error | worst | held out | median error | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in published().families:
        errors = [_statistics([r for r in rows if r.family == name and r.split == split]) for split in (FIT, HELD_OUT)]
        lines.append(f"| {name} | {' | '.join(errors)} |")
    for name, family in published().families.items():
        about = f"**{name}**: {family.title}. Source: {family.source}. Device: {family.device}. "
        assumed = f"Constants of {family.machine}. Assumed: {'; '.join(family.assumptions)}."
        lines += ["", *textwrap.wrap(about + assumed, WIDTH, break_on_hyphens=False), ""]
        lines += [f"- `{key}` = {value.value:g}: {value.source}" for key, value in family.constants.items()]
        lines += ["", "| point | published ms | predicted ms | error % | split |", "|---|---|---|---|---|"]
        lines += [
            "| " + " | ".join((r.point.removeprefix(f"{name}/"), *cells(r)[2:6])) + " |"
            for r in rows
            if r.family == name
        ]
    return "\n".join(lines)


def _statistics(rows: list[Predicted]) -> str:
    """Return groups, median and worst absolute error; of repeats of one measurement the worst counts, once."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(abs(float(cells(row)[4])))
    errors = [max(repeats) for repeats in groups.values()]
    return f"{len(errors)} | {median(errors):.1f} % | {max(errors):.1f} %" if errors else "0 | - | -"


def embed(document: str, table: str, name: str = "agreement") -> str:
    """Return the document with what is between the two markers of that name replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = document.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Run the command line, from the repository's root."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="print fitted constants and write nothing")
    if parser.parse_args().fit:
        for plan in published().fits:
            for name, value in fit(plan).items():
                print(f"{'+'.join(plan.families)}: {name} = {value:.4g} (prior {plan.prior[name]:g})")
        return
    rows = predict_all()

    write_atomically(CSV, table_csv(rows))
    write_atomically(DOCUMENT, embed(DOCUMENT.read_text(), markdown(rows)))


if __name__ == "__main__":
    main()
