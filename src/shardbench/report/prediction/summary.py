"""Sums up how well each quantity is predicted: error, bias, and the order of what measurement can tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from shardbench.base.generated import csv_text
from shardbench.cost.phases import KERNELS, StepPhase
from shardbench.report.compare.same_numbers import SAME
from shardbench.report.groups import Condition
from shardbench.report.prediction.against_measured import EMBEDDING, EXCHANGE, STEP, PredictedTime, expected_file

COLUMNS = (
    "quantity", "workload", "n", "mape_pct", "bias_pct", "kendall_tau", "pairs_beyond_noise", "calibrated_on",
)  # fmt: skip
FILE = Path("tables") / "prediction" / "summary.csv"
QUANTITIES = {
    STEP.quantity: "step time",
    EMBEDDING: "embedding time of a rank",
    EXCHANGE.quantity: "exchanges of a step",
    StepPhase.DENSE.value: "dense model of a rank",
    KERNELS[0].value: "forward kernels of a rank",
    KERNELS[1].value: "backward kernels of a rank",
}
"""The quantities to sum up; the exchanges of single ranks hold their waits for others, which are no error."""
EVERYTHING = "all"


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


@dataclass(frozen=True)
class _Pairs:
    all: int
    beyond: int | None
    order: float
    """Sum over pairs beyond noise: 1 in the right order, -1 in the wrong one, 0 predicted as equal."""


def summaries(found: Sequence[PredictedTime]) -> list[Summary]:
    """Sum up every quantity: for each workload, then for all of them."""
    merged = [point for point in _merge(found) if point.counts]
    made = []
    for quantity in QUANTITIES:
        of_kind = [point for point in merged if point.key.quantity == quantity]
        workloads = sorted({point.condition.workload for point in of_kind})
        made += [_summary(name, [p for p in of_kind if p.condition.workload == name]) for name in workloads]
        if len(workloads) > 1:
            made.append(_summary(EVERYTHING, of_kind))
    return made


def _summary(workload: str, found: Sequence[PredictedTime]) -> Summary:
    errors = np.asarray([point.predicted_ms / point.measured_ms - 1.0 for point in found])
    by_group: dict[Condition, list[PredictedTime]] = {}
    for point in found:
        by_group.setdefault(point.condition, []).append(point)
    pairs = [_pairs(members) for members in by_group.values()]
    known = [one.beyond for one in pairs if one.beyond is not None]
    beyond = sum(known) if known else None
    chips = {point.calibrated_on for point in found if point.calibrated_on is not None}
    return Summary(
        workload=workload,
        quantity=found[0].key.quantity,
        n=len(found),
        mape_pct=100.0 * float(np.abs(errors).mean()),
        bias_pct=100.0 * float(errors.mean()),
        repeat_mape_pct=_repeat_mape(found),
        kendall_tau=sum(one.order for one in pairs) / beyond if beyond else None,
        pairs_beyond_noise=beyond,
        pairs=sum(one.all for one in pairs),
        calibrated_on="; ".join(sorted(chips)) or None,
    )


def _merge(found: Sequence[PredictedTime]) -> list[PredictedTime]:
    """Merge the times of one plan: strategies that agree are A/A repeats, not things to rank."""
    same: dict[tuple[object, ...], list[PredictedTime]] = {}
    for p in found:
        same.setdefault((p.condition, p.plan, p.key), []).append(p)
    return [
        replace(
            several[0],
            repeats_ms=tuple(ms for p in several for ms in p.repeats_ms),
            compared=tuple(number for p in several for number in p.compared),
            iterations=sum(p.iterations for p in several),
        )
        for several in same.values()
    ]


def _pairs(found: Sequence[PredictedTime]) -> _Pairs:
    """Count the pairs of the times of one group and quantity."""
    count = len(found) * (len(found) - 1) // 2
    noise = found[0].noise
    if noise is None:
        return _Pairs(count, None, 0.0)
    first, second = np.triu_indices(len(found), k=1)
    logs = np.asarray([np.log(point.compared).mean() for point in found])
    shares = 1.0 / np.asarray([len(point.compared) for point in found])
    predicted = np.asarray([point.predicted_ms for point in found])
    apart = logs[first] - logs[second]
    # The least significant difference grows with the root of 1 / n_a + 1 / n_b.
    beyond = np.abs(apart) > noise.least_log(1, 1) * np.sqrt((shares[first] + shares[second]) / 2.0)
    foreseen = predicted[first] - predicted[second]
    foreseen[np.abs(foreseen) <= SAME * predicted[first]] = 0.0
    return _Pairs(count, int(beyond.sum()), float((np.sign(foreseen) * np.sign(apart))[beyond].sum()))


def _repeat_mape(found: Sequence[PredictedTime]) -> float | None:
    errors = [abs(a / b - 1.0) for p in found for a, b in combinations(p.repeats_ms, 2)]
    return 100.0 * float(np.mean(errors)) if errors else None


def table_csv(found: Sequence[Summary]) -> str:
    """Write the table, one line a summary; what is unknown is empty."""
    return csv_text(
        COLUMNS,
        (
            (
                s.quantity, s.workload, s.n, f"{s.mape_pct:.1f}", f"{s.bias_pct:.1f}",
                "" if s.kendall_tau is None else f"{s.kendall_tau:.3f}",
                "" if s.pairs_beyond_noise is None else s.pairs_beyond_noise, s.calibrated_on or "",
            )
            for s in found
        ),
    )  # fmt: skip


def expected_files(results: Path, found: Sequence[PredictedTime]) -> dict[Path, str]:
    """Give the paths and texts of ``points.csv`` and ``summary.csv`` in ``<results>/tables/prediction``."""
    return {**expected_file(results, found), results / FILE: table_csv(summaries(found))}
