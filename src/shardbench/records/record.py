"""The record of a trial: everything that is ever printed about it."""

import statistics
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import numpy as np
import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from shardbench.base.serialise import FiniteModel
from shardbench.cost.bounds.embedding import NO_BOUND
from shardbench.model.plan import ShardingGroups
from shardbench.model.strategy import Move, Role
from shardbench.records.base_record import BaseRecord
from shardbench.records.provenance import GIVEN_PLAN
from shardbench.records.trial import LEFT_OUT, Backend, Failure, Outcome, TrialSpec

ROUNDING = 1e-9
"""Relative difference that sums in another order make."""
Milliseconds = Annotated[float, Field(ge=0)]
FASTEST = 3
"""Iterations of a measured trial that say how long its step takes."""


def fast_ms(step_ms: Sequence[float]) -> float:
    """Return the mean of the three fastest iterations: what else a machine does makes steps longer, never shorter."""
    return float(np.mean(sorted(step_ms)[:FASTEST]))


class Tiers(StrEnum):
    """The meaning of the split of memory into HBM, UVM and host for a trial's times."""

    SIMULATED = "simulated"
    PHYSICAL = "physical"
    COUNTED = "counted only"
    """Ranks on a CPU: all tiers are the same memory, so they have no physical meaning for what was measured."""


class Planned(FiniteModel):
    """The plan in numbers and what making it took, once for all repeats that a session runs."""

    plan_hash: str
    plan_s: NonNegativeFloat
    """Wall seconds from handing over the strategy, or asking one that has learned, to the last byte of its answer."""
    fit_s: NonNegativeFloat
    """Wall seconds of learning, handing over the strategy included; 0 where it learns nothing."""
    plan_cpu_s: NonNegativeFloat | None = None
    """CPU seconds of the process that planned, as the kernel counts them; these two are None in earlier records."""
    fit_cpu_s: NonNegativeFloat | None = None
    segments: NonNegativeInt
    moves: tuple[Move, ...]
    notes: dict[str, float | int | str]
    groups: ShardingGroups | None = Field(default=None, exclude_if=lambda groups: groups is None)
    """The sharding groups that the plan states; None where they are its nodes."""
    hbm_memory_bytes: tuple[NonNegativeInt, ...]
    """Weights and optimiser state per rank."""
    uvm_memory_bytes: tuple[NonNegativeInt, ...]
    host_memory_bytes: tuple[NonNegativeInt, ...]
    """Memory of the hosts, per node."""


class RankTiming(FiniteModel):
    """Milliseconds of one rank by phase: medians over iterations where measured, means over batches where predicted."""

    phases_ms: dict[str, Milliseconds]
    """Wall time; an exchange includes the wait for slower ranks."""
    phases_cpu_ms: dict[str, Milliseconds] | None = None
    """CPU time of the threads that work for the phase; None on devices."""


class Timing(FiniteModel):
    """Milliseconds, by the record's backend."""

    step_ms: tuple[Milliseconds, ...]
    """One number an iteration: the slowest rank's step."""
    phases_ms: dict[str, Milliseconds]
    """Median over iterations of the slowest rank's phase."""
    embedding_ms: tuple[Milliseconds, ...]
    """Forward and backward embedding kernels per rank: mean over batches where simulated (what the
    bounds are proven for), median over iterations where measured."""
    embedding_cpu_ms: tuple[Milliseconds, ...] | None = None
    """The same in CPU time, per rank; None where simulated and on devices."""
    ranks: tuple[RankTiming, ...] | None = None
    """Times of each rank; None in records of versions that did not keep them."""

    @property
    def kernels_ms(self) -> tuple[float, ...]:
        """Return embedding times per rank by the clock that other work disturbs least: CPU time where there is one."""
        return self.embedding_cpu_ms if self.embedding_cpu_ms is not None else self.embedding_ms


class Control(FiniteModel):
    """The group's common plan, held by the same ranks beside the trial's and stepped in turn with it."""

    plan_hash: str
    step_ms: tuple[Milliseconds, ...]
    """The slowest rank's step in the turn of each of the trial's iterations, wall time."""


class Draws(FiniteModel):
    """The prediction under other constants, drawn within what is known of the machine's.

    Draw i has the same constants in every trial of a machine, so that trials compare draw by draw.
    """

    step_ms: tuple[Milliseconds, ...]
    """Mean step, one number a draw."""
    embedding_ms: tuple[Milliseconds, ...]
    """Slowest rank's mean embedding time, one number a draw."""

    @pydantic.model_validator(mode="after")
    def _as_many(self) -> "Draws":
        if len(self.step_ms) != len(self.embedding_ms) or not self.step_ms:
            raise ValueError(f"{len(self.step_ms)} step_ms and {len(self.embedding_ms)} embedding_ms: one each a draw")
        return self


class TrafficTotals(FiniteModel):
    """Counted, mean per iteration, all ranks together unless per rank."""

    lookups: NonNegativeFloat
    off_hbm_lookups: NonNegativeFloat
    distinct_rows: tuple[NonNegativeFloat, ...]
    """Rows that each rank touches, each once."""
    hbm_bytes: NonNegativeFloat
    uvm_bytes: NonNegativeFloat
    host_bytes: NonNegativeFloat
    """Weight bytes looked up, by tier."""
    collectives: dict[str, tuple[NonNegativeFloat, NonNegativeFloat]]
    """Name -> (bytes sent inside nodes, across nodes)."""
    host_vectors_bytes: NonNegativeFloat | None = None
    """Vectors that hosts looked up, on their way to a device; gradients return alike. These three are None in records
    of versions that did not keep them."""
    copied_to_device_bytes: NonNegativeFloat | None = None
    """Hot rows and their state, from the host to all devices that hold them, where a batch schedule changes phase."""
    copied_to_host_bytes: NonNegativeFloat | None = None
    """The same from one device back."""


class Record(BaseRecord):
    """The outcome of one trial: all that it gave, or why it gave nothing."""

    spec: TrialSpec
    outcome: Outcome
    failure: Failure | None = None
    role: Role
    planned: Planned | None = None
    timing: Timing | None = None
    predicted: Timing | None = None
    """The cost model's times for the same plan and batches; they equal ``timing`` where simulated."""
    calibrated_on: str | None = None
    """Measured only: the processors that the constants behind ``predicted`` were measured on."""
    control: Control | None = None
    """The common plan's steps; measured only."""
    draws: Draws | None = None
    """How sure the cost model is of ``predicted``. None where the machine states no errors, and in all but
    the first of a plan's measured trials: draws are of the plan."""
    traffic: TrafficTotals | None = None
    """What ranks send and look up; None as well in measured records of which steps alone are kept."""
    tiers: Tiers | None = None
    """The meaning of the tiers; None in records of versions that did not say."""
    measured_bytes: dict[str, NonNegativeFloat] | None = None
    """Measured backend: algorithmic bytes the ranks really sent, by collective, all ranks."""
    ranks_hash: str | None = None
    """Measured only: hash of what the ranks left, which is recorded once. These two are None in earlier records."""
    least_step_ms: float | None = None
    """Measured only: what the counted bytes take at the link rates that calibration reached; None where it reached none
    and in earlier records."""
    hosts: PositiveInt | None = None
    """Measured only: machines that the ranks ran on; with fewer than the machine has nodes, nodes were emulated."""
    cores: PositiveInt | None = None
    """Measured only: cores that the ranks could use, on all hosts together; None in earlier records."""
    others_share: NonNegativeFloat | None = None
    """Measured only: share of all cores' time that other processes used, or that the machine was not given, while the
    ranks ran; None where the system does not say, where they ran elsewhere and in earlier records."""
    bound_ms: float | None = None
    """Proven lower bound on the slowest rank's embedding time under the cost model, any device move.

    Older records have one of plans with a host or a batch schedule, too, about which nothing is proven (``bounded``).
    """
    bound_fixed_ms: float | None = None
    """The part of that bound that is launches and dispatch."""
    whole_table_bound_ms: float | None = None
    """The same where every table stays whole on one device."""
    mean_step_ms: float | None = None
    """Mean predicted step over the distinct test batches. These three are None in records of earlier versions."""
    step_bound_ms: float | None = None
    """Proven lower bound on it, any device move."""
    own_step_bound_ms: float | None = None
    """The same for the moves that the strategy declares."""
    torchrec_estimate_ms: NonNegativeFloat | None = None
    """The plan's step by TorchRec's own estimator; None where TorchRec cannot express it, and in earlier records."""
    peak_bytes: NonNegativeFloat | None = Field(default=None, exclude_if=lambda peak: peak is None)
    """The most that the fullest device is predicted to hold in a step by the lookups that profiles expect, the trial's
    dense model included; None where nothing is predicted, and in earlier records."""

    def ended(self, failure: Failure | None, **fields: object) -> "Record":
        """Return this record with other fields and this failure, or ok: simulated, a trial takes what is predicted."""
        content = {name: getattr(self, name) for name in Record.model_fields} | fields
        outcome = failure.outcome if failure is not None else Outcome.OK
        if failure is None and self.spec.backend is Backend.SIMULATED:
            content["timing"] = content["predicted"]
        return Record.model_validate({**content, "failure": failure, "outcome": outcome})

    @property
    def bounded(self) -> bool:
        """Tell whether the bounds are about this trial: simulated, of a plan with no move of ``NO_BOUND``."""
        moves = self.planned.moves if self.planned is not None else ()
        return self.spec.backend is Backend.SIMULATED and not NO_BOUND & set(moves)

    @property
    def of_given_plan(self) -> bool:
        """Tell whether the plan was given, so that the record is about that plan and no strategy's code."""
        made_by = self.provenance.made_by if self.provenance is not None else None
        return (made_by or "").startswith(GIVEN_PLAN)

    @property
    def left_out(self) -> bool:
        """Tell whether it is a repeat that was not measured, as its strategy was out: no trial of its row."""
        return self.failure is not None and self.failure.phase == LEFT_OUT

    @property
    def shares_cores(self) -> bool:
        """Tell whether more ranks on CPUs ran than there were cores, so that its times are of how those were shared."""
        world = len(self.planned.hbm_memory_bytes) if self.planned is not None else 0
        return self.tiers is Tiers.COUNTED and self.cores is not None and world > self.cores

    @property
    def expected_key(self) -> str:
        """Return the hash of the spec."""
        return self.spec.key

    @property
    def about(self) -> str:
        """Return the name of the strategy."""
        return self.spec.strategy

    @property
    def summary(self) -> str:
        """Say which trial it is and its outcome; ``ms/step`` is the median over its n iterations."""
        head = f"{self.spec.text}: {self.outcome}"
        if self.failure is not None:
            return f"{head} in {self.cause}"
        steps = self.timing.step_ms if self.timing is not None else ()
        return f"{head} {statistics.median(steps):.3g} ms/step (n={len(steps)})" if steps else head

    @property
    def cause(self) -> str:
        """Return phase, rank and cause of the failure."""
        if self.failure is None:
            return ""
        rank = f" (rank {self.failure.rank})" if self.failure.rank is not None else ""
        return f"{self.failure.phase}{rank}: {self.failure.cause}"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Record":
        if (self.outcome is Outcome.OK) != (self.failure is None):
            raise ValueError("a record has a failure exactly where its outcome is not ok")
        counts = self.traffic is not None or self.spec.backend is Backend.MEASURED
        if self.outcome is Outcome.OK and (self.timing is None or self.planned is None or not counts):
            raise ValueError("an ok record needs planned and timing, a simulated one traffic as well")
        if self.timing is not None and self.planned is not None:
            self._check_lengths(self.timing, self.planned)
        self._check_mean()
        return self

    def _check_mean(self) -> None:
        steps = self.predicted.step_ms if self.predicted is not None else ()
        if self.mean_step_ms is not None and steps:
            # Iterations step through the distinct batches, and then through them again.
            means = np.cumsum(steps) / np.arange(1, len(steps) + 1)
            if not np.isclose(means, self.mean_step_ms, rtol=ROUNDING, atol=0.0).any():
                raise ValueError(f"predicted.step_ms contradict mean_step_ms, {self.mean_step_ms:g}")
        if self.spec.backend is Backend.SIMULATED and self.timing not in (None, self.predicted):
            raise ValueError("timing of a simulated trial is not what is predicted")

    def _check_lengths(self, timing: Timing, planned: Planned) -> None:
        world = len(planned.hbm_memory_bytes)
        of_ranks = {
            "planned.uvm_memory_bytes": planned.uvm_memory_bytes,
            "timing.embedding_ms": timing.embedding_ms,
            "timing.embedding_cpu_ms": timing.embedding_cpu_ms,
            "predicted.embedding_ms": self.predicted.embedding_ms if self.predicted is not None else None,
            "traffic.distinct_rows": self.traffic.distinct_rows if self.traffic is not None else None,
        }
        for name, values in of_ranks.items():
            if values and len(values) != world:
                raise ValueError(f"{name} is of {len(values)} ranks, the plan of {world}")
        if not timing.step_ms or (self.control is not None and len(self.control.step_ms) != len(timing.step_ms)):
            raise ValueError("timing and control have as many steps, at least one")
