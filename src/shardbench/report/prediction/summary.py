"""Sums up how well each quantity is predicted, as a table: error, bias and order."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardbench.base.generated import csv_text
from shardbench.cost.phases import KERNELS, StepPhase
from shardbench.report.prediction import judges, trust
from shardbench.report.prediction.against_measured import (
    EMBEDDING,
    EVERYTHING,
    EXCHANGE,
    STEP,
    PredictedTime,
    by_condition,
    merge_plans,
    pair_orders,
    points_csv,
)
from shardbench.report.tables.layout import csv_columns, lay_out

QUANTITIES = (STEP.quantity, EMBEDDING, EXCHANGE.quantity, StepPhase.DENSE.value, *(phase.value for phase in KERNELS))
"""The quantities to sum up; the exchanges of single ranks hold their waits for others, which are no error."""
TITLE = "Predicted against measured"
NOTE = (
    "Embedding and dense time of a rank are CPU time where ranks have one; exchanges are those of the rank that waited "
    "least. A plan that several strategies reach counts once; n counts plans, times ranks where the quantity is a "
    "rank's. Tau is Kendall's, over the pairs of a group that lie beyond the noise of their repeats."
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How well one quantity is predicted; a plan that several strategies reach counts once."""

    quantity: str
    workload: str
    n: int
    """The number of predicted times: of plans, times ranks where the quantity is a rank's."""
    mape_pct: float
    bias_pct: float
    """The mean of predicted / measured - 1."""
    kendall_tau: float | None
    """(Pairs in the right order - pairs in the wrong one) / pairs beyond noise; None where there is none."""
    pairs_beyond_noise: int | None
    """Pairs of one group that differ by more than the noise; None where that is unknown everywhere."""
    calibrated_on: str | None
    """The processors on which the constants were measured; None where the records do not say."""


COLUMNS = tuple(field.name for field in fields(Summary))
_DECIMALS = {"mape_pct": 1, "bias_pct": 1, "kendall_tau": 3}


def summaries(points: Sequence[PredictedTime]) -> list[Summary]:
    """Sum up every quantity: for each workload, then for all of them."""
    every = [point for point in merge_plans(points) if point.counts]
    all_summaries = []
    for quantity in QUANTITIES:
        of_kind = [point for point in every if point.key.quantity == quantity]
        workloads = sorted({point.condition.title for point in of_kind})
        all_summaries += [_summary(name, [p for p in of_kind if p.condition.title == name]) for name in workloads]
        if len(workloads) > 1:
            all_summaries.append(_summary(EVERYTHING, of_kind))
    return all_summaries


def _summary(workload: str, points: Sequence[PredictedTime]) -> Summary:
    errors = np.asarray([point.predicted_ms / point.measured_ms - 1.0 for point in points])
    groups = by_condition(points)
    known = [pair_orders(members, np.array([point.predicted_ms for point in members])) for members in groups]
    # Where the noise of a group is unknown, so are its orders.
    orders = [order for order in known if order is not None]
    beyond = sum(map(len, orders)) if orders else None
    chips = {point.calibrated_on for point in points if point.calibrated_on is not None}
    return Summary(
        quantity=points[0].key.quantity,
        workload=workload,
        n=len(points),
        mape_pct=100.0 * float(np.abs(errors).mean()),
        bias_pct=100.0 * float(errors.mean()),
        kendall_tau=sum(float(order.sum()) for order in orders) / beyond if beyond else None,
        pairs_beyond_noise=beyond,
        calibrated_on="; ".join(sorted(chips)) or None,
    )


def table_csv(all_summaries: Sequence[Summary]) -> str:
    """Write the table, one line a summary; what is unknown is empty."""
    return csv_text(COLUMNS, ([_cell(*item) for item in vars(one).items()] for one in all_summaries))


def _cell(column: str, value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.{_DECIMALS[column]}f}" if column in _DECIMALS else str(value)


class Shown(NamedTuple):
    """A table of this package as readers see it."""

    title: str
    note: str
    csv: str


def shown_tables(points: Sequence[PredictedTime]) -> dict[str, Shown]:
    """Return the tables by the names of their files; pages and terminals show what is in the files."""
    return {
        "summary": Shown(TITLE, NOTE, table_csv(summaries(points))),
        "judges": Shown(judges.TITLE, judges.NOTE, judges.judges_csv(points)),
        "trust": Shown(trust.TITLE, trust.NOTE, trust.trust_csv(points)),
    }


def expected_files(results: Path, points: Sequence[PredictedTime]) -> dict[Path, str]:
    """Give the paths and texts of the tables in ``<results>/tables/prediction``."""
    folder = results / "tables" / "prediction"
    files = {folder / f"{name}.csv": shown.csv for name, shown in shown_tables(points).items()}
    return {folder / "points.csv": points_csv(points), **files}


def text_lines(points: Sequence[PredictedTime]) -> list[str]:
    """Give the tables as aligned lines."""
    lines: list[str] = []
    for shown in shown_tables(points).values():
        table = lay_out(csv_columns(shown.csv))
        lines += [f"{shown.title}. {shown.note}", *table.heads, *table.rows, ""]
    return lines
