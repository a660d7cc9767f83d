"""Rows of tables: the trials of one strategy under one condition, and the records that count."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardbench.model.strategy import Role
from shardbench.model.table import Optimizer, Precision, StepSchedule
from shardbench.records.record import Record
from shardbench.records.trial import Backend, Outcome, unusual
from shardbench.report.standing import UNSHARDED, trained_model

SEVERITY = (
    Outcome.OK, Outcome.SKIPPED, Outcome.INFEASIBLE, Outcome.OOM, Outcome.TIMEOUT, Outcome.INVALID, Outcome.ERROR,
)  # fmt: skip
"""Mildest first; a row shows the worst of its trials."""


class Condition(NamedTuple):
    """What must be equal for two numbers to be compared."""

    workload: str
    machine: str
    backend: Backend
    batch_size: int
    precision: Precision
    optimizer: Optimizer
    exchange: Precision
    schedule: StepSchedule
    trains: str = UNSHARDED
    """What model the plans train: a strategy that trains another one is compared with nothing but itself."""

    @classmethod
    def of(cls, record: Record) -> "Condition":
        """Condition of a record."""
        settings = {name: getattr(record.spec, name) for name in cls._fields if name != "trains"}
        return cls(**settings, trains=trained_model(record.spec.strategy, record.role))

    @property
    def title(self) -> str:
        """Return the workload's name, and what its training does that ordinary training does not."""
        return ", ".join((self.workload, *unusual(self.exchange, self.schedule)))


@dataclass(frozen=True, kw_only=True)
class Row:
    """All trials (seeds and repeats) of one strategy under one condition."""

    strategy: str
    records: tuple[Record, ...]
    """The trials, by seed and then repeat."""

    @cached_property
    def worst(self) -> Record:
        """The trial with the worst outcome, the first of its kind."""
        return max(self.records, key=lambda record: SEVERITY.index(record.outcome))

    @property
    def ok(self) -> bool:
        """True where every trial ended well; only then does a row have numbers."""
        return self.worst.outcome is Outcome.OK

    @property
    def competes(self) -> bool:
        """True where the row may be the best of its group."""
        return self.ok and self.worst.role is Role.COMPETITOR

    @property
    def trials_ok(self) -> int:
        """The number of trials that ended well."""
        return sum(record.outcome is Outcome.OK for record in self.records)

    @property
    def cause(self) -> str:
        """Why the row is not ok, and where; empty where it is."""
        failure = self.worst.failure
        if failure is None:
            return ""
        at = f" of rank {failure.rank}" if failure.rank is not None else ""
        some = f" ({self.trials_ok} of {len(self.records)} trials ok)" if self.trials_ok else ""
        return f"{failure.phase}{at}: {failure.cause}{some}"

    @cached_property
    def step_ms(self) -> tuple[float, ...]:
        """Iterations of all trials together; empty where the row is not ok."""
        if not self.ok:
            return ()
        return tuple(step for record in self.records if record.timing for step in record.timing.step_ms)

    @property
    def step_draws(self) -> list[tuple[float, ...]] | None:
        """Steps under draws of constants and form, one tuple a trial; None where a trial has none."""
        draws = [record.draws.step_ms for record in self.records if record.draws]
        return draws if len(draws) == len(self.records) else None

    @property
    def embedding_draws(self) -> list[tuple[float, ...]] | None:
        """The slowest rank's embedding times under the draws, one tuple a trial; None where a trial has none."""
        draws = [record.draws.embedding_ms for record in self.records if record.draws]
        return draws if len(draws) == len(self.records) else None

    @cached_property
    def same_plan(self) -> dict[tuple[int, str], list[Record]]:
        """Trials by seed and plan: a planner that works against the clock may give another one each time."""
        same: dict[tuple[int, str], list[Record]] = {}
        for record in self.records:
            if record.timing is not None and record.planned is not None:
                same.setdefault((record.spec.seed, record.planned.plan_hash), []).append(record)
        return same

    @property
    def torchrec_ms(self) -> float | None:
        """Median over trials of the step by TorchRec's estimator; None where it gave none for some plan."""
        estimated = all(record.torchrec_estimate_ms is not None for record in self.records)
        return self.typical(lambda record: record.torchrec_estimate_ms) if estimated else None

    def typical(self, number: Callable[[Record], float | None]) -> float | None:
        """Median over trials of a number of each; None where the row is not ok or no trial has it."""
        numbers = [value for record in self.records if (value := number(record)) is not None] if self.ok else []
        return float(np.median(numbers)) if numbers else None


def slowest_embedding_ms(record: Record) -> float | None:
    """Return the embedding time of the trial's slowest rank; None where it was not timed."""
    return max(record.timing.embedding_ms, default=None) if record.timing else None


def predicted_step_ms(record: Record) -> float | None:
    """Return the median step that the cost model predicted; None where the record has none."""
    return float(np.median(record.predicted.step_ms)) if record.predicted else None


def current(records: Iterable[Record]) -> list[Record]:
    """The records that count, in the order given (the order of writing).

    Of each (condition, strategy, seed, repeat) the last one; and none that was made with
    another version of the workload or of the machine than the condition's last record.
    """
    in_order = list(records)
    version = {Condition.of(record): _version(record) for record in in_order}
    last = {
        (Condition.of(record), record.spec.strategy, record.spec.seed, record.spec.repeat): record
        for record in in_order
        if _version(record) == version[Condition.of(record)]
    }
    return list(last.values())


def _version(record: Record) -> tuple[str, str]:
    return record.spec.workload_fingerprint, record.spec.machine_hash
