"""How far the model's own errors are to be trusted: measurements inside its bands, and orders that it calls sure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from shardbench.base.generated import csv_text
from shardbench.cost.uncertainty import band, p_larger, sure
from shardbench.records.trial import Backend
from shardbench.report.prediction.against_measured import (
    EMBEDDING,
    STEP,
    Key,
    PredictedTime,
    by_condition,
    merge_plans,
    pair_orders,
)

COLUMNS = ("backend", "machine", "quantity", "points", "inside_pct", "pairs", "pairs_sure", "right_pct")
TITLE = "How far to trust the model's errors"
NOTE = (
    "Predictions are drawn within the errors of the machine file. A measurement is inside where it lies in the 95 % "
    "band of these draws; a plan counts once. Pairs are of two plans of one group that differ by more than the noise "
    "of their repeats. The draws call the order of some of them sure, and of these the last column counts those in the "
    "order in which they were measured."
)


@dataclass(frozen=True, kw_only=True)
class TrustCounts:
    """Counts of the measurements of one quantity on one machine for which the draws are right."""

    backend: str
    machine: str
    quantity: str
    points: int
    inside: int
    """Points that lie within the 95 % band of their draws."""
    pairs: int
    """Pairs of plans in one group that differ by more than the noise."""
    sure: int
    """Pairs of these whose order the draws call sure."""
    right: int
    """Pairs of these that were measured in that order."""

    @classmethod
    def of(
        cls, backend: str, machine: str, quantity: str, inside: Sequence[bool], orders: Sequence[tuple[bool, bool]]
    ) -> "TrustCounts":
        """Count points that are inside or not, and pairs whose order the draws call sure, or not, and have right."""
        claimed = [right for claimed_sure, right in orders if claimed_sure]
        return cls(
            backend=backend,
            machine=machine,
            quantity=quantity,
            points=len(inside),
            inside=sum(inside),
            pairs=len(orders),
            sure=len(claimed),
            right=sum(claimed),
        )

    def cells(self) -> tuple[str, ...]:
        """Write the cells of a line of the table; a share of nothing is empty."""
        points = (str(self.points), _pct(self.inside, self.points))
        pairs = (str(self.pairs), str(self.sure), _pct(self.right, self.sure))
        return (self.backend, self.machine, self.quantity, *points, *pairs)


def _pct(part: int, whole: int) -> str:
    return f"{100.0 * part / whole:.1f}" if whole else ""


def trust_by_machine(all_points: Iterable[PredictedTime]) -> list[TrustCounts]:
    """Hold the draws of predictions against what was measured, for each machine: steps, and embedding times.

    An embedding time is that of the slowest rank. Records without draws say nothing.
    """
    with_draws = [point for point in all_points if point.draws is not None]
    times = [point for point in with_draws if point.key == STEP], _slowest(with_draws)
    rows = []
    for points in times:
        every = [point for point in merge_plans(points) if point.counts]
        for machine in sorted({point.condition.machine for point in every}):
            rows.append(_of_machine([point for point in every if point.condition.machine == machine]))
    return rows


def _slowest(points: Iterable[PredictedTime]) -> list[PredictedTime]:
    """Return the embedding times of the slowest rank of each trial."""
    ranks: dict[tuple[object, ...], list[PredictedTime]] = {}
    for point in points:
        if point.key.quantity == EMBEDDING:
            ranks.setdefault((point.condition, point.strategy, point.seed, point.plan), []).append(point)
    slowest = []
    for several in ranks.values():
        slowest_ms = tuple(map(max, zip(*(point.repeats_ms for point in several))))
        slowest.append(
            replace(
                several[0],
                key=Key(EMBEDDING, None, several[0].key.clock),
                predicted_ms=max(point.predicted_ms for point in several),
                repeats_ms=slowest_ms,
                compared_numbers=slowest_ms,
            )
        )
    return slowest


def _of_machine(points: Sequence[PredictedTime]) -> TrustCounts:
    inside = [low <= p.measured_ms <= high for p in points for low, high in [band([drawn_ms(p)])]]
    pairs = [pair for members in by_condition(points) for pair in combinations(members, 2)]
    orders = [order for pair in pairs for order in _orders(*pair)]
    return TrustCounts.of(Backend.MEASURED.value, points[0].condition.machine, points[0].key.quantity, inside, orders)


def _orders(a: PredictedTime, b: PredictedTime) -> list[tuple[bool, bool]]:
    """Return whether the draws call the order sure, and have it right; nothing where the noise leaves it open."""
    p = p_larger([drawn_ms(a)], [drawn_ms(b)])
    orders = pair_orders([a, b], np.array([p, 1.0 - p]))
    return [] if orders is None else [(sure(p), bool(order > 0)) for order in orders.tolist()]


def drawn_ms(point: PredictedTime) -> tuple[float, ...]:
    """Return the draws of a step or of the slowest rank's embedding time; raises ValueError where there are none."""
    if point.draws is None:
        raise ValueError(f"{point.strategy} has no draws")
    return point.draws.step_ms if point.key == STEP else point.draws.embedding_ms


def trust_csv(points: Iterable[PredictedTime]) -> str:
    """Write the table, one line a machine and quantity; shares are in per cent."""
    return csv_text(COLUMNS, (one.cells() for one in trust_by_machine(points)))
