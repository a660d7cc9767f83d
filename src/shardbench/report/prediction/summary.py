"""Sums up how well each quantity is predicted, as a table and in words: error, bias, order, and what limits it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
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

COLUMNS = (
    "quantity", "workload", "n", "mape_pct", "bias_pct", "kendall_tau", "pairs_beyond_noise", "calibrated_on",
)  # fmt: skip
QUANTITIES = {
    STEP.quantity: "step time",
    EMBEDDING: "embedding time of a rank",
    EXCHANGE.quantity: "exchanges of a step",
    StepPhase.DENSE.value: "dense model of a rank",
    KERNELS[0].value: "forward kernels of a rank",
    KERNELS[1].value: "backward kernels of a rank",
}
"""The quantities to sum up; the exchanges of single ranks hold their waits for others, which are no error."""
AIM_MAPE_PCT = {STEP.quantity: 15.0, EMBEDDING: 15.0, EXCHANGE.quantity: 30.0}
AIM_TAU = 0.9
"""The errors (MAPE) and the order (Kendall's tau) that the cost model aims at."""

TITLE = "Predicted against measured"
NOTE = (
    "Embedding and dense time of a rank are CPU time where ranks have one; exchanges are those of the rank that waited "
    "least. A plan that several strategies reach counts once; n counts plans, times ranks where the quantity is a "
    "rank's. Tau is Kendall's, over the pairs of a group that lie beyond the noise of their repeats."
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How well one quantity is predicted; a plan that several strategies reach counts once."""

    workload: str
    quantity: str
    n: int
    """The number of predicted times: of plans, times ranks where the quantity is a rank's."""
    mape_pct: float
    bias_pct: float
    """The mean of predicted / measured - 1."""
    repeat_mape_pct: float | None
    """How far a repeat is from another repeat of the same plan: no model can be expected to do better."""
    kendall_tau: float | None
    """(Pairs in the right order - pairs in the wrong one) / pairs beyond noise; None where there is none."""
    pairs_beyond_noise: int | None
    """Pairs of one group that differ by more than the noise; None where that is unknown everywhere."""
    pairs: int
    """All pairs of one group."""
    calibrated_on: str | None
    """The processors on which the constants were measured; None where the records do not say."""


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
        workload=workload,
        quantity=points[0].key.quantity,
        n=len(points),
        mape_pct=100.0 * float(np.abs(errors).mean()),
        bias_pct=100.0 * float(errors.mean()),
        repeat_mape_pct=_repeat_mape(points),
        kendall_tau=sum(float(order.sum()) for order in orders) / beyond if beyond else None,
        pairs_beyond_noise=beyond,
        pairs=sum(comb(len(members), 2) for members in groups),
        calibrated_on="; ".join(sorted(chips)) or None,
    )


def _repeat_mape(points: Sequence[PredictedTime]) -> float | None:
    errors = [abs(a / b - 1.0) for p in points for a, b in combinations(p.repeats_ms, 2)]
    return 100.0 * float(np.mean(errors)) if errors else None


def table_csv(all_summaries: Sequence[Summary]) -> str:
    """Write the table, one line a summary; what is unknown is empty."""
    return csv_text(
        COLUMNS,
        (
            (
                s.quantity, s.workload, s.n, f"{s.mape_pct:.1f}", f"{s.bias_pct:.1f}",
                "" if s.kendall_tau is None else f"{s.kendall_tau:.3f}",
                "" if s.pairs_beyond_noise is None else s.pairs_beyond_noise, s.calibrated_on or "",
            )
            for s in all_summaries
        ),
    )  # fmt: skip


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
    """Give the tables as aligned lines, and then say what limits each quantity that has an aim."""
    lines: list[str] = []
    for shown in shown_tables(points).values():
        table = lay_out(csv_columns(shown.csv))
        lines += [f"{shown.title}. {shown.note}", *table.heads, *table.rows, ""]
    # The line over all workloads comes last of its quantity.
    last = {summary.quantity: summary for summary in summaries(points)}
    return [*lines, *(limit(last[quantity]) for quantity in AIM_MAPE_PCT if quantity in last)]


def limit(summary: Summary) -> str:
    """Say in one sentence whether the aim is met and what is in the way; the quantity must have an aim."""
    quantity = QUANTITIES[summary.quantity]
    where = "all workloads" if summary.workload == EVERYTHING else summary.workload
    parts = [f"{quantity}, {where}: {_aim(summary)}"]
    noise = summary.repeat_mape_pct
    if noise is None:
        parts.append("nothing was repeated, so the noise is unknown")
    elif summary.mape_pct <= noise:
        parts.append("the error is within the noise of the measurement, which limits it: more repeats would tell more")
    elif summary.mape_pct <= 2.0 * noise:
        parts.append(f"noise of {noise:.1f} % is a good part of the error")
    elif abs(summary.bias_pct) > summary.mape_pct / 2.0:
        way = "too long" if summary.bias_pct > 0 else "too short"
        parts.append(f"the model limits it: it predicts {abs(summary.bias_pct):.1f} % {way} on average")
    else:
        parts.append("the model limits it, with errors of both signs")
    if summary.pairs_beyond_noise is not None and summary.pairs_beyond_noise < summary.pairs:
        close = summary.pairs - summary.pairs_beyond_noise
        parts.append(f"{close} of {summary.pairs} pairs are not known to differ by more than the noise: no order")
    return "; ".join(parts)


def _aim(summary: Summary) -> str:
    aim = AIM_MAPE_PCT[summary.quantity]
    error = "meets" if summary.mape_pct <= aim else "misses"
    text = f"MAPE {summary.mape_pct:.1f} % {error} the aim of {aim:g} %"
    if summary.kendall_tau is None:
        return f"{text}, no pair is beyond the noise"
    order = "meets" if summary.kendall_tau >= AIM_TAU else "misses"
    return f"{text}, tau {summary.kendall_tau:.2f} {order} that of {AIM_TAU:g}"
