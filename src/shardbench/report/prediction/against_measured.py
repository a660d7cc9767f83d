"""Puts every time that the cost model gives for a measured trial beside what its ranks took."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.base.generated import csv_text
from shardbench.base.statistics import Noise, pooled_noise
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, StepPhase
from shardbench.records.record import Draws, Record, Timing
from shardbench.records.trial import TRAINING, Backend
from shardbench.report.groups import Group, groups
from shardbench.report.results import trial_records
from shardbench.report.rows import Condition, Row
from shardbench.report.standing import SAME

IDLE_MS = 0.1
"""A rank with less work than this has none to speak of; a ratio to it says nothing."""
_ON_RANKS = (*EXCHANGE_PHASES, *KERNELS, StepPhase.DENSE)
"""The phases that both clock and model tell apart."""
_COMPUTED = (*KERNELS, StepPhase.DENSE)
"""The phases in which a rank waits for no other, so that CPU time says what they take."""


class ClockKind(StrEnum):
    """The clock that a measured number was read off."""

    WALL = "wall"
    CPU = "cpu"


class Key(NamedTuple):
    """A kind of number of a trial: of the whole step, which has no rank, or of a rank."""

    quantity: str
    """``step``, ``exchange``, ``embedding`` (both kernels), or a phase."""
    rank: int | None
    clock: ClockKind


STEP = Key("step", None, ClockKind.WALL)
EXCHANGE = Key("exchange", None, ClockKind.WALL)
EMBEDDING = "embedding"
EVERYTHING = "all"
"""The name of all workloads, or machines, together."""


@dataclass(frozen=True, kw_only=True)
class PredictedTime:
    """A predicted time and those that the repeats of its plan took."""

    condition: Condition
    strategy: str
    seed: int
    plan: str
    key: Key
    predicted_ms: float
    repeats_ms: tuple[float, ...]
    """One number a repeat (trial), in ms."""
    compared_numbers: tuple[float, ...]
    """One number a repeat, by which a group is put in order, in ms: of a step ``Group.trial_ms``."""
    iterations: int
    noise: Noise | None
    """The noise of ``compared_numbers`` in the group, from repeats of one plan; None where nothing was repeated."""
    calibrated_on: str | None
    torchrec_ms: float | None = None
    """The step of the same plan by TorchRec's own estimator; None of all else, and of plans that it cannot express."""
    draws: Draws | None = None
    """The prediction of the whole plan under draws of constants and form; None where its record has none."""

    @property
    def measured_ms(self) -> float:
        """Return the median over repeats."""
        return float(np.median(self.repeats_ms))

    @property
    def error(self) -> float | None:
        """Return predicted over measured, minus 1; None where the rank idles."""
        return self.predicted_ms / self.measured_ms - 1.0 if self.counts else None

    @property
    def counts(self) -> bool:
        """Say whether every repeat has work to speak of."""
        return min(self.repeats_ms) > IDLE_MS


def read_measured(results: Path) -> list[PredictedTime]:
    """Return the times of every measured row that is ok, of all record files; raises BadInput where there is none.

    Where several suites measured under one condition, the suite with the most trials counts.
    """
    largest: dict[Condition, Group] = {}
    for records in trial_records(results).values():
        for group in _measured_groups(records):
            other = largest.get(group.condition)
            if other is None or _size(group) > _size(other):
                largest[group.condition] = group
    points = [point for _, group in sorted(largest.items()) for point in _group_points(group)]
    if not points:
        raise BadInput(
            f"{results / 'records'} holds no measured record that is ok; run: shardbench run quick --backend measured"
        )
    return points


def points(records: Iterable[Record]) -> list[PredictedTime]:
    """Return the times of the measured rows that are ok: of the step and the exchange, then of every rank."""
    return [point for group in _measured_groups(records) for point in _group_points(group)]


def _measured_groups(records: Iterable[Record]) -> list[Group]:
    """Return the measured groups whose times are compared."""
    measured = groups(record for record in records if record.spec.backend is Backend.MEASURED)
    return [group for group in measured if group.compared]


def _size(group: Group) -> int:
    return sum(len(row.records) for row in group.ok_rows)


def _group_points(group: Group) -> list[PredictedTime]:
    every = [record for row in group.ok_rows for record in row.records if record.timing]
    cpu = all(record.timing is not None and record.timing.embedding_cpu_ms is not None for record in every)
    noises = _noises(group, cpu=cpu)
    points = []
    for row in group.ok_rows:
        for (seed, plan), trials in row.same_plan.items():
            predicted = next((r.predicted for r in reversed(trials) if r.predicted is not None), None)
            if predicted is None:
                continue
            draws = next((r.draws for r in reversed(trials) if r.draws is not None), None)
            predictions, measured = predicted_ms(predicted, cpu=cpu), _repeats(trials, cpu=cpu)
            one_plan = Row(strategy=row.strategy, records=tuple(trials))
            points += [
                PredictedTime(
                    condition=group.condition,
                    strategy=row.strategy,
                    seed=seed,
                    plan=plan,
                    key=key,
                    predicted_ms=predictions[key],
                    repeats_ms=measured[key],
                    compared_numbers=group.numbers(one_plan) if key == STEP else measured[key],
                    iterations=sum(len(r.timing.step_ms) for r in trials if r.timing),
                    noise=noises.get(key.quantity),
                    calibrated_on=trials[-1].calibrated_on,
                    torchrec_ms=one_plan.torchrec_ms if key == STEP else None,
                    draws=draws,
                )
                for key in predictions
                if key in measured
            ]
    return points


def _noises(group: Group, *, cpu: bool) -> dict[str, Noise | None]:
    """Return the noise of each quantity, to which ranks that idle add nothing."""
    repeats: dict[str, list[tuple[float, ...]]] = {}
    for row in group.ok_rows:
        for trials in row.same_plan.values():
            for key, numbers in _repeats(trials, cpu=cpu).items():
                if key != STEP and min(numbers) > IDLE_MS:
                    repeats.setdefault(key.quantity, []).append(numbers)
    return {STEP.quantity: group.noise} | {quantity: pooled_noise(samples) for quantity, samples in repeats.items()}


def _repeats(trials: Sequence[Record], *, cpu: bool) -> dict[Key, tuple[float, ...]]:
    """Return one number a trial of each kind that all of them measured."""
    times = [measured_ms(record.timing, cpu=cpu) for record in trials if record.timing]
    return {key: tuple(one[key] for one in times) for key in times[0] if all(key in one for one in times)}


def measured_ms(timing: Timing, *, cpu: bool) -> dict[Key, float]:
    """Return the times in ms that a trial measured; with ``cpu``, kernels and dense model in CPU time.

    A rank waits in an exchange for those that come later, so the one that waited least tells how long it takes.
    """
    clock = ClockKind.CPU if cpu else ClockKind.WALL
    kernels = timing.kernels_ms if cpu else timing.embedding_ms
    by_key = {STEP: float(np.median(timing.step_ms))}
    if timing.ranks:
        by_key[EXCHANGE] = min(
            sum(rank.phases_ms.get(phase, 0.0) for phase in EXCHANGE_PHASES) for rank in timing.ranks
        )
    by_key |= {Key(EMBEDDING, rank, clock): ms for rank, ms in enumerate(kernels)}
    for number, rank in enumerate(timing.ranks or ()):
        for phase in _ON_RANKS:
            own = clock if phase in _COMPUTED else ClockKind.WALL
            times = (rank.phases_cpu_ms or {}) if own is ClockKind.CPU else rank.phases_ms
            if phase in times:
                by_key[Key(phase.value, number, own)] = times[phase]
    return by_key


def predicted_ms(timing: Timing, *, cpu: bool) -> dict[Key, float]:
    """Return the times in ms that the model says, by the keys of those that are measured.

    The all-reduce is in the exchange, as what of it nothing hides lengthens the measured exchange of gradients.
    """
    clock = ClockKind.CPU if cpu else ClockKind.WALL
    exchange = sum(timing.phases_ms.get(phase, 0.0) for phase in (*EXCHANGE_PHASES, StepPhase.ALL_REDUCE))
    by_key = {STEP: float(np.median(timing.step_ms)), EXCHANGE: exchange}
    by_key |= {Key(EMBEDDING, rank, clock): ms for rank, ms in enumerate(timing.embedding_ms)}
    for number in range(len(timing.embedding_ms)):
        for phase in _ON_RANKS:
            ms = _of_rank(timing, number, phase)
            if ms is not None:
                by_key[Key(phase.value, number, clock if phase in _COMPUTED else ClockKind.WALL)] = ms
    return by_key


def _of_rank(timing: Timing, rank: int, phase: StepPhase) -> float | None:
    if timing.ranks:
        return timing.ranks[rank].phases_ms.get(phase)
    # The slowest rank's kernels are not every rank's; the other phases take all ranks as long.
    return None if phase in KERNELS else timing.phases_ms.get(phase)


def merge_plans(points: Sequence[PredictedTime]) -> list[PredictedTime]:
    """Merge the times of one plan: strategies that agree are A/A repeats, not things to rank."""
    same: dict[tuple[object, ...], list[PredictedTime]] = {}
    for p in points:
        same.setdefault((p.condition, p.plan, p.key), []).append(p)
    return [
        replace(
            several[0],
            repeats_ms=tuple(ms for p in several for ms in p.repeats_ms),
            compared_numbers=tuple(number for p in several for number in p.compared_numbers),
            iterations=sum(p.iterations for p in several),
        )
        for several in same.values()
    ]


def by_condition(points: Iterable[PredictedTime]) -> list[list[PredictedTime]]:
    """Return the times of each group, in the order of conditions: only within a group are plans compared."""
    groups: dict[Condition, list[PredictedTime]] = {}
    for point in points:
        groups.setdefault(point.condition, []).append(point)
    return [members for _, members in sorted(groups.items())]


def pair_orders(points: Sequence[PredictedTime], predicted: Floats) -> Floats | None:
    """Return how the pairs that differ by more than the noise are predicted: float64 [pairs], always the same pairs.

    The times are of one group and quantity, ``predicted`` float64 [times] a judge's. A pair is 1 where it is predicted
    in the right order, -1 in the wrong one and 0 where predicted as equal. None is returned where the noise is unknown.
    """
    noise = points[0].noise
    if noise is None:
        return None
    first, second = np.triu_indices(len(points), k=1)
    logs = np.asarray([np.log(point.compared_numbers).mean() for point in points])
    shares = 1.0 / np.asarray([len(point.compared_numbers) for point in points])
    apart = logs[first] - logs[second]
    # The least significant difference grows with the root of 1 / n_a + 1 / n_b.
    beyond = np.abs(apart) > noise.least_log(1, 1) * np.sqrt((shares[first] + shares[second]) / 2.0)
    predicted_gaps = predicted[first] - predicted[second]
    predicted_gaps[np.abs(predicted_gaps) <= SAME * predicted[first]] = 0.0
    return np.asarray((np.sign(predicted_gaps) * np.sign(apart))[beyond])


def points_csv(points: Sequence[PredictedTime]) -> str:
    """Write the table, one line a predicted time, in ms; ``n`` counts repeats."""
    rows = [_cells(point) for point in points]
    return csv_text(rows[0], (map(str, row.values()) for row in rows))


def _cells(point: PredictedTime) -> Mapping[str, object]:
    n = len(point.repeats_ms)
    noise, error = point.noise, point.error
    return {
        "workload": point.condition.workload,
        "strategy": point.strategy,
        "quantity": point.key.quantity,
        "rank": "" if point.key.rank is None else point.key.rank,
        "clock": point.key.clock,
        "predicted_ms": f"{point.predicted_ms:.5f}",
        "measured_ms": f"{point.measured_ms:.5f}",
        "error_pct": "" if error is None else f"{100.0 * error:.1f}",
        "machine": point.condition.machine,
        "batch_size": point.condition.batch_size,
        **{name: getattr(point.condition, name) for name in TRAINING},
        "seed": point.seed,
        "n": n,
        "iterations": point.iterations,
        "noise_pct": "" if noise is None else f"{noise.least_pct(n, n):.3f}",
    }
