"""Predicted against measured: how far the cost model is from real ranks, beside the noise of the measurement."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from shardbench.base.errors import BadInput
from shardbench.base.generated import csv_text
from shardbench.base.statistics import pooled_noise
from shardbench.cost.phases import KERNELS, StepPhase
from shardbench.records.record import Record, Timing
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend
from shardbench.report.groups import Group, Row, groups

COLUMNS = (
    "workload", "strategy", "rank", "predicted_ms", "measured_ms", "machine", "batch_size", "seed", "n", "noise_pct",
)  # fmt: skip
FILE = Path("tables") / "prediction" / "points.csv"
STEP = "step"
"""What stands for the rank where the whole step is meant."""
QUANTITIES = {"step": "step time", "embedding": "embedding time of a rank"}
EVERYTHING = "all"
_IDLE_MS = 0.1
"""A rank with less embedding work than this has none to speak of; a ratio to it says nothing."""

# What the ranks wait for in these measured phases is predicted as one more phase.
_PHASES: dict[str, tuple[tuple[StepPhase, ...], tuple[StepPhase, ...]]] = {
    "exchange of lookups": ((StepPhase.INPUT,), (StepPhase.INPUT,)),
    "embedding kernels": (KERNELS, KERNELS),
    "exchange of vectors and all-reduce": (
        (StepPhase.OUTPUT, StepPhase.OUTPUT_BACKWARD),
        (StepPhase.OUTPUT, StepPhase.OUTPUT_BACKWARD, StepPhase.ALL_REDUCE),
    ),
    "dense model": ((StepPhase.DENSE,), (StepPhase.DENSE,)),
    "optimiser of the rest": ((StepPhase.UPDATE,), (StepPhase.UPDATE,)),
}
"""Part of a step -> (phases measured, phases predicted)."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One predicted number and the medians of its repeats; ms."""

    workload: str
    machine: str
    batch_size: int
    strategy: str
    seed: int
    plan: str
    rank: str
    """Number of the rank, or ``step``."""
    predicted_ms: float
    repeats_ms: tuple[float, ...]
    """One number a repeat (trial); iterations of one trial are one number, their median."""
    n: int
    """Iterations behind the measured number."""
    noise_pct: float | None
    """Noise floor of this kind of number in its group (A/A repeats)."""
    parts_ms: dict[str, tuple[float, float]]
    """Step only: part -> (predicted, measured)."""

    @property
    def measured_ms(self) -> float:
        """Median over repeats."""
        return float(np.median(self.repeats_ms))

    @property
    def quantity(self) -> str:
        """Key of QUANTITIES."""
        return "step" if self.rank == STEP else "embedding"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How well one quantity is predicted; a plan that several strategies reach counts once."""

    workload: str
    machine: str
    quantity: str
    n: int
    mape_pct: float
    bias_pct: float
    """Mean of predicted / measured - 1."""
    repeat_mape_pct: float | None
    """How far a repeat is from another repeat of the same plan: no model can be expected to do better."""
    tau: float | None
    """Kendall's tau-b of predicted and measured; None for fewer than two numbers or all equal."""
    repeat_tau: float | None
    """Tau of one repeat and another."""
    resolved_tau: float | None
    """Tau over the pairs that lie further apart than the noise floor."""
    resolved_pairs: int
    pairs: int
    noise_pct: float | None
    worst_part: str | None
    worst_part_ms: float | None
    """Part of the step that is furthest off on average: predicted - measured."""


def read_measured(results: Path) -> list[Point]:
    """Points of every measured row that is ok, of all record files; raises BadInput where there is none."""
    folder = results / "records"
    suites = sorted(path.stem for path in folder.glob("*.jsonl"))
    records = [record for suite in suites for record in trial_store(results, suite).read()]
    found = points(records)
    if not found:
        raise BadInput(f"{folder} holds no measured record that is ok; run: shardbench run quick --backend measured")
    return found


def points(records: Iterable[Record]) -> list[Point]:
    """Points of the measured rows that are ok: the step, then every rank."""
    found = []
    for group in groups(record for record in records if record.spec.backend is Backend.MEASURED):
        noise = _embedding_noise(group)
        for row in group.rows:
            if row.ok:
                found += _row_points(group, row, noise)
    return found


def _row_points(group: Group, row: Row, embedding_noise: float | None) -> list[Point]:
    found = []
    for (seed, plan), records in row.same_plan.items():
        timings = [r.timing for r in records if r.timing is not None]
        predictions = [r.predicted for r in records if r.predicted is not None]
        if not predictions:
            continue
        predicted = predictions[-1]

        def point(rank: str, predicted_ms: float, repeats: Iterable[float], noise: float | None) -> Point:
            return Point(
                workload=group.condition.workload,
                machine=group.condition.machine,
                batch_size=group.condition.batch_size,
                strategy=row.strategy,
                seed=seed,  # noqa: B023 - called at once
                plan=plan,  # noqa: B023
                rank=rank,
                predicted_ms=predicted_ms,
                repeats_ms=tuple(repeats),
                n=sum(len(t.step_ms) for t in timings),  # noqa: B023
                noise_pct=noise,
                parts_ms=_parts(predicted, timings) if rank == STEP else {},  # noqa: B023
            )

        steps = [float(np.median(t.step_ms)) for t in timings]
        found.append(point(STEP, float(np.median(predicted.step_ms)), steps, group.noise_pct))
        for rank, predicted_ms in enumerate(predicted.embedding_ms):
            repeats = [t.embedding_ms[rank] for t in timings]
            found.append(point(str(rank), predicted_ms, repeats, embedding_noise))
    return found


def _embedding_noise(group: Group) -> float | None:
    """Noise floor of a rank's embedding time, from A/A repeats of ranks that have work."""
    trials = []
    for row in group.rows:
        if row.ok:
            for records in row.same_plan.values():
                by_rank = zip(*(record.timing.embedding_ms for record in records if record.timing))
                trials += [repeats for repeats in by_rank if min(repeats) > _IDLE_MS]
    noise = pooled_noise(trials)
    typical = float(np.median([len(row.records) for row in group.ok_rows])) if noise else 0.0
    return noise.least_pct(typical, typical) if noise else None


def _parts(predicted: Timing, measured: Sequence[Timing]) -> dict[str, tuple[float, float]]:
    return {
        part: (
            sum(predicted.phases_ms.get(phase, 0.0) for phase in of_model),
            float(np.median([sum(t.phases_ms.get(phase, 0.0) for phase in of_ranks) for t in measured])),
        )
        for part, (of_ranks, of_model) in _PHASES.items()
    }


def summaries(found: Sequence[Point]) -> list[Summary]:
    """Of each group and quantity, then over all groups."""
    conditions = sorted({(p.workload, p.machine, p.batch_size) for p in found})
    made = []
    for quantity in QUANTITIES:
        of_kind = [p for p in found if p.quantity == quantity]
        for condition in conditions:
            made.append(
                _summary([p for p in of_kind if (p.workload, p.machine, p.batch_size) == condition], *condition[:2])
            )
        if len(conditions) > 1:
            machines = {machine for _, machine, _ in conditions}
            made.append(_summary(of_kind, EVERYTHING, machines.pop() if len(machines) == 1 else EVERYTHING))
    return [summary for summary in made if summary is not None]


def _summary(found: Sequence[Point], workload: str, machine: str) -> Summary | None:
    merged = [p for p in _merge(found) if p.measured_ms > _IDLE_MS]
    if not merged:
        return None
    errors = np.asarray([p.predicted_ms / p.measured_ms - 1.0 for p in merged])
    noise = max((p.noise_pct for p in merged if p.noise_pct is not None), default=None)
    predicted, measured = [p.predicted_ms for p in merged], [p.measured_ms for p in merged]
    pairs = list(combinations(merged, 2))
    resolved = [(a, b) for a, b in pairs if _apart(a, b)]
    part, off = _worst_part(merged)
    return Summary(
        workload=workload,
        machine=machine,
        quantity=merged[0].quantity,
        n=len(merged),
        mape_pct=100.0 * float(np.abs(errors).mean()),
        bias_pct=100.0 * float(errors.mean()),
        repeat_mape_pct=_repeat_mape(merged),
        tau=_tau(predicted, measured),
        repeat_tau=_repeat_tau(merged),
        resolved_tau=_pair_tau(resolved),
        resolved_pairs=len(resolved),
        pairs=len(pairs),
        noise_pct=noise,
        worst_part=part,
        worst_part_ms=off,
    )


def _merge(found: Sequence[Point]) -> list[Point]:
    """Points of one plan as one: strategies that agree are A/A repeats, not things to rank."""
    same: dict[tuple[str, str, int, str, str], list[Point]] = {}
    for p in found:
        same.setdefault((p.workload, p.machine, p.batch_size, p.plan, p.rank), []).append(p)
    return [
        Point(
            **{
                **vars(several[0]),
                "repeats_ms": tuple(ms for p in several for ms in p.repeats_ms),
                "n": sum(p.n for p in several),
                "parts_ms": {
                    part: (predicted, float(np.mean([p.parts_ms[part][1] for p in several])))
                    for part, (predicted, _) in several[0].parts_ms.items()
                },
            }
        )
        for several in same.values()
    ]


def _apart(a: Point, b: Point) -> bool:
    if a.noise_pct is None or b.noise_pct is None:
        return False
    low, high = sorted((a.measured_ms, b.measured_ms))
    return high / low - 1.0 > max(a.noise_pct, b.noise_pct) / 100.0


def _tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    if len(a) < 2:
        return None
    tau = float(kendalltau(a, b).statistic)
    return None if np.isnan(tau) else tau


def _pair_tau(pairs: Sequence[tuple[Point, Point]]) -> float | None:
    """(Pairs in the right order - pairs in the wrong one) / pairs; a predicted tie is neither."""
    if not pairs:
        return None
    signs = [np.sign((a.predicted_ms - b.predicted_ms) * (a.measured_ms - b.measured_ms)) for a, b in pairs]
    return float(np.mean(signs))


def _repeat_mape(found: Sequence[Point]) -> float | None:
    errors = [abs(a / b - 1.0) for p in found for a, b in combinations(p.repeats_ms, 2) if b > 0]
    return 100.0 * float(np.mean(errors)) if errors else None


def _repeat_tau(found: Sequence[Point]) -> float | None:
    repeated = [p.repeats_ms for p in found if len(p.repeats_ms) > 1]
    first, last = [r[0] for r in repeated], [r[-1] for r in repeated]
    return _tau(first, last)


def _worst_part(found: Sequence[Point]) -> tuple[str | None, float | None]:
    stepped = [p for p in found if p.parts_ms]
    if not stepped:
        return None, None
    off = {part: float(np.mean([p.parts_ms[part][0] - p.parts_ms[part][1] for p in stepped])) for part in _PHASES}
    worst = max(off, key=lambda part: abs(off[part]))
    return worst, off[worst]


def table_csv(found: Sequence[Point]) -> str:
    """The table: one line a point."""
    return csv_text(
        COLUMNS,
        (
            (
                p.workload, p.strategy, p.rank, f"{p.predicted_ms:.5f}", f"{p.measured_ms:.5f}", p.machine,
                p.batch_size, p.seed, p.n, "" if p.noise_pct is None else f"{p.noise_pct:.3f}",
            )
            for p in found
        ),
    )  # fmt: skip


def expected_file(results: Path, found: Sequence[Point]) -> dict[Path, str]:
    """Text of ``<results>/tables/prediction/points.csv``."""
    return {results / FILE: table_csv(found)}
