"""Predicted against measured: every time that the cost model gives for a measured trial, beside what its ranks took."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.base.generated import csv_text
from shardbench.base.statistics import Noise, pooled_noise
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, StepPhase
from shardbench.records.record import RankTiming, Record, Timing
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend
from shardbench.report.groups import Condition, Group, Row, groups

COLUMNS = (
    "workload", "strategy", "quantity", "rank", "clock", "predicted_ms", "measured_ms", "error_pct", "machine",
    "batch_size", "precision", "optimizer", "seed", "n", "iterations", "noise_pct",
)  # fmt: skip
FILE = Path("tables") / "prediction" / "points.csv"
IDLE_MS = 0.1
"""A rank with less work than this has none to speak of; a ratio to it says nothing."""
_ON_RANKS = (*EXCHANGE_PHASES, *KERNELS, StepPhase.DENSE)
"""Phases that both clock and model tell apart."""
_COMPUTED = (*KERNELS, StepPhase.DENSE)
"""Those in which a rank waits for no other, so that CPU time says what they take."""


class Clock(StrEnum):
    """What a measured number was read off."""

    WALL = "wall"
    CPU = "cpu"


class Key(NamedTuple):
    """One kind of number of a trial: of the whole step (no rank) or of a rank."""

    quantity: str
    """``step``, ``exchange``, ``embedding`` (both kernels), or a phase."""
    rank: int | None
    clock: Clock


STEP = Key("step", None, Clock.WALL)
EXCHANGE = Key("exchange", None, Clock.WALL)
EMBEDDING = "embedding"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One predicted number and those of the repeats of its plan."""

    condition: Condition
    strategy: str
    seed: int
    plan: str
    key: Key
    predicted_ms: float
    repeats_ms: tuple[float, ...]
    """One number a repeat (trial)."""
    compared: tuple[float, ...]
    """One number a repeat, by which points of a group are put in order: a step's ratio to the control, else the ms."""
    iterations: int
    noise: Noise | None
    """Of ``compared`` in its group, from repeats of one plan; None where nothing was repeated."""
    calibrated_on: str | None

    @property
    def measured_ms(self) -> float:
        """Median over repeats."""
        return float(np.median(self.repeats_ms))

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1; None where the rank idles."""
        return self.predicted_ms / self.measured_ms - 1.0 if self.counts else None

    @property
    def counts(self) -> bool:
        """Whether there is work to speak of in every repeat."""
        return min(self.repeats_ms) > IDLE_MS


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
    """Points of the measured rows that are ok: the step and the exchange, then every rank's."""
    found = []
    for group in groups(record for record in records if record.spec.backend is Backend.MEASURED):
        found += _group_points(group)
    return found


def _group_points(group: Group) -> list[Point]:
    every = [record for row in group.ok_rows for record in row.records if record.timing]
    cpu = all(record.timing is not None and record.timing.embedding_cpu_ms is not None for record in every)
    noises = _noises(group, cpu=cpu)
    found = []
    for row in group.ok_rows:
        for (seed, plan), trials in row.same_plan.items():
            predicted = next((r.predicted for r in reversed(trials) if r.predicted is not None), None)
            if predicted is None:
                continue
            foreseen, measured = predicted_ms(predicted, cpu=cpu), _repeats(trials, cpu=cpu)
            found += [
                Point(
                    condition=group.condition,
                    strategy=row.strategy,
                    seed=seed,
                    plan=plan,
                    key=key,
                    predicted_ms=foreseen[key],
                    repeats_ms=measured[key],
                    compared=_compared(group, trials) if key == STEP else measured[key],
                    iterations=sum(len(r.timing.step_ms) for r in trials if r.timing),
                    noise=noises.get(key.quantity),
                    calibrated_on=trials[-1].calibrated_on,
                )
                for key in foreseen
                if key in measured
            ]
    return found


def _compared(group: Group, trials: Sequence[Record]) -> tuple[float, ...]:
    return group.numbers(Row(strategy=trials[0].spec.strategy, records=tuple(trials)))


def _noises(group: Group, *, cpu: bool) -> dict[str, Noise | None]:
    """By quantity; ranks that idle have none."""
    repeats: dict[str, list[tuple[float, ...]]] = {}
    for row in group.ok_rows:
        for trials in row.same_plan.values():
            for key, numbers in _repeats(trials, cpu=cpu).items():
                if key != STEP and min(numbers) > IDLE_MS:
                    repeats.setdefault(key.quantity, []).append(numbers)
    return {STEP.quantity: group.noise} | {quantity: pooled_noise(found) for quantity, found in repeats.items()}


def _repeats(trials: Sequence[Record], *, cpu: bool) -> dict[Key, tuple[float, ...]]:
    """One number a trial, of what all of them measured."""
    found = [measured_ms(record.timing, cpu=cpu) for record in trials if record.timing]
    return {key: tuple(one[key] for one in found) for key in found[0] if all(key in one for one in found)}


def measured_ms(timing: Timing, *, cpu: bool) -> dict[Key, float]:
    """What a trial measured; with ``cpu``, kernels and dense model in CPU time.

    A rank waits in an exchange for those that come later, so the one that waited least tells how long it takes.
    """
    clock = Clock.CPU if cpu else Clock.WALL
    kernels = timing.kernels_ms if cpu else timing.embedding_ms
    found = {STEP: float(np.median(timing.step_ms))}
    if timing.ranks:
        found[EXCHANGE] = min(sum(rank.phases_ms.get(phase, 0.0) for phase in EXCHANGE_PHASES) for rank in timing.ranks)
    found |= {Key(EMBEDDING, rank, clock): ms for rank, ms in enumerate(kernels)}
    for number, rank in enumerate(timing.ranks or ()):
        found |= _phases(number, rank, clock)
    return found


def _phases(number: int, rank: RankTiming, clock: Clock) -> dict[Key, float]:
    found = {}
    for phase in _ON_RANKS:
        own = clock if phase in _COMPUTED else Clock.WALL
        times = (rank.phases_cpu_ms or {}) if own is Clock.CPU else rank.phases_ms
        if phase in times:
            found[Key(phase.value, number, own)] = times[phase]
    return found


def predicted_ms(timing: Timing, *, cpu: bool) -> dict[Key, float]:
    """What the model says, by the keys of what was measured.

    The all-reduce is in the exchange, as what of it nothing hides lengthens the measured exchange of gradients.
    """
    clock = Clock.CPU if cpu else Clock.WALL
    exchange = sum(timing.phases_ms.get(phase, 0.0) for phase in (*EXCHANGE_PHASES, StepPhase.ALL_REDUCE))
    found = {STEP: float(np.median(timing.step_ms)), EXCHANGE: exchange}
    found |= {Key(EMBEDDING, rank, clock): ms for rank, ms in enumerate(timing.embedding_ms)}
    for number in range(len(timing.embedding_ms)):
        for phase in _ON_RANKS:
            ms = _of_rank(timing, number, phase)
            if ms is not None:
                found[Key(phase.value, number, clock if phase in _COMPUTED else Clock.WALL)] = ms
    return found


def _of_rank(timing: Timing, rank: int, phase: StepPhase) -> float | None:
    if timing.ranks:
        return timing.ranks[rank].phases_ms.get(phase)
    # The slowest rank's kernels are not every rank's; the other phases take all ranks as long.
    return None if phase in KERNELS else timing.phases_ms.get(phase)


def table_csv(found: Sequence[Point]) -> str:
    """The table: one line a point, in ms; ``n`` counts repeats."""
    return csv_text(COLUMNS, (map(str, _cells(point).values()) for point in found))


def _cells(point: Point) -> Mapping[str, object]:
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
        "precision": point.condition.precision,
        "optimizer": point.condition.optimizer,
        "seed": point.seed,
        "n": n,
        "iterations": point.iterations,
        "noise_pct": "" if noise is None else f"{noise.least_pct(n, n):.3f}",
    }


def expected_file(results: Path, found: Sequence[Point]) -> dict[Path, str]:
    """Text of ``<results>/tables/prediction/points.csv``."""
    return {results / FILE: table_csv(found)}
